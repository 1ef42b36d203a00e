"""When each open transaction is to be asked about next.

The schedule counts time that only goes forward: when the clock is set back, a question due in
ten seconds is still due in ten seconds. A transaction of a group without a connected producer is
*parked*: no producer can be asked, so it waits until one of the group is there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from contrail.broker.state.transaction_records import Half

PARKED = -1
# Entries of transactions that are over leave when they are met, or when they are too many.
_STALE_MAX = 10_000


class CheckSchedule:
    """Transactions by the time of their next check; ``is_open`` says which are not over."""

    def __init__(self, is_open: Callable[[Half], bool]) -> None:
        self._is_open = is_open
        self._heap: list[tuple[int, int, Half]] = []
        self._parked: dict[str, list[Half]] = {}
        self._parked_count = 0
        self._entry_count = 0
        self._count_max = _STALE_MAX
        self._now_ms = 0
        self._set_back_ms = 0

    def observe(self, now_ms: int) -> None:
        """Learn the time."""
        self._set_back_ms += max(0, self._now_ms - now_ms)
        self._now_ms = now_ms

    def put(self, half: Half, *, in_ms: int) -> None:
        """Have a transaction taken again after some time; an earlier wish is void."""
        half.due_ms = self._now_ms + self._set_back_ms + in_ms
        self._entry_count += 1
        half.entry = self._entry_count
        heapq.heappush(self._heap, (half.due_ms, half.entry, half))
        if len(self._heap) > self._count_max:
            self._sweep()

    def take_due(self, count_max: int) -> list[Half]:
        """The transactions whose time has come, at most ``count_max``."""
        due: list[Half] = []
        now_ms = self._now_ms + self._set_back_ms
        while self._heap and self._heap[0][0] <= now_ms and len(due) < count_max:
            entry = heapq.heappop(self._heap)
            if self._is_current(*entry):
                due.append(entry[2])
        return due

    def next_check_ms(self, half: Half) -> int:
        """The clock's time of the next check; ``PARKED`` if it waits for a producer."""
        return PARKED if half.due_ms == PARKED else half.due_ms - self._set_back_ms

    # Without a producer.

    def park(self, half: Half) -> None:
        half.due_ms, half.entry = PARKED, PARKED
        self._parked.setdefault(half.group, []).append(half)
        self._parked_count += 1
        if self._parked_count > self._count_max:
            self._sweep()

    def parked_among(self, groups: Mapping[str, object]) -> AbstractSet[str]:
        """Those of the groups that something waits for; takes as long as the fewer of both."""
        return self._parked.keys() & groups.keys()

    def release(self, group: str, count_max: int) -> int:
        """A producer of the group is there: some of its transactions are due now; how many."""
        parked = self._parked.pop(group, [])
        released, left = parked[:count_max], parked[count_max:]
        if left:
            self._parked[group] = left
        self._parked_count -= len(released)
        for half in released:
            if half.due_ms == PARKED and self._is_open(half):
                self.put(half, in_ms=0)
        return len(released)

    def _sweep(self) -> None:
        """Drop entries that are over; the rest may double before the next sweep."""
        self._heap = [entry for entry in self._heap if self._is_current(*entry)]
        heapq.heapify(self._heap)
        kept = {group: self._still_parked(halves) for group, halves in self._parked.items()}
        self._parked = {group: halves for group, halves in kept.items() if halves}
        self._parked_count = sum(map(len, self._parked.values()))
        self._count_max = 2 * max(len(self._heap), self._parked_count) + _STALE_MAX

    def _still_parked(self, halves: list[Half]) -> list[Half]:
        parked = (half for half in halves if half.due_ms == PARKED and self._is_open(half))
        return list(dict.fromkeys(parked))

    def _is_current(self, due_ms: int, entry: int, half: Half) -> bool:
        return half.entry == entry and self._is_open(half)

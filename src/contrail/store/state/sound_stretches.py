"""Stretches of the log and when each was verified.

A consumer that reads a backlog has one answer verified after the other. Adjacent stretches are kept
as one, so that a million messages take no more room here than a few.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

_STRETCHES_MAX = 4096
# Adjacent stretches verified within this time become one, which counts as old as the older one.
_TOGETHER_MS = 5000


class SoundStretches:
    """Disjoint, in the order of the log."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._verified_ms: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def verified_ms(self, start: int, end: int) -> int | None:
        """When these bytes were verified; None unless one stretch holds all of them."""
        found = self.around(start, end)
        return None if found is None else found[2]

    def around(self, start: int, end: int) -> tuple[int, int, int] | None:
        """Start and end of the stretch that holds all these bytes, and when it was verified."""
        index = bisect_right(self._starts, start) - 1
        if index < 0 or self._ends[index] < end:
            return None
        return self._starts[index], self._ends[index], self._verified_ms[index]

    def add(self, start: int, end: int, now_ms: int) -> None:
        """Note that these bytes were verified now."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first == last:
            self._put(first, last, [(start, end, now_ms)])
            return
        # The new stretch replaces all it overlaps; the outermost two may reach beyond it.
        outer_start, outer_end = self._starts[first], self._ends[last - 1]
        since_ms, until_ms = self._verified_ms[first], self._verified_ms[last - 1]
        before, behind = [], []
        verified_ms = now_ms
        if outer_start < start:
            if 0 <= now_ms - since_ms < _TOGETHER_MS:
                start, verified_ms = outer_start, since_ms
            else:
                before.append((outer_start, start, since_ms))
        if outer_end > end:
            if 0 <= now_ms - until_ms < _TOGETHER_MS:
                end, verified_ms = outer_end, min(verified_ms, until_ms)
            else:
                behind.append((end, outer_end, until_ms))
        self._put(first, last, [*before, (start, end, verified_ms), *behind])

    def remove(self, start: int, end: int) -> None:
        """Forget that these bytes were verified."""
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        if first >= last:
            return
        left = []
        if self._starts[first] < start:
            left.append((self._starts[first], start, self._verified_ms[first]))
        if self._ends[last - 1] > end:
            left.append((end, self._ends[last - 1], self._verified_ms[last - 1]))
        self._put(first, last, left)

    def forget(self, before_ms: int) -> None:
        """Drop stretches verified at ``before_ms`` or earlier."""
        if self._verified_ms and min(self._verified_ms) <= before_ms:
            self._keep([at for at, ms in enumerate(self._verified_ms) if ms > before_ms])

    def _put(self, first: int, last: int, stretches: list[tuple[int, int, int]]) -> None:
        self._starts[first:last] = [stretch[0] for stretch in stretches]
        self._ends[first:last] = [stretch[1] for stretch in stretches]
        self._verified_ms[first:last] = [stretch[2] for stretch in stretches]
        if len(self._starts) > _STRETCHES_MAX:
            self._keep_younger_half()

    def _keep_younger_half(self) -> None:
        by_age = sorted(range(len(self)), key=self._verified_ms.__getitem__)
        self._keep(sorted(by_age[len(self) // 2 :]))

    def _keep(self, places: list[int]) -> None:
        self._starts = [self._starts[at] for at in places]
        self._ends = [self._ends[at] for at in places]
        self._verified_ms = [self._verified_ms[at] for at in places]

"""Pops and notifications that wait for messages. Holds them; the caller serves them again.

A waiter waits at its topic, group and queue, where -1 stands for all queues. An arrival wakes one
waiter of all queues and one of the queue it came to; messages in a group's retry topic are arrivals
for the group alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from contrail.protocol.command import Request
from contrail.wire.peer import Peer

ALL_QUEUES = -1
GRAIN_MS = 10

Source = tuple[bytes, int]
"""A topic and a queue that messages arrive in."""


class WaitKey(NamedTuple):
    """The place a waiter waits at."""

    topic: str
    group: str
    queue_id: int


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits; its deadline is by ``Clock.elapsed_ms``."""

    request: Request
    peer: Peer
    key: WaitKey
    deadline_ms: int


class PopWaiters:
    """Waiters by key, in the order they came, and by deadline. Each is taken out once."""

    def __init__(self, *, newest_first: bool = False) -> None:
        self._newest_first = newest_first
        self._waiting: dict[WaitKey, dict[Waiter, None]] = {}
        self._sources: dict[WaitKey, tuple[Source, ...]] = {}
        # By source: the keys that an arrival there wakes.
        self._woken_by: dict[Source, dict[WaitKey, None]] = {}
        self._ending: dict[int, dict[Waiter, None]] = {}
        self._ends_ms: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_at(self, key: WaitKey) -> int:
        return len(self._waiting.get(key, ()))

    def park(
        self,
        waiter: Waiter,
        sources: Iterable[Source],
        *,
        count_max: int,
        count_per_key_max: int,
    ) -> list[Source] | None:
        """Hold a waiter; returns the sources that nobody waited at, or None when it is too many.

        RocketMQ counts after the comparison: one more than ``count_per_key_max`` wait at a key.
        """
        if self._count >= count_max or self.count_at(waiter.key) > count_per_key_max:
            return None
        fresh: list[Source] = []
        if waiter.key not in self._waiting:
            self._waiting[waiter.key] = {}
            fresh = self._begin(waiter.key, tuple(sources))
        self._waiting[waiter.key][waiter] = None
        end_ms = _end_ms(waiter)
        if end_ms not in self._ending:
            self._ending[end_ms] = {}
            heappush(self._ends_ms, end_ms)
        self._ending[end_ms][waiter] = None
        self._count += 1
        return fresh

    def _begin(self, key: WaitKey, sources: tuple[Source, ...]) -> list[Source]:
        fresh = [source for source in sources if source not in self._woken_by]
        self._sources[key] = sources
        for source in sources:
            self._woken_by.setdefault(source, {})[key] = None
        return fresh

    def take(self, waiter: Waiter) -> list[Source] | None:
        """Hold it no longer; returns the sources that nobody waits at now, None if it is gone."""
        of_key = self._waiting.get(waiter.key)
        if of_key is None or waiter not in of_key:
            return None
        del of_key[waiter]
        self._ending.get(_end_ms(waiter), {}).pop(waiter, None)
        self._count -= 1
        return [] if of_key else self._end(waiter.key)

    def _end(self, key: WaitKey) -> list[Source]:
        del self._waiting[key]
        left: list[Source] = []
        for source in self._sources.pop(key):
            keys = self._woken_by[source]
            keys.pop(key, None)
            if not keys:
                del self._woken_by[source]
                left.append(source)
        return left

    def first_at(self, key: WaitKey) -> Waiter | None:
        """The waiter of a key that an arrival wakes: the oldest, or the newest."""
        of_key = self._waiting.get(key)
        if not of_key:
            return None
        return next(reversed(of_key)) if self._newest_first else next(iter(of_key))

    def woken_by(self, source: Source) -> list[Waiter]:
        """One waiter of each key that an arrival at this source wakes."""
        found = (self.first_at(key) for key in self._woken_by.get(source, ()))
        return [waiter for waiter in found if waiter is not None]

    def of_topic(self, topic: str) -> list[Waiter]:
        return [
            waiter
            for key, waiters in self._waiting.items()
            if key.topic == topic
            for waiter in waiters
        ]

    def all(self) -> list[Waiter]:
        return [waiter for waiters in self._waiting.values() for waiter in waiters]

    @property
    def next_end_ms(self) -> int | None:
        """When the first waiter's time is over; None when none waits."""
        while self._ends_ms and not self._ending[self._ends_ms[0]]:
            del self._ending[heappop(self._ends_ms)]
        return self._ends_ms[0] if self._ends_ms else None

    def overdue(self, elapsed_ms: int) -> list[Waiter]:
        """The waiters whose time is over; they wait until they are taken."""
        found: list[Waiter] = []
        while (end_ms := self.next_end_ms) is not None and end_ms <= elapsed_ms:
            found += self._ending.pop(heappop(self._ends_ms))
        return found


def _end_ms(waiter: Waiter) -> int:
    return -(-waiter.deadline_ms // GRAIN_MS) * GRAIN_MS

"""Answers that wait until their messages are as safe as the flush policy promises.

Under ASYNC_FLUSH nothing waits. Under SYNC_FLUSH a batch of answers is parked with the log
position that must be durable first; one sync releases everything below it. How long they wait is
measured by a clock that nobody sets: a step of the wall clock is no late flush.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from contrail.clock import Clock
from contrail.protocol.codes import ResponseCode
from contrail.wire.connection import Connection
from contrail.wire.peer import Peer

Release = Callable[[ResponseCode], None]
"""Sends the answers: SUCCESS, FLUSH_DISK_TIMEOUT, or SERVICE_NOT_AVAILABLE after a failed sync."""


class Parked(NamedTuple):
    """Answers of one run, and the position that must be durable first."""

    physical_end: int
    since_ms: int
    release: Release


class Acknowledgements:
    """Parked answers in the order of their log positions."""

    def __init__(self, *, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._parked: deque[Parked] = deque()

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, physical_end: int, now_ms: int, release: Release) -> None:
        self._parked.append(Parked(physical_end, now_ms, release))

    def oldest_age_ms(self, now_ms: int) -> int:
        """How long the first in line has been waiting."""
        return now_ms - self._parked[0].since_ms if self._parked else 0

    def flushed(self, physical_end: int) -> None:
        """The log is durable up to here."""
        while self._parked and self._parked[0].physical_end <= physical_end:
            self._parked.popleft().release(ResponseCode.SUCCESS)

    def expire(self, now_ms: int) -> None:
        """Tell those that waited too long: stored, but perhaps not on the disk."""
        while self._parked and now_ms - self._parked[0].since_ms > self._timeout_ms:
            self._parked.popleft().release(ResponseCode.FLUSH_DISK_TIMEOUT)

    def fail(self) -> None:
        """A sync failed: nothing will be durable any more, and nobody is told otherwise."""
        while self._parked:
            self._parked.popleft().release(ResponseCode.SERVICE_NOT_AVAILABLE)


class FlushNews:
    """Whether more of the log is durable than sends were told; noted by the flusher's thread."""

    __slots__ = ("is_noted",)

    def __init__(self) -> None:
        self.is_noted = False


class DurableAnswers:
    """Single answers: given at once under ASYNC_FLUSH, after the sync under SYNC_FLUSH."""

    def __init__(
        self, acknowledgements: Acknowledgements, clock: Clock, *, waits_for_flush: bool
    ) -> None:
        self._acknowledgements = acknowledgements
        self._clock = clock
        self._waits_for_flush = waits_for_flush

    def when_durable(self, peer: Peer, physical_end: int, release: Release) -> None:
        """Have ``release`` answer ``peer`` once its message is as safe as promised."""
        if not self._waits_for_flush:
            release(ResponseCode.SUCCESS)
            return
        count_in_flight(peer, 1)

        def answer(code: ResponseCode) -> None:
            count_in_flight(peer, -1)
            release(code)

        self._acknowledgements.park(physical_end, self._clock.elapsed_ms(), answer)


def count_in_flight(peer: Peer, change: int) -> None:
    """Note that a request of a connection waits, or no longer: so many may at a time."""
    if isinstance(peer, Connection):
        peer.in_flight_count += change

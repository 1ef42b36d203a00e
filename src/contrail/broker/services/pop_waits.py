"""Has pops wait for messages, and serves them again when some arrive or their time is over.

A waiter that is served again passes every check once more, and may wait on with the time that is
left. Nobody is answered here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from contrail.broker.state.parked_pulls import ParkedPulls
from contrail.broker.state.pop_waiting import (
    ALL_QUEUES,
    GRAIN_MS,
    PopWaiters,
    Source,
    Waiter,
    WaitKey,
)
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.protocol.command import Request
from contrail.runtime.turns import LaterCalls, TurnWork
from contrail.store import Arrival, MessageStore
from contrail.wire.peer import Peer

_HOLD_MS_MAX = 120_000
# The periodic jobs look at deadlines once a second at least; sooner ones need a timer.
_TIMER_MS_MAX = 1000

MayStay = Callable[[Request, Peer], bool]
"""Whether a request that waits may go on waiting."""
Serve = Callable[[Request, Peer], None]
"""Carries a waiter's request out again."""


class PopWaits:
    """The waiters of one kind of request."""

    def __init__(
        self,
        settings: RuntimeSettings,
        store: MessageStore,
        watched: ParkedPulls,
        clock: Clock,
        loop: LaterCalls,
        *,
        newest_first: bool = False,
    ) -> None:
        """``watched`` tells the store in which queues arrivals matter."""
        self._settings = settings
        self._store = store
        self._watched = watched
        self._clock = clock
        self._loop = loop
        self._timer_ms = math.inf
        self.waiters = PopWaiters(newest_first=newest_first)
        # Waiters are looked at a bounded number in a turn of the loop.
        self._checks = TurnWork(loop)
        # Set before the first connection comes.
        self.serve: Serve = lambda request, peer: None

    def park(
        self, request: Request, peer: Peer, key: WaitKey, wait_ms: int, sources: list[Source]
    ) -> bool:
        """Have a request wait; False when too many do."""
        config = self._settings.config
        deadline_ms = self._clock.elapsed_ms() + min(wait_ms, _HOLD_MS_MAX)
        waiter = Waiter(request, peer, key, deadline_ms)
        # Under synchronous flush a message for it may be written but not seen yet.
        self._store.somebody_waits()
        fresh = self.waiters.park(
            waiter,
            sources,
            count_max=config.pop_waiters_max,
            count_per_key_max=config.pop_waiters_per_key_max,
        )
        if fresh is None:
            return False
        for source in fresh:
            self._watched.also_watch(source)
        if wait_ms < _TIMER_MS_MAX:
            self._ring_at(deadline_ms + GRAIN_MS)
        return True

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Messages became visible."""
        if not self.waiters:
            return
        for topic, queue_id, _, _ in arrivals:
            for waiter in self.waiters.woken_by((topic, queue_id)):
                self._serve(waiter)

    def wake_next(self, key: WaitKey) -> None:
        """An answer has left messages behind: the next waiter of its kind gets them."""
        waiter = self.waiters.first_at(key)
        if waiter is not None:
            # Not from within the request that leaves them: this may go on for many waiters.
            self._loop.call_soon(lambda: self._serve(waiter))

    def wake_queue(self, topic: str, group: str, queue_id: int) -> None:
        """A queue is free for pops in order: one waiter of each kind looks at it."""
        for place in (ALL_QUEUES, queue_id):
            self.wake_next(WaitKey(topic, group, place))

    def wake_topic(self, topic: str) -> None:
        """A topic was changed, reset or deleted."""
        for waiter in self.waiters.of_topic(topic):
            self._serve(waiter)

    def check_waiting(self, may_stay: MayStay) -> None:
        """Users or rights have changed: serve the waiters again that may wait no longer."""
        if self.waiters:
            self._checks.add(self._checked(may_stay))

    def _checked(self, may_stay: MayStay) -> Iterator[None]:
        for waiter in self.waiters.all():
            if not may_stay(waiter.request, waiter.peer):
                self._serve(waiter)
            yield

    def end_in_ms(self) -> int | None:
        """How long until the time of the first waiter is over; None while none waits."""
        end_ms = self.waiters.next_end_ms
        return None if end_ms is None else end_ms - self._clock.elapsed_ms()

    def expire(self) -> None:
        """Serve the waiters whose time is over."""
        for waiter in self.waiters.overdue(self._clock.elapsed_ms()):
            self._serve(waiter)

    def take_all(self) -> list[Waiter]:
        """All waiters, which wait no longer: the broker stops."""
        waiting = self.waiters.all()
        for waiter in waiting:
            self._take(waiter)
        return waiting

    def _serve(self, waiter: Waiter) -> None:
        if self._take(waiter) and not waiter.peer.is_closed:
            self.serve(waiter.request, waiter.peer)

    def _take(self, waiter: Waiter) -> bool:
        left = self.waiters.take(waiter)
        for source in left or ():
            self._watched.watch_no_more(source)
        return left is not None

    def _ring_at(self, end_ms: int) -> None:
        if end_ms < self._timer_ms:
            self._timer_ms = end_ms
            delay_s = max(0, end_ms - self._clock.elapsed_ms()) / 1000
            self._loop.call_later(delay_s, self._rings)

    def _rings(self) -> None:
        self._timer_ms = math.inf
        self.expire()
        end_ms = self.waiters.next_end_ms
        if end_ms is not None and end_ms < self._clock.elapsed_ms() + _TIMER_MS_MAX:
            self._ring_at(end_ms)

"""Pulls that found nothing new, held until a message arrives or their time is over.

A held pull is executed again when a message that its filter wants becomes visible, when its topic
or the rights of its group change, and at its deadline; that answer is final.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator

from contrail.broker.services.pull_admission import is_long
from contrail.broker.state.parked_pulls import DEADLINE_GRAIN_MS, ParkedPull, ParkedPulls
from contrail.broker.state.pull_plan import PullPlan
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import Clock
from contrail.protocol.command import Request, Response
from contrail.protocol.frames import PullFrame, pull_request
from contrail.runtime.turns import STEPS_IN_A_ROW, STEPS_PER_TURN, LaterCalls, TurnWork
from contrail.store import Arrival, GetResult, GetStatus, MessageStore
from contrail.wire.peer import Peer

_log = logging.getLogger(__name__)

# Clients ask for 15 to 30 seconds; nobody needs to be held for longer than they stay connected.
_HOLD_MS_MAX = 120_000
# The periodic jobs look at deadlines once a second at least; sooner ones need a timer.
_TIMER_MS_MAX = 1000
# One connection serves all consumers of a process, each with a pull for every queue it reads.
PARKED_PER_PEER_MAX = 20_000


class HeldPulls:
    """Holds pulls and answers each once."""

    def __init__(
        self,
        settings: RuntimeSettings,
        store: MessageStore,
        clock: Clock,
        loop: LaterCalls,
        *,
        read: Callable[[PullPlan], GetResult],
        final_answer: Callable[[ParkedPull], Response],
        may_stay: Callable[[Request, Peer, str], bool],
    ) -> None:
        """``may_stay`` says whether a pull of a group could still be served."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._loop = loop
        self._read = read
        self._final_answer = final_answer
        self._may_stay = may_stay
        # Set by the fast path: answers a held pull that it has parked; False leaves it to us.
        self.answer_fast: Callable[[ParkedPull], bool] = lambda pull: False
        self.parked = ParkedPulls()
        # Held pulls are woken a bounded number in a turn of the loop.
        self.waking = TurnWork(loop)
        # When the timer for short holds rings; infinite while none is set.
        self._timer_ms = math.inf
        # Queues with news that their held pulls have not all been told of.
        self._to_wake: dict[tuple[bytes, int], int] = {}
        # Groups whose rights have changed since their held pulls were looked at; None is all.
        self._to_check: set[str | None] = set()
        self._is_checking = False

    def park(
        self,
        request: Request,
        peer: Peer,
        plan: PullPlan,
        hold_ms: int,
        fast: PullFrame | None = None,
    ) -> bool:
        """Hold a pull; False when too many are held. ``fast`` is one that has no fields yet."""
        config = self._settings.config
        if not config.long_polling:
            hold_ms = config.short_polling_ms
        deadline_ms = self._clock.elapsed_ms() + min(max(hold_ms, 0), _HOLD_MS_MAX)
        is_big = fast is None and is_long(request)
        pull = ParkedPull(request, peer, plan, plan.queue_offset, deadline_ms, fast, is_big)
        # Under synchronous flush a message for it may be written but not seen yet.
        self._store.somebody_waits()
        is_held = self.parked.park(
            pull, count_max=config.parked_pulls_max, count_per_peer_max=PARKED_PER_PEER_MAX
        )
        if is_held and hold_ms < _TIMER_MS_MAX:
            self._expire_at(deadline_ms + DEADLINE_GRAIN_MS)
        return is_held

    # Waking.

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Messages became visible: answer the held pulls that want one of them."""
        room = STEPS_PER_TURN
        for topic, queue_id, queue_offset_max, _ in arrivals:
            held = self.parked.waiting_at(topic, queue_id)
            if not held:
                continue
            room -= len(held)
            if len(held) > STEPS_IN_A_ROW or room < 0 or self.waking:
                self._wake_later((topic, queue_id), queue_offset_max)
                continue
            # Pulls with the same filter that have looked equally far learn of it together.
            looked: dict[object, int | None] = {}
            for pull in list(held):
                if self._is_woken(pull, queue_offset_max, looked):
                    self._finish(pull)

    def _wake_later(self, queue: tuple[bytes, int], queue_offset_max: int) -> None:
        """Tell all held pulls of a queue, a bounded number in a turn; one pass runs at a time."""
        is_told_of = queue in self._to_wake
        self._to_wake[queue] = queue_offset_max
        if not is_told_of:
            self.waking.add(self._woken(queue))

    def _woken(self, queue: tuple[bytes, int]) -> Iterator[None]:
        """Each step looks at one held pull. News that come during a pass are another pass."""
        queue_offset_max = -1
        try:
            while self._to_wake[queue] != queue_offset_max:
                queue_offset_max = self._to_wake[queue]
                looked: dict[object, int | None] = {}
                for pull in list(self.parked.waiting_at(*queue)):
                    if self._is_woken(pull, queue_offset_max, looked):
                        self._finish(pull)
                    yield
        finally:
            del self._to_wake[queue]

    def _is_woken(
        self, pull: ParkedPull, queue_offset_max: int, looked: dict[object, int | None]
    ) -> bool:
        """A failure of one pull's filter must not keep the other pulls asleep."""
        try:
            return self._wants(pull, queue_offset_max, looked)
        except Exception:
            _log.exception("a held pull of %s could not be looked at", pull.peer.address)
            return True

    def _wants(
        self, pull: ParkedPull, queue_offset_max: int, looked: dict[object, int | None]
    ) -> bool:
        """Whether the pull is to be answered, or its peer is gone."""
        if pull.peer.is_closed:
            return True
        if queue_offset_max <= pull.scanned_to:
            # An earlier pass has looked at these messages for this pull.
            return False
        plan = pull.plan
        if plan.tag_codes is None and plan.property_filter is None:
            return True
        # Only messages that were not checked yet; a pull whose filter wants none stays held.
        expression = plan.property_filter.text if plan.property_filter is not None else None
        key = (plan.tag_codes, expression, pull.scanned_to)
        if key not in looked:
            result = self._read(plan._replace(queue_offset=pull.scanned_to))
            in_vain = result.status is GetStatus.NO_MATCHED_MESSAGE
            looked[key] = result.next_queue_offset if in_vain else None
        scanned_to = looked[key]
        if scanned_to is None:
            return True
        pull.scanned_to = scanned_to
        return False

    def end_in_ms(self) -> int | None:
        """How long until the time of the first held pull is over; None while none is held."""
        end_ms = self.parked.next_end_ms
        return None if end_ms is None else end_ms - self._clock.elapsed_ms()

    def expire(self, elapsed_ms: int) -> None:
        """Answer the held pulls whose time is over."""
        overdue = self.parked.expire(elapsed_ms)
        if overdue:
            self._finish_in_turns(overdue)

    def _expire_at(self, end_ms: int) -> None:
        if end_ms < self._timer_ms:
            self._timer_ms = end_ms
            delay_s = max(0, end_ms - self._clock.elapsed_ms()) / 1000
            self._loop.call_later(delay_s, self._timer_rings)

    def _timer_rings(self) -> None:
        self._timer_ms = math.inf
        elapsed_ms = self._clock.elapsed_ms()
        self.expire(elapsed_ms)
        end_ms = self.parked.next_end_ms
        if end_ms is not None and end_ms < elapsed_ms + _TIMER_MS_MAX:
            self._expire_at(end_ms)

    def sweep(self) -> None:
        """Forget peers that are gone; answer filtered pulls that have fallen behind."""
        if self.parked:
            self.waking.add(self._swept())

    def _swept(self) -> Iterator[None]:
        for queue in list(self.parked.by_queue):
            queue_offset_max = self._store.queue_offset_max(*queue)
            for pull in list(self.parked.waiting_at(*queue)):
                if pull.peer.is_closed or queue_offset_max > pull.plan.queue_offset:
                    self._finish(pull)
                yield

    def wake_topic(self, topic: bytes) -> None:
        """Answer everything that waits for a topic: it is gone or changed."""
        if self.parked:
            self.waking.add(self._woken_of_topic(topic))

    def _woken_of_topic(self, topic: bytes) -> Iterator[None]:
        for queue in list(self.parked.by_queue):
            if queue[0] == topic:
                for pull in list(self.parked.waiting_at(*queue)):
                    self._finish(pull)
                    yield
            yield

    def check_held(self, group: str | None = None) -> None:
        """Answer the held pulls that may not be served any more, of one group or of all.

        RocketMQ refuses them when a message arrives or their time is over.
        """
        if not self.parked:
            return
        self._to_check.add(group)
        if not self._is_checking:
            self._is_checking = True
            self.waking.add(self._checked())

    def _checked(self) -> Iterator[None]:
        """Each step looks at one held pull. Changes during a pass are another pass."""
        try:
            while self._to_check:
                groups, self._to_check = self._to_check, set()
                for queue in list(self.parked.by_queue):
                    for pull in list(self.parked.waiting_at(*queue)):
                        if None in groups or pull.plan.group in groups:
                            self._check(pull)
                        yield
        finally:
            self._is_checking = False

    def _check(self, pull: ParkedPull) -> None:
        if not self._may_stay(request_of(pull), pull.peer, pull.plan.group):
            self._finish(pull)

    async def release_all(self) -> None:
        """Answer every held pull: the broker stops."""
        while self.parked:
            for count, pull in enumerate(list(self.parked), start=1):
                self._finish(pull)
                if count % STEPS_PER_TURN == 0:
                    await asyncio.sleep(0)

    def _finish_in_turns(self, pulls: Iterable[ParkedPull]) -> None:
        self.waking.add(map(self._finish, pulls))

    def _finish(self, pull: ParkedPull) -> None:
        """Answer a held pull for good; it is taken out first, so that it is answered once."""
        if not self.parked.take(pull) or pull.peer.is_closed:
            return
        if pull.fast is None or not self.answer_fast(pull):
            pull.peer.reply(pull.request, self._final_answer(pull))


def request_of(pull: ParkedPull) -> Request:
    """The request of a held pull with all its fields."""
    return pull.request if pull.fast is None else pull_request(pull.fast)

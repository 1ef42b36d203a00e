"""Pulls: messages of a queue from an offset on, now or when some arrive.

A pull that finds nothing new is held until a message that its filter wants becomes visible, or
until its time is over. Then it is executed again, and that answer is final.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator

from contrail.broker.handlers.quick_pulls import QuickPulls
from contrail.broker.services.cold_reads import ColdReads, FarPull, UsualPull
from contrail.broker.services.filtered_reads import (
    SCANNED_BYTES_MAX,
    SCANNED_ROWS_MAX,
    FilteredReads,
)
from contrail.broker.services.pull_admission import (
    PullAdmission,
    is_long,
    kept_form,
    refusal_answer,
)
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.parked_pulls import (
    DEADLINE_GRAIN_MS,
    LONG_PULLS_MAX,
    ParkedPull,
    ParkedPulls,
)
from contrail.broker.state.pull_plan import FLAG_COMMIT, FLAG_SUSPEND, PullPlan
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.clock import Clock
from contrail.errors import RequestRejected, StoreError
from contrail.kernels.frame_scan import Item
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.frames import pull_request
from contrail.runtime.turns import STEPS_IN_A_ROW, STEPS_PER_TURN, LaterCalls, TurnWork
from contrail.store.log import Arrival, MessageStore
from contrail.store.services.reading import GetResult
from contrail.store.state.reading import GetStatus
from contrail.wire.connection import Connection
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)

_OUTCOMES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    # A damaged message cannot be handed out; the reader goes on behind it.
    GetStatus.MESSAGE_DAMAGED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_REPLACED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    # Nothing is proven about this place: wait, the scrubber derives it again.
    GetStatus.QUEUE_ENTRY_DAMAGED: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_MASTER_ID = "0"
# Clients ask for 15 to 30 seconds; nobody needs to be held for longer than they stay connected.
_HOLD_MS_MAX = 120_000
# The periodic jobs look at deadlines once a second at least; sooner ones need a timer.
_TIMER_MS_MAX = 1000
# One connection serves all consumers of a process, each with a pull for every queue it reads.
_PARKED_PER_PEER_MAX = 20_000


class PullHandler:
    """Serves pulls and holds those that must wait."""

    def __init__(
        self,
        settings: RuntimeSettings,
        admission: PullAdmission,
        store: MessageStore,
        consumer_offsets: ConsumerOffsets,
        stats: BrokerStats,
        clock: Clock,
        loop: LaterCalls,
        *,
        memory_bytes: int,
        ways: Ways | None = None,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._store = store
        self._consumer_offsets = consumer_offsets
        self._stats = stats
        self._clock = clock
        self._memory_bytes = memory_bytes
        self.ways = ways or Ways()
        self.cold_reads = ColdReads(store, self._answer_far)
        self.quick = QuickPulls(
            settings,
            admission,
            store,
            consumer_offsets,
            stats,
            self.cold_reads,
            self._read,
            self.ways,
        )
        self.quick.log_fits_memory = self._fits_memory()
        self._filtered = FilteredReads(settings, store)
        self.parked = ParkedPulls()
        self._loop = loop
        # Held pulls are woken a bounded number in a turn of the loop.
        self.waking = TurnWork(loop)
        # When the timer for short holds rings; infinite while none is set.
        self._timer_ms = math.inf
        # Queues with news that their held pulls have not all been told of.
        self._to_wake: dict[tuple[bytes, int], int] = {}
        # Groups whose rights have changed since their held pulls were looked at; None is all.
        self._to_check: set[str | None] = set()
        self._is_checking = False

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.PULL_MESSAGE: self.handle_pull,
            RequestCode.LITE_PULL_MESSAGE: self.handle_pull,
        }

    def handle_pull(self, request: Request, peer: Peer) -> Answer:
        """The first execution: commits the offset that came along, and may be held."""
        self.ways.pull_general += 1
        plan = self._admission.plan(request, peer.address)
        if plan.sys_flag & FLAG_COMMIT:
            # First of all: while an operator's reset is pending, a commit is ignored.
            self._commit(request, plan)
        if not self._store.is_near(plan.topic, plan.queue_id, plan.queue_offset):
            return self._put_in_line(request, peer, plan)
        return self._served(request, peer, plan)

    def _served(self, request: Request, peer: Peer, plan: PullPlan) -> Answer:
        response, may_wait = self._execute(plan)
        if may_wait and plan.sys_flag & FLAG_SUSPEND:
            if self._hold(request, peer, plan):
                return LATER
            # Answered at once with nothing, the client would come back at once.
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, "too many pulls are held already")
        return response

    def _commit(self, request: Request, plan: PullPlan) -> None:
        consumer_offset = HeaderFields(request).long("commitOffset", -1)
        if consumer_offset >= 0:
            self._consumer_offsets.commit(
                plan.group, plan.topic_name, plan.queue_id, consumer_offset
            )

    def _hold(self, request: Request, peer: Peer, plan: PullPlan) -> bool:
        hold_ms = HeaderFields(request).long("suspendTimeoutMillis", 0)
        return self._park(kept_form(request), peer, plan, hold_ms)

    def _park(
        self, request: Request, peer: Peer, plan: PullPlan, hold_ms: int, usual: Item | None = None
    ) -> bool:
        config = self._settings.config
        if not config.long_polling:
            hold_ms = config.short_polling_ms
        deadline_ms = self._clock.elapsed_ms() + min(max(hold_ms, 0), _HOLD_MS_MAX)
        is_big = usual is None and is_long(request)
        pull = ParkedPull(request, peer, plan, plan.queue_offset, deadline_ms, usual, is_big)
        # Under synchronous flush a message for it may be written but not seen yet.
        self._store.somebody_waits()
        is_held = self.parked.park(
            pull, count_max=config.parked_pulls_max, count_per_peer_max=_PARKED_PER_PEER_MAX
        )
        if is_held and hold_ms < _TIMER_MS_MAX:
            self._expire_at(deadline_ms + DEADLINE_GRAIN_MS)
        return is_held

    def hold_usual(self, item: Item, peer: Connection) -> bool:
        """Hold a pull like one before, with little ado; False when it must take the long way."""
        if len(self.parked) >= self._settings.config.parked_pulls_max:
            return False
        if self.parked.count_of(peer) >= _PARKED_PER_PEER_MAX:
            return False
        known = self.quick.note_held(item)
        if known is None:
            return False
        plan = known.plan._replace(queue_offset=item[5], count_max=item[6])
        request = Request(item[3], item[0], {}, b"", item[1], item[2])
        self._park(request, peer, plan, known.hold_ms or 0, usual=item)
        peer.put_off_usual(request.opaque)
        return True

    # Far behind the end.

    def _put_in_line(self, request: Request, peer: Peer, plan: PullPlan) -> Answer:
        """Old messages may be on the disk only; and who reads many of them takes turns."""
        config = self._settings.config
        count_max = plan.count_limit(config.transfer_count_in_memory_max)
        bytes_max = config.transfer_bytes_in_memory_max
        if plan.property_filter is not None:
            count_max = SCANNED_ROWS_MAX + config.transfer_count_in_memory_max
            bytes_max += SCANNED_BYTES_MAX
        kept = kept_form(request)
        pull = FarPull(kept, peer, plan, count_max, bytes_max)
        waiting_max = config.parked_pulls_max
        if self.cold_reads.take(
            pull,
            count_max=min(waiting_max, LONG_PULLS_MAX) if is_long(kept) else waiting_max,
            count_per_peer_max=_PARKED_PER_PEER_MAX,
        ):
            return LATER
        raise RequestRejected(ResponseCode.SYSTEM_BUSY, "too many pulls wait already")

    def take_far(self, item: Item, peer: Connection, long_way: Callable[[], None]) -> bool:
        """Put a usual pull in line with little ado; False when too many wait already."""
        quick = self.quick
        pull = UsualPull(peer, lambda: quick.answer_far(item, peer), long_way)
        is_taken = self.cold_reads.take(
            pull,
            count_max=self._settings.config.parked_pulls_max,
            count_per_peer_max=_PARKED_PER_PEER_MAX,
        )
        if is_taken:
            self.ways.pull_far += 1
            quick.commit_far(item)
        return is_taken

    def _answer_far(self, pull: FarPull) -> None:
        """What the pull reads is in memory now. Like a new one it may still be held."""
        request, peer = pull.request, pull.peer
        answer = self._attempted(
            peer,
            lambda: self._served(request, peer, self._admission.plan(request, peer.address)),
        )
        if isinstance(answer, Response):
            peer.reply(request, answer)

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
        """What goes wrong with one pull's filter must not keep the others asleep."""
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
            # It has looked at these already, with news that came before.
            return False
        plan = pull.plan
        if plan.tag_codes is None and plan.property_filter is None:
            return True
        # Only what has not been looked at yet; a filter that wants nothing keeps waiting.
        expression = plan.property_filter.text if plan.property_filter is not None else None
        key = (plan.tag_codes, expression, pull.scanned_to)
        if key not in looked:
            result, _ = self._read(plan._replace(queue_offset=pull.scanned_to))
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

    def sweep(self, now_ms: int) -> None:
        """Every few seconds: forget peers that are gone; wake filters that have fallen behind."""
        self.quick.log_fits_memory = self._fits_memory()
        self.quick.note_given_again()
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
        request, group = _request_of(pull), pull.plan.group
        if self._admission.refuses(request, group, pull.peer.address):
            self._finish(pull)

    async def release_all(self) -> None:
        """Answer everything that waits: the broker stops."""
        while self.parked:
            for count, pull in enumerate(list(self.parked), start=1):
                self._finish(pull)
                if count % STEPS_PER_TURN == 0:
                    await asyncio.sleep(0)
        for far in self.cold_reads.close():
            plan = far.plan
            result = GetResult(GetStatus.NO_MATCHED_MESSAGE, plan.queue_offset, *self._ends(plan))
            fields = _fields(plan, result)
            remark = "the broker stops"
            response = Response(ResponseCode.PULL_RETRY_IMMEDIATELY, remark, fields, b"")
            far.peer.reply(far.request, response)

    def _finish_in_turns(self, pulls: Iterable[ParkedPull]) -> None:
        self.waking.add(map(self._finish, pulls))

    def _finish(self, pull: ParkedPull) -> None:
        """Answer for good; first it is no longer held, so that it is answered once."""
        if not self.parked.take(pull) or pull.peer.is_closed:
            return
        if pull.usual is None or not self._answered_as_usual(pull):
            pull.peer.reply(pull.request, self._final_answer(pull))

    def _answered_as_usual(self, pull: ParkedPull) -> bool:
        peer = pull.peer
        assert pull.usual is not None and isinstance(peer, Connection)
        try:
            is_answered = self.quick.answer_held(pull.usual, peer)
        except (StoreError, OSError) as error:
            # The long way meets it again, and answers for it.
            _log.debug("a held pull of %s was not answered as usual: %s", peer.address, error)
            return False
        except Exception:
            _log.exception("a held pull of %s was not answered as usual: a bug", peer.address)
            return False
        if is_answered:
            self.ways.pull_woken += 1
            peer.note_answered(pull.request, ResponseCode.SUCCESS)
        return is_answered

    def _final_answer(self, pull: ParkedPull) -> Response:
        """Execute again, checks included."""
        request, peer = _request_of(pull), pull.peer
        answer = self._attempted(
            peer, lambda: self._execute(self._admission.plan(request, peer.address))[0]
        )
        assert isinstance(answer, Response), "nobody is held twice"
        return answer

    def _attempted(self, peer: Peer, work: Callable[[], Answer]) -> Answer:
        """Whatever goes wrong stays with this pull."""
        try:
            return work()
        except RequestRejected as refusal:
            return refusal_answer(refusal)
        except Exception as error:
            _log.exception("a held pull of %s failed", peer.address)
            return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    # Reading.

    def _execute(self, plan: PullPlan) -> tuple[Response, bool]:
        """The answer, and whether the pull may wait instead."""
        if self._settings.config.server_side_reset:
            reset = self._consumer_offsets.take_reset(plan.group, plan.topic_name, plan.queue_id)
            if reset is not None:
                return self._moved_by_operator(plan, reset), False
        result, body = self._read(plan)
        code = _outcome(result, plan)
        self._commit_pulled(plan, result.next_queue_offset)
        if code == ResponseCode.SUCCESS:
            names = (plan.topic_name, plan.group)
            self._stats.pulled(names, result.message_count, result.byte_count)
        else:
            self._stats.pull_missed()
        remark = result.status.value
        if result.problem:
            remark = f"{remark}: it {result.problem}"
        response = Response(code, remark, _fields(plan, result), body)
        return response, code == ResponseCode.PULL_NOT_FOUND

    def _commit_pulled(self, plan: PullPlan, queue_offset: int) -> None:
        """Where the group's next pull starts, whatever became of this one."""
        self._consumer_offsets.commit_pulled(
            plan.group, plan.topic_name, plan.queue_id, queue_offset
        )

    def _moved_by_operator(self, plan: PullPlan, reset: int) -> Response:
        self._commit_pulled(plan, reset)
        result = GetResult(GetStatus.FOUND, reset, *self._ends(plan))
        return Response(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", _fields(plan, result), b"")

    def _ends(self, plan: PullPlan) -> tuple[int, int]:
        topic, queue_id = plan.topic, plan.queue_id
        low = self._store.queue_offset_min(topic, queue_id)
        return low, self._store.queue_offset_max(topic, queue_id)

    def _read(self, plan: PullPlan) -> tuple[GetResult, list[memoryview]]:
        if plan.property_filter is not None:
            result = self._filtered.read(plan)
            return result, result.ranges
        config = self._settings.config
        count_max = plan.count_limit(config.transfer_count_in_memory_max)
        result = self._get(plan, count_max, config.transfer_bytes_in_memory_max)
        if result.ranges and self._is_on_disk(result):
            result = self._get(
                plan, config.transfer_count_on_disk_max, config.transfer_bytes_on_disk_max
            )
        return result, result.ranges

    def _get(self, plan: PullPlan, count_max: int, bytes_max: int) -> GetResult:
        return self._store.get(
            plan.topic,
            plan.queue_id,
            plan.queue_offset,
            count_max=max(1, min(plan.count_max, count_max)),
            bytes_max=bytes_max,
            tag_codes=plan.tag_codes,
        )

    def _is_on_disk(self, result: GetResult) -> bool:
        """Whether the first record lies so far behind that it has probably left memory."""
        if self.quick.log_fits_memory:
            return False
        physical_offset = int.from_bytes(result.ranges[0][28:36], "big")
        return self._store.physical_end - physical_offset > self._memory_max

    @property
    def _memory_max(self) -> int:
        return self._memory_bytes * self._settings.config.memory_ratio_max // 100

    def _fits_memory(self) -> bool:
        return self._store.physical_end - self._store.physical_min <= self._memory_max


def _request_of(pull: ParkedPull) -> Request:
    return pull.request if pull.usual is None else pull_request(pull.usual)


def _outcome(result: GetResult, plan: PullPlan) -> ResponseCode:
    """An empty or unknown queue is no error for who asks from its beginning."""
    if result.status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        if plan.queue_offset != 0:
            return ResponseCode.PULL_OFFSET_MOVED
        return ResponseCode.PULL_NOT_FOUND
    return _OUTCOMES[result.status]


def _fields(plan: PullPlan, result: GetResult) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": _MASTER_ID,
        "nextBeginOffset": str(result.next_queue_offset),
        "minOffset": str(result.queue_offset_min),
        "maxOffset": str(result.queue_offset_max),
        "topicSysFlag": str(plan.topic_sys_flag),
        "groupSysFlag": str(plan.group_sys_flag),
    }

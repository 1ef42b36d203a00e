"""Pulls: messages of a queue from an offset on, now or when some arrive.

A pull that finds nothing new is held (``handlers.held_pulls``) and executed again later; one of old
messages waits until they are in memory (``services.cold_reads``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from contrail.broker.handlers.held_pulls import PARKED_PER_PEER_MAX, HeldPulls, request_of
from contrail.broker.handlers.pull_answers import answer_fields, pull_response
from contrail.broker.services.cold_reads import ColdReads, FarPull, FastPull
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
from contrail.broker.state.parked_pulls import LONG_PULLS_MAX, ParkedPull
from contrail.broker.state.pull_plan import PullPlan
from contrail.broker.state.read_redirects import Redirect
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.runtime.turns import LaterCalls
from contrail.store import GetResult, GetStatus, MessageStore
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)


class PullHandler:
    """Serves pulls; ``held`` has those that must wait."""

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
        self._memory_bytes = memory_bytes
        self._ways = ways or Ways()
        # By group, code and whether the group reads slowly; None without replicas.
        self.redirect: Callable[[str, int, bool], Redirect] | None = None
        # False at a slave: a group's progress and its resets are its master's.
        self.keeps_progress = True
        # Raises for a pull that has waited and lost its right meanwhile.
        self.require_still: Callable[[Request, Peer], None] = lambda request, peer: None
        # Told how many messages and bytes a pull was given; None while nobody counts them.
        self.on_given: Callable[[Request, Peer, int, int], None] | None = None
        self._given = (0, 0)
        self._filtered = FilteredReads(settings, store)
        self.cold_reads = ColdReads(store, self._answer_far)
        self.held = HeldPulls(
            settings,
            store,
            clock,
            loop,
            read=self.read,
            final_answer=self._final_answer,
            may_stay=self._may_stay,
        )
        # Whether most of the log is in memory; else the limits of a pull are others.
        self.log_fits_memory = self._fits_memory()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.PULL_MESSAGE: self.handle_pull,
            RequestCode.LITE_PULL_MESSAGE: self.handle_pull,
        }

    def handle_pull(self, request: Request, peer: Peer) -> Answer:
        """The first execution: commits the offset that came along, and may be held."""
        self._ways.pull_general += 1
        plan = self._admission.plan(request, peer.address)
        # First of all: while an operator's reset is pending, a commit is ignored.
        self.commit_carried(plan, HeaderFields(request).long("commitOffset", -1))
        if not self._store.is_near(plan.topic, plan.queue_id, plan.queue_offset):
            return self._put_in_line(request, peer, plan)
        return self._served(request, peer, plan)

    def commit_carried(self, plan: PullPlan, consumer_offset: int) -> None:
        """Commit the consumer offset that a pull carries, when the pull arrives."""
        if plan.commits and consumer_offset >= 0:
            self._consumer_offsets.commit(
                plan.group, plan.topic_name, plan.queue_id, consumer_offset
            )

    def _served(self, request: Request, peer: Peer, plan: PullPlan) -> Answer:
        response, may_wait = self._execute(plan)
        self._tell_given(request, peer)
        if may_wait and plan.may_wait:
            if self._hold(request, peer, plan):
                return LATER
            # Answered now with nothing, the client would pull again now.
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, "too many pulls are held already")
        return response

    def _hold(self, request: Request, peer: Peer, plan: PullPlan) -> bool:
        hold_ms = HeaderFields(request).long("suspendTimeoutMillis", 0)
        return self.held.park(kept_form(request), peer, plan, hold_ms)

    def sweep(self, now_ms: int) -> None:
        """Every few seconds: look at the facts that change without an event."""
        self.log_fits_memory = self._fits_memory()
        self.held.sweep()

    # Far behind the end.

    def _may_stay(self, request: Request, peer: Peer, group: str) -> bool:
        """Whether a held pull could still be served."""
        try:
            self.require_still(request, peer)
        except RequestRejected:
            return False
        return not self._admission.refuses(request, group, peer.address)

    def _put_in_line(self, request: Request, peer: Peer, plan: PullPlan) -> Answer:
        """Let a pull of old messages wait: they may be on the disk only, and pulls take turns."""
        config = self._settings.config
        count_max = plan.count_limit(config.transfer_count_in_memory_max)
        bytes_max = config.transfer_bytes_in_memory_max
        if plan.property_filter is not None:
            count_max = SCANNED_ROWS_MAX + config.transfer_count_in_memory_max
            bytes_max += SCANNED_BYTES_MAX
        kept = kept_form(request)
        far = FarPull(kept, peer, plan, count_max, bytes_max)
        if self.wait_in_line(far, is_big=is_long(kept)):
            return LATER
        raise RequestRejected(ResponseCode.SYSTEM_BUSY, "too many pulls wait already")

    def wait_in_line(self, pull: FarPull | FastPull, *, is_big: bool = False) -> bool:
        """Answer a pull of old messages in its turn; False when too many wait already."""
        count_max = self._settings.config.parked_pulls_max
        return self.cold_reads.take(
            pull,
            count_max=min(count_max, LONG_PULLS_MAX) if is_big else count_max,
            count_per_peer_max=PARKED_PER_PEER_MAX,
        )

    def _answer_far(self, pull: FarPull) -> None:
        """The messages of the pull are in memory now. Like a new pull it may still be held."""
        request, peer = pull.request, pull.peer
        answer = self._attempted(
            peer, lambda: self._served(request, peer, self._planned_again(request, peer))
        )
        if isinstance(answer, Response):
            peer.reply(request, answer)

    def _final_answer(self, pull: ParkedPull) -> Response:
        """Execute again, checks included."""
        request, peer = request_of(pull), pull.peer
        answer = self._attempted(peer, lambda: self._execute(self._planned_again(request, peer))[0])
        assert isinstance(answer, Response), "nobody is held twice"
        self._tell_given(request, peer)
        return answer

    def _tell_given(self, request: Request, peer: Peer) -> None:
        given, self._given = self._given, (0, 0)
        if self.on_given is not None and given[0]:
            self.on_given(request, peer, *given)

    def _planned_again(self, request: Request, peer: Peer) -> PullPlan:
        """The plan of a pull that has waited, as rights and tables are now."""
        self.require_still(request, peer)
        return self._admission.plan(request, peer.address)

    def _attempted(self, peer: Peer, work: Callable[[], Answer]) -> Answer:
        """A failure stays with this pull."""
        try:
            return work()
        except RequestRejected as refusal:
            return refusal_answer(refusal)
        except Exception as error:
            _log.exception("a held pull of %s failed", peer.address)
            return Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    async def release_all(self) -> None:
        """Answer every pull that waits: the broker stops."""
        await self.held.release_all()
        for far in self.cold_reads.close():
            plan = far.plan
            result = GetResult(GetStatus.NO_MATCHED_MESSAGE, plan.queue_offset, *self._ends(plan))
            response = pull_response(plan, result)
            response.remark = "the broker stops"
            far.peer.reply(far.request, response)

    # Reading.

    def _execute(self, plan: PullPlan) -> tuple[Response, bool]:
        """The answer, and whether the pull may wait instead."""
        if self.keeps_progress and self._settings.config.server_side_reset:
            reset = self._consumer_offsets.take_reset(plan.group, plan.topic_name, plan.queue_id)
            if reset is not None:
                return self._moved_by_operator(plan, reset), False
        result = self.read(plan)
        response = self._redirected(plan, result, pull_response(plan, result))
        self._commit_pulled(plan, result.next_queue_offset)
        if response.code == ResponseCode.SUCCESS:
            names = (plan.topic_name, plan.group)
            self._stats.pulled(names, result.message_count, result.byte_count)
            self._given = (result.message_count, result.byte_count)
        else:
            self._stats.pull_missed()
        return response, response.code == ResponseCode.PULL_NOT_FOUND

    def _redirected(self, plan: PullPlan, result: GetResult, response: Response) -> Response:
        """The answer as a broker with replicas gives it: it names where to pull from next."""
        if self.redirect is not None:
            is_slow = bool(result.ranges) and self._is_on_disk(result)
            redirect = self.redirect(plan.group, response.code, is_slow)
            fields = answer_fields(plan._replace(suggested_broker_id=redirect.broker_id), result)
            # Messages that a filter has passed over are passed over everywhere.
            if redirect.stays and result.status is not GetStatus.NO_MATCHED_MESSAGE:
                fields["nextBeginOffset"] = str(plan.queue_offset)
            response.code, response.fields = redirect.code, fields
        return response

    def _commit_pulled(self, plan: PullPlan, queue_offset: int) -> None:
        """Where the group's next pull starts, for every outcome of this one."""
        if not self.keeps_progress:
            return
        self._consumer_offsets.commit_pulled(
            plan.group, plan.topic_name, plan.queue_id, queue_offset
        )

    def _moved_by_operator(self, plan: PullPlan, reset: int) -> Response:
        self._commit_pulled(plan, reset)
        result = GetResult(GetStatus.FOUND, reset, *self._ends(plan))
        fields = answer_fields(plan, result)
        return Response(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", fields)

    def _ends(self, plan: PullPlan) -> tuple[int, int]:
        topic, queue_id = plan.topic, plan.queue_id
        low = self._store.queue_offset_min(topic, queue_id)
        return low, self._store.queue_offset_max(topic, queue_id)

    def read(self, plan: PullPlan) -> GetResult:
        """The messages that a pull finds; the records are views of the log."""
        if plan.property_filter is not None:
            return self._filtered.read(plan)
        config = self._settings.config
        count_max = plan.count_limit(config.transfer_count_in_memory_max)
        result = self._get(plan, count_max, config.transfer_bytes_in_memory_max)
        if result.ranges and self._is_on_disk(result):
            result = self._get(
                plan, config.transfer_count_on_disk_max, config.transfer_bytes_on_disk_max
            )
        return result

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
        if self.log_fits_memory:
            return False
        physical_offset = int.from_bytes(result.ranges[0][28:36], "big")
        return self._store.physical_end - physical_offset > self._memory_max

    @property
    def _memory_max(self) -> int:
        return self._memory_bytes * self._settings.config.memory_ratio_max // 100

    def _fits_memory(self) -> bool:
        return self._store.physical_end - self._store.physical_min <= self._memory_max

"""Forms of pulls: the verdict and the plan for pulls that differ in their numbers alone.

Pulls of one consumer from one queue are alike but for the opaque, two offsets and a count. The
frame kernel hands out all their other fields as one key. The general way's verdict on a
pull with this key is its form, and holds until something changes that a check looks at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from contrail.broker.config import BrokerConfig
from contrail.broker.handlers.pull_answers import pull_response
from contrail.broker.services.filtered_reads import SCANNED_ROWS_MAX
from contrail.broker.services.pull_admission import PullAdmission, refusal_answer
from contrail.broker.state.consumer_offsets import ConsumerOffsets, offsets_key
from contrail.broker.state.pull_plan import PullPlan
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats, GetTally
from contrail.errors import RequestRejected
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX
from contrail.protocol.command import ReadyAnswer, Request, encode_response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.frames import FRAME_PREFIX_BYTES, PullFrame
from contrail.store import FAR, Far, FoundRun, GetResult, GetStatus, MessageStore, Reach

_FORMS_MAX = 100_000
# A form is kept under its fields; clients' headers have less than a kilobyte.
_HEADER_BYTES_MAX = 2048
_REFUSED_MAX = 5_000
_REFUSED_KEY_BYTES_MAX = 2048
_COUNT_MAX = 0x7FFFFFFF
# In place of the numbers of an answer; no other number of a header is as long.
_MARKS = (8_000_000_000_000_000_001, 8_000_000_000_000_000_002, 8_000_000_000_000_000_003)
_OPAQUE_MARK = 8_000_000_000_000_000_004


class Reader(Protocol):
    """Reads messages of one queue for all pulls of a form."""

    def read(
        self, queue_offset: int, count_max: int, bytes_max: int, reach: Reach, now_ms: int
    ) -> FoundRun | Far | None:
        """As ``QueueRuns.read``; a run without records says that a filter wants none of them."""
        ...


class PullForm:
    """The part that is the same for all pulls of one key."""

    __slots__ = (
        "bytes_max",
        "commits",
        "count_max",
        "found",
        "given_noted",
        "hold_ms",
        "is_filtered",
        "key",
        "none_matched",
        "offsets_key",
        "plan",
        "queue",
        "queue_id",
        "reader",
        "tally",
        "told",
    )

    def __init__(
        self,
        plan: PullPlan,
        reader: Reader,
        config: BrokerConfig,
        tally: GetTally,
        hold_ms: int | None,
        key: bytes,
    ) -> None:
        """``hold_ms`` is how long such a pull may be held at the end of its queue, if at all."""
        self.key = key
        self.plan = plan
        self.queue = (plan.topic, plan.queue_id)
        self.queue_id = plan.queue_id
        self.reader = reader
        self.count_max = BULK_COUNT_MAX if plan.is_bulk else config.transfer_count_in_memory_max
        self.bytes_max = config.transfer_bytes_in_memory_max
        self.tally = tally
        self.offsets_key = offsets_key(plan.group, plan.topic_name)
        self.commits = plan.commits
        self.hold_ms = hold_ms
        self.is_filtered = is_filtered(plan)
        # The answers, for ``fill_answer``.
        self.found = laid_out(plan, GetStatus.FOUND)
        self.none_matched = laid_out(plan, GetStatus.NO_MATCHED_MESSAGE)
        # Whether operators were told lately that the group reads this topic.
        self.given_noted = False
        # The last read-ahead hint: log block, row block, hint epoch.
        self.told = (-1, -1, -1)


class FilteredReader:
    """Reads for pulls with a filter, by the same function as the general way."""

    __slots__ = ("_plan", "_read", "_store")

    def __init__(
        self, plan: PullPlan, store: MessageStore, read: Callable[[PullPlan], GetResult]
    ) -> None:
        self._plan = plan
        self._store = store
        self._read = read

    def read(
        self, queue_offset: int, count_max: int, bytes_max: int, reach: Reach, now_ms: int
    ) -> FoundRun | Far | None:
        plan, physical_end = self._plan, 0
        place = (plan.topic, plan.queue_id, queue_offset)
        if reach is Reach.NEAR:
            if not self._store.is_near(*place):
                return FAR
        else:
            physical_end = self._store.warm_end(*place, SCANNED_ROWS_MAX + count_max)
            if not physical_end:
                return FAR
        result = self._read(plan._replace(queue_offset=queue_offset, count_max=count_max))
        if result.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
            return None
        return (
            result.ranges,
            result.byte_count,
            result.message_count,
            result.next_queue_offset,
            result.queue_offset_min,
            result.queue_offset_max,
            physical_end,
        )


class PullForms:
    """The forms that are known now, and the refusals."""

    def __init__(
        self,
        settings: RuntimeSettings,
        admission: PullAdmission,
        store: MessageStore,
        consumer_offsets: ConsumerOffsets,
        stats: BrokerStats,
        read: Callable[[PullPlan], GetResult],
    ) -> None:
        """``read`` is the general way's function that reads for a pull."""
        self._settings = settings
        self._admission = admission
        self._store = store
        self._stats = stats
        self._read = read
        # While an operator's reset is pending no form is enough to serve a pull.
        self.pending_resets = consumer_offsets.pending_resets
        self.by_key: dict[tuple[int, bytes], PullForm] = {}
        # Answers to pulls that may not be served, encoded when they are needed a second time.
        self._refused: dict[tuple[int, bytes], ReadyAnswer | RequestRejected] = {}
        # Called when all forms are dropped.
        self.on_dropped: list[Callable[[], None]] = []
        # Whether most of the log is in memory; else the limits of a pull are others.
        self.log_fits_memory = True
        admission.watch(self._drop)

    def _drop(self) -> None:
        """Something has changed that a check looks at."""
        self.by_key.clear()
        self._refused.clear()
        for drop in self.on_dropped:
            drop()

    def find(self, pull: PullFrame) -> PullForm | None:
        """The form of a pull; None when the pull must go the general way."""
        form = self.by_key.get((pull[3], pull[4]))
        if form is None or self.pending_resets or not self.log_fits_memory:
            return None
        return None if form.commits and pull[7] < 0 else form

    def refusal(self, pull: PullFrame) -> ReadyAnswer | None:
        """The answer that refuses pulls of this key, if they are refused."""
        refused = self._refused.get((pull.code, pull.key))
        if refused is None or pull.count_max > _COUNT_MAX:
            return None
        if isinstance(refused, RequestRejected):
            # Most that are refused once are not seen again.
            refused = self._refused[pull.code, pull.key] = ReadyAnswer(refusal_answer(refused))
        return refused

    def learn(self, pull: PullFrame, request: Request) -> None:
        """Keep the general way's verdict on a pull."""
        verdict = self._admission.verdict(request)
        if isinstance(verdict, PullPlan):
            self._learn_form(pull, request, verdict)
        elif verdict is not None and len(pull.key) <= _REFUSED_KEY_BYTES_MAX:
            if len(self._refused) >= _REFUSED_MAX:
                self._refused.clear()
            self._refused[pull.code, pull.key] = verdict

    def _learn_form(self, pull: PullFrame, request: Request, plan: PullPlan) -> None:
        if len(pull.header) > _HEADER_BYTES_MAX:
            return
        if len(self.by_key) >= _FORMS_MAX:
            self._drop()
        form = self.by_key.get((pull.code, pull.key))
        if form is not None:
            # Templates have it, too: a second form would not be theirs.
            form.reader = self._reader(plan)
            return
        tally = self._stats.tally_of((plan.topic_name, plan.group))
        self.by_key[pull.code, pull.key] = PullForm(
            plan,
            self._reader(plan),
            self._settings.config,
            tally,
            _hold_ms(plan, request),
            pull.key,
        )

    def _reader(self, plan: PullPlan) -> Reader:
        if is_filtered(plan):
            return FilteredReader(plan, self._store, self._read)
        return self._store.runs(plan.topic, plan.queue_id)

    def note_given_again(self) -> None:
        """Once in a while, so that operators see what a group reads and when it last did."""
        for form in self.by_key.values():
            form.given_noted = False


def is_filtered(plan: PullPlan) -> bool:
    return plan.tag_codes is not None or plan.property_filter is not None


def laid_out(plan: PullPlan, status: GetStatus) -> tuple[bytes, ...]:
    """The header of the general way's answer, in pieces: ``fill_answer`` writes numbers between."""
    response = pull_response(plan, GetResult(status, *_MARKS))
    header = bytes(encode_response(response, _OPAQUE_MARK)[0][FRAME_PREFIX_BYTES:])
    pieces = []
    for mark in (*_MARKS, _OPAQUE_MARK):
        before, found, header = header.partition(b"%d" % mark)
        assert found, "the numbers stand in the order of the marks"
        pieces.append(before)
    return (*pieces, header)


def _hold_ms(plan: PullPlan, request: Request) -> int | None:
    if not plan.may_wait:
        return None
    try:
        return HeaderFields(request).long("suspendTimeoutMillis", 0)
    except RequestRejected:
        # The general way finds the error and names it.
        return None

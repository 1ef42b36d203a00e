"""Hands out messages: the one body of every pull on the fast path.

A read of a form's queue, the consumer offset that the pull commits, statistics, and the answer.
The ways differ in where a pull comes from, how far back it may read and when its answer leaves.
"""

from __future__ import annotations

from contrail.broker.fast.pull_forms import PullForm
from contrail.broker.services.cold_reads import BLOCK_RECORD_BYTES, BLOCK_ROWS, ColdReads, FarAnswer
from contrail.broker.services.pull_admission import PullAdmission
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.stats import BrokerStats
from contrail.kernels.pull_answer import fill_answer
from contrail.protocol.command import FRAME_BYTES_MAX
from contrail.store import FAR, Far, FoundRun, Reach

# The bytes that fit a frame beside its header.
RECORD_BYTES_MAX = FRAME_BYTES_MAX - 1024
COMMITTED = -1
"""In place of the consumer offset of a pull: it was committed when the pull arrived."""

# Members of an enumeration are looked up each time they are named.
_WARM, _NEAR = Reach.WARM, Reach.NEAR

Parts = list[bytes | memoryview]


class PullAnswers:
    """Belongs to the event loop's thread; the caller sends the parts."""

    def __init__(
        self,
        admission: PullAdmission,
        consumer_offsets: ConsumerOffsets,
        stats: BrokerStats,
        cold_reads: ColdReads,
    ) -> None:
        self._admission = admission
        self._read_on = consumer_offsets.read_on
        self._stats = stats
        self._unsettled = stats.unsettled_gets
        self.cold_reads = cold_reads

    def give(
        self,
        form: PullForm,
        opaque: int,
        queue_offset: int,
        asked: int,
        consumer_offset: int,
        reach: Reach,
        now_ms: int,
        parts: Parts,
    ) -> FoundRun | Far | None:
        """Add the answer to a pull to ``parts``; returns what it hands out.

        ``FAR`` says that the messages lie beyond ``reach``, None that the general way must answer;
        nothing has happened then. ``now_ms`` comes from ``monotonic_ms``.
        """
        allowed = form.count_max
        run = form.reader.read(
            queue_offset,
            (asked if asked < allowed else allowed) or 1,
            form.bytes_max,
            reach,
            now_ms,
        )
        if run is None or run is FAR:
            return run
        views, byte_count, count, next_queue_offset, low, high, _ = run
        if byte_count > RECORD_BYTES_MAX:
            return None
        self._read_on(
            form.offsets_key,
            form.queue_id,
            consumer_offset if form.commits else COMMITTED,
            next_queue_offset,
        )
        pieces = form.found
        if count:
            tally = form.tally
            if not tally.calls:
                self._unsettled.append(tally)
            tally.calls += 1
            tally.count += count
            tally.byte_count += byte_count
        else:
            pieces = form.none_matched
            self._stats.pull_missed()
        if not form.given_noted:
            self._note_given(form)
        parts.append(fill_answer(pieces, next_queue_offset, low, high, opaque, byte_count))
        parts += views
        return run

    def note_held(self, form: PullForm, queue_offset: int, consumer_offset: int) -> None:
        """A pull is held at the end of its queue: it hands out nothing, and commits its offset."""
        committed = consumer_offset if form.commits else COMMITTED
        self._read_on(form.offsets_key, form.queue_id, committed, queue_offset)
        self._stats.pull_missed()
        if not form.given_noted:
            self._note_given(form)

    def _note_given(self, form: PullForm) -> None:
        form.given_noted = True
        self._admission.remember_given(form.plan)

    # Old messages that are in memory.

    @property
    def reach(self) -> Reach:
        """How far back a pull may read that has not waited in line."""
        return _WARM if self.cold_reads.may_skip_line else _NEAR

    def note_far(
        self, form: PullForm, queue_offset: int, byte_count: int, physical_end: int
    ) -> Reach:
        """A pull of old messages was answered without waiting in line; the next one's reach."""
        cold_reads = self.cold_reads
        place = (
            physical_end // BLOCK_RECORD_BYTES,
            queue_offset // BLOCK_ROWS,
            cold_reads.told_epoch,
        )
        # Most answers of a queue end in the block where the last one did.
        if form.told != place:
            answered = FarAnswer(*form.queue, queue_offset, physical_end)
            if cold_reads.read_ahead(answered):
                form.told = place
        return _WARM if cold_reads.note_direct(byte_count) else _NEAR

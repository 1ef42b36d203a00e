"""Writes runs of records to the end of the log: one ``pwrite`` per segment touched.

A run is measured, placed, given its segments and built before the first byte is written, so
whatever can be refused is refused with nothing changed. From the first byte on there is no way
back: a failed or short write poisons the store.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from contrail.clock import Clock
from contrail.errors import (
    BatchIllegal,
    BodyTooLarge,
    MessageIllegal,
    StoreError,
    StorePoisoned,
    StoreReadOnly,
)
from contrail.kernels.record_build import build_fitting_run, build_run, measure_run
from contrail.kernels.send_places import commit_places
from contrail.kernels.send_records import build_sends
from contrail.model.batch import inner_batch_count, put_inner_base
from contrail.model.message import MessageDraft
from contrail.model.properties import DELAY, read_property
from contrail.model.record import (
    BLANK_RECORD_BYTES,
    SYS_FLAG_INNER_BATCH,
    TRANSACTION_MASK,
    encode_blank,
)
from contrail.model.topic import check_topic_folder
from contrail.runtime import crashpoints
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import OUT_OF_DESCRIPTORS, FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.services.pooled_writes import PooledWrites
from contrail.store.services.prepare import SegmentPreparer
from contrail.store.state.append import AppendState
from contrail.store.state.raw_append import RawPlan

if TYPE_CHECKING:
    from contrail.kernels.send_records import Chunk as PlainChunk

_DELAY_NAME = DELAY.encode()


class AppendedRun(NamedTuple):
    """Where a run of messages landed."""

    queue_offsets: list[int]
    physical_offsets: list[int]
    store_timestamp_ms: int
    physical_end: int


class AppendedChunks(NamedTuple):
    """Where sends were written: from ``physical_start`` to ``physical_end`` of the log."""

    physical_start: int
    physical_end: int
    store_timestamp_ms: int


# Without the function that a named tuple's own constructor is.
_appended_chunks = partial(tuple.__new__, AppendedChunks)


class AppendedRaw(NamedTuple):
    """Whole records that a slave got from its master and wrote to one segment."""

    records: memoryview
    physical_start: int
    physical_end: int


class Appender:
    """The log's one writer."""

    def __init__(
        self,
        config: StoreConfig,
        files: FileSystem,
        clock: Clock,
        segments: SegmentList,
        state: AppendState,
        *,
        store_host: bytes,
        pooled: PooledWrites | None = None,
        on_written: Callable[[int], None],
        on_failed: Callable[[StorePoisoned], None],
    ) -> None:
        self._body_bytes_max = config.body_bytes_max
        self._record_crc = config.record_crc_enabled
        self._files = files
        self._now_ms = clock.now_ms
        self._segments = segments
        self._state = state
        self._store_host = store_host
        self._pooled = pooled
        self._on_written = on_written
        self._on_failed = on_failed
        self._zeroes = config.syncs_before_ack
        # For runs that go to the file as they are, with nothing to be done before.
        self._bare_pwrite = files.pwrite if pooled is None and not self._zeroes else None
        self._preparer = SegmentPreparer(
            files,
            segment_bytes=config.segment_bytes,
            path_for=segments.path_for,
            ahead=config.segments_prepared_ahead,
            zeroes=self._zeroes,
        )
        self._active: Segment | None = segments.at(state.physical_end)
        self._prepare_behind = self._half_way()
        if self._active is None:
            self._preparer.prepare(self._segment_start(state.physical_end))
        # Of appends by this broker; ``raw_refusal`` of bytes that a slave got from its master.
        self.refusal: StoreError | None = None
        self.raw_refusal: StoreError | None = None
        self.last_record_offset: int | None = None
        self.last_store_timestamp_ms = 0

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """Independent messages in order; a segment may end between two of them."""
        self._refuse()
        return self._append(drafts if isinstance(drafts, list) else list(drafts))

    def append_chunks(self, chunks: list[PlainChunk]) -> AppendedChunks | None:
        """Admitted sends in order, their places noted in their rows; None if ``append`` must take
        them.

        This holds when they go over the segment's end or one is the first of its queue: no byte was
        written then.
        """
        if self.refusal is not None:
            self._refuse()
        segment = self._active
        if segment is None or self._record_crc:
            return None
        state = self._state
        now_ms = self._now_ms()
        start = state.physical_end
        room_bytes = segment.end - start - BLANK_RECORD_BYTES
        built = build_sends(
            chunks,
            state.unlent_offsets,
            state.lent,
            start,
            room_bytes,
            now_ms,
            self._store_host,
        )
        if built is None:
            return None
        records, physical_end, last_record_offset = built
        if crashpoints.ARMED:
            crashpoint("append.before_write")
        if self._bare_pwrite is None or segment.open_fd < 0:
            self._pwrite(records, start)
        else:
            # The same without the steps that this store never takes.
            try:
                written = self._bare_pwrite(segment.open_fd, records, start - segment.start)
            except OSError as error:
                raise self._write_failed(error) from error
            if written != len(records):
                raise self._cut_short(written, len(records))
        if crashpoints.ARMED:
            crashpoint("append.after_write")
        commit_places(chunks)
        state.physical_end = physical_end
        self.last_record_offset = last_record_offset
        self.last_store_timestamp_ms = now_ms
        self._on_written(physical_end)
        if physical_end >= self._prepare_behind:
            self._prepare_next()
        return _appended_chunks((start, physical_end, now_ms))

    def append_raw(self, plan: RawPlan, data: bytes | bytearray | memoryview) -> None:
        """Write the planned pieces of a master's bytes, one ``pwrite`` per segment touched."""
        _refuse(self.raw_refusal)
        self._secure_segments([piece.physical_offset for piece in plan.pieces])
        view = memoryview(data)
        for piece in plan.pieces:
            self._go_to(piece.physical_offset)
            crashpoint("append_raw.before_write")
            self._pwrite(view[piece.start : piece.end], piece.physical_offset)
            crashpoint("append_raw.after_write")
        self._state.physical_end = plan.physical_end
        if plan.last_record_offset is not None:
            self.last_record_offset = plan.last_record_offset
            self.last_store_timestamp_ms = plan.last_store_timestamp_ms
        self._on_written(plan.physical_end)
        if plan.physical_end >= self._prepare_behind:
            self._prepare_next()
        # Behind a blank record the log ends where the next segment will begin.
        self._go_to(plan.physical_end)

    @property
    def named_end(self) -> int:
        """The log's end as a checkpoint names it: behind a record, never behind a blank record.

        Only a slave's log stops between both, for a moment. A version from before there were
        slaves takes a checkpoint's end for that of the last record, or the log for damaged.
        """
        end, last = self._state.physical_end, self.last_record_offset
        segment = None if last is None else self._segments.at(last)
        if last is None or segment is None or end != segment.end:
            return end
        return last + int.from_bytes(segment.view(last, 4), "big")

    def append_marker(self, draft: MessageDraft, queue_offset: int) -> AppendedRun:
        """The first record of a leader's epoch, also while other appends are refused."""
        _refuse(self.raw_refusal)
        self._state.set_next_offset(draft.topic, draft.queue_id, queue_offset)
        return self._append([draft])

    def begin_at(self, physical_offset: int) -> None:
        """An empty log begins elsewhere: forget the segment that was prepared for its start."""
        self._preparer.close()
        self._active = None
        self._prepare_behind = 0
        self._state.physical_end = physical_offset

    def let_go(self) -> None:
        """End the zeros under way, and remove the segment that was prepared and not taken."""
        self._preparer.close()

    def cut(self, physical_end: int) -> None:
        """The log ends at ``physical_end`` now, behind a record that this object never saw."""
        self._state.physical_end = physical_end
        self._active = self._segments.at(physical_end)
        self._prepare_behind = self._half_way()
        self.last_record_offset = None
        self.last_store_timestamp_ms = 0

    def append_batch(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """A split batch: one queue, consecutive offsets, never across a segment's end."""
        self._refuse()
        self._require_batch(drafts)
        return self._append(list(drafts), whole=True)

    def append_inner_batch(self, draft: MessageDraft) -> AppendedRun:
        """A batch kept whole in one record; it takes as many queue offsets as it has messages."""
        self._refuse()
        if not draft.sys_flag & SYS_FLAG_INNER_BATCH:
            raise BatchIllegal("an inner batch carries sysFlag 0x80: use mark_inner_batch")
        base = self._state.next_offset(draft.topic, draft.queue_id)
        count = inner_batch_count(draft.properties)
        return self._append([put_inner_base(draft, base)], weight=count)

    def _append(
        self, drafts: list[MessageDraft], *, whole: bool = False, weight: int = 1
    ) -> AppendedRun:
        state = self._state
        now_ms = self._now_ms()
        built = build_fitting_run(
            drafts,
            state.next_offsets,
            state.physical_end,
            state.room() if self._active is not None else 0,
            weight,
            now_ms,
            self._store_host,
            self._body_bytes_max,
            self._record_crc,
        )
        if built is None:
            return self._append_in_chunks(drafts, now_ms, whole, weight)
        parts, queue_offsets, physical_offsets, physical_end, next_offsets, fresh = built
        for key in fresh:
            _require_queue(*key)
        if parts:
            self._write(parts, physical_offsets[0])
            state.commit_append(next_offsets, physical_end)
            self._written(physical_offsets[-1], now_ms)
        return AppendedRun(queue_offsets, physical_offsets, now_ms, physical_end)

    def _refuse(self) -> None:
        _refuse(self.refusal)

    def _append_in_chunks(
        self, drafts: list[MessageDraft], now_ms: int, whole: bool, weight: int
    ) -> AppendedRun:
        """The run needs a segment that is not there yet, or goes over a segment's end."""
        # The frame kernel hands out plain tuples; only this rare path needs their names.
        drafts = [MessageDraft._make(draft) for draft in drafts]
        sizes = measure_run(drafts, self._body_bytes_max, self._record_crc, len(self._store_host))
        plan = self._state.plan_append(drafts, sizes, whole=whole, weight=weight)
        for key in plan.new_queues:
            _require_queue(*key)
        self._secure_segments([chunk.physical_offset for chunk in plan.chunks])
        for chunk in plan.chunks:
            if chunk.blank_at is not None:
                self._roll(chunk.blank_at, chunk.physical_offset)
            parts = build_run(
                drafts[chunk.first : chunk.last],
                plan.queue_offsets[chunk.first : chunk.last],
                chunk.physical_offset,
                now_ms,
                self._store_host,
                self._record_crc,
            )
            self._write(parts, chunk.physical_offset)
        self._state.commit_append(plan.next_offsets, plan.physical_end)
        self._written(plan.physical_offsets[-1], now_ms)
        return AppendedRun(plan.queue_offsets, plan.physical_offsets, now_ms, plan.physical_end)

    def _written(self, last_record_offset: int, now_ms: int) -> None:
        physical_end = self._state.physical_end
        self.last_record_offset = last_record_offset
        self.last_store_timestamp_ms = now_ms
        self._on_written(physical_end)
        if physical_end >= self._prepare_behind:
            self._prepare_next()

    def _write(self, parts: list[bytes], physical_offset: int) -> None:
        crashpoint("append.before_write")
        self._pwrite(b"".join(parts), physical_offset)
        crashpoint("append.after_write")

    def _pwrite(self, data: bytes | bytearray | memoryview, physical_offset: int) -> None:
        segment = self._active
        assert segment is not None, "segments are secured before anything is written"
        position = physical_offset - segment.start
        if self._zeroes:
            self._preparer.reach(physical_offset + len(data))
        try:
            if self._pooled is None:
                written = self._files.pwrite(segment.fd, data, position)
            else:
                written = self._pooled.write(segment, data, position)
        except OSError as error:
            raise self._write_failed(error) from error
        if written != len(data):
            raise self._cut_short(written, len(data))

    def _write_failed(self, error: OSError) -> StorePoisoned:
        return self._poisoned(f"writing the commit log failed: {error}")

    def _cut_short(self, written: int, byte_count: int) -> StorePoisoned:
        return self._poisoned(
            f"only {written} of {byte_count} bytes were written to the commit log"
        )

    def _poisoned(self, problem: str) -> StorePoisoned:
        failure = StorePoisoned(f"{problem}; restart the broker once the disk is sound")
        self._on_failed(failure)
        return failure

    def _roll(self, blank_at: int, next_start: int) -> None:
        """End the active segment with a blank record and go to the next one."""
        crashpoint("append.before_blank")
        if self._active is not None and self._active.start <= blank_at < self._active.end:
            self._pwrite(encode_blank(self._active.end - blank_at), blank_at)
        crashpoint("append.after_blank")
        self._go_to(next_start)

    def _go_to(self, physical_offset: int) -> None:
        segment = self._segments.at(physical_offset)
        if segment is not self._active:
            self._active = segment
            self._prepare_behind = self._half_way()

    def _secure_segments(self, physical_offsets: Sequence[int]) -> None:
        """Have every segment the plan needs, or refuse before anything is written."""
        for physical_offset in physical_offsets:
            segment = self._segments.at(physical_offset)
            try:
                if segment is None:
                    segment = self._preparer.take(self._segment_start(physical_offset))
                    self._segments.add(segment)
                    crashpoint("append.segment_taken")
                # Opened here, where a lack of descriptors is a refusal; between two writes it would
                # be the end.
                assert segment.fd >= 0
            except OSError as error:
                raise self._no_segment(error) from error
        if self._active is None:
            self._active = self._segments.at(self._state.physical_end)
            self._prepare_behind = self._half_way()

    def _no_segment(self, error: OSError) -> StoreError:
        """The process may be short of something for now; otherwise the disk has failed."""
        if error.errno in (*OUT_OF_DESCRIPTORS, errno.ENOMEM):
            return StoreReadOnly(f"the next segment cannot be opened now: {error}")
        return self._poisoned(f"creating a segment failed: {error}")

    def _segment_start(self, physical_offset: int) -> int:
        return physical_offset - physical_offset % self._segments.segment_bytes

    def _half_way(self) -> int:
        if self._active is None:
            return 0
        return self._active.start + self._active.byte_count // 2

    def _prepare_next(self) -> None:
        if self._active is not None:
            # One may be there already: of a run over several segments that found no room for all.
            if self._segments.at(self._active.end) is None:
                self._preparer.prepare(self._active.end)
            self._prepare_behind = self._active.end

    def _require_batch(self, drafts: Sequence[MessageDraft]) -> None:
        if len({(draft.topic, draft.queue_id) for draft in drafts}) > 1:
            raise BatchIllegal("a batch goes to one queue: send its messages separately")
        for draft in drafts:
            if draft.sys_flag & TRANSACTION_MASK:
                raise MessageIllegal("a batch cannot be part of a transaction")
            # Looking for the name first is what keeps a batch of plain messages cheap.
            if _DELAY_NAME in draft.properties and _asks_for_delay(draft.properties):
                raise MessageIllegal("a batch cannot be delayed: send its messages singly")
        body_bytes = sum(len(draft.body) for draft in drafts)
        if body_bytes > self._body_bytes_max:
            raise BodyTooLarge(
                f"the batch has {body_bytes} bytes of bodies, maxMessageSize is "
                f"{self._body_bytes_max}: send it in parts"
            )

    def stop(self) -> None:
        """Leave the folder as it is and alone: nothing of ours is written there any more."""
        self._preparer.stop()

    def close(self) -> None:
        self._preparer.close()


def _refuse(refusal: StoreError | None) -> None:
    if refusal is not None:
        # A new one each time: an exception that is raised again and again grows a traceback.
        raise type(refusal)(*refusal.args) from refusal.__cause__


def _asks_for_delay(properties: bytes) -> bool:
    level = read_property(properties, DELAY) or ""
    return level.isdecimal() and bool(level.strip("0"))


def _require_queue(topic: bytes, queue_id: int) -> None:
    """A queue becomes a folder: its topic must be a plain name and its id no sign or size."""
    try:
        check_topic_folder(topic.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MessageIllegal(f"the topic {topic!r} is not UTF-8 text") from error
    if not 0 <= queue_id < 1 << 31:
        raise MessageIllegal(f"queue id {queue_id} of {topic!r} is not in 0..2147483647")

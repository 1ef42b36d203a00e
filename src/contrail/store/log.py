"""The one door of the store room: open a folder, append, read, maintain it, close it.

One thread, the owner, calls everything here except ``wait_flushed``. Work that may block for long
has the store's own threads: the flusher (``fdatasync``), the segment preparer, the checkpointer.
``positions`` says how far the log is written, flushed, visible, acknowledged and settled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from contrail.clock import Clock, SystemClock
from contrail.errors import (
    DiskFull,
    OpeningAbandoned,
    RawBytesRefused,
    StoreClosed,
    StoreError,
    StoreFollows,
    StorePoisoned,
    StoreReadOnly,
)
from contrail.model.message import LOOPBACK_HOST, MessageDraft, StoredMessage
from contrail.model.property_sieve import PropertySieve
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FilePart, FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.buffer_pool import BufferPool
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.marker_files import ApacheCheckpoint, StoreLock, remove_abort, write_abort
from contrail.store.disk.queue_table import Arrival as Arrival
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import SegmentList
from contrail.store.disk.sent_file import FilePlace, SentFile
from contrail.store.features import require_group, require_single
from contrail.store.services.append import (
    AppendedChunks,
    AppendedRaw,
    AppendedRun,
    Appender,
)
from contrail.store.services.checkpoint import CheckpointFiles
from contrail.store.services.damage import DamageWatch
from contrail.store.services.dispatch import ArrivalListener, Dispatcher
from contrail.store.services.flush import Flusher
from contrail.store.services.log_repair import LogRepair
from contrail.store.services.lookup import Lookup, PlacesByKey
from contrail.store.services.pooled_writes import PooledWrites
from contrail.store.services.queue_runs import QueueRuns
from contrail.store.services.reading import GetResult, QueueReading, QueueRow
from contrail.store.services.record_places import RecordPlaces
from contrail.store.services.recovery import RecoveredLog, Recovery
from contrail.store.services.residency import DiskWaits, OnDisk
from contrail.store.services.retention import Retention
from contrail.store.services.row_repair import RowRepair
from contrail.store.services.row_sources import OpenRows
from contrail.store.services.scrub import Scrubber
from contrail.store.services.sifting import Sifted, Sifting, SiftLimits
from contrail.store.services.truncation import Truncation
from contrail.store.services.unit_walk import UnitWalk
from contrail.store.services.upkeep import Upkeep
from contrail.store.state.append import AppendState
from contrail.store.state.positions import NO_LIMIT, Positions
from contrail.store.state.raw_append import plan_raw
from contrail.store.state.reading import GetStatus
from contrail.store.state.record_crc import RecordCrcRule
from contrail.store.state.record_marks import RecordMarks
from contrail.store.state.time_search import Boundary

if TYPE_CHECKING:
    from contrail.kernels.send_records import Chunk

_FOREVER_MS = (1 << 63) - 1
# Others of the group that were away for a moment find their log's end here.
_KEPT_IN_GROUP = 2
# The most bytes of a record beside its body: fields, topic, properties.
_BESIDE_BODY_BYTES_MAX = 64 << 10
# A master may allow larger messages than this broker does.
_BODY_BYTES_MAX_OF_MASTER = 4 << 20


class MessageStore:
    """A store folder, open for reading and writing."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        clock: Clock,
        files: FileSystem,
        on_arrival: ArrivalListener | None,
        on_flushed: Callable[[int], None] | None,
        on_poisoned: Callable[[StorePoisoned], None] | None,
        accept_loss: bool,
        store_host: bytes,
        batch_topics: frozenset[bytes],
        is_abandoned: Callable[[], bool],
        follows: bool,
        in_group: bool,
        is_stepped: bool,
    ) -> None:
        self._is_stepped = is_stepped
        self._is_abandoned = is_abandoned
        self.follows = follows
        self.in_group = in_group
        self._leads = False
        self._config = config
        self._clock = clock
        self._files = files
        self._on_poisoned = on_poisoned
        self._closed = False
        # Inside ``with store.disk_waits`` the owner's reads raise ``NotInMemory`` and never wait.
        self.disk_waits = DiskWaits()
        self._pool: BufferPool | None = None
        self.poisoned: StorePoisoned | None = None
        # The same object reads and writes: it keeps the fingerprint of the file that it read.
        self._checkpoints = CheckpointFiles(files, config.root)
        self._sent_file = SentFile(files)
        self._segments = SegmentList(
            files,
            folders=config.log_folders,
            read_only_folders=config.read_only_commit_log_paths,
            segment_bytes=config.segment_bytes,
            full_ratio=config.disk_clean_forcibly_ratio / 100,
        )
        self._queues = QueueTable(config, files, batch_topics=batch_topics)
        self._index = (
            KeyIndex(
                config.root / "index",
                config=config,
                files=files,
                clock=clock,
                waits=self.disk_waits,
            )
            if config.index_enabled
            else None
        )
        self._dispatcher = Dispatcher(config, self._segments, self._queues, self._index)
        recovered, apache = self._recover(accept_loss)
        self._dispatcher.on_arrival = on_arrival
        self._wire(recovered, apache, store_host, on_flushed)

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        clock: Clock | None = None,
        files: FileSystem | None = None,
        on_arrival: ArrivalListener | None = None,
        on_flushed: Callable[[int], None] | None = None,
        on_poisoned: Callable[[StorePoisoned], None] | None = None,
        accept_loss: bool = False,
        store_host: bytes = LOOPBACK_HOST,
        batch_topics: frozenset[bytes] = frozenset(),
        is_abandoned: Callable[[], bool] = lambda: False,
        follows: bool = False,
        in_group: bool = False,
        is_stepped: bool = False,
    ) -> Self:
        """Lock the folder, recover it and make it ready.

        With ``follows`` the log takes a master's bytes by ``append_raw`` and no other append. The
        log of a member ``in_group`` does so until ``lead``; it is derived, read and acknowledged
        up to ``commit_to``, and ``truncate`` cuts it. A store that ``is_stepped`` has no thread:
        it syncs in ``flush_now`` and writes checkpoints in ``tick``, for simulations.

        ``on_arrival`` is called on the owner's thread from ``dispatch``; ``on_flushed`` and
        ``on_poisoned`` may be called on the flusher's. ``is_abandoned`` is asked between steps.

        Raises:
            OpeningAbandoned: ``is_abandoned`` returned True; the next opening begins anew.
            FeatureRefused: the folder asks for what this release does not know, or is a member's.
            StoreLocked: another process has the folder open.
            StoreCorrupt: durable messages are damaged or missing, and loss was not accepted.
            StoreLayoutError: a file has a name or length that does not belong there.
        """
        assert not in_group or config.syncs_before_ack, "a group acknowledges what is synced"
        files = files or FileSystem()
        lock = StoreLock(files, config.root / "lock")
        try:
            if not files.exists(config.root):
                files.make_folder(config.root)
                files.sync_folder(config.root.parent)
            lock.take()
        except OSError as error:
            raise StoreError(f"the store in {config.root} cannot be opened: {error}") from error
        try:
            store = cls(
                config,
                clock=clock or SystemClock(),
                files=files,
                on_arrival=on_arrival,
                on_flushed=on_flushed,
                on_poisoned=on_poisoned,
                accept_loss=accept_loss,
                store_host=store_host,
                batch_topics=batch_topics,
                is_abandoned=is_abandoned,
                follows=follows,
                in_group=in_group,
                is_stepped=is_stepped,
            )
        except OSError as error:
            lock.release()
            raise StoreError(f"the store in {config.root} cannot be opened: {error}") from error
        except BaseException:
            lock.release()
            raise
        store._lock = lock
        return store

    _lock: StoreLock

    def _recover(self, accept_loss: bool) -> tuple[RecoveredLog, ApacheCheckpoint]:
        if self.in_group:
            require_group(self._files, self._config.root)
        else:
            require_single(self._files, self._config.root)
        tidied = self._segments.load()
        known = self._checkpoints.read()
        recovery = Recovery(
            self._config,
            self._files,
            self._segments,
            self._queues,
            self._index,
            self._dispatcher,
            accept_loss=accept_loss,
            in_group=self.in_group,
            go_on=self.go_on,
        )
        was_clean = not self._files.exists(self._abort_path)
        recovered, self.recovery = recovery.run(known, was_clean=was_clean)
        self.recovery.problems += tidied
        if self.follows or self.in_group:
            # Whether a record of the master has a CRC of its own is the master's setting.
            recovered.crc_rule = RecordCrcRule(recovered.crc_rule.check)
        return recovered, known.apache or ApacheCheckpoint()

    @property
    def _abort_path(self) -> Path:
        return self._config.root / "abort"

    def go_on(self) -> None:
        """Raises ``OpeningAbandoned`` if ``is_abandoned`` says to stop opening this store."""
        if self._is_abandoned():
            raise OpeningAbandoned(f"opening the store in {self._config.root} was abandoned")

    def _wire(
        self,
        recovered: RecoveredLog,
        apache: ApacheCheckpoint,
        store_host: bytes,
        on_flushed: Callable[[int], None] | None,
    ) -> None:
        self._wire_writing(recovered, apache, store_host, on_flushed)
        try:
            self._wire_reading(recovered)
            self._wire_upkeep(recovered, apache)
            write_abort(self._files, self._abort_path, os.getpid())
        except BaseException:
            # The next opening must not meet the appender's threads still at work in the folder.
            self._appender.stop()
            raise
        self._flusher.start()

    def _wire_writing(
        self,
        recovered: RecoveredLog,
        apache: ApacheCheckpoint,
        store_host: bytes,
        on_flushed: Callable[[int], None] | None,
    ) -> None:
        self._state = AppendState(
            segment_bytes=self._config.segment_bytes, physical_end=recovered.physical_end
        )
        self._restore_next_offsets(recovered)
        pooled = self._pooled_writes()
        self.positions = Positions(
            recovered.physical_end,
            syncs_before_ack=self._config.syncs_before_ack,
            in_group=self.in_group,
        )
        if self.in_group:
            self.positions.commit_limit = self._dispatcher.dispatched_end
        self._flusher = Flusher(
            self._files,
            self._segments,
            self._config,
            self.positions,
            pooled=pooled,
            on_flushed=on_flushed,
            on_failed=self._poison,
            is_stepped=self._is_stepped,
        )
        self._appender = Appender(
            self._config,
            self._files,
            self._clock,
            self._segments,
            self._state,
            store_host=store_host,
            pooled=pooled,
            on_written=self._flusher.written,
            on_failed=self._poison,
        )
        self._appender.last_record_offset = recovered.last_record_offset
        self._appender.last_store_timestamp_ms = (
            recovered.last_store_timestamp_ms or apache.physic_timestamp_ms
        )

    def _wire_reading(self, recovered: RecoveredLog) -> None:
        rows = OpenRows(self._segments, self._queues, waits=self.disk_waits)
        self.damage = DamageWatch(
            self._config.root,
            self._files,
            self._segments,
            crc_rule=recovered.crc_rule,
            places=RecordPlaces(rows, self._queues.tombstones),
            visible_end=lambda: self.visible_end,
        )
        self._reading = QueueReading(
            self._config,
            self._segments,
            self._queues,
            crc_rule=recovered.crc_rule,
            visible_end=lambda: self.visible_end,
            waits=self.disk_waits,
            damage=self.damage,
        )
        self._sifting = Sifting(
            self._segments, self._queues, crc_rule=recovered.crc_rule, waits=self.disk_waits
        )
        self._records = UnitWalk(self._segments)
        self._lookup = Lookup(self._segments, self._queues, self._index, self._reading, self.damage)

    def _wire_upkeep(self, recovered: RecoveredLog, apache: ApacheCheckpoint) -> None:
        # By name, how far each part of replication lets retention go. In a group nothing goes
        # before a snapshot of the tables is known that stands for what the segment says.
        self.retention_limits: dict[str, Callable[[], int]] = {}
        if self.in_group:
            self.retention_limits["snapshot"] = lambda: 0
        self._disk_full: str | None = None
        self._rows_refused: StoreReadOnly | None = None
        self._follows_refusal: StoreReadOnly | None = None
        if self.follows:
            self._follows_refusal = StoreFollows("a slave's log takes its master's records alone")
        elif self.in_group:
            self._follows_refusal = _not_leading()
        self._set_refusal()
        self.retention = Retention(
            self._config,
            self._files,
            self._segments,
            self._queues,
            self._index,
            on_disk_full=self._set_disk_full,
            before_removal=self._may_remove,
            kept_count=_KEPT_IN_GROUP if self.in_group else 1,
        )
        self.scrubber = Scrubber(
            self._config,
            self._files,
            self._segments,
            self._queues,
            self._index,
            dispatched_end=lambda: self.dispatched_end,
            crc_rule=recovered.crc_rule,
            clock=self._clock,
            places=RecordPlaces(OpenRows(self._segments, self._queues), self._queues.tombstones),
            on_damage=self.damage.came_across,
            on_misplaced=self.damage.came_across_misplaced,
        )
        self._row_repair = RowRepair(
            self._segments,
            self._queues,
            self.scrubber,
            dispatched_end=lambda: self.dispatched_end,
        )
        self._reading.ask_for_row = self._row_repair.ask
        self._log_repair = LogRepair(self._files, self._segments, self.damage)
        self._upkeep = Upkeep(
            self._config,
            self._state,
            self._appender,
            self._flusher,
            self._dispatcher,
            self._queues,
            self._index,
            self._checkpoints,
            self.retention,
            self.scrubber,
            apache=apache,
            crc_rule=recovered.crc_rule,
            offset_floors=self._floors_above_queues(recovered),
            commit_hint=self._commit_hint if self.in_group else lambda: None,
            on_failed=self._poison,
            on_refused=self._set_rows_refused,
            is_stepped=self._is_stepped,
        )
        self._truncation = Truncation(
            self._files,
            self._segments,
            self._queues,
            self.positions,
            self._appender,
            self._flusher,
            self._dispatcher,
            self._upkeep,
            self._sent_file,
        )

    def _commit_hint(self) -> int:
        """A start derives up to there: not past a deletion that is not carried out."""
        return min(self.settled_end, self.positions.derive_limit)

    def _may_remove(self, physical_end: int) -> bool:
        """Whether retention may remove the segment that ends there."""
        limits = [limit() for limit in self.retention_limits.values()]
        return physical_end <= min(self.settled_end, self.dispatched_end, *limits)

    def _restore_next_offsets(self, recovered: RecoveredLog) -> None:
        """A queue keeps its next offset, even when retention removed all its messages."""
        for topic, queue_id, queue in self._queues.queues():
            self._state.set_next_offset(topic, queue_id, queue.queue_offset_max)
        for (topic, queue_id), floor in self._floors_above_queues(recovered).items():
            self._state.set_next_offset(topic, queue_id, floor)

    def _floors_above_queues(self, recovered: RecoveredLog) -> dict[tuple[bytes, int], int]:
        floors = recovered.offset_floors.items()
        return {key: floor for key, floor in floors if floor > self.queue_offset_max(*key)}

    def _pooled_writes(self) -> PooledWrites | None:
        if not self._config.transient_pool_enabled or self.follows or self.in_group:
            return None
        self._pool = BufferPool(self._config.transient_pool_size, self._config.segment_bytes)
        return PooledWrites(self._files, self._pool)

    @property
    def body_bytes_max(self) -> int:
        """How large a message's body may be."""
        return self._config.body_bytes_max

    @property
    def refuses_appends(self) -> bool:
        """Whether the disk takes no append now: it is full, or has failed."""
        return self._appender.raw_refusal is not None

    @property
    def notes(self) -> list[str]:
        """Remarks for the operator since this start that are no errors."""
        return [self._pool.note] if self._pool is not None and self._pool.note else []

    # Writing.

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """Append independent messages in order and return where each landed.

        Returns once the records are written; ``wait_flushed`` waits until they are durable.

        Raises:
            MessageIllegal: a message breaks a limit (the subclass says which); none was stored.
            DiskFull: the disk has no room now; reads go on.
            StorePoisoned: an earlier write or sync failed.
        """
        return self._appender.append(drafts)

    def append_chunks(self, chunks: list[Chunk]) -> AppendedChunks | None:
        """Append fast sends that are still rows of numbers; None if ``append`` must take them.

        Raises as ``append`` does.
        """
        appended = self._appender.append_chunks(chunks)
        if appended is not None:
            self._dispatcher.offer_chunks(appended, chunks)
        return appended

    def append_raw(
        self,
        physical_offset: int,
        data: bytes | bytearray | memoryview,
        *,
        is_kept: bool = False,
    ) -> int:
        """Append the whole records at the beginning of a master's bytes; returns how many bytes.

        ``data`` continues the log at ``physical_offset`` and may end inside a record: give the
        rest again with the bytes that follow. An empty log may begin at any segment's start.
        ``is_kept``: the bytes stay as they are until ``dispatched_end`` is behind them.

        Raises:
            RawBytesRefused: the bytes do not continue this log; nothing was written.
            DiskFull: the disk has no room now.
            StorePoisoned: an earlier write or sync failed.
        """
        is_fed = self.follows or (self.in_group and not self._leads)
        assert is_fed, "a log with appends of its own takes no others"
        if physical_offset != self.physical_end and (
            not self.is_empty or physical_offset % self._config.segment_bytes
        ):
            raise RawBytesRefused(
                "place", f"bytes at {physical_offset} do not continue a log of {self.physical_end}"
            )
        plan = plan_raw(
            data,
            physical_offset,
            segment_bytes=self._config.segment_bytes,
            record_bytes_max=self.raw_record_bytes_max,
            takes_bare_blank=not self.in_group,
        )
        if not plan.pieces:
            return 0
        if physical_offset != self.physical_end:
            self._begin_at(physical_offset)
        self._appender.append_raw(plan, data)
        view = memoryview(data)
        is_kept = is_kept or type(view.obj) is bytes
        for piece in plan.pieces:
            if piece.records_end > piece.start:
                records = view[piece.start : piece.records_end]
                # Bytes that their owner may change or resize are copied.
                records = records if is_kept else memoryview(bytes(records))
                end = piece.physical_offset + len(records)
                self._dispatcher.offer_records(AppendedRaw(records, piece.physical_offset, end))
        return plan.byte_count

    @property
    def raw_record_bytes_max(self) -> int:
        """How large a master's record may be."""
        body_bytes_max = max(self._config.body_bytes_max, _BODY_BYTES_MAX_OF_MASTER)
        return body_bytes_max + _BESIDE_BODY_BYTES_MAX

    def _begin_at(self, physical_offset: int) -> None:
        """Let an empty log begin at the start of another segment."""
        if len(self._segments):
            # The checkpoint promises no byte before the segment of that byte goes.
            self._restart_at(0)
            self._upkeep.checkpoint()
            self._segments.remove_after(0)
        self._restart_at(physical_offset)
        if self.in_group:
            # The leader's log begins there: what was below is committed.
            self.positions.commit_limit = physical_offset

    def _restart_at(self, physical_offset: int) -> None:
        self._appender.begin_at(physical_offset)
        self._flusher.begin_at(physical_offset)
        self._dispatcher.begin_at(physical_offset)

    # The log of a group's member.

    def append_marker(self, draft: MessageDraft, queue_offset: int) -> AppendedRun:
        """Append the first record of a new leader's epoch, the only one before ``lead``."""
        assert self.in_group and not self._leads, "a marker begins an epoch"
        return self._appender.append_marker(draft, queue_offset)

    def commit_to(self, physical_end: int) -> None:
        """The log is committed up to ``physical_end``: no leader ever cuts it below."""
        assert self.in_group and physical_end <= self.physical_end, "commit lies in the log"
        assert physical_end >= self.positions.commit_limit, "a commit never moves back"
        self.positions.commit_limit = physical_end

    def derive_to(self, physical_end: int | None) -> None:
        """Derive nothing behind the record that ends there; None ends that.

        It deletes a topic, whose records behind it begin anew.
        """
        self.positions.derive_limit = NO_LIMIT if physical_end is None else physical_end

    def delete_topic_at(self, topic: bytes, physical_end: int) -> None:
        """Carry out a committed deletion: the topic's records before ``physical_end`` are dead.

        Nothing behind is derived yet, unless this was done before.
        """
        self._require_open()
        if self._queues.tombstones.get(topic, 0) >= physical_end:
            return
        assert self.dispatched_end <= physical_end, "records behind a deletion are derived"
        # Rows that wait in memory may be for queues that go.
        self._dispatcher.cut()
        self._remove_queues(topic, physical_end)

    def begin_topic_anew(self, topic: bytes) -> None:
        """The next messages of a topic stand behind its deletion: they are numbered from 0."""
        assert self._leads, "the leader numbers messages"
        self._state.forget_topic(topic)

    @property
    def leads(self) -> bool:
        """Whether a group's member takes own appends: between ``lead`` and ``stop_leading``."""
        return self._leads

    def lead(self, offset_floors: Mapping[tuple[bytes, int], int]) -> None:
        """Take own appends from now on; the marker is committed and derived, nothing behind it.

        The next offset of every queue is what its rows say, or its floor where that is higher.
        """
        assert self.in_group and self.dispatched_end == self.physical_end, "a tail is not derived"
        floors = self._upkeep.offset_floors
        for key, floor in offset_floors.items():
            floors[key] = max(floor, floors.get(key, 0))
        next_offsets = {(topic, qid): q.queue_offset_max for topic, qid, q in self._queues.queues()}
        for key, floor in floors.items():
            next_offsets[key] = max(floor, next_offsets.get(key, 0))
        self._state.reset(next_offsets)
        self._leads, self._follows_refusal = True, None
        self._set_refusal()

    def stop_leading(self) -> None:
        """Take the records of another leader from now on, and no own append."""
        self._leads, self._follows_refusal = False, _not_leading()
        self._set_refusal()

    def truncate(self, physical_end: int) -> None:
        """Cut the log where a record ends, not below the commit; it waits for the disk.

        First end all links that hold views of the bytes behind: they are written again.

        Raises:
            StorePoisoned: the disk failed, now or before.
        """
        assert self.in_group and not self._leads, "a leader never cuts its log"
        if self.poisoned is not None:
            raise StorePoisoned(*self.poisoned.args) from self.poisoned
        try:
            self._truncation.run(physical_end)
        except OSError as error:
            failure = StorePoisoned(f"cutting the commit log failed: {error}")
            failure.__cause__ = error
            self._poison(failure)
            raise failure from error

    def units_end(self, physical_start: int, physical_limit: int, bytes_max: int) -> int:
        """Where whole records from ``physical_start`` end: within ``bytes_max``, or one record.

        A blank record goes with the record behind it. The bytes are in memory.
        """
        return self._records.units_end(physical_start, physical_limit, bytes_max)

    def appended_between(
        self, physical_start: int, physical_end: int, topics: frozenset[bytes]
    ) -> Iterator[StoredMessage]:
        """The messages of some topics in a stretch of the log, also above the commit."""
        return self._records.messages_between(physical_start, physical_end, topics)

    def naming_between(self, physical_start: int, physical_end: int) -> list[tuple[int, int]]:
        """The physical offsets of deliveries, commits and sinks' rows in a stretch of the log.

        With each the ``preparedTransactionOffset`` of its header.
        """
        return list(self._records.naming_between(physical_start, physical_end))

    def append_one(self, draft: MessageDraft) -> AppendedRun:
        return self._appender.append([draft])

    def append_batch(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """Append a split batch: one queue, consecutive offsets, within one segment."""
        return self._appender.append_batch(drafts)

    def append_inner_batch(self, draft: MessageDraft) -> AppendedRun:
        """Append a batch that stays whole in one record (topics of type BatchCQ)."""
        self._queues.add_batch_topic(draft.topic)
        return self._appender.append_inner_batch(draft)

    def flush_now(self) -> None:
        """Make durable what is written, on this thread; for a store that is stepped."""
        assert self._is_stepped, "the flusher's thread syncs"
        self._flusher.flush_now()

    def wait_flushed(self, physical_end: int, timeout_ms: int | None = None) -> bool:
        """Block until the log is durable up to ``physical_end``; False if the timeout passes first.

        Raises:
            StorePoisoned: a write or sync failed, so the log never becomes durable up to there.
        """
        return self._flusher.wait(physical_end, timeout_ms)

    def wait_acknowledged(self, run: AppendedRun) -> bool:
        """Block until the flush policy lets the broker tell a producer that ``run`` is stored.

        Returns without waiting under ASYNC_FLUSH; under SYNC_FLUSH after the sync, or False once
        ``syncFlushTimeout`` has passed: the run is in the log then, but perhaps not on the disk.

        Raises:
            StorePoisoned: a write or sync failed, so the run never becomes durable.
        """
        if not self._config.syncs_before_ack:
            return True
        return self._flusher.wait(run.physical_end, self._config.sync_flush_timeout_ms)

    # Deriving.

    def dispatch(self) -> int:
        """Derive queues and index up to ``visible_end``; returns the bytes passed."""
        self._require_open()
        passed = 0
        try:
            passed = self._dispatcher.advance(self.visible_end)
        except OSError as error:
            self._upkeep.derived_failed(error)
        # Outside the ``try``: an error raised by the listener is no failed write.
        self._dispatcher.announce()
        return passed

    def watch(self, queues: dict[tuple[bytes, int], Any]) -> None:
        """Announce arrivals in ``queues`` (by topic and queue id), read anew at each dispatch.

        Arrivals in other queues may be announced too. Without this call all are announced.
        """
        self._dispatcher.watched = queues

    @property
    def underived_bytes(self) -> int:
        """How many visible bytes queues and index do not know of yet."""
        return self.positions.visible_end - self._dispatcher.dispatched_end

    @property
    def is_awaited(self) -> bool:
        """Whether a held pull may wait for a visible record that its queue does not have yet."""
        return self.positions.visible_end > self._dispatcher.unawaited_end

    def somebody_waits(self) -> None:
        """A pull begins to wait: any record that is not derived yet may be for that pull."""
        self._dispatcher.unawaited_end = 0

    # Reading.

    def get(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int = 32,
        bytes_max: int = 256 * 1024,
        tag_codes: frozenset[int] | None = None,
    ) -> GetResult:
        """Read a queue from ``queue_offset`` on: only records that agree with their rows."""
        return self._reading.get(
            topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            tag_codes=tag_codes,
        )

    def runs(self, topic: bytes, queue_id: int) -> QueueRuns:
        """The shortcut of ``get`` for a reader that goes on in a queue; keep it between reads."""
        return self._reading.runs(topic, queue_id)

    def sift(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        limits: SiftLimits,
        sieve: PropertySieve,
    ) -> Sifted | None:
        """The shortcut of ``get`` for a filter on properties; None: call ``get``."""
        return self._sifting.sift(topic, queue_id, queue_offset, limits, sieve)

    def record(self, physical_offset: int) -> StoredMessage:
        """The message stored at a physical offset.

        Raises:
            RecordDamaged: no whole record starts there.
        """
        return self._reading.record(physical_offset)

    def problem_at(self, physical_offset: int) -> str | None:
        """Text about the whole record that starts there, if its queue row contradicts it."""
        if self.damage.misplaced_at(physical_offset) is None:
            return None
        return self.damage.problem_at(physical_offset)

    def record_bytes(self, physical_offset: int) -> bytes:
        """The record stored at a physical offset, as it stands in the log.

        Raises:
            RecordDamaged: no whole record starts there.
        """
        return bytes(self._reading.record_view(physical_offset))

    def messages_between(self, physical_start: int, physical_end: int) -> Iterator[StoredMessage]:
        """The sound messages of a stretch of the log in their order; it begins at a record.

        Damaged records are reported and passed over.
        """
        for message in self._reading.messages_between(physical_start, physical_end):
            self.go_on()
            yield message

    def marked_between(
        self, physical_start: int, physical_end: int, marks: RecordMarks
    ) -> Iterator[StoredMessage]:
        """Of these messages those with one of the ``marks``, found without decoding the others."""
        return self._reading.marked_between(physical_start, physical_end, marks, self.go_on)

    def is_near(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether reads of a queue from ``queue_offset`` on surely wait for no disk."""
        return self._reading.residency.is_near(topic, queue_id, queue_offset)

    def warm_end(self, topic: bytes, queue_id: int, queue_offset: int, row_count: int) -> int:
        """Where the records of these rows end in the log, if all are in memory; else 0."""
        return self._reading.residency.warm_end(topic, queue_id, queue_offset, row_count)

    def on_disk(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int = 32,
        bytes_max: int = 256 * 1024,
        tag_codes: frozenset[int] | None = None,
    ) -> OnDisk:
        """The file parts to bring in so that ``get`` does not wait for the disk.

        Call again after bringing them in: rows come first, then the records they lead to.
        """
        return self._reading.residency.on_disk(
            topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            tag_codes=tag_codes,
        )

    def record_parts(self, physical_offset: int, byte_count: int) -> list[FilePart]:
        """The file parts of these bytes of the log, without those near the log's end."""
        return self._reading.residency.record_parts(physical_offset, byte_count)

    def row_parts(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[FilePart]:
        """The file parts of ``count`` rows of a queue."""
        return self._reading.residency.row_parts(topic, queue_id, queue_offset, count)

    def bring_in(self, part: FilePart) -> None:
        """Read a part of a file into memory. It waits: call it on any thread but the owner's."""
        self._files.bring_in(part)

    def announce(self, part: FilePart) -> None:
        """Ask the system to read a part of a file soon. Call it on any thread but the owner's."""
        self._files.announce(part)

    def will_need(self, physical_offset: int, byte_count: int) -> None:
        """Ask the system to read these bytes of the log soon, without waiting for the disk."""
        self._reading.residency.will_need(physical_offset, byte_count)

    def rows(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> list[QueueRow]:
        """A queue's rows as they stand in its files, for diagnosis."""
        return self._reading.rows(topic, queue_id, queue_offset, count)

    def row_is_damaged(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether a row leads to no record of its queue; such a row is soon derived again."""
        found = self.get(topic, queue_id, queue_offset, count_max=1)
        return found.status is GetStatus.QUEUE_ENTRY_DAMAGED

    def repair(self, physical_start: int, data: bytes) -> bool:
        """Write damaged records anew from a copy; False if it is not exactly what belongs there.

        It waits for the disk.
        """
        assert self.in_group, "the log of a member has copies"
        return self._log_repair.run(physical_start, data)

    def repair_row(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Derive a row from the log now, which may take long; returns whether it is sound then."""
        return self._row_repair.repair(topic, queue_id, queue_offset)

    def query(
        self,
        topic: bytes,
        key: bytes,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int = _FOREVER_MS,
    ) -> list[StoredMessage]:
        """Messages of a topic with this key or unique id, in log order; keys are compared whole."""
        count_max = min(count_max, self._config.query_results_max)
        return self._lookup.by_key(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )

    def query_places(
        self,
        topic: bytes,
        key: bytes,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int = _FOREVER_MS,
    ) -> PlacesByKey:
        """Like ``query``, but only the physical offsets, and texts about damaged records."""
        count_max = min(count_max, self._config.query_results_max)
        return self._lookup.places_by_key(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )

    @property
    def index_end(self) -> tuple[int, int]:
        """The store time and physical offset of the last indexed message; zeros for none."""
        return self._lookup.index_end

    def has_queue(self, topic: bytes, queue_id: int) -> bool:
        """Whether the queue exists; its first message makes it."""
        return self._queues.get(topic, queue_id) is not None

    def has_topic(self, topic: bytes) -> bool:
        """Whether a topic has any queue in this store."""
        return self._queues.has_topic(topic)

    def add_batch_topic(self, topic: bytes) -> None:
        """From now on ``topic`` keeps batches in one row each.

        Raises:
            StoreLayoutError: the topic has queues of the other kind already.
        """
        self._queues.add_batch_topic(topic)

    def check_batch_topic(self, topic: bytes) -> None:
        """Raises ``StoreLayoutError`` if ``add_batch_topic`` would raise it for ``topic``."""
        self._queues.check_batch_topic(topic)

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int:
        queue = self._queues.get(topic, queue_id)
        return queue.queue_offset_min if queue is not None else 0

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        """The queue offset of the next message that readers will see."""
        queue = self._queues.get(topic, queue_id)
        return queue.queue_offset_max if queue is not None else 0

    def queue_offset_by_time(
        self,
        topic: bytes,
        queue_id: int,
        timestamp_ms: int,
        boundary: Literal["lower", "upper"] = "lower",
    ) -> int:
        """The first message stored at or after a time (lower), or the last at or before (upper)."""
        return self._lookup.by_time(topic, queue_id, timestamp_ms, Boundary(boundary))

    def queues(self) -> list[tuple[bytes, int]]:
        return [(topic, queue_id) for topic, queue_id, _ in self._queues.queues()]

    def log_view(self, physical_offset: int, byte_count: int) -> memoryview | None:
        """Bytes of the log as they stand, within one segment; None if they are on the disk only.

        Then ``bring_in`` the ``log_part`` of them on another thread, and ask again.
        """
        segment = self._segments.at(physical_offset)
        if segment is None or physical_offset + byte_count > segment.end:
            raise ValueError(f"no segment holds {byte_count} bytes at {physical_offset}")
        if not self._reading.residency.is_in_memory(segment, physical_offset, byte_count):
            return None
        return segment.view(physical_offset, byte_count)

    def log_place(self, physical_offset: int) -> FilePlace | None:
        """The open file that has this byte of the log; it holds until the next call.

        None if it cannot be opened: a view needs no descriptor.
        """
        segment = self._segments.at(physical_offset)
        if segment is None:
            raise ValueError(f"no segment holds a byte at {physical_offset}")
        try:
            return self._sent_file.place(segment, physical_offset)
        except OSError:
            return None

    def log_bytes(self, physical_offset: int, byte_count: int) -> bytes:
        """A copy of a few bytes of the log within one segment; it may wait for the disk."""
        segment = self._segments.at(physical_offset)
        if segment is None or physical_offset + byte_count > segment.end:
            raise ValueError(f"no segment holds {byte_count} bytes at {physical_offset}")
        return bytes(segment.view(physical_offset, byte_count))

    def record_end(self, physical_offset: int) -> int:
        """Where the record that begins there ends, by its own word; it may wait for the disk.

        Of a record that retention removed only the beginning is known.
        """
        if physical_offset < self.physical_min:
            return physical_offset
        return physical_offset + int.from_bytes(self.log_bytes(physical_offset, 4), "big")

    def log_part(self, physical_offset: int, byte_count: int) -> FilePart | None:
        """The file part of these bytes of the log, as far as they are in one segment."""
        segment = self._segments.at(physical_offset)
        return segment.part(physical_offset, byte_count) if segment is not None else None

    def when_written(self, note: Callable[[], None] | None) -> None:
        """Call ``note`` after each append; None ends it."""
        self._flusher.on_written = note

    @property
    def segment_bytes(self) -> int:
        return self._config.segment_bytes

    @property
    def is_empty(self) -> bool:
        """Whether the log has no byte."""
        return self.physical_end == self.physical_min or not len(self._segments)

    @property
    def kept_end(self) -> int:
        """Up to it the log is as durable as ``flushDiskType`` promises."""
        return self.positions.kept_end

    @property
    def physical_min(self) -> int:
        return self._segments.physical_min

    @property
    def physical_end(self) -> int:
        return self.positions.physical_end

    @property
    def flushed_end(self) -> int:
        return self.positions.flushed_end

    @property
    def visible_end(self) -> int:
        return self.positions.visible_end

    @property
    def acknowledged_end(self) -> int:
        return self.positions.acknowledged_end

    @property
    def settled_end(self) -> int:
        return self.positions.settled_end

    @property
    def dispatched_end(self) -> int:
        return self._dispatcher.dispatched_end

    # Upkeep.

    def tick(self, now_ms: int | None = None) -> None:
        """Do the periodic duties that are due."""
        self._require_open()
        self._reading.observe_end()
        self._row_repair.run_once()
        if self.poisoned is None:
            self._upkeep.tick(self._clock.now_ms() if now_ms is None else now_ms)

    @property
    def tick_interval_ms(self) -> int:
        """How soon ``tick`` wants to be called again."""
        return self._upkeep.interval_ms(self._clock.now_ms())

    def checkpoint(self) -> None:
        """Make everything durable now, derived files included, and write the checkpoint."""
        self._require_open()
        self._upkeep.checkpoint()

    def delete_topic(self, topic: bytes) -> None:
        """Remove a topic's queues; its records stay in the log until retention removes them."""
        self._require_open()
        # Every record of the topic appended so far is deleted with it, flushed or not; one that
        # replication holds back may never be in the log.
        self._flusher.wait(self._state.physical_end)
        self._dispatcher.advance(self.visible_end)
        self._dispatcher.announce()
        self._remove_queues(topic, self.dispatched_end)
        self._state.forget_topic(topic)

    def _remove_queues(self, topic: bytes, physical_end: int) -> None:
        # The deletion is durable before the first file goes: a crash half way must not end in a
        # rebuild that brings the topic back.
        self._queues.tombstones[topic] = physical_end
        self._upkeep.checkpoint()
        self._queues.delete_topic(topic, physical_end)
        for key in [key for key in self._upkeep.offset_floors if key[0] == topic]:
            del self._upkeep.offset_floors[key]
        crashpoint("store.topic_deleted")
        self._upkeep.checkpoint()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store in {self._config.root} is closed: open it again")

    def _set_disk_full(self, reason: str | None) -> None:
        self._disk_full = reason
        self._set_refusal()

    def _set_rows_refused(self, refusal: StoreReadOnly | None) -> None:
        self._rows_refused = refusal
        self._set_refusal()

    def _set_refusal(self) -> None:
        reason = self._disk_full
        full = DiskFull(f"{reason}; appends resume by themselves") if reason else None
        refusal = self.poisoned or full or self._rows_refused
        self._appender.raw_refusal = refusal
        self._appender.refusal = refusal or self._follows_refusal

    def _poison(self, failure: StorePoisoned) -> None:
        """From now on no append is acknowledged; an operator should look at the process."""
        if self.poisoned is None:
            self.poisoned = failure
            self._appender.refusal = self._appender.raw_refusal = failure
            self._flusher.fail(failure)
            if self._on_poisoned is not None:
                self._on_poisoned(failure)

    def close(self) -> None:
        """Flush, derive, checkpoint and mark the folder as cleanly closed, once.

        A poisoned store is only released: its ``abort`` file stays, and the next start recovers.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self.poisoned is None:
                self._close_cleanly()
        finally:
            self._release()

    def _close_cleanly(self) -> None:
        self._flusher.wait(self._state.physical_end)
        crashpoint("close.flushed")
        self._dispatcher.advance(self.visible_end)
        crashpoint("close.dispatched")
        self._appender.close()
        self._upkeep.checkpoint(clean=True)
        crashpoint("close.checkpointed")
        remove_abort(self._files, self._abort_path)

    def _release(self) -> None:
        refusal = self.poisoned or StoreClosed("the store is closed")
        self._appender.refusal = self._appender.raw_refusal = refusal
        self._appender.stop()
        self._upkeep.stop()
        self._flusher.stop()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._sent_file.close()
        self._segments.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _not_leading() -> StoreFollows:
    return StoreFollows("this member of a failover group does not lead: its leader takes sends")

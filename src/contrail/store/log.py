"""The one door of the store room: open a folder, append, read, keep it well, close it.

One thread, the owner, calls everything here except ``wait_flushed``. What may block for long runs
on the store's own threads: the flusher (``fdatasync``), the segment preparer, the checkpointer.
After an append the bytes are written; they are durable once ``flushed_end`` passes them. Under
SYNC_FLUSH that is also when readers may see them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from contrail.clock import Clock, SystemClock
from contrail.errors import (
    DiskFull,
    OpeningAbandoned,
    StoreClosed,
    StoreError,
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
from contrail.store.services.append import (
    AppendedBatches,
    AppendedChunks,
    AppendedRun,
    Appender,
)
from contrail.store.services.checkpoint import CheckpointFiles
from contrail.store.services.damage import DamageWatch
from contrail.store.services.dispatch import ArrivalListener, Dispatcher
from contrail.store.services.flush import Flusher
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
from contrail.store.services.upkeep import Upkeep
from contrail.store.state.append import AppendState
from contrail.store.state.reading import GetStatus
from contrail.store.state.time_search import Boundary

if TYPE_CHECKING:
    from contrail.kernels.plain_sends import Chunk

_FOREVER_MS = (1 << 63) - 1


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
    ) -> None:
        self._is_abandoned = is_abandoned
        self._config = config
        self._clock = clock
        self._files = files
        self._on_poisoned = on_poisoned
        self._closed = False
        self._syncs_before_ack = config.syncs_before_ack
        # Inside ``with store.disk_waits`` the owner's reads raise ``NotInMemory`` and never wait.
        self.disk_waits = DiskWaits()
        self._pool: BufferPool | None = None
        self.poisoned: StorePoisoned | None = None
        # One to read and to write with: it keeps the fingerprint of the file that it read.
        self._checkpoints = CheckpointFiles(files, config.root)
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
    ) -> Self:
        """Lock the folder, recover it and make it ready.

        ``on_arrival`` is called on the owner's thread from ``dispatch``; ``on_flushed`` and
        ``on_poisoned`` may be called on the flusher's. ``is_abandoned`` is asked between steps.

        Raises:
            OpeningAbandoned: ``is_abandoned`` said so; the next opening begins anew.
            StoreLocked: another process has it open.
            StoreCorrupt: durable messages are damaged or missing, and loss was not accepted.
            StoreLayoutError: a file has a name or length that does not belong there.
        """
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
            go_on=self.go_on,
        )
        was_clean = not self._files.exists(self._abort_path)
        recovered, self.recovery = recovery.run(known, was_clean=was_clean)
        self.recovery.problems += tidied
        return recovered, known.apache or ApacheCheckpoint()

    @property
    def _abort_path(self) -> Path:
        return self._config.root / "abort"

    def go_on(self) -> None:
        """Raises ``OpeningAbandoned`` if nobody wants this store to be opened any more."""
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
            # Whoever opens the folder next must find nobody at work in it.
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
        self._flusher = Flusher(
            self._files,
            self._segments,
            self._config,
            physical_end=recovered.physical_end,
            pooled=pooled,
            on_flushed=on_flushed,
            on_failed=self._poison,
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
            readable_end=lambda: self.readable_end,
        )
        self._reading = QueueReading(
            self._config,
            self._segments,
            self._queues,
            crc_rule=recovered.crc_rule,
            readable_end=lambda: self.readable_end,
            waits=self.disk_waits,
            damage=self.damage,
        )
        self._sifting = Sifting(
            self._segments, self._queues, crc_rule=recovered.crc_rule, waits=self.disk_waits
        )
        self._lookup = Lookup(self._segments, self._queues, self._index, self._reading, self.damage)

    def _wire_upkeep(self, recovered: RecoveredLog, apache: ApacheCheckpoint) -> None:
        self._disk_full: str | None = None
        self._rows_refused: StoreReadOnly | None = None
        self.retention = Retention(
            self._config,
            self._files,
            self._segments,
            self._queues,
            self._index,
            on_disk_full=self._set_disk_full,
            before_removal=lambda end: end <= min(self.flushed_end, self.dispatched_end),
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
            on_failed=self._poison,
            on_refused=self._set_rows_refused,
        )

    def _restore_next_offsets(self, recovered: RecoveredLog) -> None:
        """A queue goes on where it stood, even when retention took all its messages."""
        for topic, queue_id, queue in self._queues.queues():
            self._state.set_next_offset(topic, queue_id, queue.queue_offset_max)
        for (topic, queue_id), floor in self._floors_above_queues(recovered).items():
            self._state.set_next_offset(topic, queue_id, floor)

    def _floors_above_queues(self, recovered: RecoveredLog) -> dict[tuple[bytes, int], int]:
        floors = recovered.offset_floors.items()
        return {key: floor for key, floor in floors if floor > self.queue_offset_max(*key)}

    def _pooled_writes(self) -> PooledWrites | None:
        if not self._config.transient_pool_enabled:
            return None
        self._pool = BufferPool(self._config.transient_pool_size, self._config.segment_bytes)
        return PooledWrites(self._files, self._pool)

    @property
    def body_bytes_max(self) -> int:
        """How large a message's body may be."""
        return self._config.body_bytes_max

    @property
    def notes(self) -> list[str]:
        """What an operator should know about this run that is no error."""
        return [self._pool.note] if self._pool is not None and self._pool.note else []

    # Writing.

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """Append independent messages in order and return where each landed.

        Returns once the records are written; see ``wait_flushed`` for durable.

        Raises:
            MessageIllegal: one breaks a limit (its subclasses say which); none was stored.
            DiskFull: there is no room now; reads go on.
            StorePoisoned: an earlier write or sync failed.
        """
        return self._appender.append(drafts)

    def append_chunks(self, chunks: list[Chunk]) -> AppendedChunks | None:
        """Append tidy sends that are still rows of numbers; None if ``append`` must take them.

        Raises as ``append`` does.
        """
        appended = self._appender.append_chunks(chunks)
        if appended is not None:
            self._dispatcher.offer_chunks(appended, chunks)
        return appended

    def append_batches(self, batches: list[MessageDraft]) -> AppendedBatches | None:
        """Append tidy batches, each split into its messages; None if ``append_batch`` must.

        Raises as ``append`` does.
        """
        appended = self._appender.append_batches(batches)
        if appended is not None:
            self._dispatcher.offer_batches(appended)
        return appended

    def append_one(self, draft: MessageDraft) -> AppendedRun:
        return self._appender.append([draft])

    def append_batch(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """Append a split batch: one queue, consecutive offsets, within one segment."""
        return self._appender.append_batch(drafts)

    def append_inner_batch(self, draft: MessageDraft) -> AppendedRun:
        """Append a batch that stays whole in one record (topics of type BatchCQ)."""
        self._queues.add_batch_topic(draft.topic)
        return self._appender.append_inner_batch(draft)

    def wait_flushed(self, physical_end: int, timeout_ms: int | None = None) -> bool:
        """Block until the log is durable up to there; False when the time ran out first.

        Raises:
            StorePoisoned: it never will be.
        """
        return self._flusher.wait(physical_end, timeout_ms)

    def wait_acknowledged(self, run: AppendedRun) -> bool:
        """Block until a producer may be told that ``run`` is stored, by the flush policy.

        At once under ASYNC_FLUSH; under SYNC_FLUSH after the sync, or False once
        ``syncFlushTimeout`` has passed: the run is in the log then, but perhaps not on the disk.

        Raises:
            StorePoisoned: it never will be.
        """
        if not self._config.syncs_before_ack:
            return True
        return self._flusher.wait(run.physical_end, self._config.sync_flush_timeout_ms)

    # Deriving.

    def dispatch(self) -> int:
        """Derive queues and index up to what readers may see; returns the bytes passed."""
        self._require_open()
        passed = 0
        try:
            passed = self._dispatcher.advance(self.readable_end)
        except OSError as error:
            self._upkeep.derived_failed(error)
        # Outside: what the listener raises is no failed write.
        self._dispatcher.announce()
        return passed

    def watch(self, queues: dict[tuple[bytes, int], Any]) -> None:
        """Tell of arrivals in these queues, by topic and queue id, as they are at each moment.

        Of others it may be told too. Without this it is told of all.
        """
        self._dispatcher.watched = queues

    @property
    def readable_end(self) -> int:
        """Readers see flushed bytes under SYNC_FLUSH, those in the file under ASYNC_FLUSH."""
        flusher = self._flusher
        return flusher.flushed_end if self._syncs_before_ack else flusher.committed_end

    @property
    def underived_bytes(self) -> int:
        """How much readers may see that queues and index do not know of yet."""
        flusher = self._flusher
        readable_end = flusher.flushed_end if self._syncs_before_ack else flusher.committed_end
        return readable_end - self._dispatcher.dispatched_end

    @property
    def is_awaited(self) -> bool:
        """Whether somebody may wait for something of what queues do not know of yet."""
        flusher = self._flusher
        readable_end = flusher.flushed_end if self._syncs_before_ack else flusher.committed_end
        return readable_end > self._dispatcher.unawaited_end

    def somebody_waits(self) -> None:
        """From now on: what was stored since queues were derived may be what he waits for."""
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
        """Read a queue from ``queue_offset`` on: only records that their rows prove."""
        return self._reading.get(
            topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            tag_codes=tag_codes,
        )

    def runs(self, topic: bytes, queue_id: int) -> QueueRuns:
        """The shortcut of ``get`` for who reads on in a queue; to be kept from read to read."""
        return self._reading.runs(topic, queue_id)

    def sift(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        limits: SiftLimits,
        sieve: PropertySieve,
    ) -> Sifted | None:
        """The shortcut of ``get`` for who filters by properties; None: ask ``get``."""
        return self._sifting.sift(topic, queue_id, queue_offset, limits, sieve)

    def record(self, physical_offset: int) -> StoredMessage:
        """The message stored at a physical offset.

        Raises:
            RecordDamaged: no whole record starts there.
        """
        return self._reading.record(physical_offset)

    def problem_at(self, physical_offset: int) -> str | None:
        """Words about the whole record that starts there, if its queue row contradicts it."""
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

        What is damaged is told of and passed over.
        """
        for message in self._reading.messages_between(physical_start, physical_end):
            self.go_on()
            yield message

    def is_near(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether reads of a queue from there on surely wait for no disk."""
        return self._reading.residency.is_near(topic, queue_id, queue_offset)

    def warm_end(self, topic: bytes, queue_id: int, queue_offset: int, row_count: int) -> int:
        """Where so many rows of a queue end in the log, if all of that is in memory; else 0."""
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
        """What to bring in before a ``get`` waits for no disk; then ask again: rows come first."""
        return self._reading.residency.on_disk(
            topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            tag_codes=tag_codes,
        )

    def record_parts(self, physical_offset: int, byte_count: int) -> list[FilePart]:
        """Where these bytes of the log are on disk, without those near the end."""
        return self._reading.residency.record_parts(physical_offset, byte_count)

    def row_parts(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[FilePart]:
        """Where so many rows of a queue are on disk."""
        return self._reading.residency.row_parts(topic, queue_id, queue_offset, count)

    def bring_in(self, part: FilePart) -> None:
        """Read a part of a file, so that it is in memory. Any thread but the owner's: it waits."""
        self._files.bring_in(part)

    def announce(self, part: FilePart) -> None:
        """Have a part of a file read soon. Any thread but the owner's."""
        self._files.announce(part)

    def will_need(self, physical_offset: int, byte_count: int) -> None:
        """Have some of the log read from the disk, without waiting for it: it is read soon."""
        self._reading.residency.will_need(physical_offset, byte_count)

    def rows(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> list[QueueRow]:
        """A queue's rows as they stand in its files, for those who look into them."""
        return self._reading.rows(topic, queue_id, queue_offset, count)

    def row_is_damaged(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether a row leads to no record of its queue; it is derived again soon, if it can be."""
        found = self.get(topic, queue_id, queue_offset, count_max=1)
        return found.status is GetStatus.QUEUE_ENTRY_DAMAGED

    def repair_row(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Derive a row from the log now, which may take long; whether it is sound then."""
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
        """Like ``query``, but only the physical offsets, and words about what is damaged."""
        count_max = min(count_max, self._config.query_results_max)
        return self._lookup.places_by_key(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )

    @property
    def index_end(self) -> tuple[int, int]:
        """The store time and physical offset of the last indexed message; zeros for none."""
        return self._lookup.index_end

    def has_queue(self, topic: bytes, queue_id: int) -> bool:
        """Whether there is such a queue; one is made by its first message."""
        return self._queues.get(topic, queue_id) is not None

    def has_topic(self, topic: bytes) -> bool:
        """Whether a topic has any queue here."""
        return self._queues.has_topic(topic)

    def add_batch_topic(self, topic: bytes) -> None:
        """From now on ``topic`` keeps batches in one row each.

        Raises:
            StoreLayoutError: it has queues of the other kind already.
        """
        self._queues.add_batch_topic(topic)

    def check_batch_topic(self, topic: bytes) -> None:
        """Raises ``StoreLayoutError`` for a topic that ``add_batch_topic`` would raise it for."""
        self._queues.check_batch_topic(topic)

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int:
        queue = self._queues.get(topic, queue_id)
        return queue.queue_offset_min if queue is not None else 0

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        """The offset the next message readers will see is going to have."""
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

    @property
    def physical_min(self) -> int:
        return self._segments.physical_min

    @property
    def physical_end(self) -> int:
        return self._state.physical_end

    @property
    def flushed_end(self) -> int:
        return self._flusher.flushed_end

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
        """Make everything durable now, derived files included, and note it down."""
        self._require_open()
        self._upkeep.checkpoint()

    def delete_topic(self, topic: bytes) -> None:
        """Remove a topic's queues; its records stay in the log until retention takes them."""
        self._require_open()
        # Everything of the topic that was appended so far dies with it, flushed or not.
        self._flusher.wait(self._state.physical_end)
        self._dispatcher.advance(self._state.physical_end)
        self._dispatcher.announce()
        # The deletion is durable before the first file goes: a crash half way must not end in a
        # rebuild that brings the topic back.
        self._queues.tombstones[topic] = self.dispatched_end
        self._upkeep.checkpoint()
        self._queues.delete_topic(topic, self.dispatched_end)
        self._state.forget_topic(topic)
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
        self._appender.refusal = self.poisoned or full or self._rows_refused

    def _poison(self, failure: StorePoisoned) -> None:
        """From now on nothing is acknowledged; the process should end and be looked at."""
        if self.poisoned is None:
            self.poisoned = failure
            self._appender.refusal = failure
            self._flusher.fail(failure)
            if self._on_poisoned is not None:
                self._on_poisoned(failure)

    def close(self) -> None:
        """Flush, derive, checkpoint and mark the folder as cleanly closed. Twice is once.

        A poisoned store is only let go of: its ``abort`` file stays, and the next start recovers.
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
        self._dispatcher.advance(self._state.physical_end)
        crashpoint("close.dispatched")
        self._appender.close()
        self._upkeep.checkpoint(clean=True)
        crashpoint("close.checkpointed")
        remove_abort(self._files, self._abort_path)

    def _release(self) -> None:
        self._appender.refusal = self.poisoned or StoreClosed("the store is closed")
        self._appender.stop()
        self._upkeep.stop()
        self._flusher.stop()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._segments.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

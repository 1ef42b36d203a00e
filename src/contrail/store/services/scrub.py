"""Re-reads cold files in small steps, finds bytes the disk changed, and repairs queues and index.

A pass walks the log from its first byte to ``dispatched_end``. Records are read from the files, not
through the shared map, and verified; the rows they give are compared with their queue rows, and
wrong rows are written again, unless ``RecordPlaces`` finds that the record is damaged, not the row.
Their keys are replayed against the index, whose wrong files are dropped and fed from the log.
Damage in the log itself is only reported: there is no other copy of those bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from contrail.clock import Clock
from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.record_layout import (
    BATCH_ROW_BYTES,
    QUEUE_ROW_BYTES,
    REASON_END,
    TIMED_ROW_BYTES,
)
from contrail.kernels.record_scan import check_record
from contrail.model.record import decode_record
from contrail.model.topic import SCHEDULE_TOPIC
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import OUT_OF_DESCRIPTORS, FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import SegmentList
from contrail.store.services.folder_files import IndexReader
from contrail.store.services.index_check import IndexCheck
from contrail.store.services.log_walk import WALK_BYTES, DamagedRange, LogChunk, LogWalk
from contrail.store.services.record_places import MisplacedRecord, RecordPlaces, Runs
from contrail.store.state.record_crc import RecordCrcRule

__all__ = ["DamagedRange", "ScrubBudget", "ScrubCounters", "ScrubReport", "Scrubber"]

CHUNK_BYTES_MIN = 64 << 10
# The system is asked to read this many bytes ahead, so that a step does not wait for the disk.
_AHEAD_BYTES = 1 << 20
_SLOT_BYTES = 4
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
# The delay of a level is whole seconds, so no single flipped bit turns it into another delay.
_LEVEL_UNIT_MS = 1000
_LEVEL_DELAY_MS_MAX = 10 * 366 * 86_400_000
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ScrubReport:
    """The findings and repairs of one step."""

    bytes_checked: int = 0
    records_checked: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    repaired_rows: int = 0
    repaired_index_files: int = 0
    index_bytes_checked: int = 0
    finished_pass: bool = False

    @property
    def cost_bytes(self) -> int:
        """The bytes that the step counts against the rate; the end of a pass is never free."""
        cost = self.bytes_checked + self.index_bytes_checked
        return max(cost, CHUNK_BYTES_MIN) if self.finished_pass else cost


class ScrubBudget:
    """How many bytes may be checked now, so that the rate is kept whatever the intervals.

    Bytes that a step reads beyond its share are a debt that the next steps wait for. At most the
    bytes of a second are saved up, or ``CHUNK_BYTES_MIN`` if that is more: a step must be short.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._saved_max = max(bytes_per_second, CHUNK_BYTES_MIN) * 1000
        # In thousandths of a byte: the slowest rate and the shortest interval still add up.
        self._saved = 0
        self._asked_ms: int | None = None

    def available(self, now_ms: int) -> int:
        """The bytes to check now; 0 below ``CHUNK_BYTES_MIN``. A clock set back adds none."""
        elapsed_ms = 0 if self._asked_ms is None else max(now_ms - self._asked_ms, 0)
        self._asked_ms = now_ms
        self._saved = min(self._saved + self._bytes_per_second * elapsed_ms, self._saved_max)
        saved_bytes = self._saved // 1000
        return saved_bytes if saved_bytes >= CHUNK_BYTES_MIN else 0

    def spend(self, byte_count: int) -> None:
        self._saved -= byte_count * 1000


@dataclass(slots=True)
class ScrubCounters:
    """The sums since the start, for metrics. A range found damaged in every pass counts once."""

    bytes_checked: int = 0
    records_checked: int = 0
    damaged_ranges: int = 0
    repaired_rows: int = 0
    repaired_index_files: int = 0
    passes: int = 0
    pass_ended_ms: int = 0


class Scrubber:
    """Walks the log again and again, a little at a time. Belongs to the store's owner thread."""

    def __init__(
        self,
        config: StoreConfig,
        files: FileSystem,
        segments: SegmentList,
        queues: QueueTable,
        index: KeyIndex | None,
        *,
        dispatched_end: Callable[[], int],
        crc_rule: RecordCrcRule,
        clock: Clock,
        places: RecordPlaces,
        on_damage: Callable[[DamagedRange], None] = lambda found: None,
        on_misplaced: Callable[[MisplacedRecord], None] = lambda found: None,
    ) -> None:
        self._config = config
        self._places = places
        self._on_damage = on_damage
        self._on_misplaced = on_misplaced
        self._crc_rule = crc_rule
        self._files = files
        self._segments = segments
        self._queues = queues
        self._index = index
        self._dispatched_end = dispatched_end
        self._clock = clock
        self._position = -1
        self._asked_for_end = 0
        self._index_check: IndexCheck | None = None
        self._known_damage: set[DamagedRange] = set()
        self._first_seen: dict[tuple[bytes, int], int] = {}
        self._passed_damage = False
        self.counters = ScrubCounters()

    def run_once(self, bytes_max: int) -> ScrubReport:
        """Check the next ``bytes_max`` bytes of the log, and their rows and keys."""
        report = ScrubReport()
        end = self._dispatched_end()
        self._take_place(end)
        self._write_index()
        try:
            self._advance(end, bytes_max, report)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            # These bytes are checked again, and their keys must not be counted twice.
            _log.debug("scrubbing is put off: %s", error)
            self._index_check = None
        self._count(report)
        return report

    def _advance(self, end: int, bytes_max: int, report: ScrubReport) -> None:
        chunk_bytes = max(min(bytes_max, WALK_BYTES), CHUNK_BYTES_MIN)
        walk = self.walk(self._position, end, chunk_bytes)
        with closing(walk.steps()) as steps:
            for found in steps:
                self._check(found, report)
                self._position = walk.position
                if report.bytes_checked >= bytes_max:
                    break
            else:
                self._position = walk.position
        if self._position >= end:
            self._finish_pass(end, report)
        else:
            self._ask_for_more()

    def _ask_for_more(self) -> None:
        start = max(self._position, self._asked_for_end)
        if start - self._position > _AHEAD_BYTES // 2:
            return
        segment = self._segments.at(start)
        if segment is not None:
            byte_count = min(_AHEAD_BYTES, segment.end - start)
            segment.will_need(start, byte_count)
            self._asked_for_end = start + byte_count

    def _take_place(self, end: int) -> None:
        """Begin a pass, or go on; retention may have moved the log's minimum past the position."""
        lowest = self._segments.physical_min
        if lowest <= self._position <= end:
            return
        begins = self._position < 0 or self._position > end
        self._position = lowest
        self._asked_for_end = 0
        self._index_check = None
        if begins:
            self._first_seen, self._passed_damage = {}, False
            self._places.begin()
        if begins and self._index is not None:
            self._index_check = IndexCheck(
                self._index_readers, physical_start=lowest, required_end=end
            )

    def _index_readers(self) -> list[IndexReader]:
        assert self._index is not None
        slot_count = self._config.index_slot_count
        return [IndexReader(self._files, path, slot_count) for path in self._index.paths]

    def _write_index(self) -> None:
        """Write pending index entries first: the check compares files."""
        if self._index is None or self._index_check is None:
            return
        try:
            self._index.write_pending()
        except OSError as error:
            # The regular write meets the same error and acts on it; this pass skips the index.
            _log.debug("the index is left out of this scrub pass: %s", error)
            self._index_check = None

    def walk(
        self, physical_start: int, physical_end: int, chunk_bytes: int = WALK_BYTES
    ) -> LogWalk:
        """A walk over part of the log; ``physical_start`` is where a record begins."""
        return LogWalk(
            self._files,
            self._segments.snapshot(),
            physical_start=physical_start,
            durable_end=physical_end,
            physical_limit=physical_end,
            record_crc=self._crc_rule.mode(physical_start),
            chunk_bytes=chunk_bytes,
        )

    def _check(self, found: LogChunk | DamagedRange, report: ScrubReport) -> None:
        if isinstance(found, DamagedRange):
            self._on_damage(found)
            report.bytes_checked += found.physical_end - found.physical_start
            self._note_damage(found, report)
            return
        report.bytes_checked += found.end - found.start
        report.records_checked += found.record_count
        queues, index_rows = self._derive(found)
        for record in self._sift(found, queues):
            self._note_damage(record.range, report)
        report.repaired_rows += self._repair_all(found, queues)
        if self._index_check is not None:
            self._feed_check(self._index_check, index_rows)

    def _note_damage(self, found: DamagedRange, report: ScrubReport) -> None:
        report.damaged.append(found)
        self._passed_damage = True
        # The keys of a damaged record are unknown, so this pass cannot judge the index.
        self._index_check = None

    def _sift(self, chunk: LogChunk, queues: Runs) -> list[MisplacedRecord]:
        """Report misplaced records, and remove the rows they give from ``queues``."""
        found = self._places.sift(chunk, queues, self._queues.batch_topics)
        misplaced = [record for record in found if record.is_misplaced]
        for record in misplaced:
            self._on_misplaced(record)
        return misplaced

    def repair_rows(self, chunk: LogChunk) -> None:
        """Compare rows with the rows their records give, outside of a pass; write wrong ones."""
        queues, _ = self._derive(chunk)
        self._sift(chunk, queues)
        self.counters.repaired_rows += self._repair_all(chunk, queues)

    def _repair_all(self, chunk: LogChunk, queues: Runs) -> int:
        return sum(
            self._repair(chunk, topic, queue_id, run)
            for topic, by_queue in queues.items()
            for queue_id, runs in by_queue.items()
            for run in runs
        )

    def _derive(self, chunk: LogChunk) -> tuple[Runs, bytearray]:
        queues, index_rows, _, _ = derive_rows(
            chunk.data,
            chunk.start,
            chunk.end,
            chunk.base,
            self._config.delay_table,
            self._queues.batch_topics,
            self._config.queue_ext_enabled,
            self._index is not None,
        )
        return queues, index_rows

    def _repair(self, chunk: LogChunk, topic: bytes, queue_id: int, run: list) -> int:  # type: ignore[type-arg]
        """Compare a run of rows with the queue's files; returns how many rows were repaired."""
        queue = self._queues.get(topic, queue_id)
        first_queue_offset, rows = run[0], run[2]
        if queue is None or int.from_bytes(rows[:8], "big") < self._queues.tombstones.get(topic, 0):
            return 0
        seen = self._first_seen.get((topic, queue_id), first_queue_offset)
        self._first_seen[topic, queue_id] = min(seen, first_queue_offset)
        row_bytes = TIMED_ROW_BYTES if self._config.queue_ext_enabled else QUEUE_ROW_BYTES
        if topic in self._queues.batch_topics:
            row_bytes = BATCH_ROW_BYTES
        if topic == _SCHEDULE_TOPIC and isinstance(queue, ConsumeQueue):
            rows = _with_kept_times(chunk, queue, first_queue_offset, rows, row_bytes)
        repaired = queue.repair_rows(first_queue_offset, rows, row_bytes)
        if repaired:
            _log.warning(
                "%d rows of queue %d of %s from queue offset %d on were damaged and written again",
                repaired,
                queue_id,
                topic.decode("utf-8", "replace"),
                first_queue_offset,
            )
        return repaired

    def _feed_check(self, check: IndexCheck, index_rows: bytearray) -> None:
        try:
            check.feed(index_rows)
        except FileNotFoundError:
            # Retention dropped an index file under the check; the next pass looks again.
            self._index_check = None

    def _finish_pass(self, end: int, report: ScrubReport) -> None:
        report.finished_pass = True
        self._raise_minimums()
        check, self._index_check, self._position = self._index_check, None, -1
        if check is not None and self._index is not None:
            slots_bytes = self._config.index_slot_count * _SLOT_BYTES
            report.index_bytes_checked = slots_bytes * len(self._index.paths)
            try:
                check.finish()
            except FileNotFoundError:
                return
            if check.problems or check.missing_keys:
                report.repaired_index_files = self._rebuild_index(self._index, check, end)

    def _raise_minimums(self) -> None:
        """Raise minimums that a damaged row of a removed record would hold too low for good.

        Only rows that lead to no sound record are passed, and only below the queue's first message
        in the whole log.
        """
        if self._passed_damage:
            return
        for (topic, queue_id), first_queue_offset in self._first_seen.items():
            queue = self._queues.get(topic, queue_id)
            if not isinstance(queue, ConsumeQueue):
                continue
            while queue.queue_offset_min < min(first_queue_offset, queue.queue_offset_max):
                if self._leads_to_a_record(queue.raw_rows(queue.queue_offset_min, 1)):
                    break
                queue.raise_minimum(queue.queue_offset_min + 1)

    def _leads_to_a_record(self, row: bytes) -> bool:
        physical_offset = int.from_bytes(row[:8], "big", signed=True)
        segment = self._segments.at(physical_offset)
        if segment is None:
            return False
        position = physical_offset - segment.start
        mode = self._crc_rule.mode(physical_offset)
        reason, _ = check_record(
            segment.map, position, segment.byte_count, segment.start, True, mode
        )
        return reason == REASON_END

    def _rebuild_index(self, index: KeyIndex, check: IndexCheck, end: int) -> int:
        """Drop the index from its first wrong file on and feed it from the log again."""
        names = [path.name for path in index.paths]
        first = min(check.problems, default=names[-1] if names else "")
        _log.warning(
            "the index is rebuilt from file %s on: %s",
            first,
            check.problems.get(first, f"{check.missing_keys} keys are missing"),
        )
        start = max(index.drop_from(first), self._segments.physical_min)
        crashpoint("scrub.index_dropped")
        for found in self.walk(start, end):
            if isinstance(found, LogChunk):
                index.put(self._derive(found)[1])
        index.write_pending()
        return max(sum(name >= first for name in names), 1)

    def _count(self, report: ScrubReport) -> None:
        counters = self.counters
        counters.bytes_checked += report.bytes_checked
        counters.records_checked += report.records_checked
        counters.repaired_rows += report.repaired_rows
        counters.repaired_index_files += report.repaired_index_files
        self._known_damage.update(report.damaged)
        counters.damaged_ranges = len(self._known_damage)
        if report.finished_pass:
            counters.passes += 1
            counters.pass_ended_ms = self._clock.now_ms()


def _with_kept_times(
    chunk: LogChunk, queue: ConsumeQueue, queue_offset: int, rows: bytearray, row_bytes: int
) -> bytearray:
    """Rows of delayed messages keep the due time they have, even if levels were redefined since."""
    kept = bytearray(rows)
    for at in range(0, len(rows), row_bytes):
        found = queue.rows(queue_offset + at // row_bytes, 1)
        # Physical offset and size, then the due time.
        if found[:12] != rows[at : at + 12] or found[12:] == rows[at + 12 : at + 20]:
            continue
        start = int.from_bytes(found[:8], "big") - chunk.base
        record = memoryview(chunk.data)[start : start + int.from_bytes(found[8:12], "big")]
        stored_ms = decode_record(record, check_body_crc=False).store_timestamp_ms
        if _is_level_delay(int.from_bytes(found[12:], "big", signed=True) - stored_ms):
            kept[at + 12 : at + 20] = found[12:]
    return kept


def _is_level_delay(delay_ms: int) -> bool:
    return 0 <= delay_ms <= _LEVEL_DELAY_MS_MAX and delay_ms % _LEVEL_UNIT_MS == 0

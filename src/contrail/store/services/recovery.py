"""Brings a store folder back to one consistent state: Contrail's or RocketMQ's, closed or crashed.

The log is the truth. From the last position known to be durable it is verified record by record;
the first bytes that are no whole record end it. If the log ends below the durable position, it is
damaged and the store refuses to start; at or above it, the rest is the torn tail of a crash and is
cut off, with a durable write, so that no stale record can come back behind the next append. Queues
and index are then fed from the first record they may have missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from contrail.clock import monotonic_ms
from contrail.errors import StoreCorrupt, StoreLayoutError
from contrail.kernels.record_layout import (
    REASON_BLANK,
    REASON_CUT_SHORT,
    REASON_END,
    RECORD_BYTES_MIN,
    store_time,
)
from contrail.kernels.record_scan import check_record, scan_records
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, write_fully
from contrail.store.config import StoreConfig
from contrail.store.disk.key_index import IndexMark, KeyIndex
from contrail.store.disk.marker_files import ApacheCheckpoint
from contrail.store.disk.queue_table import QueueMark, QueueProblem, QueueTable
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.services.checkpoint import Known, LogMark
from contrail.store.services.dispatch import CHUNK_BYTES, Dispatcher
from contrail.store.services.log_walk import DamagedRange, LogWalk
from contrail.store.services.rebuilt_runs import KnownQueues, RebuiltRuns
from contrail.store.state.positions import NO_LIMIT
from contrail.store.state.record_crc import RecordCrcRule

_ZERO_CHUNK = bytes(1 << 20)
_NAMED_MAX = 5
_log = logging.getLogger(__name__)


@dataclass
class RecoveryReport:
    """The findings and repairs of a start, for operators and metrics."""

    was_clean: bool
    foreign: bool = False
    scanned_bytes: int = 0
    record_count: int = 0
    cut_at: int | None = None
    cut_bytes: int = 0
    redispatched_from: int | None = None
    problems: list[str] = field(default_factory=list)
    elapsed_ms: int = 0


@dataclass
class RecoveredLog:
    """Where the log ends, its last record, and the lowest next offset of each queue."""

    physical_end: int
    last_record_offset: int | None
    last_store_timestamp_ms: int
    offset_floors: dict[tuple[bytes, int], int]
    crc_rule: RecordCrcRule


@dataclass
class _Plan:
    """From where to scan, from where to derive, and below which byte damage is corruption."""

    scan_from: int
    derive_from: int
    durable_end: int
    offset_floors: dict[tuple[bytes, int], int] = field(default_factory=dict)
    last_record: int | None = None
    rows_were_lost: bool = False


class Recovery:
    """One start of one folder."""

    def __init__(
        self,
        config: StoreConfig,
        files: FileSystem,
        segments: SegmentList,
        queues: QueueTable,
        index: KeyIndex | None,
        dispatcher: Dispatcher,
        *,
        accept_loss: bool = False,
        in_group: bool = False,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """``go_on`` is called between steps, and raises to end the recovery.

        The log of a member ``in_group`` is verified whole and derived up to its commit hint: a
        later leader may cut what lies above.
        """
        self._go_on = go_on
        self._in_group = in_group
        self._derive_to = NO_LIMIT
        self._leaves_blank = False
        self._config = config
        self._files = files
        self._segments = segments
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._accept_loss = accept_loss
        self._last_record: int | None = None
        self._last_timestamp_ms = 0
        self._crc_rule = RecordCrcRule(config.record_crc_check)

    def run(self, known: Known, *, was_clean: bool) -> tuple[RecoveredLog, RecoveryReport]:
        begun_ms = monotonic_ms()
        report = RecoveryReport(was_clean, foreign=known.log is None and len(self._segments) > 0)
        report.problems += known.notes
        if known.log is not None:
            self._crc_rule = replace(self._crc_rule, present_from=known.log.record_crc_from)
        self._close_gap(report)
        plan = self._plan(known, report)
        self._dispatcher.rebuilt = self._rebuilt_runs(known, plan)
        physical_end = self._scan(plan, report)
        physical_end = self._judge(physical_end, plan, report)
        self._end_rebuild(report)
        self._cut(physical_end, report, known.log, was_clean)
        self._sync_scanned(plan.durable_end, physical_end)
        if self._queues.physical_end_max > physical_end:
            self._queues.truncate(physical_end)
        if self._index is not None:
            self._index.truncate(physical_end)
        self._queues.correct_minimums(self._segments.physical_min)
        derived_end = self._dispatcher.dispatched_end if self._in_group else physical_end
        self._dispatcher.dispatched_end = min(derived_end, physical_end)
        report.elapsed_ms = monotonic_ms() - begun_ms
        last_record = self._last_record if self._last_record is not None else plan.last_record
        if last_record is not None and last_record >= physical_end:
            last_record = None  # The record was cut off.
        return (
            RecoveredLog(
                physical_end,
                last_record,
                self._last_timestamp_ms,
                plan.offset_floors,
                self._crc_rule.after_start(physical_end),
            ),
            report,
        )

    # Where to begin.

    def _plan(self, known: Known, report: RecoveryReport) -> _Plan:
        if self._in_group:
            self._derive_to = max(known.commit_hint, self._segments.physical_min)
            if known.log is None and known.apache is not None:
                raise StoreLayoutError(
                    f"another broker has written to {self._config.root} since it was a group "
                    "member's: empty the folder, so that this broker joins the group anew"
                )
        if known.log is not None:
            return self._plan_own(known, known.log, report)
        if report.was_clean:
            return self._plan_foreign_clean(report)
        return self._plan_foreign_crashed(known.apache, report)

    def _plan_own(self, known: Known, log: LogMark, report: RecoveryReport) -> _Plan:
        """Contrail wrote the folder last: the checkpoint's physical offsets count."""
        limit, lowest = self._segments.physical_limit, self._segments.physical_min
        durable_end = log.physical_end
        if durable_end > limit and not self._accept_loss:
            raise _missing_segments(limit, durable_end)
        verified_end = durable_end
        if log.last_record_offset is not None and durable_end <= limit:
            verified_end = self._require_last_record(log.last_record_offset, durable_end)
        derived = known.derived
        position = min(derived.dispatched_end, limit) if derived else lowest
        marks = derived.queues if derived else {}
        self._queues.tombstones.update(derived.tombstones if derived else {})
        in_order = log.clean and report.was_clean
        rows_limit = min(durable_end, limit) if derived is None and in_order else position
        rows_limit = min(rows_limit, self._derive_to)
        problems = self._load_queues(rows_limit, marks if derived else None)
        derive_from = self._load_index(position, derived.index_files if derived else [], in_order)
        if problems or derived is None:
            derive_from = lowest
        report.problems += [str(problem) for problem in problems]
        derive_from = max(min(derive_from, position), lowest)
        # Since the mark was written, retention may have removed its segment.
        scan_from = max(min(derive_from, verified_end), lowest)
        if self._in_group and lowest < scan_from and self._segments.starts_at(scan_from):
            # Whether the log ends behind a bare blank record shows in the segment before.
            scan_from -= self._config.segment_bytes
        last = log.last_record_offset if durable_end <= limit else None
        floors = {key: mark.queue_offset_max for key, mark in marks.items()}
        floors |= derived.offset_floors if derived else {}
        lost = bool(problems) or derived is None
        return _Plan(scan_from, derive_from, min(durable_end, limit), floors, last, lost)

    def _plan_foreign_clean(self, report: RecoveryReport) -> _Plan:
        """RocketMQ closed the folder in order: its queues say how far the log was derived."""
        limit, lowest = self._segments.physical_limit, self._segments.physical_min
        problems = self._load_queues(limit, None)
        report.problems += [str(problem) for problem in problems]
        queued_end = max(self._queues.physical_end_max, lowest)
        derive_from = self._load_index(limit, None, True)
        derive_from = lowest if problems else min(queued_end, derive_from)
        segment = self._segments.at(max(derive_from - 1, lowest))
        scan_from = min(segment.start if segment else lowest, derive_from)
        lost = bool(problems) or not any(True for _ in self._queues.queues())
        return _Plan(
            scan_from, max(derive_from, lowest), min(queued_end, limit), rows_were_lost=lost
        )

    def _plan_foreign_crashed(
        self, apache: ApacheCheckpoint | None, report: RecoveryReport
    ) -> _Plan:
        """RocketMQ crashed: records stored before its checkpoint's time are durable."""
        start = self._start_by_time(apache)
        problems = self._load_queues(start, None)
        report.problems += [str(problem) for problem in problems]
        derive_from = self._load_index(start, None, False)
        lowest = self._segments.physical_min
        derive_from = lowest if problems else max(min(start, derive_from), lowest)
        return _Plan(derive_from, derive_from, 0, rows_were_lost=derive_from == lowest)

    def _start_by_time(self, apache: ApacheCheckpoint | None) -> int:
        """The newest segment whose first record is old enough to have been checkpointed."""
        safe_ms = apache.safe_timestamp_ms if apache else 0
        if not safe_ms or safe_ms > self._newest_time():
            # No checkpoint, or a time the log never reached: the checkpoint is damaged.
            return self._segments.physical_min
        for segment in reversed(self._segments.snapshot()):
            reason, _ = check_record(segment.map, 0, segment.byte_count, segment.start, False, 0)
            store_ms = store_time(segment.map[:RECORD_BYTES_MIN], 0)
            if reason == REASON_END and 0 < store_ms <= safe_ms:
                return segment.start
        return self._segments.physical_min

    def _newest_time(self) -> int:
        """The store time of the last record that a scan from a segment's start reaches."""
        for segment in reversed(self._segments.snapshot()):
            found = scan_records(segment.map, 0, segment.byte_count, segment.start, False, 0)
            if found[2]:
                return found[4]
        return 0

    def _load_queues(
        self, physical_limit: int, marks: dict[tuple[bytes, int], QueueMark] | None
    ) -> list[QueueProblem]:
        return self._queues.load(physical_limit=physical_limit, marks=marks, go_on=self._go_on)

    def _load_index(self, physical_limit: int, marks: list[IndexMark] | None, trusted: bool) -> int:
        if self._index is None:
            return physical_limit
        return self._index.load(physical_limit=physical_limit, marks=marks, trusted=trusted)

    def _require_last_record(self, last_record: int, durable_end: int) -> int:
        """The last record of the durable log must still be whole.

        Returns how far the log is sound: up to that record when its loss was accepted.
        """
        segment = self._segments.at(last_record)
        if segment is None:
            if last_record < self._segments.physical_min or self._accept_loss:
                return durable_end
            raise _missing_segments(self._segments.physical_limit, durable_end)
        reason, size = self._check(segment, last_record - segment.start)
        sound = reason == REASON_END and durable_end in self._ends(segment, last_record + size)
        if not sound and not self._accept_loss:
            raise self._corrupt(last_record, durable_end)
        return durable_end if sound else last_record

    # Walking the log.

    def _scan(self, plan: _Plan, report: RecoveryReport) -> int:
        """Verify from ``plan.scan_from`` and derive from ``plan.derive_from``; returns the end."""
        physical_offset, chunk_bytes = plan.scan_from, CHUNK_BYTES
        blank_at: int | None = None
        self._dispatcher.dispatched_end = plan.derive_from
        if plan.derive_from < self._segments.physical_limit:
            report.redispatched_from = plan.derive_from
        while (segment := self._segments.at(physical_offset)) is not None:
            start = physical_offset - segment.start
            limit = min(start + chunk_bytes, segment.byte_count)
            boundaries = (plan.derive_from, self._derive_to, self._crc_rule.present_from or 0)
            for boundary in boundaries:
                if physical_offset < boundary < segment.start + limit:
                    limit = boundary - segment.start
            position, reason, count = self._scan_chunk(segment, start, limit, report)
            if count and plan.derive_from <= segment.start + start < self._derive_to:
                self._dispatcher.feed(segment, start, position)
            if count:
                blank_at = None
            elif segment.start + limit == self._derive_to:
                # The hint lies in this record: only whole ones below it are derived.
                self._derive_to = physical_offset
            physical_offset = segment.start + position
            if reason == REASON_CUT_SHORT and limit < segment.byte_count:
                chunk_bytes = CHUNK_BYTES if count else chunk_bytes * 2
            elif reason == REASON_BLANK and self._blank_is_sound(segment, position):
                blank_at, physical_offset = physical_offset, segment.end
            elif reason != REASON_END:
                break
            crashpoint("recovery.chunk_scanned")
            self._go_on()
        if self._in_group and blank_at is not None:
            # A blank record belongs to the record behind it, which is not there.
            self._leaves_blank = True
            return blank_at
        return physical_offset

    def _scan_chunk(
        self, segment: Segment, start: int, limit: int, report: RecoveryReport
    ) -> tuple[int, int, int]:
        position, reason, count, last, timestamp_ms = scan_records(
            segment.map,
            start,
            limit,
            segment.start,
            self._config.crc_checked_on_recover,
            self._crc_rule.mode(segment.start + start)
            if self._config.crc_checked_on_recover
            else 0,
        )
        report.scanned_bytes += position - start
        report.record_count += count
        if count:
            self._last_record = segment.start + last
            self._last_timestamp_ms = timestamp_ms
        return position, reason, count

    def _check(self, segment: Segment, position: int) -> tuple[int, int]:
        return check_record(
            segment.map,
            position,
            segment.byte_count,
            segment.start,
            True,
            self._crc_rule.mode(segment.start + position),
        )

    def _ends(self, segment: Segment, record_end: int) -> tuple[int, ...]:
        """Where a log may end whose last record ends there: also behind a blank record.

        The log of a slave does, until its master sends the record that follows the blank one.
        """
        position = record_end - segment.start
        reason, _ = self._check(segment, position)
        if reason == REASON_BLANK and self._blank_is_sound(segment, position):
            return record_end, segment.end
        return (record_end,)

    def _blank_is_sound(self, segment: Segment, position: int) -> bool:
        written = int.from_bytes(segment.map[position : position + 4], "big")
        return written == segment.byte_count - position

    def _rebuilt_runs(self, known: Known, plan: _Plan) -> RebuiltRuns | None:
        """Where rows were lost, the log alone must show which records are misplaced."""
        if not plan.rows_were_lost:
            return None
        if known.log is None or known.derived is None:
            # Another broker wrote last: ``contrail.queues`` is out of date.
            return RebuiltRuns(self._queues, known=None)
        noted = KnownQueues(known.derived.bounds(), known.derived.dispatched_end)
        return RebuiltRuns(self._queues, known=noted)

    def _end_rebuild(self, report: RecoveryReport) -> None:
        rebuilt, self._dispatcher.rebuilt = self._dispatcher.rebuilt, None
        if rebuilt is not None:
            rebuilt.finish()
            found = rebuilt.problems + rebuilt.missing
            report.problems += found
            for problem in found:
                _log.error("damaged: %s", problem)

    # Judging the end that was found.

    def _judge(self, physical_end: int, plan: _Plan, report: RecoveryReport) -> int:
        if physical_end < plan.durable_end:
            if not self._accept_loss:
                raise self._corrupt(physical_end, plan.durable_end)
            report.problems.append(
                f"cut at {physical_end} on request: bytes up to {plan.durable_end} are lost"
            )
        elif report.foreign and not self._accept_loss and self._continues_after(physical_end):
            raise self._corrupt(physical_end, self._segments.physical_limit)
        return physical_end

    def _corrupt(self, physical_start: int, durable_end: int) -> StoreCorrupt:
        """Names the bytes as ``contrail store verify`` does: by a walk over the log."""
        segment = self._segments.at(physical_start)
        walk = LogWalk(
            self._files,
            self._segments.snapshot(),
            physical_start=segment.start if segment is not None else physical_start,
            durable_end=durable_end,
            physical_limit=durable_end,
            record_crc=self._crc_rule.mode(physical_start),
        )
        ranges = [found for found in walk if isinstance(found, DamagedRange)]
        if not any(one.physical_start <= physical_start < one.physical_end for one in ranges):
            # A whole record that does not end at the checkpoint's end: records behind it are lost.
            reason = "another record than was there"
            ranges.append(DamagedRange(physical_start, durable_end, reason))
        named = [f"from byte {one[0]} to {one[1]} ({one.reason})" for one in ranges[:_NAMED_MAX]]
        more = f", and in {len(ranges) - _NAMED_MAX} more places" * (len(ranges) > _NAMED_MAX)
        return StoreCorrupt(
            f"the commit log is damaged {', '.join(named)}{more}, where acknowledged messages are: "
            f"restore the segment from a copy; "
            f"or run `contrail store recover {self._config.root} --replace-damaged` to go on "
            f"without the messages in these bytes, or with --accept-loss to cut the log there and "
            f"keep the rest aside",
            physical_start=ranges[0].physical_start,
            physical_end=ranges[-1].physical_end,
        )

    def _continues_after(self, physical_end: int) -> bool:
        """Whether a later segment begins with a sound record: then the end found is a hole."""
        for segment in self._segments.snapshot():
            if segment.start > physical_end:
                reason, _ = self._check(segment, 0)
                if reason == REASON_END:
                    return True
        return False

    def _close_gap(self, report: RecoveryReport) -> None:
        gap = self._segments.gap()
        if gap is None:
            return
        if not self._accept_loss:
            raise _missing_segments(*gap)
        self._set_aside(gap[0], report)

    # Cutting off bytes that are no part of the log.

    def _cut(
        self, physical_end: int, report: RecoveryReport, log: LogMark | None, was_clean: bool
    ) -> None:
        assert physical_end >= self._segments.physical_min, "the log cannot end before it begins"
        if self._accept_loss:
            self._set_aside(physical_end, report)
        self._segments.remove_after(physical_end + 1)
        segment = self._segments.at(physical_end)
        in_order = was_clean and log is not None and log.clean
        if segment is None or (in_order and not self._leaves_blank):
            # Contrail closed the folder in order: behind the end there are zeros.
            return
        crashpoint("recovery.before_cut")
        report.cut_bytes = self._zero_tail(segment, physical_end - segment.start)
        if report.cut_bytes:
            report.cut_at = physical_end
            self._files.fdatasync(segment.fd)
        crashpoint("recovery.after_cut")

    def _sync_scanned(self, durable_end: int, physical_end: int) -> None:
        """Sync the scanned records: a killed process may have left them in the page cache only."""
        for segment in self._segments.between(durable_end, physical_end):
            self._files.fdatasync(segment.fd)
        crashpoint("recovery.synced")

    def _zero_tail(self, segment: Segment, position: int) -> int:
        """Overwrite bytes behind ``position`` that are not zero; returns how many."""
        zeroed = 0
        while position < segment.byte_count:
            # Read rather than mapped: a gigabyte of zeros would be mapped page by page.
            found = self._files.pread(segment.fd, len(_ZERO_CHUNK), position)
            if found != _ZERO_CHUNK[: len(found)]:
                write_fully(self._files, segment.fd, _ZERO_CHUNK[: len(found)], position)
                zeroed += len(found.rstrip(b"\0"))
            self._go_on()
            next_position = self._files.next_data(segment.fd, position + len(found))
            if next_position is None:
                break
            position = next_position
        return zeroed

    def _set_aside(self, physical_end: int, report: RecoveryReport) -> None:
        """Keep the bytes that are cut off beside the store: accepted loss destroys nothing."""
        folder = self._config.root / "contrail.lost"
        segment = self._segments.at(physical_end)
        if segment is not None:
            tail = segment.map[physical_end - segment.start :].rstrip(b"\0")
            if tail:
                self._keep(folder / f"{physical_end:020d}.tail", tail, report)
        for later in self._segments.snapshot():
            if later.start > physical_end:
                self._keep(folder / later.path.name, later.map[:], report)
        self._segments.remove_after(physical_end + 1)

    def _keep(self, path: Path, data: bytes, report: RecoveryReport) -> None:
        self._files.make_folder(path.parent)
        fd = self._files.open(path, create=True)
        try:
            write_fully(self._files, fd, data, 0)
            self._files.fsync(fd)
        finally:
            self._files.close(fd)
        report.problems.append(f"{len(data)} bytes were set aside in {path}")


def _missing_segments(physical_start: int, physical_end: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"the commit log has no segment for bytes {physical_start} to {physical_end}: restore the "
        f"missing files, or run `contrail store recover --accept-loss` to go on without them",
        physical_start=physical_start,
        physical_end=physical_end,
    )

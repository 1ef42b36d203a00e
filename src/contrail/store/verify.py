"""Checks a whole store: every record, every queue row, every key, and the small files beside them.

Queues and index can be derived again from the log, and ``repair`` does that. Damage in the log is
only reported: its bytes and, if the record can still be read, the message's queue and offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from contrail.clock import monotonic_ms
from contrail.errors import RecordDamaged
from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.record_layout import BATCH_ROW_BYTES, QUEUE_ROW_BYTES
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.model.record import BLANK_RECORD_BYTES, decode_record, encode_blank
from contrail.model.replaced_record import LostPlace
from contrail.model.topic import LMQ_PREFIX
from contrail.runtime.files import FileSystem
from contrail.store.inferred_config import inferred_config
from contrail.store.reader import StoreReader
from contrail.store.services.index_check import IndexCheck
from contrail.store.services.log_tail import QueueKey
from contrail.store.services.log_walk import DamagedRange, LogChunk
from contrail.store.services.queue_check import ExtFiles, QueueCheck
from contrail.store.services.record_places import MisplacedRecord, RecordPlaces, give_row
from contrail.store.services.repair import Repair
from contrail.store.services.row_sources import FolderRows

_GATHERED_BYTES_MAX = 32 << 20
_NAMED_MAX = 5

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class LogFinding:
    """A damaged range of the log; the message's queue and offset if they can still be read."""

    physical_start: int
    physical_end: int
    reason: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


@dataclass(slots=True)
class QueueFinding:
    """The faults of one queue's files, in rows."""

    topic: str
    queue_id: int
    missing: int
    wrong: int
    extra: int
    first_row: int | None
    problems: list[str]
    repaired: bool = False


@dataclass(slots=True)
class IndexFinding:
    """The fault of one index file, or of the index as a whole."""

    file: str
    problem: str
    repaired: bool = False


@dataclass(slots=True)
class VerifyReport:
    """The findings of a verification. ``notes`` are no damage; ``files`` are.

    ``given_up`` lists messages that a repair could not bring back, or whose offset it guessed;
    ``returned`` lists messages of deleted topics that hide messages sent since.
    """

    root: str
    physical_min: int = 0
    physical_end: int = 0
    derived_end: int = 0
    was_clean: bool = True
    bytes_checked: int = 0
    record_count: int = 0
    queue_count: int = 0
    row_count: int = 0
    key_count: int = 0
    log: list[LogFinding] = field(default_factory=list)
    queues: list[QueueFinding] = field(default_factory=list)
    index: list[IndexFinding] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    elapsed_ms: int = 0

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong, or everything wrong has been repaired."""
        wrong = any(not queue.repaired for queue in self.queues)
        wrong = wrong or any(not file.repaired for file in self.index)
        return not (wrong or self.log or self.files or self.given_up or self.returned)

    def to_json(self) -> str:
        return json.dumps({"sound": self.is_sound, **asdict(self)}, indent=2)


def verify_store(
    root: Path,
    *,
    repair: bool = False,
    progress: Progress | None = None,
    log_folders: tuple[Path, ...] = (),
    segment_bytes: int | None = None,
    index_slot_count: int | None = None,
    delay_levels: str = DEFAULT_DELAY_LEVELS,
    files: FileSystem | None = None,
) -> VerifyReport:
    """Check everything under ``root``; with ``repair`` rebuild queues and index that are wrong.

    In a folder in use, or left by a crash, queues and index are checked up to the last checkpoint.

    Raises:
        StoreLayoutError: ``root`` holds no store.
        StoreLocked: ``repair`` was asked for and a broker has the store open.
    """

    def opened() -> StoreReader:
        return StoreReader.open(
            root,
            segment_bytes=segment_bytes,
            log_folders=log_folders,
            index_slot_count=index_slot_count,
        )

    reader = opened()
    if not repair:
        return _Verification(reader, delay_levels, progress).run()
    holder = Repair(root, files or FileSystem())
    try:
        verification = _Verification(reader, delay_levels, progress)
        report = verification.run()
        if report.queues or report.index:
            verification.repair(holder, log_folders)
            after = _Verification(opened(), delay_levels, progress).run()
            _mark_repaired(report, after)
    finally:
        holder.close()
    return report


def _mark_repaired(report: VerifyReport, after: VerifyReport) -> None:
    still = {(finding.topic, finding.queue_id) for finding in after.queues}
    for queue in report.queues:
        queue.repaired = (queue.topic, queue.queue_id) not in still
    for file in report.index:
        file.repaired = not after.index
    report.files, report.returned = after.files, after.returned
    # Some damaged records are found only through the rows that lead to them.
    known = {finding.physical_start for finding in report.log}
    report.log += [finding for finding in after.log if finding.physical_start not in known]


class _Verification:
    """One pass over one folder."""

    def __init__(self, reader: StoreReader, delay_levels: str, progress: Progress | None) -> None:
        self._reader = reader
        self._delay_levels = delay_levels
        self._delay_table = parse_delay_levels(delay_levels)
        self._progress = progress or (lambda done, total: None)
        known = reader.known
        self._dead = known.derived.tombstones if known.derived else {}
        # A store that was closed in order has derived everything; otherwise its checkpoint counts.
        self._required_end = reader.physical_end if reader.was_clean else reader.derived_end
        self._checks: dict[QueueKey, QueueCheck] = {}
        self._gathered = 0
        # Batch topics learned from records alone matter only when queues are rebuilt.
        self._batch_topics = reader.known_batch_topics
        self._learned_batch_topics: set[bytes] = set()
        self._replaced: list[LostPlace] = []
        self._places = RecordPlaces(FolderRows(reader.queues, reader.read), self._dead)
        self._kept_rows: dict[int, MisplacedRecord] = {}
        self._index = IndexCheck(
            reader.index_files, physical_start=reader.physical_min, required_end=self._required_end
        )
        self._report = VerifyReport(
            str(reader.root),
            reader.physical_min,
            reader.physical_end,
            self._required_end,
            reader.was_clean,
            files=list(reader.problems),
            notes=list(reader.notes),
        )

    def run(self) -> VerifyReport:
        begun_ms = monotonic_ms()
        reader, report = self._reader, self._report
        for found in reader.walk(physical_end=self._required_end):
            self._take(found, derive=True)
        for found in reader.walk(physical_start=max(self._required_end, reader.physical_min)):
            self._take(found, derive=False)
        self._finish_queues()
        self._tell_of_returned()
        self._finish_index()
        self._check_last_record()
        self._note_replaced()
        if not report.was_clean:
            report.notes.append(
                "the store is in use, or was not closed in order: queues and index are held to "
                f"byte {self._required_end} of the log, where they were last checkpointed"
            )
        report.elapsed_ms = monotonic_ms() - begun_ms
        return report

    # The log.

    def _take(self, found: LogChunk | DamagedRange, *, derive: bool) -> None:
        report = self._report
        if isinstance(found, DamagedRange):
            report.log.append(self._described(found))
            report.bytes_checked += found.physical_end - found.physical_start
        else:
            report.bytes_checked += found.end - found.start
            report.record_count += found.record_count
            self._replaced += self._reader.replaced(found)
            self._learned_batch_topics |= self._reader.learned_batch_topics(found)
            if derive:
                self._compare(found)
        total = self._reader.physical_end - self._reader.physical_min
        self._progress(min(report.bytes_checked, total), total)

    def _described(self, found: DamagedRange) -> LogFinding:
        """Name the message, if the record's lengths still add up."""
        finding = LogFinding(*found)
        data = self._reader.read(found.physical_start, found.physical_end - found.physical_start)
        try:
            message = decode_record(
                data, 0, physical_offset=found.physical_start, check_body_crc=False
            )
        except RecordDamaged:
            return finding
        finding.topic, finding.queue_id = message.topic, message.queue_id
        finding.queue_offset = message.queue_offset
        return finding

    def _note_replaced(self) -> None:
        """Note the records that an operator had replaced: they are no damage any more."""
        named = [str(place) for place in self._replaced if place.topic]
        if self._replaced:
            more = f", and {len(named) - _NAMED_MAX} more" if len(named) > _NAMED_MAX else ""
            self._report.notes.append(
                f"{len(self._replaced)} records stand for messages that were damaged and were "
                f"replaced: {', '.join(named[:_NAMED_MAX]) or 'their queues are unknown'}{more}"
            )

    def _check_last_record(self) -> None:
        """The checkpoint's last record must end at the checkpoint's durable end of the log."""
        log = self._reader.known.log
        if log is None or log.last_record_offset is None or self._report.log:
            return
        if log.last_record_offset < self._reader.physical_min:
            return
        try:
            message = self._reader.record(log.last_record_offset)
            ends_at = message.physical_offset + message.record_bytes
        except RecordDamaged:
            ends_at = -1
        if ends_at != log.physical_end and not self._is_blank(ends_at, log.physical_end):
            self._report.files.append(
                f"contrail.checkpoint says the log ends at {log.physical_end} with the record at "
                f"{log.last_record_offset}, which does not end there"
            )

    def _is_blank(self, physical_offset: int, physical_end: int) -> bool:
        """Whether a blank record lies between: a slave's log may end with its segment."""
        byte_count = physical_end - physical_offset
        if physical_end % self._reader.segment_bytes or byte_count < BLANK_RECORD_BYTES:
            return False
        if byte_count >= self._reader.segment_bytes:
            return False
        blank = encode_blank(byte_count)
        return self._reader.read(physical_offset, len(blank)) == blank

    # Queues.

    def _compare(self, chunk: LogChunk) -> None:
        queues, index_rows, _, _ = derive_rows(
            chunk.data,
            chunk.start,
            chunk.end,
            chunk.base,
            self._delay_table,
            self._batch_topics,
            False,
            True,
        )
        for record in self._places.sift(chunk, queues, self._batch_topics):
            self._kept_rows[record.physical_start] = record
            topic, queue_id, queue_offset = record.place
            if record.is_misplaced:
                name = topic.decode("utf-8", "replace")
                self._report.log.append(LogFinding(*record.range, name, queue_id, queue_offset))
            else:
                give_row(queues, record, record.row, topic in self._batch_topics)
        for topic, by_queue in queues.items():
            for queue_id, runs in by_queue.items():
                self._compare_runs((topic, queue_id), runs)
        self._report.key_count += len(index_rows) // 20
        self._index.feed(index_rows)
        if self._gathered > _GATHERED_BYTES_MAX:
            for check in self._checks.values():
                check.flush()
            self._gathered = 0

    def _tell_of_returned(self) -> None:
        """Report records hidden by earlier records with their queue offsets.

        Only a topic that was deleted and made again has such records.
        """
        for (topic, queue_id), count in sorted(self._places.hidden.items()):
            name = topic.decode("utf-8", "replace")
            self._report.returned.append(
                f"{count} records of queue {queue_id} of {name} have queue offsets that earlier "
                f"records have: if the topic was deleted and made again, its deleted messages are "
                f"back and hide the messages sent since"
            )

    def _compare_runs(self, key: QueueKey, runs: list) -> None:  # type: ignore[type-arg]
        check = self._checks.get(key)
        if check is None:
            check = self._checks[key] = self._new_check(key)
        dead_below = self._dead.get(key[0], 0)
        for run in runs:
            if int.from_bytes(run[2][:8], "big") >= dead_below:
                check.feed(run[0], run[1], run[2])
                self._gathered += len(run[2])

    def _new_check(self, key: QueueKey) -> QueueCheck:
        queue = self._reader.queues.get(key)
        ext_folder = self._ext_folder(key)
        ext = ExtFiles(self._reader.files, ext_folder) if ext_folder.exists() else None
        row_bytes = BATCH_ROW_BYTES if key[0] in self._batch_topics else QUEUE_ROW_BYTES
        return QueueCheck(queue, row_bytes=row_bytes, ext=ext)

    def _ext_folder(self, key: QueueKey) -> Path:
        root = self._reader.root / "consumequeue_ext"
        return root / key[0].decode("utf-8", "surrogateescape") / str(key[1])

    def _finish_queues(self) -> None:
        report, log_is_whole = self._report, not self._report.log
        limit = self._required_end if not report.was_clean else (1 << 63) - 1
        for key in self._reader.queues.keys() - self._checks.keys():
            self._checks[key] = self._new_check(key)
        for key, check in sorted(self._checks.items()):
            check.finish(
                physical_min=self._reader.physical_min if log_is_whole else self._required_end,
                physical_limit=limit,
                log_is_whole=log_is_whole,
                damaged=[(found.physical_start, found.physical_end) for found in report.log],
            )
            report.row_count += check.checked
            report.queue_count += key in self._reader.queues
            if not check.is_sound and self._is_ours(key):
                report.queues.append(self._finding(key, check))

    def _is_ours(self, key: QueueKey) -> bool:
        """Whether the log must account for a queue; RocketMQ deletes topics without a trace."""
        topic = key[0].decode("utf-8", "replace")
        if topic.startswith(LMQ_PREFIX):
            return False
        known_topics = {queue_key[0] for queue_key in self._reader.queues}
        if self._reader.known.log is None and key[0] not in known_topics and known_topics:
            self._report.notes.append(f"topic {topic} has messages but no queues: was it deleted?")
            return False
        return True

    def _finding(self, key: QueueKey, check: QueueCheck) -> QueueFinding:
        queue = self._reader.queues.get(key)
        topic = key[0].decode("utf-8", "surrogateescape")
        problems = list(queue.problems) if queue is not None else ["its folder is missing"]
        return QueueFinding(
            topic, key[1], check.missing, check.wrong, check.extra, check.first_bad, problems
        )

    # The index.

    def _finish_index(self) -> None:
        report, check = self._report, self._index
        if not self._reader.index_files():
            self._note_missing_index()
            return
        if report.log:
            report.notes.append("the index was not judged: keys of damaged messages are unknown")
            return
        if report.was_clean:
            check.finish()
        for name, problem in sorted(check.problems.items()):
            report.index.append(IndexFinding(name, problem))
        if check.missing_keys:
            report.index.append(
                IndexFinding("index", f"{check.missing_keys} keys of the log are missing")
            )

    def _note_missing_index(self) -> None:
        derived = self._reader.known.derived
        if derived is not None and derived.index_files:
            self._report.index.append(IndexFinding("index", "its files are missing"))
        elif self._report.key_count:
            self._report.notes.append("there is no index; messages can be found by queue only")

    # Repair.

    def repair(self, holder: Repair, log_folders: tuple[Path, ...]) -> None:
        """Rebuild the queues and index files that the report names, and report what is left."""
        reader = self._reader
        total = reader.physical_end - reader.physical_min
        damaged, missing = holder.rebuild(
            inferred_config(reader, log_folders=log_folders, delay_levels=self._delay_levels),
            list(reader.segments),
            known=reader.known,
            batch_topics=self._batch_topics | self._learned_batch_topics,
            damaged_queues=[
                (finding.topic.encode("utf-8", "surrogateescape"), finding.queue_id)
                for finding in self._report.queues
            ],
            damaged_index=bool(self._report.index),
            kept_rows=self._kept_rows,
            physical_min=reader.physical_min,
            physical_end=self._required_end,
            progress=lambda position: self._progress(position - reader.physical_min, total),
        )
        # As many of the missing messages as there are replaced records without a queue are notes:
        # these records are all that is left of them.
        unknown_count = sum(not place.topic for place in self._replaced)
        self._report.given_up = damaged + missing[unknown_count:]
        self._report.notes += missing[:unknown_count]

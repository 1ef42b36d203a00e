"""Replaces damaged records of a stopped store, so that the records behind them can be read.

For each damaged range, in this order: its bytes are kept in ``contrail.lost/``, durably; records of
the same length are written over it; they are synced. A crash in between leaves the range damaged
or replaced, and its original bytes kept: running the command again finishes it. Queues stay as they
are, for the new records give the rows that the lost records gave.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from contrail.clock import Clock, SystemClock
from contrail.errors import RecordDamaged
from contrail.kernels.derive_rows import derive_rows
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.model.message import StoredMessage
from contrail.model.record import decode_record, encode_blank
from contrail.model.replaced_record import NOBODY, LostPlace, encode_replacement
from contrail.model.topic import LMQ_PREFIX
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, opened, write_fully
from contrail.store.features import require_single
from contrail.store.reader import StoreReader
from contrail.store.services.folder_files import LogFile, QueueFiles
from contrail.store.services.log_walk import MISSING, UNREADABLE, DamagedRange, LogChunk
from contrail.store.services.queue_check import ExtFiles
from contrail.store.services.record_places import RecordPlaces, Runs
from contrail.store.services.repair import Repair
from contrail.store.services.row_sources import FolderRows, first_at_or_above
from contrail.store.state.replacing import KnownRecord, Piece, plan_pieces
from contrail.store.state.row_layout import BATCH_ROW, QUEUE_ROW

LOST_FOLDER = "contrail.lost"
_LMQ_PREFIX = LMQ_PREFIX.encode()
_EXT_ADDRESS_MAX = -(1 << 31) - 1
_CANNOT = {
    MISSING: "no segment file holds these bytes: restore the file",
    UNREADABLE: "the disk cannot read them: copy the segment to a sound disk first",
}

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class ReplacedRecord:
    """One record that was written over damage; the lost message's queue and offset if known."""

    physical_start: int
    physical_end: int
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


@dataclass(slots=True)
class ReplaceReport:
    """How much was checked, what was replaced, and which bytes stay damaged, with the reason."""

    root: str
    bytes_checked: int = 0
    record_count: int = 0
    replaced: list[ReplacedRecord] = field(default_factory=list)
    kept_files: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class _Damage(NamedTuple):
    """A damaged range, and when the record before it was stored."""

    found: DamagedRange
    stored_ms: int


def replace_damaged(
    root: Path,
    *,
    log_folders: tuple[Path, ...] = (),
    segment_bytes: int | None = None,
    index_slot_count: int | None = None,
    progress: Progress | None = None,
    files: FileSystem | None = None,
    clock: Clock | None = None,
) -> ReplaceReport:
    """Check every record below the log's durable end, and replace the damaged ones.

    Raises:
        FeatureRefused: ``root`` is a failover group member's: others of the group have the records.
        StoreLayoutError: ``root`` holds no store.
        StoreLocked: a broker has the store open.
    """
    files = files or FileSystem()
    holder = Repair(root, files)
    try:
        require_single(files, root)
        reader = StoreReader.open(
            root,
            segment_bytes=segment_bytes,
            log_folders=log_folders,
            index_slot_count=index_slot_count,
        )
        return _Replacing(reader, files, clock or SystemClock(), progress).run()
    finally:
        holder.close()


class _Replacing:
    """One pass over one folder."""

    def __init__(
        self, reader: StoreReader, files: FileSystem, clock: Clock, progress: Progress | None
    ) -> None:
        self._reader = reader
        self._files = files
        self._clock = clock
        self._progress = progress or (lambda done, total: None)
        self._report = ReplaceReport(str(reader.root))
        log = reader.known.log
        self._crc_from = log.record_crc_from if log is not None else None
        self._last_record = log.last_record_offset if log is not None else None
        self._delay_table = parse_delay_levels(DEFAULT_DELAY_LEVELS)
        derived = reader.known.derived
        rows = FolderRows(reader.queues, reader.read)
        self._places = RecordPlaces(rows, derived.tombstones if derived is not None else {})
        # The physical offsets of misplaced records: their own queue and offset do not count.
        self._misplaced: set[int] = set()

    def run(self) -> ReplaceReport:
        for damage in self._damages():
            found = damage.found
            segment = self._segment_of(found.physical_start)
            if segment is None or found.reason in _CANNOT:
                self._leave(found, _CANNOT.get(found.reason, found.reason))
                continue
            pieces = plan_pieces(
                found.physical_start,
                found.physical_end,
                self._known(found),
                segment_end=segment.end,
                boundary=self._last_record,
            )
            if pieces is None:
                self._leave(found, "no record fits between the sound ones around them")
            else:
                self._replace(segment, damage, pieces)
        return self._report

    def _damages(self) -> list[_Damage]:
        """All damaged ranges, found before the first is replaced: no replacement is read back."""
        reader, report = self._reader, self._report
        damages: list[_Damage] = []
        stored_ms = 0
        total = reader.durable_end - reader.physical_min
        for found in reader.walk(physical_end=reader.durable_end):
            if isinstance(found, DamagedRange):
                damages.append(_Damage(found, stored_ms))
                report.bytes_checked += found.physical_end - found.physical_start
            else:
                damages += [_Damage(one, stored_ms) for one in self._misplaced_in(found)]
                stored_ms = found.store_timestamp_ms
                report.bytes_checked += found.end - found.start
                report.record_count += found.record_count
            self._progress(min(report.bytes_checked, total), total)
        return damages

    def _misplaced_in(self, chunk: LogChunk) -> list[DamagedRange]:
        rows, batch_topics = self._rows_of(chunk), self._reader.known_batch_topics
        found = [one for one in self._places.sift(chunk, rows, batch_topics) if one.is_misplaced]
        self._misplaced.update(record.physical_start for record in found)
        return [record.range for record in found]

    def _rows_of(self, chunk: LogChunk) -> Runs:
        """The rows that records would give."""
        queues, *_ = derive_rows(
            chunk.data,
            chunk.start,
            chunk.end,
            chunk.base,
            self._delay_table,
            self._reader.known_batch_topics,
            False,
            False,
        )
        return queues

    def _leave(self, found: DamagedRange, reason: str) -> None:
        self._report.left.append(f"bytes {found.physical_start} to {found.physical_end}: {reason}")

    def _segment_of(self, physical_offset: int) -> LogFile | None:
        covering = (s for s in self._reader.segments if s.start <= physical_offset < s.end)
        return next(covering, None)

    # The lost records.

    def _known(self, found: DamagedRange) -> Iterator[KnownRecord]:
        for queue in self._reader.queues.values():
            if queue.topic.startswith(_LMQ_PREFIX):
                # Rows of LMQ topics lead to records of other topics.
                continue
            with queue.held_open():
                yield from _rows_into(queue, found, self._ext_of(queue))

    def _ext_of(self, queue: QueueFiles) -> ExtFiles:
        folder = self._reader.root / "consumequeue_ext" / os.fsdecode(queue.topic)
        return ExtFiles(self._reader.files, folder / str(queue.queue_id))

    def _message(self, data: bytes, piece: Piece) -> StoredMessage | None:
        """The damaged record, decoded, if all its lengths add up to the piece."""
        try:
            message = decode_record(
                data, 0, physical_offset=piece.physical_start, check_body_crc=False
            )
        except RecordDamaged:
            return None
        return message if message.record_bytes == piece.byte_count else None

    # Replacing.

    def _replace(self, segment: LogFile, damage: _Damage, pieces: list[Piece]) -> None:
        start, end = damage.found.physical_start, damage.found.physical_end
        data = self._reader.read(start, end - start)
        records = []
        for piece in pieces:
            at = piece.physical_start - start
            records.append(self._record(piece, data[at : at + piece.byte_count], damage.stored_ms))
        self._keep(start, end, data)
        crashpoint("replace.kept")
        with opened(self._files, segment.path) as fd:
            for piece, record in zip(pieces, records, strict=True):
                write_fully(self._files, fd, record, piece.physical_start - segment.start)
                crashpoint("replace.written")
            self._files.fdatasync(fd)
        crashpoint("replace.synced")

    def _record(self, piece: Piece, data: bytes, stored_ms: int) -> bytes:
        if piece.is_blank:
            self._report.replaced.append(ReplacedRecord(piece.physical_start, piece.physical_end))
            return encode_blank(piece.byte_count)
        message = self._message(data, piece)
        place = piece.place if piece.place.topic else self._place_by_itself(message, data, piece)
        is_same = message is not None and (
            message.topic.encode() == place.topic or piece.physical_start in self._misplaced
        )
        self._note(piece, place)
        return encode_replacement(
            piece.byte_count,
            physical_offset=piece.physical_start,
            place=place,
            store_timestamp_ms=self._stored_ms(message, piece, stored_ms),
            properties=message.properties if message is not None and is_same else None,
            with_crc=self._crc_from is not None and piece.physical_start >= self._crc_from,
        )

    def _place_by_itself(
        self, message: StoredMessage | None, data: bytes, piece: Piece
    ) -> LostPlace:
        """The queue and offset of the row that the damaged record gives, if it still gives one."""
        if message is None or piece.physical_start in self._misplaced:
            return NOBODY
        chunk = LogChunk(data, 0, len(data), piece.physical_start, 1, 0)
        for topic, by_queue in self._rows_of(chunk).items():
            for queue_id, ((first, count, rows, *_),) in by_queue.items():
                return LostPlace(topic, queue_id, first, count, QUEUE_ROW.unpack_from(rows)[2])
        return NOBODY

    def _stored_ms(self, message: StoredMessage | None, piece: Piece, before_ms: int) -> int:
        """The row's store time, or the record's if it lies between its neighbours', or theirs."""
        if piece.stored_ms:
            return piece.stored_ms
        behind_ms = self._next_stored_ms(piece.physical_end)
        if message is not None and before_ms <= message.store_timestamp_ms <= behind_ms:
            return message.store_timestamp_ms
        return before_ms or behind_ms

    def _next_stored_ms(self, physical_end: int) -> int:
        """When the record behind the range was stored, or now if there is none."""
        try:
            return self._reader.record(physical_end).store_timestamp_ms
        except RecordDamaged:
            return self._clock.now_ms()

    def _note(self, piece: Piece, place: LostPlace) -> None:
        replaced = ReplacedRecord(piece.physical_start, piece.physical_end)
        if place.topic:
            replaced.topic = place.topic.decode("utf-8", "replace")
            replaced.queue_id, replaced.queue_offset = place.queue_id, place.queue_offset
        self._report.replaced.append(replaced)

    def _keep(self, start: int, end: int, data: bytes) -> None:
        """Keep the damaged bytes; a file with other bytes, of an interrupted call, stays as is."""
        folder = self._reader.root / LOST_FOLDER
        path = folder / f"{start:020d}-{end:020d}.damaged"
        number = 1
        while self._files.exists(path) and self._files.read_bytes(path) != data:
            path = folder / f"{start:020d}-{end:020d}.{number}.damaged"
            number += 1
        if not self._files.exists(folder):
            self._files.make_folder(folder)
            self._files.sync_folder(folder.parent)
        with opened(self._files, path, create=True) as fd:
            write_fully(self._files, fd, data, 0)
            self._files.fsync(fd)
        self._files.sync_folder(folder)
        self._report.kept_files.append(str(path))


def _rows_into(queue: QueueFiles, found: DamagedRange, ext: ExtFiles) -> Iterator[KnownRecord]:
    """The rows that lead into a damaged range; a queue's rows are in the order of the log."""
    first = first_at_or_above(queue.place, queue.first, queue.limit, found.physical_start)
    for number in range(first, queue.limit):
        row = queue.rows(number, 1)
        physical_offset, size, tags_code = QUEUE_ROW.unpack_from(row)
        if size <= 0 or physical_offset >= found.physical_end:
            return
        if physical_offset >= found.physical_start:
            yield KnownRecord(
                physical_offset, size, *_described(queue, number, row, tags_code, ext)
            )


def _described(
    queue: QueueFiles, number: int, row: bytes, tags_code: int, ext: ExtFiles
) -> tuple[LostPlace, int]:
    base, count, stored_ms = number, 1, 0
    if queue.is_batch:
        stored_ms, base, count = BATCH_ROW.unpack_from(row)[3:6]
    elif tags_code <= _EXT_ADDRESS_MAX:
        unit = ext.tags_and_time(tags_code)
        tags_code, stored_ms = unit if unit is not None else (0, 0)
    return LostPlace(queue.topic, queue.queue_id, base, count, tags_code), stored_ms

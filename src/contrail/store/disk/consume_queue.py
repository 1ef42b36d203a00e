"""One topic queue's index into the log: 20-byte rows, ``consumequeue/<topic>/<queueId>/``.

    at     bytes  field
    0      8      physicalOffset of the record
    8      4      size of the record
    12     8      tagsCode: hash of the tags, deliver time of a delayed message, or, with the
                  extension on, the address of its unit (see ``queue_ext``)

The row of queue offset N lies at byte N * 20 of the queue's address space. Rows that no message
has (before the first message of a queue that starts above zero, or where the log lost messages) are
pre-blank: physicalOffset 0, size 0x7FFFFFFF, tagsCode 0. RocketMQ fills the first kind the same
way; after the second kind of gap RocketMQ appends rows at wrong positions, Contrail does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from contrail.kernels.record_layout import BLANK_ROW_SIZE, QUEUE_ROW_BYTES, TIMED_ROW_BYTES
from contrail.runtime.files import FilePart, FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.handles import FileHandles, UnsyncedPaths
from contrail.store.disk.queue_ext import ExtUnit, QueueExt, is_ext_address
from contrail.store.disk.row_queue import QueueMark, RowQueue
from contrail.store.state.row_layout import BLANK_ROW, QUEUE_ROW, TIMED_ROW

# A larger gap is a damaged queue offset, not a loss: each lost record was larger than its row.
GAP_FILES_MAX = 64
_FIRST_READ_BYTES = 4000
_SCAN_BYTES = 60_000
_BLANKS_PER_WRITE = 50_000
_LOOKED_BACK_ROWS = 50

_log = logging.getLogger(__name__)

BitmapOf = Callable[[int, int], bytes]


class ConsumeQueue(RowQueue):
    """A queue of single messages, with or without an extension."""

    __slots__ = ("_bitmap_of", "_ext")

    row_bytes = QUEUE_ROW_BYTES

    def __init__(
        self,
        folder: Path,
        *,
        config: StoreConfig,
        files: FileSystem,
        handles: FileHandles,
        unsynced: UnsyncedPaths | None = None,
        bitmap_of: BitmapOf | None = None,
    ) -> None:
        super().__init__(
            folder, config.queue_file_bytes, files=files, handles=handles, unsynced=unsynced
        )
        self._ext: QueueExt | None = None
        self.takes_fast_rows = not config.queue_ext_enabled
        self._bitmap_of = bitmap_of
        if config.queue_ext_enabled:
            self._ext = QueueExt(
                config.root / "consumequeue_ext" / folder.parent.name / folder.name,
                config=config,
                files=files,
                handles=handles,
                unsynced=self._unsynced,
            )

    # Starting.

    def load(self, *, physical_limit: int, expected: QueueMark | None) -> str | None:
        """Find the files and the end of the rows below ``physical_limit``.

        Returns None when sound, else the problem as text; the caller then calls ``reset`` and
        feeds the queue from the log again.
        """
        problem = self._rows.find()
        if problem is not None:
            return problem
        if expected is not None and not 0 < expected.physical_end <= physical_limit:
            # The mark is empty, or of records that the log lost: judge by the rows alone.
            expected = None
        problem = self._find_rows(physical_limit, expected)
        if problem is None and self._ext is not None:
            problem = self._load_ext(self._ext)
        return problem

    def reset(self) -> None:
        """Delete every file; the queue is empty, as a new one."""
        super().reset()
        if self._ext is not None:
            self._ext.reset()

    # Writing.

    def put(self, first_queue_offset: int, count: int, rows: bytearray, physical_end: int) -> int:
        """Append a run of rows without those the queue has; returns how many were new."""
        if (
            first_queue_offset != self.queue_offset_max
            or int.from_bytes(rows[:8], "big") < self.physical_end
        ):
            stale = self._stale_count(first_queue_offset, count, rows)
            if stale == count:
                return 0
            rows = rows[len(rows) // count * stale :]
            count -= stale
            first_queue_offset += stale
            if not self._reach(first_queue_offset, rows):
                return 0
        self._rows.append(rows if self._ext is None else self._with_addresses(rows))
        self._appended(first_queue_offset + count, physical_end)
        return count

    def begin_blank(self, queue_offset: int, count: int) -> None:
        """Begin an untouched queue with blank rows."""
        if self._rows.is_untouched:
            self._rows.begin_at(queue_offset * QUEUE_ROW_BYTES)
            self.queue_offset_max = self._rows.start // QUEUE_ROW_BYTES
            self._fill(queue_offset + count - self.queue_offset_max)
            self.queue_offset_min = queue_offset

    def write_pending(self) -> None:
        """Write all rows to the files. On an error the other rows stay pending."""
        if self._ext is not None:
            # Units before rows, so that no row on disk has the address of a missing unit.
            self._ext.write_pending()
        super().write_pending()

    # Reading.

    def rows(self, queue_offset: int, count_max: int) -> bytes:
        """Up to ``count_max`` rows of one file from ``queue_offset``; empty outside the queue."""
        raw = self.raw_rows(queue_offset, count_max)
        return raw if self._ext is None else self._resolved(raw, self._ext)

    def raw_rows(self, queue_offset: int, count_max: int, *, waits: bool = True) -> bytes:
        """The rows as stored: tagsCode may be an extension address."""
        if queue_offset < self.queue_offset_min:
            return b""
        raw = self._rows.read(
            queue_offset * QUEUE_ROW_BYTES, count_max * QUEUE_ROW_BYTES, waits=waits
        )
        return (
            raw
            if len(raw) % QUEUE_ROW_BYTES == 0
            else raw[: len(raw) // QUEUE_ROW_BYTES * QUEUE_ROW_BYTES]
        )

    def resident_rows(self, queue_offset: int, count_max: int) -> bytes:
        """Like ``rows``, but never waits for the disk: empty if a row is not in memory."""
        if self._ext is not None:
            is_absent = self.absent_rows(queue_offset, count_max) is not None
            return b"" if is_absent else self.rows(queue_offset, count_max)
        return self.raw_rows(queue_offset, count_max, waits=False)

    def absent_rows(self, queue_offset: int, count_max: int) -> FilePart | None:
        """The part to bring in so that ``rows`` does not wait for the disk; None: it does not.

        There may be more to bring in afterwards: call again.
        """
        part = self._rows.absent(queue_offset * QUEUE_ROW_BYTES, count_max * QUEUE_ROW_BYTES)
        if part is not None or self._ext is None:
            return part
        addresses = [
            row[2] for row in QUEUE_ROW.iter_unpack(self.raw_rows(queue_offset, count_max))
        ]
        units = [address for address in addresses if is_ext_address(address)]
        return self._ext.absent(min(units), max(units)) if units else None

    def rows_part(self, queue_offset: int, count: int) -> FilePart | None:
        """The file part of the rows from ``queue_offset`` on."""
        return self._rows.part(queue_offset * QUEUE_ROW_BYTES, count * QUEUE_ROW_BYTES)

    def ext_unit(self, queue_offset: int) -> ExtUnit | None:
        """The extension unit of a row, if it has one."""
        raw = self.raw_rows(queue_offset, 1)
        return self._ext.read(QUEUE_ROW.unpack(raw)[2]) if raw and self._ext is not None else None

    def repair_rows(self, queue_offset: int, rows: bytes | bytearray, row_bytes: int) -> int:
        """Write again the rows in the files that differ from ``rows``; returns how many did.

        ``rows`` are as ``put`` takes them. Rows that are not in the files yet, or no longer, are
        skipped.
        """
        skipped = max(self._rows.start // QUEUE_ROW_BYTES - queue_offset, 0)
        queue_offset, rows = queue_offset + skipped, rows[skipped * row_bytes :]
        if self._ext is not None and row_bytes == TIMED_ROW_BYTES:
            rows = self._stored_form(queue_offset, rows, self._ext)
        found = self._rows.repair(queue_offset * QUEUE_ROW_BYTES, rows)
        if found == rows[: len(found)]:
            return 0
        places = range(0, len(found), QUEUE_ROW_BYTES)
        return sum(
            found[at : at + QUEUE_ROW_BYTES] != rows[at : at + QUEUE_ROW_BYTES] for at in places
        )

    def _stored_form(self, queue_offset: int, rows: bytes | bytearray, ext: QueueExt) -> bytes:
        """Rows with the addresses they have; a wrong or missing unit is stored anew."""
        stored = bytearray()
        count = self._rows.written // QUEUE_ROW_BYTES - queue_offset
        for at, timed in enumerate(TIMED_ROW.iter_unpack(rows[: max(count, 0) * TIMED_ROW_BYTES])):
            address = self._row(queue_offset + at)[2]
            unit = ext.read_file(address)
            if unit is None or unit[:2] != timed[2:]:
                address = ext.append(timed[2], timed[3]) or timed[2]
            stored += QUEUE_ROW.pack(timed[0], timed[1], address)
        ext.write_pending()
        return bytes(stored)

    # Cutting at either end.

    def truncate(self, physical_end: int) -> None:
        """Durably forget the rows of records at or above ``physical_end``."""
        if self.physical_end <= physical_end:
            return
        first_gone = self._first_at_or_above(
            physical_end, self._rows.start // QUEUE_ROW_BYTES, self.queue_offset_max
        )
        self._rows.cut(first_gone * QUEUE_ROW_BYTES)
        self.queue_offset_max = first_gone
        self.queue_offset_min = min(self.queue_offset_min, first_gone)
        self.physical_end = self._last_physical_end()
        if self._ext is not None:
            self._cut_ext(self._ext)
        self._note_mark()

    def raise_minimum(self, queue_offset: int) -> None:
        """Raise the minimum to ``queue_offset``: the log has no message before it."""
        self.queue_offset_min = min(queue_offset, self.queue_offset_max)

    def correct_minimum(self, physical_min: int) -> None:
        """Move the minimum up to the first row whose record the log still has."""
        low, high = self.queue_offset_min, self.queue_offset_max
        if low >= high:
            return
        if self.physical_end <= physical_min:
            # No message is left; the maximum stays, so that the next message continues from it.
            self.queue_offset_min = high
        else:
            physical_offset, size, _ = self._row(low)
            if physical_offset >= physical_min and size != BLANK_ROW_SIZE:
                return
            self.queue_offset_min = self._first_live(physical_min, low, high)
            self._drop_ext_before(self.queue_offset_min)
        self._mark = self._mark._replace(
            queue_offset_min=min(self.queue_offset_min, self._mark.queue_offset_max)
        )

    def drop_files_before(self, physical_min: int) -> list[Path]:
        """Unlink leading files whose records the log no longer has; never the last file."""
        dropped = self._rows.drop_before(physical_min, QUEUE_ROW_BYTES)
        if dropped:
            self.queue_offset_min = max(self.queue_offset_min, self._rows.start // QUEUE_ROW_BYTES)
            self.correct_minimum(physical_min)
        return dropped

    # Private.

    def _row(self, queue_offset: int) -> tuple[int, int, int]:
        """One row, or a pre-blank row if the file is too short."""
        raw = self._rows.read(queue_offset * QUEUE_ROW_BYTES, QUEUE_ROW_BYTES)
        physical_offset, size, tags_code = QUEUE_ROW.unpack(
            raw if len(raw) == QUEUE_ROW_BYTES else BLANK_ROW
        )
        return physical_offset, size, tags_code

    # Private: starting.

    def _find_rows(self, physical_limit: int, expected: QueueMark | None) -> str | None:
        begun = self._scan_start(physical_limit, expected)
        if isinstance(begun, str):
            return begun
        end, physical_end = self._sound_end(*begun, physical_limit)
        beyond = self._rows.settle(end)
        if expected is None and _has_row_below(beyond, physical_limit, blank_counts=False):
            return f"{self.folder} has rows after a hole at byte {end}"
        self.queue_offset_max = end // QUEUE_ROW_BYTES
        self.physical_end = physical_end
        self.queue_offset_min = self._first_offset(expected)
        self._note_mark()
        return None

    def _scan_start(self, physical_limit: int, expected: QueueMark | None) -> tuple[int, int] | str:
        """The byte position from which rows must be checked, and the physical end there."""
        if expected is None:
            return self._last_begun_file(physical_limit), 0
        first = expected.queue_offset_min * QUEUE_ROW_BYTES
        if self._rows.start > first:
            # The file was lost, or retention removed it just before a crash: the log decides.
            return f"{self.folder} lacks the file of queue offset {expected.queue_offset_min}"
        position = expected.queue_offset_max * QUEUE_ROW_BYTES
        if not self._rows.start <= position <= self._rows.created:
            return f"{self.folder} does not reach queue offset {expected.queue_offset_max}"
        if position > self._rows.start:
            raw = self._rows.read_file(position - QUEUE_ROW_BYTES, QUEUE_ROW_BYTES)
            if not _row_ends_at(raw, expected.physical_end):
                return f"{self.folder} has another row before {expected.queue_offset_max}"
        return position, expected.physical_end

    def _last_begun_file(self, physical_limit: int) -> int:
        file_start = self._rows.created
        while file_start > self._rows.start:
            file_start -= self._rows.file_bytes
            if _has_row_below(self._rows.read_file(file_start, QUEUE_ROW_BYTES), physical_limit):
                return file_start
        return self._rows.start

    def _sound_end(self, position: int, physical_end: int, physical_limit: int) -> tuple[int, int]:
        """Walk from ``position`` to the first row that does not follow the row before it."""
        rows, step = self._rows, _FIRST_READ_BYTES
        while position < rows.created:
            room = rows.file_bytes - position % rows.file_bytes
            raw = rows.read_file(position, min(step, room))
            for physical_offset, size, _ in QUEUE_ROW.iter_unpack(
                raw[: len(raw) // QUEUE_ROW_BYTES * QUEUE_ROW_BYTES]
            ):
                if size == BLANK_ROW_SIZE and physical_offset == 0:
                    position += QUEUE_ROW_BYTES
                    continue
                if size <= 0 or physical_offset < physical_end:
                    return position, physical_end
                if physical_offset + size > physical_limit:
                    return position, physical_end
                physical_end = physical_offset + size
                position += QUEUE_ROW_BYTES
            if len(raw) < QUEUE_ROW_BYTES:
                break
            step = _SCAN_BYTES
        return position, physical_end

    def _first_offset(self, expected: QueueMark | None) -> int:
        """The first row of the files that is not pre-blank."""
        low, high = self._rows.start // QUEUE_ROW_BYTES, self.queue_offset_max
        if expected is not None:
            return min(max(low, expected.queue_offset_min), high)
        if low == high or self._row(low)[1] != BLANK_ROW_SIZE:
            return low
        return self._first_at_or_above(1, low, high) if self.physical_end else high

    def _load_ext(self, ext: QueueExt) -> str | None:
        problem = ext.load(self._last_address())
        if problem is None and not self._cut_ext(ext):
            problem = f"{ext.folder} lacks the unit of the last row"
        return problem

    # Private: writing.

    def _stale_count(self, first_queue_offset: int, count: int, rows: bytearray) -> int:
        row_bytes = len(rows) // count
        stale = 0
        for at in range(0, len(rows), row_bytes):
            physical_end = int.from_bytes(rows[at : at + 8], "big") + int.from_bytes(
                rows[at + 8 : at + 12], "big"
            )
            if (
                physical_end > self.physical_end
                and first_queue_offset + stale >= self.queue_offset_max
            ):
                break
            stale += 1
        return stale

    def _reach(self, queue_offset: int, rows: bytearray) -> bool:
        """Fill with pre-blank rows up to ``queue_offset``; False if the gap is too large."""
        if self._rows.is_untouched:
            self._rows.begin_at(queue_offset * QUEUE_ROW_BYTES)
            self.queue_offset_max = self._rows.start // QUEUE_ROW_BYTES
        gap = queue_offset - self.queue_offset_max
        if gap * QUEUE_ROW_BYTES > GAP_FILES_MAX * self._rows.file_bytes:
            _log.error(
                "%s: the record at %d claims queue offset %d after %d; the record is left out",
                self.folder,
                int.from_bytes(rows[:8], "big"),
                queue_offset,
                self.queue_offset_max,
            )
            return False
        if gap and self.physical_end:
            _log.warning(
                "%s: queue offsets %d to %d are missing from the log",
                self.folder,
                self.queue_offset_max,
                queue_offset - 1,
            )
        elif gap:
            self.queue_offset_min = queue_offset
        self._fill(gap)
        return True

    def _fill(self, gap: int) -> None:
        while gap > 0:
            step = min(gap, _BLANKS_PER_WRITE)
            self._rows.append(BLANK_ROW * step)
            self.queue_offset_max += step
            gap -= step
            if gap:
                self.write_pending()

    def _with_addresses(self, rows: bytearray) -> bytearray:
        """Store tags code and time of each row in the extension, and the address in the row."""
        assert self._ext is not None
        converted = bytearray()
        for physical_offset, size, tags_code, store_timestamp_ms in TIMED_ROW.iter_unpack(rows):
            bitmap = self._bitmap_of(physical_offset, size) if self._bitmap_of else b""
            address = self._ext.append(tags_code, store_timestamp_ms, bitmap)
            stored = tags_code if address is None else address
            converted += QUEUE_ROW.pack(physical_offset, size, stored)
        return converted

    # Private: reading and cutting.

    def _resolved(self, raw: bytes, ext: QueueExt) -> bytes:
        resolved = bytearray(raw)
        for at in range(0, len(raw), QUEUE_ROW_BYTES):
            unit = ext.read(int.from_bytes(raw[at + 12 : at + 20], "big", signed=True))
            if unit is not None:
                resolved[at + 12 : at + 20] = unit.tags_code.to_bytes(8, "big", signed=True)
        return bytes(resolved)

    def _first_at_or_above(self, physical_offset: int, low: int, high: int) -> int:
        """The first row in [low, high) of a record at or above ``physical_offset``, else ``high``.

        Pre-blank rows belong to no record and are skipped.
        """
        answer = high
        while low < high:
            middle = probe = (low + high) // 2
            while probe < high and self._row(probe)[1] == BLANK_ROW_SIZE:
                probe += 1
            if probe == high:
                high = middle
            elif self._row(probe)[0] >= physical_offset:
                answer, high = probe, middle
            else:
                low = probe + 1
        return answer

    def _first_live(self, physical_min: int, low: int, high: int) -> int:
        """As ``_first_at_or_above``; looks back, as a damaged row sends that search too far."""
        answer = self._first_at_or_above(physical_min, low, high)
        while answer > low:
            before = range(answer - 1, max(low, answer - _LOOKED_BACK_ROWS) - 1, -1)
            live = next((at for at in before if self._is_live(at, physical_min)), None)
            if live is None:
                break
            answer = self._first_at_or_above(physical_min, low, live + 1)
        return answer

    def _is_live(self, queue_offset: int, physical_min: int) -> bool:
        physical_offset, size, _ = self._row(queue_offset)
        return 0 < size < BLANK_ROW_SIZE and physical_min <= physical_offset < self.physical_end

    def _last_physical_end(self) -> int:
        first = self._rows.start // QUEUE_ROW_BYTES
        for queue_offset in range(self.queue_offset_max - 1, first - 1, -1):
            physical_offset, size, _ = self._row(queue_offset)
            if size != BLANK_ROW_SIZE:
                return physical_offset + size
        return 0

    def _cut_ext(self, ext: QueueExt) -> bool:
        """End the extension after the last row's unit; False if that unit is missing."""
        return ext.truncate(self._last_address())

    def _last_address(self) -> int | None:
        """The address in the last row that has one; None if no row has."""
        first = self._rows.start // QUEUE_ROW_BYTES
        for queue_offset in range(self.queue_offset_max - 1, first - 1, -1):
            address = self._row(queue_offset)[2]
            if is_ext_address(address):
                return address
        return None

    def _drop_ext_before(self, queue_offset: int) -> None:
        if self._ext is not None and queue_offset < self.queue_offset_max:
            address = self._row(queue_offset)[2]
            if is_ext_address(address):
                self._ext.drop_before(address)


def _has_row_below(raw: bytes, physical_limit: int, *, blank_counts: bool = True) -> bool:
    for physical_offset, size, _ in QUEUE_ROW.iter_unpack(
        raw[: len(raw) // QUEUE_ROW_BYTES * QUEUE_ROW_BYTES]
    ):
        if size == BLANK_ROW_SIZE and physical_offset == 0:
            if blank_counts:
                return True
        elif size > 0 and 0 <= physical_offset < physical_limit:
            return True
    return False


def _row_ends_at(raw: bytes, physical_end: int) -> bool:
    if len(raw) != QUEUE_ROW_BYTES:
        return False
    physical_offset, size, _ = QUEUE_ROW.unpack(raw)
    return bool(size == BLANK_ROW_SIZE or (size > 0 and physical_offset + size == physical_end))

"""Reads messages through a queue's rows, and never hands out a record its row does not prove.

Every record is compared with the row that led to it: size, magic, physical offset, queue, queue
offset and topic. Then its checksum is verified, however old the record is: a page that left memory
comes back from the disk, and the disk may have flipped a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from contrail.clock import monotonic_ms
from contrail.errors import RecordDamaged
from contrail.kernels.queue_select import coalesce, match_records, select_rows
from contrail.kernels.record_layout import BLANK_ROW_SIZE, QUEUE_ROW_BYTES, REASON_BLANK, REASON_END
from contrail.kernels.record_scan import check_record, count_whole, marked_records
from contrail.model.message import StoredMessage
from contrail.model.record import BLANK_RECORD_BYTES, RECORD_BYTES_MIN, decode_record
from contrail.model.replaced_record import LostPlace, read_replacement
from contrail.store.config import StoreConfig
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.services.damage import DamageWatch
from contrail.store.services.queue_runs import FAR, QueueRuns, Reach, RunSources, of_segment
from contrail.store.services.residency import DiskWaits, NotInMemory, Residency
from contrail.store.services.row_window import (
    SCANNED_ROWS,
    blank_rows_end,
    bounded_bytes,
    rows_from,
    window_rows,
)
from contrail.store.state.place_holes import Place
from contrail.store.state.reading import GetStatus, place_of
from contrail.store.state.record_crc import RecordCrcRule
from contrail.store.state.record_marks import RecordMarks
from contrail.store.state.row_layout import QUEUE_ROW
from contrail.store.state.sound_memory import SoundMemory

# A walk that picks records hears after this much of the log whether it is still wanted.
_PICKED_BYTES = 4 << 20


@dataclass(slots=True)
class GetResult:
    """The outcome of a read. ``ranges`` are views of the log, adjacent records joined."""

    status: GetStatus
    next_queue_offset: int
    queue_offset_min: int
    queue_offset_max: int
    ranges: list[memoryview] = field(default_factory=list)
    message_count: int = 0
    byte_count: int = 0
    damaged: list[int] = field(default_factory=list)
    # Text about a message that is passed over because it is damaged, or was replaced.
    problem: str = ""

    @property
    def records(self) -> list[memoryview]:
        """One view per record."""
        return list(_split(self.ranges))

    @property
    def messages(self) -> list[StoredMessage]:
        return [decode_record(view, 0) for view in self.records]


class QueueRow(NamedTuple):
    """One row of a queue, as it stands in its file."""

    queue_offset: int
    physical_offset: int
    byte_count: int
    tags_code: int


def _split(ranges: list[memoryview]) -> Iterator[memoryview]:
    for view in ranges:
        position = 0
        while position < len(view):
            size = int.from_bytes(view[position : position + 4], "big")
            yield view[position : position + size]
            position += size


class QueueReading:
    """Answers reads by queue and by physical offset."""

    def __init__(
        self,
        config: StoreConfig,
        segments: SegmentList,
        queues: QueueTable,
        *,
        crc_rule: RecordCrcRule,
        visible_end: Callable[[], int],
        waits: DiskWaits,
        damage: DamageWatch,
    ) -> None:
        self._waits = waits
        self._damage = damage
        self._segments = segments
        self._queues = queues
        self._crc_rule = crc_rule
        self._visible_end = visible_end
        self._rows_per_file = config.queue_file_bytes // QUEUE_ROW_BYTES
        self._sound = SoundMemory(visible_end(), sound_ms=config.sound_ms, now_ms=monotonic_ms())
        self.residency = Residency(
            segments,
            queues,
            opened_end=visible_end(),
            waits=waits,
            on_absent=self._sound.left_memory,
        )
        # Has a row derived again; False if that was done and the log has no record for the row.
        self.ask_for_row: Callable[[bytes, int, int], bool] = lambda *place: True
        self._sources = RunSources(
            segments, queues, self.residency, self._sound, crc_rule, visible_end
        )

    def get(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.queue_offset_min, queue.queue_offset_max
        outside = place_of(queue_offset, minimum=low, maximum=high)
        if outside is not None:
            return GetResult(outside[0], outside[1], low, high)
        if self._waits.are_forbidden:
            self._require(topic, queue_id, queue_offset, count_max, bytes_max, tag_codes)
        bytes_max = bounded_bytes(bytes_max)
        if tag_codes is None:
            run = self.runs(topic, queue_id).read(
                queue_offset, count_max, bytes_max, Reach.ANY, monotonic_ms()
            )
            if run is not None and run is not FAR:
                views, byte_count, count, next_queue_offset, low, high, _ = run
                return GetResult(
                    GetStatus.FOUND, next_queue_offset, low, high, views, count, byte_count
                )
        rows, offsets = rows_from(queue, queue_offset, window_rows(count_max, tag_codes))
        if not rows:
            next_file = (queue_offset // self._rows_per_file + 1) * self._rows_per_file
            return GetResult(GetStatus.OFFSET_FOUND_NULL, next_file, low, high)
        selected, scanned, _ = select_rows(rows, 0, len(rows), count_max, bytes_max, tag_codes)
        result = GetResult(GetStatus.FOUND, offsets[scanned], low, high)
        if not selected:
            result.status = GetStatus.NO_MATCHED_MESSAGE
            return result
        if selected[1] == BLANK_ROW_SIZE:
            result.status = GetStatus.MESSAGE_WAS_REMOVING
            rows, offsets = rows_from(queue, queue_offset, SCANNED_ROWS)
            result.next_queue_offset = offsets[blank_rows_end(rows, selected[2])]
            return result
        self._collect(result, selected, offsets, topic, queue_id)
        return result

    def _require(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
    ) -> None:
        found = self.residency.on_disk(
            topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            tag_codes=tag_codes,
        )
        if found.parts:
            raise NotInMemory(found.parts)

    def observe_end(self) -> None:
        """Note the log's end now: bytes behind it are younger than this moment."""
        now_ms = monotonic_ms()
        if now_ms >= self._sound.sample_due_ms:
            self._sources.observe(now_ms)

    def runs(self, topic: bytes, queue_id: int) -> QueueRuns:
        """The shortcut of ``get`` for a reader that goes on in a queue."""
        return QueueRuns(self._sources, topic, queue_id)

    def _collect(
        self,
        result: GetResult,
        selected: list[int],
        offsets: range | list[int],
        topic: bytes,
        queue_id: int,
    ) -> None:
        """Fill in the ranges of every record up to the first that contradicts its row."""
        sound, bad = self._count_sound(selected, offsets, topic, queue_id)
        self._add_ranges(result, selected[: sound * 3])
        if bad is None:
            return
        result.next_queue_offset = offsets[selected[sound * 3 + 2]]
        if sound:
            return
        result.status, skip = bad
        if result.status is GetStatus.QUEUE_ENTRY_DAMAGED and not self.ask_for_row(
            topic, queue_id, offsets[selected[2]]
        ):
            result.status, skip = GetStatus.MESSAGE_DAMAGED, True
        if skip:
            result.next_queue_offset = max(offsets[selected[2] + 1], result.queue_offset_min)
        if result.status is GetStatus.MESSAGE_DAMAGED:
            result.damaged.append(selected[0])
            place = Place(topic, queue_id, offsets[selected[2]])
            self._damage.passed_over(place, selected[0], selected[1])
            result.problem = self._damage.problem_at(selected[0]) or "is damaged"
        elif result.status is GetStatus.MESSAGE_REPLACED:
            lost = LostPlace(topic, queue_id, offsets[selected[2]])
            result.problem = f"was damaged, and was replaced: {lost}"

    def _count_sound(
        self, selected: list[int], offsets: range | list[int], topic: bytes, queue_id: int
    ) -> tuple[int, tuple[GetStatus, bool] | None]:
        """How many records from the front are sound, and what is wrong with the next one."""
        sound, total = 0, len(selected) // 3
        while sound < total:
            segment = self._segments.at(selected[sound * 3])
            if segment is None:
                queue_offset = offsets[selected[sound * 3 + 2]]
                return sound, self._gone(selected[sound * 3], topic, queue_id, queue_offset)
            flat, wanted = of_segment(selected, sound, segment, offsets)
            mismatch = match_records(segment.map, flat, segment.start, queue_id, topic, wanted)
            good = len(wanted) if mismatch < 0 else mismatch
            mode = self._crc_rule.mode(segment.start + flat[0])
            checked = count_whole(segment.map, flat[: good * 2], segment.start, mode)
            sound += checked
            if checked < good:
                return sound, (GetStatus.MESSAGE_DAMAGED, True)
            if mismatch >= 0:
                position, size = flat[mismatch * 2 : mismatch * 2 + 2]
                lost = (topic, queue_id, wanted[mismatch])
                return sound, self._mismatch(segment, segment.start + position, size, lost)
        return sound, None

    def _gone(
        self, physical_offset: int, topic: bytes, queue_id: int, queue_offset: int
    ) -> tuple[GetStatus, bool]:
        """No segment holds the record: retention removed it, or the row is damaged.

        The row is damaged if the log still holds the message before it.
        """
        queue = self._queues.get(topic, queue_id)
        before = b""
        if isinstance(queue, ConsumeQueue) and queue_offset > queue.queue_offset_min:
            before = queue.raw_rows(queue_offset - 1, 1)
        is_kept = before != b"" and (
            int.from_bytes(before[:8], "big", signed=True) >= self._segments.physical_min
        )
        if 0 <= physical_offset < self._segments.physical_min and not is_kept:
            return GetStatus.MESSAGE_WAS_REMOVING, True
        return GetStatus.QUEUE_ENTRY_DAMAGED, False

    def _mismatch(
        self, segment: Segment, physical_offset: int, size: int, lost: tuple[bytes, int, int]
    ) -> tuple[GetStatus, bool]:
        """A row and a record disagree: decide which of the two is damaged.

        If the record is sound, the row is wrong, unless the record replaces the row's damaged
        message, or ``RecordPlaces`` finds the record misplaced. If no sound record is there but
        the next record begins exactly where the row's record ends, the row is right and the
        message is lost: a reader may go on behind it. Otherwise neither is proven, and the reader
        stays at this offset until the row was derived again.
        """
        reason, record_bytes = self._check(segment, physical_offset)
        if reason == REASON_END:
            record = segment.view(physical_offset, record_bytes)
            replaced = read_replacement(decode_record(record, 0, check_body_crc=False))
            if replaced is not None and replaced[:3] == lost:
                return GetStatus.MESSAGE_REPLACED, True
            if self._damage.is_misplaced(Place(*lost), physical_offset, size):
                return GetStatus.MESSAGE_DAMAGED, True
        elif size >= RECORD_BYTES_MIN and self._is_boundary(segment, physical_offset + size):
            return GetStatus.MESSAGE_DAMAGED, True
        return GetStatus.QUEUE_ENTRY_DAMAGED, False

    def _is_boundary(self, segment: Segment, physical_offset: int) -> bool:
        """Whether a record ends there: another begins, or the blank record, or the log ends."""
        if not segment.start < physical_offset <= segment.end - BLANK_RECORD_BYTES:
            return False
        reason, size = self._check(segment, physical_offset)
        if reason == REASON_BLANK:
            return size == segment.end - physical_offset
        return reason == REASON_END or physical_offset == self._visible_end()

    def _check(self, segment: Segment, physical_offset: int) -> tuple[int, int]:
        position = physical_offset - segment.start
        mode = self._crc_rule.mode(physical_offset)
        return check_record(segment.map, position, segment.byte_count, segment.start, True, mode)

    def _add_ranges(self, result: GetResult, selected: list[int]) -> None:
        flat = coalesce(selected, self._segments.segment_bytes)
        index = 0
        while index < len(flat):
            segment = self._segments.at(flat[index])
            assert segment is not None, "a matched record lies in a segment"
            index = _add_views(result, flat, index, segment)
        result.message_count = len(selected) // 3
        if len(flat) == 2:
            self._sound.verified(flat[0], flat[1], monotonic_ms())

    def rows(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> list[QueueRow]:
        """The rows from ``queue_offset`` on, whether or not they lead to sound records."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or count <= 0:
            return []
        if not queue.queue_offset_min <= queue_offset < queue.queue_offset_max:
            return []
        self.residency.require_rows(queue, queue_offset, count)
        rows, offsets = rows_from(queue, queue_offset, count)
        return [
            QueueRow(offset, *row)
            for offset, row in zip(offsets, QUEUE_ROW.iter_unpack(rows), strict=False)
            if offset < queue_offset + count
        ]

    def record(self, physical_offset: int) -> StoredMessage:
        """The record that starts there.

        Raises:
            RecordDamaged: nothing whole starts there.
        """
        return decode_record(self.record_view(physical_offset), 0)

    def record_view(self, physical_offset: int) -> memoryview:
        """The bytes of the record that starts there.

        Raises:
            RecordDamaged: nothing whole starts there.
        """
        self.residency.require_record(physical_offset)
        segment = self._segments.at(physical_offset)
        if segment is not None and physical_offset < self._visible_end():
            reason, size = self._check(segment, physical_offset)
            if reason == REASON_END:
                return segment.view(physical_offset, size)
        self._look_for_damage(physical_offset)
        problem = self._damage.problem_at(physical_offset)
        raise RecordDamaged(
            f"the record at physical offset {physical_offset} {problem}"
            if problem
            else f"no whole record starts at physical offset {physical_offset}",
            physical_offset=physical_offset,
            is_record=problem is not None,
        )

    def _look_for_damage(self, physical_offset: int) -> None:
        """Note a damaged record if its queue leads there: a body's bytes may look like a record."""
        message = self._damage.message_at(physical_offset)
        if message is None:
            return
        topic, queue_id, queue_offset = (
            message.topic.encode(),
            message.queue_id,
            message.queue_offset,
        )
        rows = self.rows(topic, queue_id, queue_offset, 1)
        if [row.physical_offset for row in rows] == [physical_offset]:
            self._damage.look_at(physical_offset)

    def messages_between(self, physical_start: int, physical_end: int) -> Iterator[StoredMessage]:
        """The sound records of a stretch of the log in their order; it begins at a record.

        Damaged records are reported and passed over.
        """
        at = physical_start
        while at < min(physical_end, self._visible_end()):
            message, at = self._message_or_gap(at)
            if message is not None:
                yield message

    def marked_between(
        self,
        physical_start: int,
        physical_end: int,
        marks: RecordMarks,
        go_on: Callable[[], None],
    ) -> Iterator[StoredMessage]:
        """Of the same records those with one of the ``marks``; the others are not decoded.

        Damage that leaves a record its lengths is looked for in those that are picked alone.
        ``go_on`` is called now and then, and ends the walk by an exception.
        """
        at = physical_start
        topics = sorted(marks.topics)
        while at < (end := min(physical_end, self._visible_end())):
            go_on()
            segment = self._segments.at(at)
            if segment is not None:
                start = at - segment.start
                limit = min(end - segment.start, segment.byte_count, start + _PICKED_BYTES)
                reached, _, picked = marked_records(
                    segment.map, start, limit, segment.start, topics, marks.text
                )
                for position in picked:
                    place = segment.start + position
                    yield from self.messages_between(place, place + 1)
                if reached > start:
                    at = segment.start + reached
                    continue
            message, at = self._message_or_gap(at)
            if message is not None:
                yield message

    def _message_or_gap(self, at: int) -> tuple[StoredMessage | None, int]:
        """The record that begins here, if one does, and where the next thing begins.

        Raises:
            RecordDamaged: nothing that is known begins here.
        """
        segment = self._segments.at(at)
        if segment is not None and self._check(segment, at)[0] == REASON_BLANK:
            return None, segment.end
        try:
            view = self.record_view(at)
        except RecordDamaged:
            damage = self._damage.range_at(at)
            if damage is None:
                raise
            self._damage.came_across(damage)
            return None, damage.physical_end
        return decode_record(view, 0, check_body_crc=False), at + len(view)


def _add_views(result: GetResult, flat: list[int], index: int, segment: Segment) -> int:
    """Add the ranges from ``index`` on that lie in ``segment``; returns the index behind them."""
    view, start, end = memoryview(segment.map), segment.start, segment.end
    while index < len(flat) and start <= flat[index] < end:
        position, size = flat[index] - start, flat[index + 1]
        result.ranges.append(view[position : position + size])
        result.byte_count += size
        index += 2
    return index

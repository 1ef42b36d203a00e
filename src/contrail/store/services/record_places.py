"""Finds misplaced records: their topic, queue id or queue offset changed since they were written.

A record's checksum covers its body only, so a record whose head or topic was damaged looks whole.
The row that leads to the record still has its address: topic, queue id and queue offset. This is
the one rule, for reads, the scrubber, ``verify`` and ``--replace-damaged``:

    a row of another      the row of the address that         verdict
    address leads to      the record claims
    the record
    (not asked)           leads to the record                 sound
    yes, but it or its    (not asked)                         files were exchanged or restored
    neighbours lead to                                        wrongly: rows are written again
    other queues' records
    yes                   leads elsewhere, or there is none   misplaced: the record is damaged,
                                                              and all rows stay
    no                    leads to another record that        outdated, of a topic that was
                          claims the address too              deleted: all rows stay
    no                    leads elsewhere, or there is none   the row is written again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from struct import Struct
from typing import Any, NamedTuple, Protocol

from contrail.kernels import record_layout
from contrail.kernels.queue_select import match_records
from contrail.kernels.record_layout import (
    BATCH_ROW_BYTES,
    LOW_FLAGS_AT,
    PREPARED_AT,
    QUEUE_OFFSET_AT,
    QUEUE_ROW_BYTES,
    REASON_END,
    RECORD_BYTES_MIN,
    ROW_BASE_AT,
)
from contrail.kernels.record_scan import check_record
from contrail.model.record import TRANSACTION_ROLLBACK, transaction_type
from contrail.model.replaced_record import REPLACED_MARK
from contrail.model.topic import LMQ_PREFIX
from contrail.store.services.log_walk import DamagedRange, LogChunk
from contrail.store.state.place_holes import Place, is_a_byte_away
from contrail.store.state.row_layout import ROW_BATCH, ROW_TARGET, base_offset

MISPLACED = "a topic, queue or queue offset that is not the one of its queue row"
# How many rows to either side of a row are searched for a sound row, and within how many rows a
# sound row outweighs rows that lead to other queues' records.
_NEIGHBOURS_MAX = 8
_NEAR_MAX = 3
# Limits of one pass. If this many records have no row at all, rows are missing and the records are
# not damaged; and a search through all queues takes long.
_LIKELY_FAILED_MAX = 10_000
_SEARCHES_FAILED_MAX = 64

# Size, queue id, queue offset of a record.
_HEAD = Struct(">i8xi4xq")
_QUEUE_OFFSET = Struct(">q")
_LMQ_PREFIX = LMQ_PREFIX.encode()
_MARK = REPLACED_MARK.to_bytes(8, "big")

Run = list[Any]
Runs = dict[bytes, dict[int, list[Run]]]
"""The runs of rows that ``derive_rows`` returns, by topic and queue id."""


class RowSource(Protocol):
    """The queues and the log of an open store, or of a stopped store's files."""

    def queues(self) -> Iterable[tuple[bytes, int]]:
        """Topic and queue id of every queue."""
        ...

    def row(self, place: Place) -> bytes:
        """The row of an address as stored; empty if there is none or it is blank."""
        ...

    def rows(self, place: Place, count: int) -> bytes:
        """Up to ``count`` rows of single messages as stored, from ``place`` on."""
        ...

    def offset_of(self, topic: bytes, queue_id: int, physical_offset: int) -> int | None:
        """The queue offset of the queue's row that leads to ``physical_offset``."""
        ...

    def record(self, physical_offset: int, byte_count: int) -> bytes | memoryview:
        """Bytes of the log; fewer than ``byte_count`` if the log has no more."""
        ...


class _Side(Enum):
    """The evidence of the rows on one side of a row."""

    SOUND = "sound"
    FOREIGN = "foreign"
    DAMAGED = "damaged"
    END = "end"


class MisplacedRecord(NamedTuple):
    """A damaged record: the row of ``place`` leads to it, but it claims another address.

    With ``is_misplaced`` False: a record with the right address whose transaction type gives no
    row, although it has one. The message is whole and is read by its row, which stays.
    """

    physical_start: int
    physical_end: int
    place: Place
    row: bytes
    is_misplaced: bool = True

    @property
    def range(self) -> DamagedRange:
        return DamagedRange(self.physical_start, self.physical_end, MISPLACED)


class RecordPlaces:
    """Judges records by rows; ``begin`` starts a pass over the log.

    Records of a topic below the physical offset in ``tombstones`` were deleted: they are not
    judged.
    """

    def __init__(self, source: RowSource, tombstones: Mapping[bytes, int]) -> None:
        self._source = source
        self._tombstones = tombstones
        self._failed = 0
        # By queue: how many records are hidden by earlier records with their offsets, in this pass.
        self.hidden: Counter[tuple[bytes, int]] = Counter()

    def begin(self) -> None:
        self._failed = 0
        self.hidden.clear()

    def sift(
        self, chunk: LogChunk, derived: Runs, batch_topics: Collection[bytes]
    ) -> list[MisplacedRecord]:
        """The walked records that have another row than they give, in the order of the log.

        The rows of misplaced and of outdated records must not be written: they are removed from
        ``derived``.
        """
        found: list[MisplacedRecord] = []
        row_count = 0
        for topic, by_queue in derived.items():
            for queue_id, runs in by_queue.items():
                is_batch = topic in batch_topics
                row_count += sum(len(run[2]) // row_bytes_of(run, is_batch) for run in runs)
                staying: set[int] = set()
                for run in runs:
                    for start, size, claimed in self._suspects(
                        chunk, topic, queue_id, run, is_batch
                    ):
                        misplaced = self._misplaced(start, size, claimed)
                        if misplaced is not None:
                            found.append(misplaced)
                        if misplaced is not None or self._is_anothers(start, claimed):
                            staying.add(start)
                        if misplaced is None and start in staying:
                            self._note_hidden(start, claimed)
                if staying:
                    by_queue[queue_id] = list(without_rows(runs, is_batch, staying))
        if row_count < chunk.record_count:
            found += self._without_a_row(chunk)
        return sorted(found)

    def _note_hidden(self, start: int, claimed: Place) -> None:
        """Count a record whose address an earlier record has.

        A topic made again has its new messages behind the deleted ones, never before them.
        """
        if self._record_of(claimed)[1] < start:
            self.hidden[claimed[:2]] += 1

    def judge(self, physical_offset: int) -> MisplacedRecord | None:
        """The whole record that starts there, if it is misplaced; only likely rows are read."""
        size = int.from_bytes(self._source.record(physical_offset, 4), "big", signed=True)
        record = self._source.record(physical_offset, max(size, 0))
        claimed = claimed_place(record)
        if claimed is None or self._leads_to(claimed, physical_offset, size):
            return None
        likely = self._likely(physical_offset, claimed)
        own = self._first_that_leads_to(physical_offset, size, likely)
        return self._unless_doubtful(physical_offset, size, claimed, own)

    def judge_by_row(self, place: Place, physical_offset: int, size: int) -> MisplacedRecord | None:
        """The whole record to which the row of ``place`` leads, if it is misplaced."""
        record = self._source.record(physical_offset, max(size, 0))
        claimed = claimed_place(record)
        if claimed is None or claimed == place or _HEAD.unpack_from(record)[0] != size:
            return None
        if self._leads_to(claimed, physical_offset, size):
            return None
        own = (place, self._source.row(place))
        return self._unless_doubtful(physical_offset, size, claimed, own)

    def place_of(self, physical_offset: int) -> Place | None:
        """The address whose row leads to ``physical_offset``, whatever bytes are there now."""
        return next(self._anywhere(physical_offset), None)

    # Private: which records to look at.

    def _suspects(
        self, chunk: LogChunk, topic: bytes, queue_id: int, run: Run, is_batch: bool
    ) -> Iterator[tuple[int, int, Place]]:
        """Records whose row does not lead to them: physical offset, size and claimed address."""
        rows, dead_below = run[2], self._tombstones.get(topic, 0)
        if len(rows) == run[1] * QUEUE_ROW_BYTES and not is_batch:
            # Stored and derived rows are almost always equal.
            found = self._source.rows(Place(topic, queue_id, run[0]), run[1])
            if found == rows:
                return
        row_bytes = row_bytes_of(run, is_batch)
        for number, at in enumerate(range(0, len(rows), row_bytes)):
            start, size = ROW_TARGET.unpack_from(rows, at)
            if start < dead_below:
                continue
            queue_offset = run[0] + number
            if is_batch:
                queue_offset = base_offset(rows, at)
            claimed = Place(topic, queue_id, queue_offset)
            if not self._leads_to(claimed, start, size):
                yield start, size, claimed
            elif is_batch:
                # A batch's row is derived from the record's properties; reads compare the row with
                # the record's head.
                record = memoryview(chunk.data)[start - chunk.base :]
                written = _QUEUE_OFFSET.unpack_from(record, QUEUE_OFFSET_AT)[0]
                if written != queue_offset and not _is_replacement(record[:size]):
                    yield start, size, claimed._replace(queue_offset=written)

    def _without_a_row(self, chunk: LogChunk) -> Iterator[MisplacedRecord]:
        """Records whose transaction type gives no row, but which have one."""
        position = chunk.start
        while position < chunk.end:
            size = int.from_bytes(chunk.data[position : position + 4], "big")
            record = memoryview(chunk.data)[position : position + size]
            if _gives_no_row(record) and not _is_replacement(record):
                start = chunk.base + position
                claimed = Place(_topic(record), *_HEAD.unpack_from(record)[1:])
                if self._leads_to(claimed, start, size):
                    row = self._source.row(claimed)
                    yield MisplacedRecord(start, start + size, claimed, row, False)
                elif (own := self._own_row(start, size, claimed)) is not None:
                    yield MisplacedRecord(start, start + size, *own)
            position += size

    # Private: the rule.

    def _misplaced(self, start: int, size: int, claimed: Place) -> MisplacedRecord | None:
        own = self._own_row(start, size, claimed)
        return self._unless_doubtful(start, size, claimed, own)

    def _unless_doubtful(
        self, start: int, size: int, claimed: Place, own: tuple[Place, bytes] | None
    ) -> MisplacedRecord | None:
        if own is None or self._is_exchanged(claimed, own[0], start):
            return None
        before, behind = self._side(own[0], -1), self._side(own[0], 1)
        is_alone = before is behind is _Side.END
        if _Side.FOREIGN in (before, behind) or not (_Side.SOUND in (before, behind) or is_alone):
            return None
        return MisplacedRecord(start, start + size, *own)

    def _leads_to(self, place: Place, start: int, size: int) -> bool:
        return self._source.row(place)[: ROW_TARGET.size] == ROW_TARGET.pack(start, size)

    def _is_exchanged(self, claimed: Place, own: Place, start: int) -> bool:
        """Whether two rows were exchanged: the row of ``claimed`` leads to the record of ``own``.

        Rows of one queue that are in the order of the log were not exchanged.
        """
        record, there = self._record_of(claimed)
        if not len(record) or not _claims(record, there, own):
            return False
        is_ordered = (own.queue_offset < claimed.queue_offset) == (start < there)
        return own[:2] != claimed[:2] or not is_ordered

    def _side(self, place: Place, step: int) -> _Side:
        """The evidence of the rows on one side: they lead to their own records, or to others.

        A row whose record seems to be damaged as well proves nothing.
        """
        is_foreign = is_damaged = False
        for distance in range(1, _NEIGHBOURS_MAX + 1):
            neighbour = place._replace(queue_offset=place.queue_offset + step * distance)
            record, start = self._record_of(neighbour)
            if start < 0:
                return _Side.FOREIGN if is_foreign else _Side.DAMAGED if is_damaged else _Side.END
            if len(record) and _claims(record, start, neighbour):
                return _Side.FOREIGN if is_foreign and distance > _NEAR_MAX else _Side.SOUND
            is_damaged = True
            is_foreign = is_foreign or not self._seems_damaged(record, start, neighbour)
        return _Side.FOREIGN

    def _seems_damaged(self, record: bytes | memoryview, start: int, own: Place) -> bool:
        """Whether a record is one byte of its address away from its row, and has no other row."""
        if len(record) < RECORD_BYTES_MIN:
            return False
        reason, _ = check_record(record, 0, len(record), start, False, 0)
        if reason != REASON_END:
            return bool(_HEAD.unpack_from(record)[1:] == own[1:])
        claimed = claimed_place(record)
        if claimed is None or not is_a_byte_away(own, claimed):
            return False
        if self._leads_to(claimed, start, len(record)):
            return False
        if claimed[:2] == own[:2]:
            return not self._is_exchanged(claimed, own, start)
        # An exchanged file of another queue leads to records that have no row of their own.
        return self._is_anothers(start, claimed) or claimed[:2] not in {*self._source.queues()}

    def _is_anothers(self, start: int, claimed: Place) -> bool:
        record, there = self._record_of(claimed)
        return there != start and len(record) > 0 and _claims(record, there, claimed)

    def _record_of(self, place: Place) -> tuple[bytes | memoryview, int]:
        """The record to which the row of an address leads, and where; empty if it leads nowhere."""
        row = self._source.row(place)
        if not row:
            return b"", -1
        start, size = ROW_TARGET.unpack_from(row)
        record = self._source.record(start, max(size, 0))
        return (record if len(record) == size else b""), start

    # Private: the row that leads to a record.

    def _own_row(self, start: int, size: int, claimed: Place) -> tuple[Place, bytes] | None:
        """The row of another address that leads to a record, within the limits of a pass."""
        own = None
        if self._failed < _LIKELY_FAILED_MAX:
            own = self._first_that_leads_to(start, size, self._likely(start, claimed))
        if own is None and self._failed < _SEARCHES_FAILED_MAX:
            own = self._first_that_leads_to(start, size, self._anywhere(start))
        self._failed += own is None
        return own

    def _first_that_leads_to(
        self, start: int, size: int, places: Iterator[Place]
    ) -> tuple[Place, bytes] | None:
        found = next((place for place in places if self._leads_to(place, start, size)), None)
        return None if found is None else (found, self._source.row(found))

    def _likely(self, start: int, claimed: Place) -> Iterator[Place]:
        """Addresses that damage to one of their three parts turns into ``claimed``."""
        yield from self._in_queue(claimed.topic, claimed.queue_id, start)
        for topic, queue_id in self._source.queues():
            if (topic == claimed.topic) != (queue_id == claimed.queue_id):
                yield Place(topic, queue_id, claimed.queue_offset)

    def _anywhere(self, start: int) -> Iterator[Place]:
        for topic, queue_id in self._source.queues():
            # Rows of LMQ topics lead to records of other topics by design.
            if not topic.startswith(_LMQ_PREFIX):
                yield from self._in_queue(topic, queue_id, start)

    def _in_queue(self, topic: bytes, queue_id: int, start: int) -> Iterator[Place]:
        queue_offset = self._source.offset_of(topic, queue_id, start)
        if queue_offset is not None:
            yield Place(topic, queue_id, queue_offset)


def claimed_place(record: bytes | memoryview) -> Place | None:
    """The address that a whole record claims; None for a record that gives no row."""
    view = memoryview(record)
    if len(view) < RECORD_BYTES_MIN:
        return None
    if _is_replacement(view):
        topic = _replaced_topic(view)
    elif _gives_no_row(view):
        return None
    else:
        topic = _topic(view)
    _, queue_id, queue_offset = _HEAD.unpack_from(view)
    return Place(topic, queue_id, queue_offset) if topic else None


def without_rows(runs: list[Run], is_batch: bool, starts: Collection[int]) -> Iterator[Run]:
    """Runs of rows without the rows of the records at ``starts``."""
    for run in runs:
        row_bytes = row_bytes_of(run, is_batch)
        kept: Run = [run[0], 0, bytearray(), 0, run[4]]
        queue_offset = run[0]
        for at in range(0, len(run[2]), row_bytes):
            start, size = ROW_TARGET.unpack_from(run[2], at)
            count = 1
            if is_batch:
                queue_offset, count = ROW_BATCH.unpack_from(run[2], at + ROW_BASE_AT)
            if start in starts:
                if kept[1]:
                    yield kept
                kept = [queue_offset + count, 0, bytearray(), 0, run[4]]
            else:
                kept[1] += count
                kept[2] += run[2][at : at + row_bytes]
                kept[3] = start + size
            queue_offset += count
        if kept[1]:
            yield kept


def give_row(derived: Runs, record: MisplacedRecord, row: bytes, is_batch: bool) -> None:
    """Add the row that a record has to the derived rows, in the order of the log."""
    topic, queue_id, queue_offset = record.place
    count = ROW_BATCH.unpack_from(row, ROW_BASE_AT)[1] if is_batch else 1
    runs = derived.setdefault(topic, {}).setdefault(queue_id, [])
    runs.append([queue_offset, count, bytearray(row), record.physical_end, 0])
    runs.sort(key=lambda run: bytes(run[2][:8]))


def row_bytes_of(run: Run, is_batch: bool) -> int:
    """How long each row of a run is."""
    return BATCH_ROW_BYTES if is_batch else len(run[2]) // run[1]


# Parts of a record, by the layout that ``record_layout`` tables. A damaged topic may be no text.


def _claims(record: bytes | memoryview, start: int, place: Place) -> bool:
    """Whether a record's head, lengths and topic fit an address; its body is not checked."""
    topic, queue_id, queue_offset = place
    if match_records(record, [0, len(record)], start, queue_id, topic, [queue_offset]) < 0:
        return True
    view = memoryview(record)
    is_replacement = len(view) >= RECORD_BYTES_MIN and _is_replacement(view)
    return is_replacement and claimed_place(view) == place


def _gives_no_row(view: memoryview) -> bool:
    return not record_layout.takes_queue_offset(view[LOW_FLAGS_AT])


def _body(view: memoryview) -> memoryview:
    body_at = record_layout.body_at(view, 0)
    return view[body_at : body_at + int.from_bytes(view[body_at - 4 : body_at], "big")]


def _topic(view: memoryview) -> bytes:
    at = record_layout.body_at(view, 0) + len(_body(view))
    topic_at = at + record_layout.topic_length_bytes(view, 0)
    return bytes(view[topic_at : topic_at + int.from_bytes(view[at:topic_at], "big")])


def _is_replacement(view: memoryview) -> bool:
    if transaction_type(view[LOW_FLAGS_AT]) != TRANSACTION_ROLLBACK:
        return False
    mark_at = PREPARED_AT + record_layout.hosts_extra(view[LOW_FLAGS_AT])
    return view[mark_at : mark_at + 8] == _MARK


def _replaced_topic(view: memoryview) -> bytes:
    body = _body(view)
    return bytes(body[12 : 12 + int.from_bytes(body[10:12], "big")])

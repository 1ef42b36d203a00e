"""Records as Arrow batches: found, cut, and decoded into exactly the planned columns.

A pull answer and a stretch of the commit log have the same form: records one after the other in a
buffer. ``walk`` finds where they start, ``numbers`` reads one field of each, by which a caller can
drop rows before they are decoded, and ``batches`` (or ``decode`` for one batch) makes columns.

A compiled kernel decodes them, or ``arrow_python`` where the kernel was not built. ``bytes`` are
read in place; any other buffer is copied once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contrail.errors import PipelineError, RecordDamaged, RecordUndecodable
from contrail.kernels import arrow_columns as kernel
from contrail.kernels import record_layout
from contrail.model.host import unpack_host
from contrail.model.record import (
    RECORD_BYTES_MIN,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_NEED_UNWRAP,
    SYS_FLAG_STORE_HOST_V6,
)
from contrail.pipeline import arrow_python
from contrail.pipeline.columns import Column, ColumnKind, ColumnPlan

Positions: TypeAlias = npt.NDArray[np.int64]
Offsets: TypeAlias = npt.NDArray[np.int32]
Buffer: TypeAlias = bytes | bytearray | memoryview

BATCH_ROWS_MAX = 8192
BATCH_BYTES_MAX = 8 << 20

# Position in a record with two IPv4 hosts, length, and how many hosts are before the field.
FIELDS: Mapping[str, tuple[int, int, int]] = {
    "storeSize": (0, 4, 0),
    "queueId": (12, 4, 0),
    "flag": (16, 4, 0),
    "queueOffset": (20, 8, 0),
    "physicalOffset": (28, 8, 0),
    "sysFlag": (36, 4, 0),
    "bornTimestamp": (40, 8, 0),
    "bornHost": (48, 8, 0),
    "storeTimestamp": (56, 8, 1),
    "storeHost": (64, 8, 1),
    "reconsumeTimes": (72, 4, 2),
    "preparedTransactionOffset": (76, 8, 2),
    "bodyBytes": (84, 4, 2),
}

_REASONS = {
    record_layout.REASON_BLANK: "this is the blank record that ends a segment",
    record_layout.REASON_EMPTY: "nothing was written there",
    record_layout.REASON_BAD_MAGIC: "an unknown magic number",
    record_layout.REASON_BAD_SIZE: "lengths that do not add up",
    record_layout.REASON_BAD_PHYSICAL_OFFSET: "it names another physical offset",
    record_layout.REASON_CUT_SHORT: "it is cut short",
}
_I32_MAX = (1 << 31) - 1
# The years 1 to 9999, which Spark and Python can show; a producer's clock may be off by more.
_TIME_MS_MIN = -62_135_596_800_000
_TIME_MS_MAX = 253_402_300_799_999
_TEXT_KINDS = frozenset({ColumnKind.BODY, ColumnKind.TOPIC, ColumnKind.PROPERTY})
_SPAN_KINDS = _TEXT_KINDS | {ColumnKind.PROPERTIES, ColumnKind.MESSAGE_ID}
_NONE = np.empty(0, np.int64)
_LOG = logging.getLogger(__name__)


class PairTexts(NamedTuple):
    """Map entries: the first pair of each row, and names and values as offsets and bytes."""

    row_offsets: Offsets
    name_offsets: Offsets
    names: pa.Buffer
    value_offsets: Offsets
    values: pa.Buffer
    is_ascii: bool


class Engine(Protocol):
    """Reads the bytes of records: the compiled kernel, or ``arrow_python``."""

    def measure(
        self, data: bytes, rows: Positions, fields: bytes, wants_spans: bool
    ) -> tuple[Positions, Positions, int, int, int]: ...
    def copy(self, data: bytes, starts: Positions, offsets: Offsets) -> tuple[pa.Buffer, bool]: ...
    def find(
        self, data: bytes, starts: Positions, sizes: Positions, names: list[bytes]
    ) -> Positions: ...
    def list_pairs(self, data: bytes, starts: Positions, sizes: Positions) -> PairTexts | None: ...


class CompiledEngine:
    """The compiled kernel, called with buffers of the right length."""

    def measure(
        self, data: bytes, rows: Positions, fields: bytes, wants_spans: bool
    ) -> tuple[Positions, Positions, int, int, int]:
        numbers = np.empty((len(fields) // 3, len(rows)), np.int64)
        spans = np.empty((kernel.SPAN_ROWS if wants_spans else 0, len(rows)), np.int64)
        bad_row, reason, flags = kernel.measure_records(
            data, rows.data, fields, numbers.reshape(-1).data, spans.reshape(-1).data
        )
        return numbers, spans, flags, bad_row, reason

    def copy(self, data: bytes, starts: Positions, offsets: Offsets) -> tuple[pa.Buffer, bool]:
        target = bytearray(int(offsets[-1]))
        return pa.py_buffer(target), kernel.copy_spans(
            data, starts.data, offsets.data, target
        ) < 128

    def find(
        self, data: bytes, starts: Positions, sizes: Positions, names: list[bytes]
    ) -> Positions:
        found = np.empty((len(names), 2, len(starts)), np.int64)
        packed = b"".join([len(name).to_bytes(2, "big") + name for name in names])
        kernel.find_properties(data, starts.data, sizes.data, packed, found.reshape(-1).data)
        return found

    def list_pairs(self, data: bytes, starts: Positions, sizes: Positions) -> PairTexts | None:
        room = int(sizes.sum())
        rows = np.empty(len(starts) + 1, np.int32)
        name_ends = np.empty(room // 4 + len(starts) + 1, np.int32)
        value_ends = np.empty_like(name_ends)
        names, values = bytearray(room), bytearray(room)
        count, _, _, seen = kernel.list_properties(
            data,
            starts.data,
            sizes.data,
            rows.data,
            name_ends.data,
            names,
            value_ends.data,
            values,
        )
        if count < 0:
            return None
        name_ends, value_ends = name_ends[: count + 1], value_ends[: count + 1]
        texts = pa.py_buffer(names), pa.py_buffer(values)
        return PairTexts(rows, name_ends, texts[0], value_ends, texts[1], seen < 128)


@cache
def _engine() -> Engine:
    """The compiled kernel, or Python without it; the log says so once."""
    if (kernel.__file__ or "").endswith(tuple(EXTENSION_SUFFIXES)):
        return CompiledEngine()
    _LOG.warning(
        "the kernel arrow_columns is not compiled: records are decoded in Python, at five to ten "
        "times the CPU (install a wheel, or a C compiler before the package)"
    )
    return arrow_python


def walk(
    buffer: Buffer, start: int = 0, end: int | None = None, *, base_offset: int = -1
) -> Positions:
    """Where the records of ``buffer[start:end]`` start.

    With a ``base_offset``, the physical offset of byte 0, each record must name its own offset.

    Raises:
        RecordDamaged: from some byte on there is no whole record.
    """
    positions, reached, reason = walk_until(buffer, start, end, base_offset=base_offset)
    if reason != record_layout.REASON_END:
        raise _damaged(reached, reason, base_offset)
    return positions


def walk_until(
    buffer: Buffer, start: int = 0, end: int | None = None, *, base_offset: int = -1
) -> tuple[Positions, int, int]:
    """``walk`` up to the first byte that is no record; returns its position and a ``REASON_``."""
    data = _as_bytes(buffer)
    limit = len(data) if end is None else end
    positions = np.empty(max(limit - start, 0) // RECORD_BYTES_MIN + 1, np.int64)
    count, reached, reason = kernel.walk_records(data, start, limit, base_offset, positions.data)
    return positions[:count], reached, reason


def numbers(buffer: Buffer, positions: Positions, field: str) -> Positions:
    """One of ``FIELDS`` of each record; times are milliseconds.

    Raises:
        RecordDamaged: there is no whole record at one of the positions.
    """
    return number_table(buffer, positions, [field])[field]


def number_table(buffer: Buffer, positions: Positions, fields: list[str]) -> dict[str, Positions]:
    """``numbers`` for several fields in one pass."""
    return _measured(_as_bytes(buffer), positions, fields, wants_spans=False).numbers


class Glance(NamedTuple):
    """Facts for choosing records: numbers by field, topics, the bitwise or of all sysFlags."""

    numbers: dict[str, Positions]
    topics: pa.Array
    flags: int


def glance(buffer: Buffer, positions: Positions, fields: list[str]) -> Glance:
    """Fields and topics of records in one pass, for choosing rows before they are decoded.

    Raises:
        RecordDamaged: there is no whole record at one of the positions.
    """
    stretch = _measured(_as_bytes(buffer), positions, fields, wants_spans=True)
    found = _spanned(stretch, stretch.spans[2], stretch.spans[3], pa.string())
    return Glance(stretch.numbers, found, stretch.flags)


def first_bad_body(buffer: Buffer, positions: Positions) -> int:
    """The first row whose body does not match its checksum, -1 if all match."""
    return kernel.check_bodies(_as_bytes(buffer), np.ascontiguousarray(positions, np.int64).data)


def unwrapped(buffer: Buffer, positions: Positions) -> tuple[bytes, Positions]:
    """The records with every inner batch expanded; call it before rows are cut by queue offset.

    A record that is flagged as a batch and holds none is kept unchanged.

    Raises:
        RecordDamaged: a record is not whole.
    """
    data = _as_bytes(buffer)
    stretch = _measured(data, positions, [], wants_spans=False)
    if stretch.flags & SYS_FLAG_NEED_UNWRAP:
        return arrow_python.expanded(data, positions)
    return data, positions


def decode(
    buffer: Buffer,
    positions: Positions,
    plan: ColumnPlan,
    *,
    broker_name: str,
    raw_body: bool = False,
    undecodable: Undecodable | None = None,
) -> pa.RecordBatch:
    """One batch of all these records, inner batches expanded and bodies inflated.

    Raises:
        RecordDamaged: a record is not whole.
        RecordUndecodable: a body or a batch cannot be read, and ``undecodable`` refuses that.
        PipelineError: a column would exceed the 2 GiB that a batch can hold.
    """
    stretch = _planned(_as_bytes(buffer), positions, plan)
    rows = _decoded_rows(stretch, plan, 0, len(stretch.rows), raw_body, undecodable)
    return _batch(stretch, plan, broker_name, dict(rows))


def batches(
    buffer: Buffer,
    positions: Positions,
    plan: ColumnPlan,
    *,
    broker_name: str,
    raw_body: bool = False,
    rows_max: int = BATCH_ROWS_MAX,
    bytes_max: int = BATCH_BYTES_MAX,
    undecodable: Undecodable | None = None,
) -> Iterator[pa.RecordBatch]:
    """``decode`` in batches that are bounded by rows and by bytes of records and inflated bodies.

    Raises:
        RecordDamaged, RecordUndecodable: as ``decode``.
    """
    stretch = _planned(_as_bytes(buffer), positions, plan)
    for start, stop in _cuts(stretch.numbers["storeSize"], rows_max, bytes_max):
        first, held, decoded = start, 0, dict[int, _Decoded]()
        for row, found in _decoded_rows(stretch, plan, start, stop, raw_body, undecodable):
            if held and held + len(found.body or b"") > bytes_max:
                yield _batch(stretch.cut(first, row), plan, broker_name, decoded)
                first, held, decoded = row, 0, {}
            decoded[row - first] = found
            held += len(found.body or b"")
        yield _batch(stretch.cut(first, stop), plan, broker_name, decoded)


_HOW_TO_SHOW = "name the column decodeError in .schema(...) to see"


class Undecodable:
    """The rule for records whose body or batch cannot be read: refused, or logged and kept."""

    def __init__(self, *, refuses: bool = False, where: str = "") -> None:
        self._refuses = refuses
        self._where = where
        self.count = 0

    def meet(self, error: RecordUndecodable, *, is_shown: bool) -> None:
        """Raise ``error`` if undecodable records are refused; the first kept record is logged.

        ``is_shown`` says whether the rows have the column ``decodeError``.
        """
        if self._refuses:
            raise RecordUndecodable(
                f"{self._where}{error}. To read it as it is stored, set failOnDecodeError=false",
                physical_offset=error.physical_offset,
            )
        if not self.count:
            shown = "the column decodeError says" if is_shown else _HOW_TO_SHOW
            _LOG.warning(
                "%s%s; its row has the body as it is stored: %s which rows have",
                self._where,
                error,
                shown,
            )
        self.count += 1


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Measured records: numbers by field, positions of their parts, bitwise or of all flags."""

    data: bytes
    rows: Positions
    numbers: dict[str, Positions]
    spans: Positions
    flags: int

    def cut(self, start: int, stop: int) -> _Stretch:
        rows = self.rows[start:stop]
        numbers = {field: values[start:stop] for field, values in self.numbers.items()}
        spans = self.spans[:, start:stop]
        return _Stretch(self.data, rows, numbers, spans, self.flags)


def _as_bytes(buffer: Buffer) -> bytes:
    return buffer if isinstance(buffer, bytes) else bytes(buffer)


def _planned(data: bytes, positions: Positions, plan: ColumnPlan) -> _Stretch:
    kinds = (ColumnKind.NUMBER, ColumnKind.TIME, ColumnKind.HOST)
    fields = list(dict.fromkeys(["storeSize", *plan.names(*kinds)]))
    wants_spans = any(column.kind in _SPAN_KINDS for column in plan.columns)
    stretch = _measured(data, positions, fields, wants_spans=wants_spans)
    if stretch.flags & SYS_FLAG_NEED_UNWRAP:
        data, rows = arrow_python.expanded(data, positions)
        stretch = _measured(data, rows, fields, wants_spans=wants_spans)
    return stretch


def _measured(
    data: bytes, positions: Positions, fields: list[str], *, wants_spans: bool
) -> _Stretch:
    rows = np.ascontiguousarray(positions, np.int64)
    places = bytes(number for field in fields for number in FIELDS[field])
    found, spans, flags, bad_row, reason = _engine().measure(data, rows, places, wants_spans)
    if bad_row >= 0:
        raise _damaged(int(rows[bad_row]), reason, -1)
    return _Stretch(data, rows, dict(zip(fields, found, strict=True)), spans, flags)


def _damaged(position: int, reason: int, base_offset: int) -> RecordDamaged:
    place = position if base_offset < 0 else base_offset + position
    what = f"byte {place} of the buffer" if base_offset < 0 else f"physical offset {place}"
    return RecordDamaged(
        f"no whole record starts at {what}: {_REASONS[reason]}", physical_offset=place
    )


def _cuts(sizes: Positions, rows_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start] - sizes[start])
        stop = int(np.searchsorted(ends, before + bytes_max, "right"))
        stop = min(max(stop, start + 1), start + rows_max, len(sizes))
        yield start, stop
        start = stop


class _Decoded(NamedTuple):
    """A row whose body was compressed: the inflated body, or the error instead of it."""

    body: bytes | None
    error: str | None = None


def _decoded_rows(
    stretch: _Stretch,
    plan: ColumnPlan,
    start: int,
    stop: int,
    raw_body: bool,
    undecodable: Undecodable | None,
) -> Iterator[tuple[int, _Decoded]]:
    """The rows with compressed bodies, and with batches that cannot be opened."""
    wanted = SYS_FLAG_NEED_UNWRAP if raw_body else SYS_FLAG_NEED_UNWRAP | SYS_FLAG_COMPRESSED
    if not (stretch.flags & wanted and plan.names(ColumnKind.BODY, ColumnKind.DECODE_ERROR)):
        return
    policy = undecodable or Undecodable()
    rows = stretch.rows[start:stop]
    flags = _measured(stretch.data, rows, ["sysFlag"], wants_spans=False).numbers["sysFlag"]
    for row in np.flatnonzero(flags & wanted).tolist():
        place = int(rows[row])
        error = arrow_python.batch_error(stretch.data, place)
        body = None
        if error is None and not raw_body:
            try:
                body = arrow_python.inflated(stretch.data, place)
            except RecordUndecodable as failure:
                error = failure
        if error is not None:
            policy.meet(error, is_shown=bool(plan.names(ColumnKind.DECODE_ERROR)))
        yield start + row, _Decoded(body, None if error is None else str(error))


def _batch(
    stretch: _Stretch, plan: ColumnPlan, broker_name: str, decoded: dict[int, _Decoded]
) -> pa.RecordBatch:
    names = plan.property_names
    values: dict[str, Positions] = {}
    if names:
        wanted = [name.encode() for name in names]
        found = _engine().find(stretch.data, stretch.spans[4], stretch.spans[5], wanted)
        values = dict(zip(names, found, strict=True))
    arrays = []
    for column, field in zip(plan.columns, plan.arrow_schema, strict=True):
        if column.kind is ColumnKind.BROKER:
            array = _repeated(broker_name, len(stretch.rows))
        elif column.kind is ColumnKind.BODY:
            array = _bodies(stretch, decoded)
        elif column.kind is ColumnKind.DECODE_ERROR:
            array = _errors(len(stretch.rows), decoded)
        elif column.kind is ColumnKind.PROPERTIES:
            array = _maps(stretch, field.type)
        else:
            array = _MAKERS[column.kind](stretch, column, values.get(column.property_name, _NONE))
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=plan.arrow_schema)


def _number(stretch: _Stretch, column: Column, _: Positions) -> pa.Array:
    values = stretch.numbers[column.name]
    return pa.array(values if FIELDS[column.name][1] == 8 else values.astype(np.int32))


def _time(stretch: _Stretch, column: Column, _: Positions) -> pa.Array:
    times_us = np.clip(stretch.numbers[column.name], _TIME_MS_MIN, _TIME_MS_MAX) * 1000
    return pa.array(times_us).view(pa.timestamp("us", tz="UTC"))


def _topic(stretch: _Stretch, _: Column, __: Positions) -> pa.Array:
    return _spanned(stretch, stretch.spans[2], stretch.spans[3], pa.string())


def _property(stretch: _Stretch, _: Column, found: Positions) -> pa.Array:
    return _spanned(stretch, found[0], found[1], pa.string())


def _message_id(stretch: _Stretch, column: Column, found: Positions) -> pa.Array:
    unique_ids = _property(stretch, column, found)
    if not unique_ids.null_count:
        return unique_ids
    without = np.flatnonzero(found[0] < 0)
    ids = np.array(unique_ids.to_pylist(), dtype=object)
    ids[without] = arrow_python.offset_ids(stretch.data, stretch.rows[without])
    return pa.array(ids, pa.string())


def _host(stretch: _Stretch, column: Column, _: Positions) -> pa.Array:
    is_store_host = column.name == "storeHost"
    if stretch.flags & (SYS_FLAG_STORE_HOST_V6 if is_store_host else SYS_FLAG_BORN_HOST_V6):
        return arrow_python.host_texts(stretch.data, stretch.rows, is_store_host=is_store_host)
    # The records of a batch have few hosts: each is made into text once.
    coded = pa.array(stretch.numbers[column.name]).dictionary_encode()
    packed = [value.to_bytes(8, "big", signed=True) for value in coded.dictionary.to_pylist()]
    texts = pa.array([str(unpack_host(host)) for host in packed], pa.string())
    return texts.take(coded.indices)


_MAKERS: Mapping[ColumnKind, Callable[[_Stretch, Column, Positions], pa.Array]] = {
    ColumnKind.NUMBER: _number,
    ColumnKind.TIME: _time,
    ColumnKind.TOPIC: _topic,
    ColumnKind.PROPERTY: _property,
    ColumnKind.MESSAGE_ID: _message_id,
    ColumnKind.HOST: _host,
}


def _repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * len(encoded)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _errors(count: int, decoded: dict[int, _Decoded]) -> pa.Array:
    if not decoded:
        return pa.nulls(count, pa.string())
    errors = (decoded[row].error if row in decoded else None for row in range(count))
    return pa.array(errors, pa.string(), size=count)


def _bodies(stretch: _Stretch, decoded: dict[int, _Decoded]) -> pa.Array:
    starts, sizes = stretch.spans[0], stretch.spans[1]
    bodies = {row: one.body for row, one in decoded.items() if one.body is not None}
    if not bodies:
        return _spanned(stretch, starts, sizes, pa.binary())
    starts, sizes = starts.copy(), sizes.copy()
    # Inflated bodies go behind the buffer, where they are read like all others.
    data, end = [stretch.data], len(stretch.data)
    for row, body in bodies.items():
        starts[row], sizes[row] = end, len(body)
        data.append(body)
        end += len(body)
    whole = _Stretch(b"".join(data), stretch.rows, {}, stretch.spans, stretch.flags)
    return _spanned(whole, starts, sizes, pa.binary())


def _maps(stretch: _Stretch, map_type: pa.DataType) -> pa.Array:
    starts, sizes = stretch.spans[4], stretch.spans[5]
    pairs = _engine().list_pairs(stretch.data, starts, sizes)
    if pairs is not None:
        keys = _text(pa.string(), None, pairs.name_offsets, pairs.names)
        items = _text(pa.string(), None, pairs.value_offsets, pairs.values)
        if pairs.is_ascii or (_is_utf8(keys) and _is_utf8(items)):
            return pa.MapArray.from_arrays(pa.array(pairs.row_offsets), keys, items, type=map_type)
    return arrow_python.property_maps(stretch.data, starts, sizes, map_type)


def _spanned(stretch: _Stretch, starts: Positions, sizes: Positions, kind: pa.DataType) -> pa.Array:
    """A column of bytes of the buffer; a row that starts below zero is null."""
    total = int(sizes.sum())
    if total > _I32_MAX:
        raise PipelineError(
            f"{len(sizes)} records hold {total} bytes for one column, which can have {_I32_MAX}: "
            f"decode fewer at a time"
        )
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    copied, is_ascii = _engine().copy(stretch.data, starts, offsets)
    is_there = starts >= 0
    validity = None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    array = _text(kind, validity, offsets, copied)
    if kind == pa.string() and not is_ascii and not _is_utf8(array):
        return arrow_python.replaced(_text(pa.binary(), validity, offsets, copied))
    return array


def _text(
    kind: pa.DataType, validity: pa.Buffer | None, offsets: Offsets, data: pa.Buffer
) -> pa.Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [validity, pa.py_buffer(offsets), data])


def _is_utf8(texts: pa.Array) -> bool:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True

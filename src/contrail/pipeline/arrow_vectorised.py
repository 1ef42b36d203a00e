"""The work of the kernel in numpy and pyarrow, for Pythons without the compiled one.

Whole columns at a time and never a row. Places and lengths are checked as the kernel checks them;
when one is wrong the interpreted kernel is asked which and why.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contrail.kernels.arrow_columns import REASON_END, measure_records

Numbers: TypeAlias = npt.NDArray[np.int64]
Offsets: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_HEADER_BYTES = 88
_RECORD_BYTES_MIN = 91
_PROPERTIES_BYTES_MAX = 32_767
_I32_MAX = (1 << 31) - 1
_NO_SPANS = np.empty((0, 0), np.int64)


class PairTexts(NamedTuple):
    """Map entries: the first pair of each row, and names and values as offsets and bytes."""

    row_offsets: Offsets
    name_offsets: Offsets
    names: pa.Buffer
    value_offsets: Offsets
    values: pa.Buffer
    is_ascii: bool


class _Pairs(NamedTuple):
    """Pairs whose name and value are not empty, by their places in ``text``."""

    text: Bytes
    rows: Numbers
    name_starts: Numbers
    name_sizes: Numbers
    value_starts: Numbers
    value_sizes: Numbers


def measure(
    data: bytes, rows: Numbers, fields: bytes, wants_spans: bool
) -> tuple[Numbers, Numbers, int, int, int]:
    """Numbers, spans, all sysFlags together, the first row that is no record (-1), and why."""
    view = np.frombuffer(data, np.uint8)
    numbers = np.empty((len(fields) // 3, len(rows)), np.int64)
    spans = _spans(view, rows)
    if spans is None:
        nothing = np.empty(0, np.int64).data
        bad_row, reason, _ = measure_records(data, rows.data, b"", nothing, nothing)
        return numbers, _NO_SPANS, 0, bad_row, reason
    low_flags = view[rows + 39].astype(np.int64)
    extras = _host_extras(low_flags)
    for index in range(len(numbers)):
        place, length, hosts_before = fields[3 * index : 3 * index + 3]
        numbers[index] = _integers(view, rows + (place + extras[hosts_before]), length)
    seen = int(np.bitwise_or.reduce(low_flags | view[rows + 38].astype(np.int64) << 8))
    return numbers, spans if wants_spans else _NO_SPANS, seen, -1, REASON_END


def copy(data: bytes, starts: Numbers, offsets: Offsets) -> tuple[pa.Buffer, bool]:
    """The bytes of all rows, and whether all of them are ASCII."""
    lengths = np.diff(offsets).astype(np.int64)
    copied = _taken(data, starts, lengths)
    return copied, not (np.frombuffer(copied, np.uint8)[: offsets[-1]] > 127).any()


def find(data: bytes, starts: Numbers, sizes: Numbers, names: list[bytes]) -> Numbers:
    """Start and length of each name's last value: (name, 2, row), -1 and 0 without one."""
    found = np.zeros((len(names), 2, len(starts)), np.int64)
    found[:, 0] = -1
    pairs = _pairs(data, starts, sizes)
    row_starts = np.cumsum(sizes) - sizes
    for number, name in enumerate(names):
        chosen = _named(pairs, name)
        rows = pairs.rows[chosen]
        # Of a row that occurs twice numpy keeps the last.
        found[number, 0, rows] = pairs.value_starts[chosen] + (starts - row_starts)[rows]
        found[number, 1, rows] = pairs.value_sizes[chosen]
    return found


def list_pairs(data: bytes, starts: Numbers, sizes: Numbers) -> PairTexts | None:
    """Every row's properties, the last pair of each name."""
    pairs = _pairs(data, starts, sizes)
    text = pairs.text.tobytes()
    kept = _last_of_each_name(pairs, text)
    name_offsets = _offsets_of(pairs.name_sizes[kept])
    value_offsets = _offsets_of(pairs.value_sizes[kept])
    names, names_ascii = copy(text, pairs.name_starts[kept], name_offsets)
    values, values_ascii = copy(text, pairs.value_starts[kept], value_offsets)
    row_offsets = _offsets_of(np.bincount(pairs.rows[kept], minlength=len(starts)))
    is_ascii = names_ascii and values_ascii
    return PairTexts(row_offsets, name_offsets, names, value_offsets, values, is_ascii)


def _spans(view: Bytes, rows: Numbers) -> Numbers | None:
    """Start and length of body, topic and properties; None when one of them is not there."""
    if not len(rows):
        return np.empty((6, 0), np.int64)
    end = len(view)
    if rows.min() < 0 or rows.max() > end - _RECORD_BYTES_MIN:
        return None
    magic = _integers(view, rows + 4, 4)
    is_long = (magic == _MAGIC_V2).astype(np.int64)
    limits = rows + _integers(view, rows, 4)
    body_starts = rows + _HEADER_BYTES + _host_extras(view[rows + 39].astype(np.int64))[2]
    room = limits - body_starts - is_long - 3
    if not ((is_long == 1) | (magic == _MAGIC_V1)).all() or (limits > end).any() or room.min() < 0:
        return None
    body_sizes = _integers(view, body_starts - 4, 4)
    if body_sizes.min() < 0 or (body_sizes > room).any():
        return None
    topic_starts = body_starts + body_sizes + 1 + is_long
    low, high = view[topic_starts - 1].astype(np.int64), view[topic_starts - 2].astype(np.int64)
    topic_sizes = np.where(is_long == 1, high << 8 | low, low)
    properties_starts = topic_starts + topic_sizes + 2
    properties_sizes = limits - properties_starts
    if (topic_sizes > np.where(is_long == 1, 32_767, 127)).any() or properties_sizes.min() < 0:
        return None
    if properties_sizes.max() > _PROPERTIES_BYTES_MAX:
        return None
    if (_integers(view, properties_starts - 2, 2) != properties_sizes).any():
        return None
    parts = (body_starts, body_sizes, topic_starts, topic_sizes)
    return np.stack((*parts, properties_starts, properties_sizes))


def _host_extras(low_flags: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """How much longer records are behind no host, one host and both."""
    born = np.where(low_flags & 0x10, 12, 0)
    return np.zeros_like(born), born, born + np.where(low_flags & 0x20, 12, 0)


def _integers(view: Bytes, places: Numbers, length: int) -> Numbers:
    gathered = view[places[:, None] + np.arange(length)]
    numbers: Numbers = gathered.view(f">i{length}")[:, 0].astype(np.int64)
    return numbers


def _taken(data: bytes, starts: Numbers, lengths: Numbers) -> pa.Buffer:
    """The rows' bytes one after the other.

    As an Arrow array that holds the rows and, in between, what is not wanted: taking every second
    element copies natively. That needs rows in the order of the buffer, and 32-bit places.
    """
    ends = np.where(lengths > 0, starts + lengths, 0)
    reached = np.maximum.accumulate(ends) if len(ends) else ends
    bounds = np.stack((np.where(lengths > 0, starts, reached), reached), axis=1).reshape(-1)
    is_rising = bool((np.diff(bounds) >= 0).all()) and bool((bounds[1::2] >= ends).all())
    if len(data) > _I32_MAX or not is_rising or not len(starts):
        rows = zip(starts.tolist(), lengths.tolist(), strict=True)
        return pa.py_buffer(b"".join([data[at : at + size] for at, size in rows if size]))
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    everything = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    taken = everything.take(pa.array(np.arange(0, len(bounds), 2)))
    return taken.buffers()[2] or pa.py_buffer(b"")


def _pairs(data: bytes, starts: Numbers, sizes: Numbers) -> _Pairs:
    text = np.frombuffer(_taken(data, starts, sizes), np.uint8)[: int(sizes.sum())]
    row_ends = np.cumsum(sizes)
    row_starts = row_ends - sizes
    ends, rows = _pair_ends(text, row_starts, row_ends)
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = rows[1:] != rows[:-1]
    begins = np.where(is_first, row_starts[rows], np.roll(ends, 1) + 1)
    separators = np.append(np.flatnonzero(text == 1), _I32_MAX)
    splits = separators[np.searchsorted(separators, begins)]
    kept = (splits > begins) & (ends > splits + 1)
    begins, splits, ends = begins[kept], splits[kept], ends[kept]
    return _Pairs(text, rows[kept], begins, splits - begins, splits + 1, ends - splits - 1)


def _pair_ends(text: Bytes, row_starts: Numbers, row_ends: Numbers) -> tuple[Numbers, Numbers]:
    """Where pairs end, and in which rows: at a byte 2, or at the end of a row without it."""
    marks = np.flatnonzero(text == 2)
    mark_rows = np.searchsorted(row_starts, marks, "right") - 1
    filled = np.flatnonzero(row_ends > row_starts)
    open_rows = filled[text[row_ends[filled] - 1] != 2]
    ends = np.concatenate((marks, row_ends[open_rows]))
    rows = np.concatenate((mark_rows, open_rows))
    # A row's end is also the next row's first byte, and that may be a byte 2.
    order = np.lexsort((ends, rows))
    return ends[order], rows[order]


def _named(pairs: _Pairs, name: bytes) -> Numbers:
    chosen = np.flatnonzero(pairs.name_sizes == len(name))
    for index, byte in enumerate(name):
        chosen = chosen[pairs.text[pairs.name_starts[chosen] + index] == byte]
    return chosen


def _last_of_each_name(pairs: _Pairs, text: bytes) -> Numbers:
    offsets = _offsets_of(pairs.name_sizes)
    buffers = [None, pa.py_buffer(offsets), copy(text, pairs.name_starts, offsets)[0]]
    names = pa.Array.from_buffers(pa.binary(), len(pairs.rows), buffers)
    codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    keys = pairs.rows * (len(pairs.rows) + 1) + codes
    _, last = np.unique(keys[::-1], return_index=True)
    return np.sort(len(keys) - 1 - last)


def _offsets_of(lengths: Numbers) -> Offsets:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets

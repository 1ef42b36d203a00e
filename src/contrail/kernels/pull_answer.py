"""Fills in the header of the answer to a pull: all of the frame that comes before the records.

The caller encodes such an answer once and cuts it where four numbers stand; field names and their
order are known to the encoder alone. The five pieces are those before and after:

    nextBeginOffset   minOffset   maxOffset   opaque
"""

from __future__ import annotations

from contrail.kernels import raw_bytes

NUMBER_COUNT = 4
_PIECE_COUNT = NUMBER_COUNT + 1
_NUMBERS_BYTES_MAX = NUMBER_COUNT * 20
_PREFIX_BYTES = 8


def fill_answer(
    pieces: tuple[bytes, ...],
    next_queue_offset: int,
    queue_offset_min: int,
    queue_offset_max: int,
    opaque: int,
    record_bytes: int,
) -> bytes:
    """Lengths and header of the answer that ``record_bytes`` of records follow."""
    if len(pieces) != _PIECE_COUNT:
        raise ValueError(f"{len(pieces)} pieces of an answer where there should be {_PIECE_COUNT}")
    before_next, before_min, before_max, before_opaque, end = pieces
    size = len(before_next) + len(before_min) + len(before_max) + len(before_opaque) + len(end)
    out = bytearray(_PREFIX_BYTES + size + _NUMBERS_BYTES_MAX)
    view = out
    at = raw_bytes.put_text(view, _PREFIX_BYTES, before_next)
    at = raw_bytes.put_decimal(view, at, next_queue_offset)
    at = raw_bytes.put_text(view, at, before_min)
    at = raw_bytes.put_decimal(view, at, queue_offset_min)
    at = raw_bytes.put_text(view, at, before_max)
    at = raw_bytes.put_decimal(view, at, queue_offset_max)
    at = raw_bytes.put_text(view, at, before_opaque)
    at = raw_bytes.put_decimal(view, at, opaque)
    at = raw_bytes.put_text(view, at, end)
    raw_bytes.put_i32(view, 0, at - 4 + record_bytes)
    raw_bytes.put_i32(view, 4, at - _PREFIX_BYTES)
    return bytes(view[:at])

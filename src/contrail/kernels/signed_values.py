"""Joins the values that a request's signature covers, for headers in the plain JSON form.

The signed content of a request is the values of its extFields in the order of their names, without
the signature itself, and the body behind them (``protocol.signing``). This kernel reads a frame's
header once and writes that content, so that no dict of texts is built for it.

A header that it does not fully understand is left to the general decoder: one with a name or a
value that is not ASCII, a value without quotes, a name that occurs twice, a name that old clients
add after they have signed.
"""

from __future__ import annotations

from contrail.kernels import frame_scan, raw_bytes

FIELDS_MAX = 48
_PREFIX_BYTES = 8
# Its value is signed by new clients only.
_LATE_FIELD_BEGINS = 95  # _

Signed = tuple[int, bytes, bytes, bytes, bytearray]


class _Fields:
    """The places of fields in a header, in the order of their names."""

    def __init__(self) -> None:
        self.count = 0
        self.names = [0] * 48
        self.name_ends = [0] * 48
        self.values = [0] * 48
        self.value_ends = [0] * 48
        self.value_marks = [0] * 48


def join_signed(buffer: bytes, start: int, named: bytes) -> Signed | None:
    """The signed content of the whole frame at ``start``; None for the general decoder.

    Returns where the frame ends, its access key, its signature, the value of the field ``named``,
    and the content with the body. Each of the three was there, and has no escapes.
    """
    view = buffer
    available = len(buffer)
    if available - start < _PREFIX_BYTES:
        return None
    total = raw_bytes.u32(view, start)
    header_bytes = raw_bytes.u32(view, start + 4) & 0xFFFFFF
    if view[start + 4] != 0 or header_bytes + 4 > total or available - start - 4 < total:
        return None
    at = start + _PREFIX_BYTES
    header_end = at + header_bytes
    frame_end = start + 4 + total
    fields = _Fields()
    if not _scan_header(view, at, header_end, fields):
        return None
    content = raw_bytes.blank(header_bytes + frame_end - header_end)
    target = content
    length = 0
    access_key = signature = value = -1
    for index in range(fields.count):
        at = fields.names[index]
        end = fields.name_ends[index]
        if frame_scan.same(view, at, end, b"Signature"):
            signature = index
            continue
        if frame_scan.same(view, at, end, b"AccessKey"):
            access_key = index
        elif frame_scan.same(view, at, end, named):
            value = index
        at = fields.values[index]
        end = fields.value_ends[index]
        if fields.value_marks[index]:
            length = frame_scan.unescape(view, at, end, target, length)
            if length < 0:
                return None
        else:
            length = raw_bytes.copy(target, length, view, at, end)
    if access_key < 0 or signature < 0 or value < 0:
        return None
    if fields.value_marks[access_key] or fields.value_marks[signature] or fields.value_marks[value]:
        return None
    length = raw_bytes.copy(target, length, view, header_end, frame_end)
    raw_bytes.cut(content, length)
    return (
        frame_end,
        view[fields.values[access_key] : fields.value_ends[access_key]],
        view[fields.values[signature] : fields.value_ends[signature]],
        view[fields.values[value] : fields.value_ends[value]],
        content,
    )


def _scan_header(view: bytes, at: int, end: int, fields: _Fields) -> bool:
    """Note the extFields of a header; False when it is for the general decoder."""
    is_noted = False
    if at >= end or view[at] != 123:  # {
        return False
    at += 1
    while True:
        if at >= end or view[at] != 34:  # "
            return False
        packed = frame_scan.string_end(view, at + 1, end)
        if packed < 0 or packed & 3:
            return False
        name_at = at + 1
        name_end = packed >> 2
        at = name_end + 1
        if at >= end or view[at] != 58:  # :
            return False
        at += 1
        if at >= end:
            return False
        if frame_scan.same(view, name_at, name_end, b"extFields"):
            if is_noted:
                return False
            is_noted = True
            at = _scan_fields(view, at, end, fields)
            if at < 0:
                return False
        elif view[at] == 34:
            packed = frame_scan.string_end(view, at + 1, end)
            if packed < 0 or packed & 3:
                return False
            at = (packed >> 2) + 1
        else:
            name_at = at
            while at < end and (48 <= view[at] <= 57 or view[at] == 45):
                at += 1
            if at == name_at:
                return False
        if at >= end:
            return False
        if view[at] == 125:  # }
            return is_noted and at + 1 == end
        if view[at] != 44:  # ,
            return False
        at += 1


def _scan_fields(view: bytes, at: int, end: int, fields: _Fields) -> int:
    """Note an object of texts; returns where it ends, or -1."""
    if view[at] != 123:
        return -1
    at += 1
    while True:
        if at >= end or view[at] != 34:
            return -1
        packed = frame_scan.string_end(view, at + 1, end)
        if packed < 0 or packed & 3:
            return -1
        name_at = at + 1
        name_end = packed >> 2
        at = name_end + 1
        if name_end == name_at or view[name_at] == _LATE_FIELD_BEGINS or view[name_at] == 36:
            return -1
        if end - at < 2 or view[at] != 58 or view[at + 1] != 34:
            return -1
        packed = frame_scan.string_end(view, at + 2, end)
        if packed < 0 or packed & frame_scan.NOT_ASCII:
            return -1
        if not _note(fields, view, name_at, name_end, at + 2, packed):
            return -1
        at = (packed >> 2) + 1
        if at >= end:
            return -1
        if view[at] == 125:
            return at + 1
        if view[at] != 44:
            return -1
        at += 1


def _note(
    fields: _Fields, view: bytes, name_at: int, name_end: int, value_at: int, packed: int
) -> bool:
    """Add a field in the order of names; False for a second one of a name, or too many."""
    at = fields.count
    if at >= FIELDS_MAX:
        return False
    while at > 0:
        order = _order(view, fields.names[at - 1], fields.name_ends[at - 1], name_at, name_end)
        if order == 0:
            return False
        if order < 0:
            break
        at -= 1
    index = fields.count
    while index > at:
        fields.names[index] = fields.names[index - 1]
        fields.name_ends[index] = fields.name_ends[index - 1]
        fields.values[index] = fields.values[index - 1]
        fields.value_ends[index] = fields.value_ends[index - 1]
        fields.value_marks[index] = fields.value_marks[index - 1]
        index -= 1
    fields.names[at] = name_at
    fields.name_ends[at] = name_end
    fields.values[at] = value_at
    fields.value_ends[at] = packed >> 2
    fields.value_marks[at] = packed & 3
    fields.count += 1
    return True


def _order(view: bytes, at: int, end: int, other: int, other_end: int) -> int:
    """Below 0 when the name at ``at`` comes first, 0 for equal names, above 0 otherwise."""
    while at < end and other < other_end:
        if view[at] != view[other]:
            return view[at] - view[other]
        at += 1
        other += 1
    return (end - at) - (other_end - other)

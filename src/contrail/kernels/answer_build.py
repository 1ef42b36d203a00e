"""Builds the answers to a run of sends, back to back in one buffer.

One answer is the frame of this header, without a body (line breaks are only here):

    {"code":0,"extFields":{"msgId":"<host><physical offset>","queueId":"3","queueOffset":"17",
    "transactionId":"<unique key>",<region and trace fields>},"flag":1,"language":"JAVA",
    "opaque":123,"serializeTypeCurrentRPC":"JSON","version":479}

``msgId`` is the store's host in hexadecimal digits, then the physical offset in sixteen more; the
answer to a split batch has one for each message, with commas between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contrail.kernels import send_rows

if TYPE_CHECKING:
    from array import array

_NUMBER_BYTES_MAX = 20
_PREFIX_BYTES = 8
_OFFSET_DIGITS = 16

_BEFORE_ID = b'{"code":0,"extFields":{"msgId":"'
_BEFORE_QUEUE = b'","queueId":"'
_BEFORE_OFFSET = b'","queueOffset":"'
_BEFORE_KEY = b'","transactionId":"'
_AFTER_KEY = b'",'
_BEFORE_OPAQUE = b'},"flag":1,"language":"JAVA","opaque":'
_END = b',"serializeTypeCurrentRPC":"JSON","version":479}'
_FIXED_BYTES = (
    len(_BEFORE_ID)
    + len(_BEFORE_QUEUE)
    + len(_BEFORE_OFFSET)
    + len(_BEFORE_KEY)
    + len(_AFTER_KEY)
    + len(_BEFORE_OPAQUE)
    + len(_END)
)
_ROW_NUMBERS = send_rows.ROW_NUMBERS
_OPAQUE = send_rows.OPAQUE
_ONE_WAY = send_rows.ONE_WAY
_QUEUE_ID = send_rows.QUEUE_ID
_KEY_AT = send_rows.KEY_AT
_KEY_END = send_rows.KEY_END
_QUEUE_OFFSET = send_rows.QUEUE_OFFSET
_PHYSICAL_OFFSET = send_rows.PHYSICAL_OFFSET


def part_answers(
    items: list[tuple[Any, ...]],
    parts: list[tuple[Any, int, int, Any]],
    queue_offsets: list[int],
    physical_offsets: list[int],
    host_digits: bytes,
    extra_fields: bytes,
) -> list[bytes | None]:
    """The answers to each part of a run that was appended as a whole.

    A part is who sent it, its first item, where it ends, and a note; one with a note gets None.
    """
    answers: list[bytes | None] = []
    for part in parts:
        if part[3] is not None:
            answers.append(None)
            continue
        first = part[1]
        answers.append(
            send_answers(
                items,
                first,
                part[2],
                queue_offsets,
                physical_offsets,
                first,
                host_digits,
                extra_fields,
            )
        )
    return answers


def send_answers(
    items: list[tuple[Any, ...]],
    first: int,
    last: int,
    queue_offsets: list[int],
    physical_offsets: list[int],
    run_start: int,
    host_digits: bytes,
    extra_fields: bytes,
) -> bytes:
    """The answers to ``items[first:last]``, one-way sends left out.

    ``items`` are sends as ``frame_scan`` returns them; the message of ``items[first]`` is number
    ``run_start`` of the run that was appended. ``extra_fields`` is JSON to stand among the fields.
    """
    size = 0
    index = first
    while index < last:
        item = items[index]
        key = item[10]
        size += len(key)
        index += 1
    each = _PREFIX_BYTES + _FIXED_BYTES + len(host_digits) + _OFFSET_DIGITS + len(extra_fields)
    size += (each + 3 * _NUMBER_BYTES_MAX) * (last - first)
    out = bytearray(size)
    view = out
    at = 0
    index = first
    while index < last:
        item = items[index]
        flag = item[1]
        if not flag & 2:
            draft = item[11]
            key = item[10]
            place = run_start + index - first
            at = _lay_out(
                view,
                at,
                item[0],
                draft[1],
                queue_offsets[place],
                physical_offsets[place],
                key,
                0,
                len(key),
                host_digits,
                extra_fields,
            )
        index += 1
    return bytes(out[:at])


def plain_answers(
    count: int, rows: array[int], texts: bytearray, host_digits: bytes, extra_fields: bytes
) -> bytes:
    """The answers to stored sends that are rows of ``send_rows``, one-way sends left out."""
    table = rows
    keys = texts
    each = _PREFIX_BYTES + _FIXED_BYTES + len(host_digits) + _OFFSET_DIGITS + len(extra_fields)
    size = (each + 3 * _NUMBER_BYTES_MAX) * count
    row = 0
    for _ in range(count):
        size += table[row + _KEY_END] - table[row + _KEY_AT]
        row += _ROW_NUMBERS
    out = bytearray(size)
    view = out
    at = 0
    row = 0
    for _ in range(count):
        if not table[row + _ONE_WAY]:
            at = _lay_out(
                view,
                at,
                table[row + _OPAQUE],
                table[row + _QUEUE_ID],
                table[row + _QUEUE_OFFSET],
                table[row + _PHYSICAL_OFFSET],
                keys,
                table[row + _KEY_AT],
                table[row + _KEY_END],
                host_digits,
                extra_fields,
            )
        row += _ROW_NUMBERS
    return bytes(out[:at])


def batch_answer(
    opaque: int,
    queue_id: int,
    queue_offset: int,
    physical_offsets: list[int],
    key: bytes,
    host_digits: bytes,
    extra_fields: bytes,
) -> bytes:
    """The answer to a batch whose messages were stored at these places, the first of its queue's
    offsets being ``queue_offset``. Without a key it names none."""
    each = len(host_digits) + _OFFSET_DIGITS + 1
    size = _PREFIX_BYTES + _FIXED_BYTES + 3 * _NUMBER_BYTES_MAX + len(key) + len(extra_fields)
    size += each * len(physical_offsets)
    out = bytearray(size)
    view = out
    at = _copy(view, _PREFIX_BYTES, _BEFORE_ID)
    is_first = True
    for physical_offset in physical_offsets:
        if not is_first:
            view[at] = 44
            at += 1
        is_first = False
        at = _copy(view, at, host_digits)
        at = _hex(view, at, physical_offset)
    at = _copy(view, at, _BEFORE_QUEUE)
    at = _decimal(view, at, queue_id)
    at = _copy(view, at, _BEFORE_OFFSET)
    at = _decimal(view, at, queue_offset)
    if key:
        at = _copy(view, at, _BEFORE_KEY)
        at = _copy(view, at, key)
    at = _copy(view, at, _AFTER_KEY)
    at = _copy(view, at, extra_fields)
    at = _copy(view, at, _BEFORE_OPAQUE)
    at = _decimal(view, at, opaque)
    at = _copy(view, at, _END)
    _put_i32(view, 0, at - 4)
    _put_i32(view, 4, at - _PREFIX_BYTES)
    return bytes(out[:at])


def plain_answers_singly(
    count: int, rows: array[int], texts: bytearray, host_digits: bytes, extra_fields: bytes
) -> list[bytes]:
    """As ``plain_answers``, each by itself; empty for one-way sends."""
    table = rows
    keys = texts
    each = _PREFIX_BYTES + _FIXED_BYTES + len(host_digits) + _OFFSET_DIGITS + len(extra_fields)
    each += 3 * _NUMBER_BYTES_MAX
    key_bytes_max = 0
    row = 0
    for _ in range(count):
        if table[row + _KEY_END] - table[row + _KEY_AT] > key_bytes_max:
            key_bytes_max = table[row + _KEY_END] - table[row + _KEY_AT]
        row += _ROW_NUMBERS
    out = bytearray(each + key_bytes_max)
    view = out
    answers: list[bytes] = []
    row = 0
    for _ in range(count):
        at = 0
        if not table[row + _ONE_WAY]:
            at = _lay_out(
                view,
                0,
                table[row + _OPAQUE],
                table[row + _QUEUE_ID],
                table[row + _QUEUE_OFFSET],
                table[row + _PHYSICAL_OFFSET],
                keys,
                table[row + _KEY_AT],
                table[row + _KEY_END],
                host_digits,
                extra_fields,
            )
        answers.append(bytes(view[:at]))
        row += _ROW_NUMBERS
    return answers


def _lay_out(
    view: bytearray,
    at: int,
    opaque: int,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    keys: bytes | bytearray,
    key_at: int,
    key_end: int,
    host_digits: bytes,
    extra_fields: bytes,
) -> int:
    """Write one frame at ``at`` and return where it ends. The caller made enough room."""
    start = at
    at = _copy(view, at + _PREFIX_BYTES, _BEFORE_ID)
    at = _copy(view, at, host_digits)
    at = _hex(view, at, physical_offset)
    at = _copy(view, at, _BEFORE_QUEUE)
    at = _decimal(view, at, queue_id)
    at = _copy(view, at, _BEFORE_OFFSET)
    at = _decimal(view, at, queue_offset)
    at = _copy(view, at, _BEFORE_KEY)
    while key_at < key_end:
        view[at] = keys[key_at]
        at += 1
        key_at += 1
    at = _copy(view, at, _AFTER_KEY)
    at = _copy(view, at, extra_fields)
    at = _copy(view, at, _BEFORE_OPAQUE)
    at = _decimal(view, at, opaque)
    at = _copy(view, at, _END)
    _put_i32(view, start, at - start - 4)
    _put_i32(view, start + 4, at - start - _PREFIX_BYTES)
    return at


def _copy(view: bytearray, at: int, text: bytes) -> int:
    for byte in text:
        view[at] = byte
        at += 1
    return at


def _decimal(view: bytearray, at: int, value: int) -> int:
    """Write a whole number of at most 64 bits in decimal digits."""
    if value < 0:
        view[at] = 45
        at += 1
    digits = 1
    rest = value
    while rest > 9 or rest < -9:
        rest = (rest + _last_digit(rest)) // 10 if rest < 0 else rest // 10
        digits += 1
    end = at + digits
    place = end
    rest = value
    while place > at:
        place -= 1
        view[place] = 48 + _last_digit(rest)
        rest = (rest + _last_digit(rest)) // 10 if rest < 0 else rest // 10
    return end


def _last_digit(value: int) -> int:
    """Without negating it: the least number of 64 bits has no positive counterpart."""
    return (10 - value % 10) % 10 if value < 0 else value % 10


def _hex(view: bytearray, at: int, value: int) -> int:
    place = at + _OFFSET_DIGITS
    while place > at:
        place -= 1
        digit = value & 15
        view[place] = 48 + digit if digit < 10 else 55 + digit
        value >>= 4
    return at + _OFFSET_DIGITS


def _put_i32(view: bytearray, at: int, value: int) -> None:
    view[at] = value >> 24 & 0xFF
    view[at + 1] = value >> 16 & 0xFF
    view[at + 2] = value >> 8 & 0xFF
    view[at + 3] = value & 0xFF

"""Builds the answers to a run of sends, back to back in one buffer.

One answer is the frame of this header, without a body (line breaks are only here):

    {"code":0,"extFields":{"msgId":"<host><physical offset>","queueId":"3","queueOffset":"17",
    "transactionId":"<unique key>",<region and trace fields>},"flag":1,"language":"JAVA",
    "opaque":123,"serializeTypeCurrentRPC":"JSON","version":479}

``msgId`` is the store's host in hexadecimal digits, then the physical offset in sixteen more; the
answer to a split batch has one for each message, with commas between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels import raw_bytes, send_rows

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
# All but the numbers, the key, and what stands in front of the first offset and behind the key.
_FIXED_BYTES = (
    _PREFIX_BYTES
    + _OFFSET_DIGITS
    + len(_BEFORE_QUEUE)
    + len(_BEFORE_OFFSET)
    + len(_BEFORE_KEY)
    + len(_END)
)


def row_answers(
    count: int, rows: array[int], texts: bytearray, host_digits: bytes, extra_fields: bytes
) -> bytes:
    """The answers to stored sends that are rows of ``send_rows``, one-way sends left out."""
    table = raw_bytes.numbers(rows, send_rows.ROW_NUMBERS * count)
    keys = texts
    before_id = _BEFORE_ID + host_digits
    after_key = _AFTER_KEY + extra_fields + _BEFORE_OPAQUE
    size = _bytes_without_key(before_id, after_key) * count
    row = 0
    for _ in range(count):
        size += table[row + send_rows.KEY_END] - table[row + send_rows.KEY_AT]
        row += send_rows.ROW_NUMBERS
    out = raw_bytes.blank(size)
    view = out
    at = 0
    row = 0
    for _ in range(count):
        if not table[row + send_rows.ONE_WAY]:
            at = _lay_out(
                view,
                at,
                table[row + send_rows.OPAQUE],
                table[row + send_rows.QUEUE_ID],
                table[row + send_rows.QUEUE_OFFSET],
                table[row + send_rows.PHYSICAL_OFFSET],
                keys,
                table[row + send_rows.KEY_AT],
                table[row + send_rows.KEY_END],
                before_id,
                after_key,
            )
        row += send_rows.ROW_NUMBERS
    return raw_bytes.first(view, at)


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
    after_key = _AFTER_KEY + extra_fields + _BEFORE_OPAQUE
    size = _bytes_without_key(_BEFORE_ID, after_key) + len(key)
    size += (len(host_digits) + _OFFSET_DIGITS + 1) * len(physical_offsets)
    out = raw_bytes.blank(size)
    view = out
    at = raw_bytes.put_text(view, _PREFIX_BYTES, _BEFORE_ID)
    is_first = True
    for physical_offset in physical_offsets:
        if not is_first:
            view[at] = 44
            at += 1
        is_first = False
        at = raw_bytes.put_text(view, at, host_digits)
        at = raw_bytes.put_hex(view, at, physical_offset)
    at = raw_bytes.put_text(view, at, _BEFORE_QUEUE)
    at = raw_bytes.put_decimal(view, at, queue_id)
    at = raw_bytes.put_text(view, at, _BEFORE_OFFSET)
    at = raw_bytes.put_decimal(view, at, queue_offset)
    if key:
        at = raw_bytes.put_text(view, at, _BEFORE_KEY)
        at = raw_bytes.put_text(view, at, key)
    at = raw_bytes.put_text(view, at, after_key)
    at = raw_bytes.put_decimal(view, at, opaque)
    at = raw_bytes.put_text(view, at, _END)
    raw_bytes.put_i32(view, 0, at - 4)
    raw_bytes.put_i32(view, 4, at - _PREFIX_BYTES)
    return raw_bytes.first(view, at)


def row_answers_singly(
    count: int, rows: array[int], texts: bytearray, host_digits: bytes, extra_fields: bytes
) -> list[bytes]:
    """As ``row_answers``, one buffer for each send; empty for one-way sends."""
    table = raw_bytes.numbers(rows, send_rows.ROW_NUMBERS * count)
    keys = texts
    before_id = _BEFORE_ID + host_digits
    after_key = _AFTER_KEY + extra_fields + _BEFORE_OPAQUE
    key_bytes_max = 0
    row = 0
    for _ in range(count):
        if table[row + send_rows.KEY_END] - table[row + send_rows.KEY_AT] > key_bytes_max:
            key_bytes_max = table[row + send_rows.KEY_END] - table[row + send_rows.KEY_AT]
        row += send_rows.ROW_NUMBERS
    out = raw_bytes.blank(_bytes_without_key(before_id, after_key) + key_bytes_max)
    view = out
    answers: list[bytes] = []
    row = 0
    for _ in range(count):
        at = 0
        if not table[row + send_rows.ONE_WAY]:
            at = _lay_out(
                view,
                0,
                table[row + send_rows.OPAQUE],
                table[row + send_rows.QUEUE_ID],
                table[row + send_rows.QUEUE_OFFSET],
                table[row + send_rows.PHYSICAL_OFFSET],
                keys,
                table[row + send_rows.KEY_AT],
                table[row + send_rows.KEY_END],
                before_id,
                after_key,
            )
        answers.append(raw_bytes.first(view, at))
        row += send_rows.ROW_NUMBERS
    return answers


def _bytes_without_key(before_id: bytes, after_key: bytes) -> int:
    """Room enough for an answer, but for its key."""
    return _FIXED_BYTES + len(before_id) + len(after_key) + 3 * _NUMBER_BYTES_MAX


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
    before_id: bytes,
    after_key: bytes,
) -> int:
    """Write one frame at ``at`` and return where it ends. The caller made enough room."""
    start = at
    at = raw_bytes.put_text(view, at + _PREFIX_BYTES, before_id)
    at = raw_bytes.put_hex(view, at, physical_offset)
    at = raw_bytes.put_text(view, at, _BEFORE_QUEUE)
    at = raw_bytes.put_decimal(view, at, queue_id)
    at = raw_bytes.put_text(view, at, _BEFORE_OFFSET)
    at = raw_bytes.put_decimal(view, at, queue_offset)
    at = raw_bytes.put_text(view, at, _BEFORE_KEY)
    at = raw_bytes.copy(view, at, keys, key_at, key_end)
    at = raw_bytes.put_text(view, at, after_key)
    at = raw_bytes.put_decimal(view, at, opaque)
    at = raw_bytes.put_text(view, at, _END)
    raw_bytes.put_i32(view, start, at - start - 4)
    raw_bytes.put_i32(view, start + 4, at - start - _PREFIX_BYTES)
    return at

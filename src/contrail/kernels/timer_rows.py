"""What a record of the timer topic says: its place, its message, and the times it asks for.

The record's layout is tabled in ``record_build``. Properties are pairs ``name 0x01 value 0x02``;
pairs with an empty name or value are skipped, the last 0x02 may be missing, and the last of
several pairs of a name wins. A number that is none, or has more than 19 digits, is absent.
"""

from __future__ import annotations

from typing import Any

_FIXED_BYTES = 91
_MAGIC_V1 = -626843481
_MAGIC_V2 = -626843477
_BORN_HOST_V6 = 0x10
_STORE_HOST_V6 = 0x20
_DIGITS_MAX = 19
_OUT = b"TIMER_OUT_MS"
_SECONDS = b"TIMER_DELAY_SEC"
_DELAY = b"TIMER_DELAY_MS"
_DELIVER = b"TIMER_DELIVER_MS"
_ROLLED = b"TIMER_ROLL_TIMES"
_DELETES = b"TIMER_DEL_UNIQKEY"
_TOPIC = b"REAL_TOPIC"
_QUEUE = b"REAL_QID"
_KEY = b"UNIQ_KEY"
_NONCE = b"CONTRAIL_RECALL_NONCE"


def read_timer(record: bytes) -> tuple[Any, ...]:
    """Return these, in this order; times and numbers that are absent are None.

    physical offset, queue offset, record bytes, stored at (ms), flag, sysFlag, born at (ms), born
    host, reconsume times, body start, body end, properties start, properties end, slot time (ms),
    time asked for (ms), real topic, real queue, unique key, what it deletes, rolls,
    nonce of its recall.

    Raises:
        ValueError: the bytes are no whole record.
    """
    view = record
    length = len(record)
    if length < _FIXED_BYTES or _i32(view, 0) != length:
        raise ValueError("the bytes are no whole record")
    magic = _i32(view, 4)
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        raise ValueError("the bytes are no record")
    sys_flag = _i32(view, 36)
    stored_at = 68 if sys_flag & _BORN_HOST_V6 else 56
    body_at = stored_at + (44 if sys_flag & _STORE_HOST_V6 else 32)
    # The smallest record has two IPv4 hosts: what IPv6 adds may reach past the end.
    if body_at + 3 > length:
        raise ValueError("the hosts of the record reach past its end")
    body_bytes = _i32(view, body_at - 4)
    if body_bytes < 0 or body_bytes > length - body_at - 3:
        raise ValueError("the body of the record reaches past its end")
    body_end = body_at + body_bytes
    if magic == _MAGIC_V1:
        at = body_end + 1 + view[body_end]
    else:
        at = body_end + 2 + view[body_end] * 256 + view[body_end + 1]
    if at + 2 > length:
        raise ValueError("the topic of the record reaches past its end")
    properties_at = at + 2
    if view[at] * 256 + view[at + 1] != length - properties_at:
        raise ValueError("the properties of the record do not fill it")
    out = seconds = delay = deliver = rolled = queue = None
    deletes = topic = key = nonce = b""
    at = properties_at
    while at < length:
        name_end = at
        while name_end < length and view[name_end] != 1 and view[name_end] != 2:
            name_end += 1
        value_at = name_end + 1
        end = name_end
        while end < length and view[end] != 2:
            end += 1
        if name_end > at and end > value_at and view[name_end] == 1:
            name_bytes = name_end - at
            if view[at] == 84 and name_bytes >= 12:
                if name_bytes == 12 and record.startswith(_OUT, at):
                    out = _number(record, value_at, end)
                elif name_bytes == 16 and record.startswith(_DELIVER, at):
                    deliver = _number(record, value_at, end)
                elif name_bytes == 14 and record.startswith(_DELAY, at):
                    delay = _number(record, value_at, end)
                elif name_bytes == 15 and record.startswith(_SECONDS, at):
                    seconds = _number(record, value_at, end)
                elif name_bytes == 16 and record.startswith(_ROLLED, at):
                    rolled = _number(record, value_at, end)
                elif name_bytes == 17 and record.startswith(_DELETES, at):
                    deletes = record[value_at:end]
            elif name_bytes == 10 and record.startswith(_TOPIC, at):
                topic = record[value_at:end]
            elif name_bytes == 8 and record.startswith(_QUEUE, at):
                queue = _number(record, value_at, end)
            elif name_bytes == 8 and record.startswith(_KEY, at):
                key = record[value_at:end]
            elif name_bytes == 21 and record.startswith(_NONCE, at):
                nonce = record[value_at:end]
        at = end + 1
    stored_ms = _i64(view, stored_at)
    asked = deliver
    if rolled is None:
        # The first of these that is there counts; both are relative to when it was stored.
        if seconds is not None:
            asked = stored_ms + seconds * 1000
        elif delay is not None:
            asked = stored_ms + delay
    return (
        _i64(view, 28),
        _i64(view, 20),
        length,
        stored_ms,
        _i32(view, 16),
        sys_flag,
        _i64(view, 40),
        record[48:stored_at],
        _i32(view, body_at - 16),
        body_at,
        body_end,
        properties_at,
        length,
        out,
        asked,
        topic,
        queue,
        key,
        deletes,
        rolled,
        nonce,
    )


def _number(record: bytes, start: int, end: int) -> int | None:
    view = record
    at = start
    is_negative = view[at] == 45
    if is_negative or view[at] == 43:
        at += 1
    if at == end or end - at > _DIGITS_MAX:
        return None
    for place in range(at, end):
        if view[place] < 48 or view[place] > 57:
            return None
    return int(record[start:end])


def _i32(view: bytes, at: int) -> int:
    value = view[at]
    if value > 127:
        value -= 256
    value = value * 256 + view[at + 1]
    value = value * 256 + view[at + 2]
    return value * 256 + view[at + 3]


def _i64(view: bytes, at: int) -> int:
    value = _i32(view, at)
    low = _i32(view, at + 4)
    if low < 0:
        low += 0x100000000
    return value * 0x100000000 + low

"""Reads a record of the timer topic: its offsets, its message, and the times it asks for.

The record's layout is tabled in ``record_layout``. Properties are pairs ``name 0x01 value 0x02``;
pairs with an empty name or value are skipped, the last 0x02 may be missing, and the last of
several pairs of a name wins. A value that is no number, or has more than 19 digits, is absent.
"""

from __future__ import annotations

from typing import Any

from contrail.kernels import raw_bytes, record_layout

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
    time asked for (ms), real topic, real queue, unique key, key of the message it deletes, rolls,
    nonce of its recall.

    Raises:
        ValueError: the bytes are no whole record.
    """
    view = record
    length = len(record)
    # No bytes may follow the record: its size must be the length of ``record``.
    if record_layout.record_reason(view, 0, length) != record_layout.REASON_END:
        raise ValueError("the bytes are no whole record")
    if raw_bytes.i32(view, record_layout.SIZE_AT) != length:
        raise ValueError("there are bytes behind the record")
    extra = record_layout.hosts_extra(view[record_layout.LOW_FLAGS_AT])
    stored_at = record_layout.store_time_at(view, 0)
    properties_at = record_layout.properties_at(view, 0, length)
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
    stored_ms = raw_bytes.i64(view, stored_at)
    asked = deliver
    if rolled is None:
        # The first of these properties that is present counts; both count from the store time.
        if seconds is not None:
            asked = stored_ms + seconds * 1000
        elif delay is not None:
            asked = stored_ms + delay
    return (
        raw_bytes.i64(view, record_layout.PHYSICAL_OFFSET_AT),
        raw_bytes.i64(view, record_layout.QUEUE_OFFSET_AT),
        length,
        stored_ms,
        raw_bytes.i32(view, record_layout.FLAG_AT),
        raw_bytes.i32(view, record_layout.SYS_FLAG_AT),
        raw_bytes.i64(view, record_layout.BORN_TIME_AT),
        record[record_layout.BORN_HOST_AT : stored_at],
        raw_bytes.i32(view, record_layout.TIMES_AT + extra),
        record_layout.body_at(view, 0),
        record_layout.body_end(view, 0),
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

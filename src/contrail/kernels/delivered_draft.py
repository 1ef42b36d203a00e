"""Makes the draft of a delayed message that is due, from the record that waited.

The record's layout is tabled in ``record_layout``. Only the form that nearly every waiting message
has is handled here; other records take the general way (``broker.state.delay_cursors``).
"""

from __future__ import annotations

from typing import Any

from contrail.kernels import raw_bytes, record_layout

_QUEUE_DIGITS_MAX = 9
_REAL_TOPIC = b"REAL_TOPIC"
_REAL_QUEUE_ID = b"REAL_QID"


def delivered_draft(record: bytes) -> tuple[Any, ...] | None:
    """The draft of the message in a record, for the topic and queue that its properties name.

    The draft names the record that waited (see ``broker.state.causes``). None if the record is not
    whole, has a long topic, or names a topic that is not ASCII or a queue id not in plain digits.
    """
    view = record
    size = len(record)
    # ``record_reason`` reads up to the record's own size, which must be the length of ``record``.
    if record_layout.record_reason(view, 0, size) != record_layout.REASON_END:
        return None
    if raw_bytes.i32(view, record_layout.SIZE_AT) != size:
        return None
    if raw_bytes.i32(view, record_layout.MAGIC_AT) != record_layout.MAGIC_V1:
        return None
    extra = record_layout.hosts_extra(view[record_layout.LOW_FLAGS_AT])
    text_at = record_layout.properties_at(view, 0, size)
    topic = b""
    queue_id = -1
    at = text_at
    while at < size:
        name_at = at
        while at < size and view[at] != 1 and view[at] != 2:
            at += 1
        name_end = at
        while at < size and view[at] != 2:
            at += 1
        if at > name_end + 1:
            if raw_bytes.spells(view, name_at, name_end, _REAL_TOPIC):
                if not _is_ascii(view, name_end + 1, at):
                    return None
                topic = record[name_end + 1 : at]
            elif raw_bytes.spells(view, name_at, name_end, _REAL_QUEUE_ID):
                queue_id = _digits(view, name_end + 1, at)
                if queue_id < 0:
                    return None
        at += 1
    if not topic or queue_id < 0:
        return None
    return (
        topic,
        queue_id,
        record[record_layout.body_at(view, 0) : record_layout.body_end(view, 0)],
        record[text_at:size],
        raw_bytes.i32(view, record_layout.FLAG_AT),
        raw_bytes.i32(view, record_layout.SYS_FLAG_AT),
        raw_bytes.i64(view, record_layout.BORN_TIME_AT),
        record[record_layout.BORN_HOST_AT : record_layout.store_time_at(view, 0)],
        raw_bytes.i32(view, record_layout.TIMES_AT + extra),
        -1 - raw_bytes.i64(view, record_layout.PHYSICAL_OFFSET_AT),
    )


def _is_ascii(view: bytes, at: int, end: int) -> bool:
    while at < end:
        if view[at] > 127:
            return False
        at += 1
    return True


def _digits(view: bytes, at: int, end: int) -> int:
    """The number in plain digits; -1 if other bytes are in it."""
    if end - at > _QUEUE_DIGITS_MAX or end == at:
        return -1
    value = 0
    while at < end:
        digit = view[at] - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
        at += 1
    return value

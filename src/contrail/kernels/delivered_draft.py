"""Makes of a message that waited what is stored when its time has come.

The record's layout is tabled in ``record_build``. Only what nearly every waiting message looks
like is taken here; the rest takes the general way (``broker.state.delay_cursors``).
"""

from __future__ import annotations

from typing import Any

_MAGIC_V1 = -626843481
_HEADER_BYTES = 88
_TOPIC_BYTES_MAX = 127
_I16_MAX = 32767
_QUEUE_DIGITS_MAX = 9
_REAL_TOPIC = b"REAL_TOPIC"
_REAL_QUEUE_ID = b"REAL_QID"


def delivered_draft(record: bytes) -> tuple[Any, ...] | None:
    """The draft of the message in a record, for the topic and queue that its properties name.

    It names the record that waited (see ``broker.state.causes``). None if the record is not whole,
    has a long topic, or does not name its place in plain digits and ASCII.
    """
    view = record
    size = len(record)
    if size < _HEADER_BYTES + 3 or _i32(view, 0) != size or _i32(view, 4) != _MAGIC_V1:
        return None
    sys_flag = _i32(view, 36)
    born_end = 68 if sys_flag & 0x10 else 56
    times_at = born_end + (28 if sys_flag & 0x20 else 16)
    body_at = times_at + 16
    body_bytes = _i32(view, body_at - 4) if body_at + 3 <= size else -1
    if body_bytes < 0 or body_bytes > size - body_at - 3:
        return None
    topic_at = body_at + body_bytes + 1
    topic_bytes = view[topic_at - 1]
    if topic_bytes > _TOPIC_BYTES_MAX or topic_bytes > size - topic_at - 2:
        return None
    text_at = topic_at + topic_bytes + 2
    text_bytes = view[text_at - 2] * 256 + view[text_at - 1]
    if text_bytes > _I16_MAX or text_bytes != size - text_at:
        return None
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
            if _is(view, name_at, name_end, _REAL_TOPIC):
                if not _is_ascii(view, name_end + 1, at):
                    return None
                topic = record[name_end + 1 : at]
            elif _is(view, name_at, name_end, _REAL_QUEUE_ID):
                queue_id = _digits(view, name_end + 1, at)
                if queue_id < 0:
                    return None
        at += 1
    if not topic or queue_id < 0:
        return None
    return (
        topic,
        queue_id,
        record[body_at : body_at + body_bytes],
        record[text_at:size],
        _i32(view, 16),
        sys_flag,
        _i64(view, 40),
        record[48:born_end],
        _i32(view, times_at),
        -1 - _i64(view, 28),
    )


def _is(view: bytes, at: int, end: int, name: bytes) -> bool:
    if end - at != len(name):
        return False
    for byte in name:
        if view[at] != byte:
            return False
        at += 1
    return True


def _is_ascii(view: bytes, at: int, end: int) -> bool:
    while at < end:
        if view[at] > 127:
            return False
        at += 1
    return True


def _digits(view: bytes, at: int, end: int) -> int:
    """The number in plain digits; -1 if it is something else."""
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


def _i32(view: bytes, at: int) -> int:
    value = view[at]
    if value > 127:
        value -= 256
    value = value * 256 + view[at + 1]
    value = value * 256 + view[at + 2]
    return value * 256 + view[at + 3]


def _i64(view: bytes, at: int) -> int:
    value = _i32(view, at)
    value = value * 256 + view[at + 4]
    value = value * 256 + view[at + 5]
    value = value * 256 + view[at + 6]
    return value * 256 + view[at + 7]

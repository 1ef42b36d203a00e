"""Splits the body of a batch into one draft for each message in it.

A unit is ``size(4) magic(4) crc(4) flag(4) body_length(4) body properties_length(2) properties``;
magic and CRC are not looked at. Every length comes from outside and is compared with what is there
before it is used.
"""

from __future__ import annotations

from typing import Any

from contrail.errors import BatchIllegal

_FIXED_BYTES = 22
_BODY_AT = 20
_I16_MAX = 32767


def split_units(batch: bytes, draft: tuple[Any, ...], count_max: int) -> list[tuple[Any, ...]]:
    """Drafts like ``draft``, each with the body, properties and flag of one unit.

    Raises:
        BatchIllegal: there is no unit, or a length in it does not fit what is there.
    """
    view = batch
    end = len(batch)
    at = 0
    drafts: list[tuple[Any, ...]] = []
    topic, queue_id, _, _, _, sys_flag, born, born_host, times, _ = draft[:]
    while at < end:
        number = len(drafts) + 1
        if number > count_max:
            raise BatchIllegal(f"the batch holds over {count_max} messages; send it in parts")
        if end - at < _FIXED_BYTES:
            raise _illegal(number, "is cut off in its fixed fields")
        size = _i32(view, at)
        if size < _FIXED_BYTES or size > end - at:
            raise _illegal(number, f"has the size {size}, {end - at} bytes are there")
        body_bytes = _i32(view, at + 16)
        if body_bytes < 0 or body_bytes > size - _FIXED_BYTES:
            raise _illegal(number, f"has the body length {body_bytes}, more than its size allows")
        properties_at = at + _BODY_AT + body_bytes + 2
        properties_bytes = view[properties_at - 2] * 256 + view[properties_at - 1]
        if properties_bytes > _I16_MAX:
            properties_bytes -= 65536
        if properties_bytes < 0 or properties_at + properties_bytes != at + size:
            raise _illegal(
                number, f"has the properties length {properties_bytes}, not the rest of it"
            )
        flag = _i32(view, at + 12)
        body = view[at + _BODY_AT : at + _BODY_AT + body_bytes]
        properties = view[properties_at : properties_at + properties_bytes]
        drafts.append(
            (topic, queue_id, body, properties, flag, sys_flag, born, born_host, times, 0)
        )
        at += size
    if not drafts:
        raise BatchIllegal("the batch holds no message")
    return drafts


def _illegal(number: int, problem: str) -> BatchIllegal:
    return BatchIllegal(f"message {number} of the batch {problem}; encode the batch again")


def _i32(view: bytes, at: int) -> int:
    value = view[at]
    if value > 127:
        value -= 256
    value = value * 256 + view[at + 1]
    value = value * 256 + view[at + 2]
    return value * 256 + view[at + 3]

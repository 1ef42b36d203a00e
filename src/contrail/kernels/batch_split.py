"""Splits the body of a batch into one draft for each message in it.

A unit is tabled in ``record_layout``. Every length comes from outside and is compared with what is
there before it is used.
"""

from __future__ import annotations

from typing import Any

from contrail.errors import BatchIllegal
from contrail.kernels import raw_bytes, record_layout


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
        if end - at < record_layout.UNIT_BYTES_MIN:
            raise _illegal(number, "is cut off in its fixed fields")
        size = raw_bytes.i32(view, at)
        if size < record_layout.UNIT_BYTES_MIN or size > end - at:
            raise _illegal(number, f"has the size {size}, {end - at} bytes are there")
        body_bytes = raw_bytes.i32(view, at + record_layout.UNIT_BODY_BYTES_AT)
        if body_bytes < 0 or body_bytes > size - record_layout.UNIT_BYTES_MIN:
            raise _illegal(number, f"has the body length {body_bytes}, more than its size allows")
        body_at = at + record_layout.UNIT_BODY_AT
        properties_at = body_at + body_bytes + 2
        properties_bytes = raw_bytes.u16(view, properties_at - 2)
        if properties_bytes > record_layout.PROPERTIES_BYTES_MAX:
            properties_bytes -= 65536
        if properties_bytes < 0 or properties_at + properties_bytes != at + size:
            raise _illegal(
                number, f"has the properties length {properties_bytes}, not the rest of it"
            )
        flag = raw_bytes.i32(view, at + record_layout.UNIT_FLAG_AT)
        body = view[body_at : body_at + body_bytes]
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

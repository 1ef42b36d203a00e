"""The few fields of a stored record that identify a send, and its place.

Reading a memory of sends back goes through a million records before the broker serves requests, so
it does not take them apart whole; ``contrail.model.record`` has the table of all fields.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from contrail.model.record import (
    BORN_HOST_POSITION,
    MAGIC_POSITION,
    MAGIC_V2,
    QUEUE_ID_POSITION,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
)

_MAGIC = Struct(">I")
_QUEUE_AND_PLACES = Struct(">i4xqqi")  # queue id, queue offset, physical offset, sysFlag
_TIME = Struct(">q")
_CAUSE_AND_BODY_BYTES = Struct(">4xqi")  # behind the retries
_SHORT = Struct(">h")


class SentRecord(NamedTuple):
    """Part of one record."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp_ms: int
    prepared_transaction_offset: int
    properties: bytes


def read_sent(record: bytes) -> SentRecord:
    """Read a record that was checked before: its lengths are not looked at again."""
    places = _QUEUE_AND_PLACES.unpack_from(record, QUEUE_ID_POSITION)
    queue_id, queue_offset, physical_offset, sys_flag = places
    at = BORN_HOST_POSITION + (20 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 8)
    (store_timestamp_ms,) = _TIME.unpack_from(record, at)
    at += _TIME.size + (20 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 8)
    cause, body_bytes = _CAUSE_AND_BODY_BYTES.unpack_from(record, at)
    at += _CAUSE_AND_BODY_BYTES.size + body_bytes
    if _MAGIC.unpack_from(record, MAGIC_POSITION)[0] == MAGIC_V2:
        topic_at, topic_bytes = at + 2, _SHORT.unpack_from(record, at)[0]
    else:
        topic_at, topic_bytes = at + 1, record[at]
    at = topic_at + topic_bytes
    properties_end = at + 2 + _SHORT.unpack_from(record, at)[0]
    return SentRecord(
        record[topic_at:at],
        queue_id,
        queue_offset,
        physical_offset,
        sys_flag,
        store_timestamp_ms,
        cause,
        record[at + 2 : properties_end],
    )

"""Builds the beginning of the answer to a pull: all of the frame that comes before the records.

The header is this, as ``encode_response`` would write it (line breaks are only here):

    {"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"96","minOffset":"0",
    "maxOffset":"4711","topicSysFlag":"0","groupSysFlag":"0"},"flag":1,"language":"JAVA",
    "opaque":123,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":479}
"""

from __future__ import annotations

from contrail.kernels import raw_bytes

_NUMBER_BYTES_MAX = 20
_PREFIX_BYTES = 8

_BEFORE_NEXT = b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"'
_BEFORE_MIN = b'","minOffset":"'
_BEFORE_MAX = b'","maxOffset":"'
_BEFORE_FLAGS = b'","topicSysFlag":"'
_BETWEEN_FLAGS = b'","groupSysFlag":"'
_BEFORE_OPAQUE = b'"},"flag":1,"language":"JAVA","opaque":'
_END = b',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":479}'
_FIXED_BYTES = (
    _PREFIX_BYTES
    + len(_BEFORE_NEXT)
    + len(_BEFORE_MIN)
    + len(_BEFORE_MAX)
    + len(_BEFORE_FLAGS)
    + len(_BETWEEN_FLAGS)
    + len(_BEFORE_OPAQUE)
    + len(_END)
)


def found_answer(
    opaque: int,
    next_queue_offset: int,
    queue_offset_min: int,
    queue_offset_max: int,
    topic_sys_flag: int,
    group_sys_flag: int,
    record_bytes: int,
) -> bytes:
    """Lengths and header of the answer that ``record_bytes`` of records follow."""
    out = bytearray(_FIXED_BYTES + 6 * _NUMBER_BYTES_MAX)
    view = out
    at = raw_bytes.put_text(view, _PREFIX_BYTES, _BEFORE_NEXT)
    at = raw_bytes.put_decimal(view, at, next_queue_offset)
    at = raw_bytes.put_text(view, at, _BEFORE_MIN)
    at = raw_bytes.put_decimal(view, at, queue_offset_min)
    at = raw_bytes.put_text(view, at, _BEFORE_MAX)
    at = raw_bytes.put_decimal(view, at, queue_offset_max)
    at = raw_bytes.put_text(view, at, _BEFORE_FLAGS)
    at = raw_bytes.put_decimal(view, at, topic_sys_flag)
    at = raw_bytes.put_text(view, at, _BETWEEN_FLAGS)
    at = raw_bytes.put_decimal(view, at, group_sys_flag)
    at = raw_bytes.put_text(view, at, _BEFORE_OPAQUE)
    at = raw_bytes.put_decimal(view, at, opaque)
    at = raw_bytes.put_text(view, at, _END)
    raw_bytes.put_i32(view, 0, at - 4 + record_bytes)
    raw_bytes.put_i32(view, 4, at - _PREFIX_BYTES)
    return bytes(view[:at])

"""Batches: several messages for one queue in one request or one record.

A batch body is a run of units, which ``contrail.kernels.record_layout`` tables.

On most topics each unit becomes a record of its own (a split batch). On topics with the attribute
``queue.type=BatchCQ`` the body stays whole in one record (an inner batch): sysFlag 0x40 and 0x80
are set, ``INNER_NUM`` holds the count and ``INNER_BASE`` the first message's queue offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from struct import Struct
from typing import NamedTuple

from contrail.errors import BatchIllegal, MessageIllegal
from contrail.kernels.batch_split import split_units
from contrail.kernels.record_layout import PROPERTIES_BYTES_MAX, UNIT_BYTES_MIN
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import DELAY, INNER_BASE, INNER_NUM, put_property, read_property
from contrail.model.record import SYS_FLAG_INNER_BATCH, SYS_FLAG_NEED_UNWRAP, TRANSACTION_MASK

# The queue entry of an inner batch counts its messages in 16 bits.
INNER_BATCH_COUNT_MAX = 32_767
# More messages do not fit 4 MiB when each has its unique key, as clients send them.
BATCH_COUNT_MAX = 65_536

_UNIT_HEAD = Struct(">iiiii")
_PROPERTIES_LENGTH = Struct(">h")


class BatchUnit(NamedTuple):
    """One message of a batch, in the form a client sends it."""

    body: bytes
    properties: bytes = b""
    flag: int = 0


def encode_batch(units: Iterable[BatchUnit]) -> bytes:
    """The batch body that holds ``units`` in this order.

    Raises:
        BatchIllegal: a unit's properties exceed 32,767 bytes.
    """
    return b"".join(_encode_unit(unit, number) for number, unit in enumerate(units, 1))


def decode_batch(data: bytes) -> list[BatchUnit]:
    """The units of a batch body.

    Raises:
        BatchIllegal: the body has no unit, or a length that exceeds the body.
    """
    return list(_walk(data))


def split_batch(draft: MessageDraft) -> list[MessageDraft]:
    """One draft for each unit in the body of ``draft``, sharing all its other fields.

    Raises:
        BatchIllegal: the body is no batch.
        MessageIllegal: ``draft`` is delayed or part of a transaction.
    """
    _check_plain(draft)
    return [MessageDraft._make(unit) for unit in split_units(draft.body, draft, BATCH_COUNT_MAX)]


def mark_inner_batch(draft: MessageDraft) -> MessageDraft:
    """``draft``, whose body is a batch, as the record of an inner batch, without its base offset.

    Raises:
        BatchIllegal: the body is no batch or has too many units.
        MessageIllegal: ``draft`` is delayed or part of a transaction.
    """
    _check_plain(draft)
    count = sum(1 for _ in _walk(draft.body))
    if count > INNER_BATCH_COUNT_MAX:
        raise BatchIllegal(
            f"the batch holds {count} messages, at most {INNER_BATCH_COUNT_MAX} fit one record"
        )
    return draft._replace(
        sys_flag=draft.sys_flag | SYS_FLAG_INNER_BATCH | SYS_FLAG_NEED_UNWRAP,
        properties=put_property(draft.properties, INNER_NUM, str(count)),
    )


def put_inner_base(draft: MessageDraft, queue_offset: int) -> MessageDraft:
    """``draft`` with the queue offset of its first message."""
    return draft._replace(properties=put_property(draft.properties, INNER_BASE, str(queue_offset)))


def inner_batch_count(properties: bytes) -> int:
    """How many queue offsets a record with these properties takes: ``INNER_NUM``, or 1.

    Raises:
        BatchIllegal: ``INNER_NUM`` is not a number from 1 to 32,767.
    """
    text = read_property(properties, INNER_NUM)
    if text is None:
        return 1
    if text.isascii() and text.isdecimal() and len(text) <= 5:
        count = int(text)
        if 1 <= count <= INNER_BATCH_COUNT_MAX:
            return count
    raise BatchIllegal(f"INNER_NUM is {text!r}, it must be a number from 1 to 32767")


def expand_inner_batch(message: StoredMessage) -> list[StoredMessage]:
    """The messages inside an inner batch, as a consumer sees them.

    Raises:
        BatchIllegal: the body is no batch.
    """
    return [
        replace(
            message,
            queue_offset=message.queue_offset + number,
            body=unit.body,
            raw_properties=unit.properties,
            flag=unit.flag,
        )
        for number, unit in enumerate(decode_batch(message.body))
    ]


def _check_plain(draft: MessageDraft) -> None:
    if draft.sys_flag & TRANSACTION_MASK:
        raise MessageIllegal("a batch cannot be part of a transaction; send its messages singly")
    level = read_property(draft.properties, DELAY) or ""
    if level.isdecimal() and level.strip("0"):
        raise MessageIllegal(f"a batch cannot be delayed (DELAY={level}); send its messages singly")


def _encode_unit(unit: BatchUnit, number: int) -> bytes:
    properties_length = len(unit.properties)
    if properties_length > PROPERTIES_BYTES_MAX:
        raise BatchIllegal(
            f"message {number} of the batch has {properties_length} bytes of properties, "
            f"at most {PROPERTIES_BYTES_MAX} are allowed"
        )
    size = UNIT_BYTES_MIN + len(unit.body) + properties_length
    head = _UNIT_HEAD.pack(size, 0, 0, unit.flag, len(unit.body))
    return head + unit.body + _PROPERTIES_LENGTH.pack(properties_length) + unit.properties


def _walk(data: bytes) -> Iterator[BatchUnit]:
    if not data:
        raise BatchIllegal("the batch holds no message")
    position = 0
    number = 1
    while position < len(data):
        if number > BATCH_COUNT_MAX:
            raise BatchIllegal(f"the batch holds over {BATCH_COUNT_MAX} messages; send it in parts")
        unit, position = _decode_unit(data, position, number)
        number += 1
        yield unit


def _decode_unit(data: bytes, start: int, number: int) -> tuple[BatchUnit, int]:
    if start + UNIT_BYTES_MIN > len(data):
        raise _illegal(number, "is cut off in its fixed fields")
    size, _, _, flag, body_length = _UNIT_HEAD.unpack_from(data, start)
    end = start + size
    body_start = start + _UNIT_HEAD.size
    body_end = body_start + body_length
    if size < UNIT_BYTES_MIN or end > len(data):
        raise _illegal(number, f"has the size {size}, {len(data) - start} bytes are there")
    if body_length < 0 or body_end + _PROPERTIES_LENGTH.size > end:
        raise _illegal(number, f"has the body length {body_length}, more than its size allows")
    (properties_length,) = _PROPERTIES_LENGTH.unpack_from(data, body_end)
    properties_start = body_end + _PROPERTIES_LENGTH.size
    if properties_length < 0 or properties_start + properties_length != end:
        raise _illegal(number, f"has the properties length {properties_length}, not the rest of it")
    return BatchUnit(data[body_start:body_end], data[properties_start:end], flag), end


def _illegal(number: int, problem: str) -> BatchIllegal:
    return BatchIllegal(f"message {number} of the batch {problem}; encode the batch again")

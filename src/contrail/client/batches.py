"""Several messages in one send: which may go together, and where a long list is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from contrail.client.message import Message, MessageQueue, SendReceipt
from contrail.client.outgoing import (
    PROPERTIES_BYTES_MAX,
    Outgoing,
    build_properties,
    check_body,
    check_topic,
)
from contrail.client.send_frames import properties_text
from contrail.errors import MessageInvalid
from contrail.model.batch import BATCH_COUNT_MAX, BatchUnit, encode_batch
from contrail.model.properties import UNIQ_KEY, WAIT
from contrail.model.shown import shown
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.codes import RequestCode

# Where ``send_many`` cuts. Brokers count a batch by its records, whose fixed part is longer than
# that of the units on the wire, so a batch must stay well below their limit.
MANY_BYTES_MAX = 1 << 20
# Brokers answer with the ids of all messages in one header field.
MANY_COUNT_MAX = 1_000
_RECORD_BYTES = 160


Enrich = Callable[[dict[str, str]], None]
# The queue a message must go to, or None for any queue.
PlaceOf = Callable[[Message], MessageQueue | None]


class SentMany(NamedTuple):
    """The result of a list of messages: one receipt for each batch it was cut into."""

    receipts: list[SendReceipt]
    batch_count: int


def listed(messages: Iterable[Message], call: str) -> list[Message]:
    """The messages that a call was given.

    Raises:
        MessageInvalid: the call was given something else.
    """
    if isinstance(messages, Message):
        raise MessageInvalid(f"{call} takes a list and got one message: give [message], or send()")
    if not isinstance(messages, Iterable):
        raise MessageInvalid(f"{call} got {shown(messages)}: give a list of messages")
    found = list(messages)
    for place, message in enumerate(found):
        if not isinstance(message, Message):
            raise MessageInvalid(
                f"{call} got {shown(message)} at place {place} of its list, which is no "
                "Message: give "
                "Message(topic, body)"
            )
    return found


def common_sharding_key(messages: Sequence[Message]) -> str | None:
    """The sharding key that all messages of a batch have; None when they have none.

    Raises:
        MessageInvalid: there are several keys; each may lead to another queue.
    """
    keys = list(dict.fromkeys(one.sharding_key for one in messages if one.sharding_key))
    if len(keys) > 1:
        raise MessageInvalid(
            f"a batch goes to one queue and has messages with the sharding keys "
            f"{shown(keys[0])} and "
            f"{shown(keys[1])}: use send_many(), which takes each to its own, or give queue="
        )
    return keys[0] if keys else None


def prepare_batch(
    messages: Sequence[Message],
    *,
    take_id: Callable[[], str],
    bytes_max: int,
    enrich: Enrich | None = None,
) -> Outgoing:
    """One send that holds all ``messages``; batches are never compressed.

    ``enrich`` may add properties to each message.

    Raises:
        MessageInvalid: they may not go together, or are too many bytes.
    """
    if not messages:
        raise MessageInvalid("a batch holds no message: give at least one")
    first = messages[0]
    check_topic(first.topic)
    if len(messages) > BATCH_COUNT_MAX:
        raise MessageInvalid(
            f"a batch has {len(messages)} messages, at most {BATCH_COUNT_MAX} may be sent at once: "
            "use send_many(), which cuts it into batches"
        )
    for message in messages:
        _check_company(message, first)
    ids: list[str] = []
    units: list[BatchUnit] = []
    for message in messages:
        ids.append(take_id())
        units.append(_unit(message, ids[-1], bytes_max, enrich))
    body = encode_batch(units)
    if len(body) > bytes_max:
        raise MessageInvalid(
            f"a batch of {len(messages)} messages for topic {first.topic!r} has {len(body)} bytes, "
            f"at most {bytes_max} may be sent at once: use send_many(), which cuts it into batches"
        )
    properties = {UNIQ_KEY: take_id()}
    if not first.wait_store_ok:
        properties[WAIT] = "false"
    return Outgoing(
        first.topic,
        body,
        properties,
        unique_id=",".join(ids),
        is_batch=True,
        code=RequestCode.SEND_BATCH_MESSAGE,
    )


def _check_company(message: Message, first: Message) -> None:
    if message.topic != first.topic:
        raise MessageInvalid(
            f"a batch has messages for the topics {first.topic!r} and {message.topic!r}: send one "
            "batch for each topic, or use send_many()"
        )
    if message.wait_store_ok != first.wait_store_ok:
        raise MessageInvalid(
            f"a batch for topic {first.topic!r} has messages with and without wait_store_ok: give "
            "all of them the same, or use send_many()"
        )
    _check_plain(message)


def _check_plain(message: Message) -> None:
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        raise MessageInvalid(
            f"a delayed message for topic {message.topic!r} cannot be in a batch: send it by itself"
        )
    if message.topic.startswith(RETRY_PREFIX):
        raise MessageInvalid(
            f"messages for the retry topic {message.topic!r} cannot be in a batch: send them singly"
        )


def _unit(message: Message, unique_id: str, bytes_max: int, enrich: Enrich | None) -> BatchUnit:
    body = check_body(message, bytes_max)
    properties = build_properties(message)
    if enrich is not None:
        enrich(properties)
    properties[UNIQ_KEY] = unique_id
    encoded = properties_text(properties).encode("utf-8", "replace")
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise MessageInvalid(
            f"the properties of a message for topic {message.topic!r} have {len(encoded)} bytes, "
            f"at most {PROPERTIES_BYTES_MAX} may be sent: put the long ones into the body"
        )
    return BatchUnit(body, encoded, message.flag)


def _anywhere(message: Message) -> None:
    """None: the message may go to any queue."""


def cut(
    messages: Iterable[Message], bytes_max: int = MANY_BYTES_MAX, *, place_of: PlaceOf = _anywhere
) -> list[list[Message]]:
    """``messages`` in batches of one topic, queue and wait flag, each below ``bytes_max``.

    The messages for a queue keep their order. A message longer than ``bytes_max`` gets a batch of
    its own.

    Raises:
        MessageInvalid: a message may not be in a batch.
    """
    batches: list[list[Message]] = []
    # The batches being filled, with the bytes they have.
    filling: dict[object, tuple[list[Message], int]] = {}
    for message in messages:
        _check_plain(message)
        # A message must not overtake another message of the queue chosen for both, whatever their
        # flags.
        kind = place_of(message) or (message.topic, message.wait_store_ok)
        size = _record_bytes(message)
        batch, filled = filling.get(kind, ([], bytes_max))
        if filled + size > bytes_max or not _has_room(batch, message):
            batch, filled = [], 0
            batches.append(batch)
        batch.append(message)
        filling[kind] = (batch, filled + size)
    return batches


def _has_room(batch: Sequence[Message], message: Message) -> bool:
    if not batch:
        return True
    return len(batch) < MANY_COUNT_MAX and batch[0].wait_store_ok == message.wait_store_ok


def _record_bytes(message: Message) -> int:
    size = _RECORD_BYTES + len(message.topic) + len(message.body)
    # A character has at most four bytes.
    for name, value in message.properties.items():
        size += 4 * (len(name) + len(value)) + 2
    keys = (message.keys,) if isinstance(message.keys, str) else message.keys
    size += sum(4 * len(key) + 1 for key in keys)
    return size + 4 * (len(message.tags or "") + len(message.sharding_key or ""))

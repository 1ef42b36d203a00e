"""The sink's guarantees by cluster, and how it finds repeats by their keys.

Brokers of Apache RocketMQ do not know sinks. There the sink gives no guarantee about repeats, or
looks up the key of each row before it sends it, which is slow and only as good as the brokers' key
index: an entry is written some moments after its message, and removed with it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from enum import Enum

from contrail.client.compression import compress
from contrail.client.message import MessageQueue
from contrail.client.outgoing import Outgoing, OutgoingRules
from contrail.client.sink_requests import SinkRequests, Stored
from contrail.errors import SinkRefused
from contrail.model.batch import BatchUnit, decode_batch, encode_batch
from contrail.model.properties import UNIQ_KEY, decode_properties
from contrail.pipeline.options import Idempotence
from contrail.pipeline.sink_lanes import Parcel

_log = logging.getLogger(__name__)

_WINDOW_ATTRIBUTES = ("contrail.dedupe.window.ms", "contrail.dedupe.window.count")
_RULES = OutgoingRules()


class Delivery(Enum):
    """The way in which rows are sent."""

    # Ordinary sends; a row may be stored twice after a retry.
    PLAIN = "plain"
    # Rows carry their position, by which Contrail's brokers drop repeats.
    STAMPED = "stamped"
    # As before, and consumers see no row before the batch is decided.
    PREPARED = "prepared"
    # Ordinary sends whose ids are made from keys, to topics that drop repeated ids.
    KEYED = "keyed"
    # The same to Apache's brokers, after a query for the id.
    LOOKED_UP = "looked up"

    @property
    def is_stamped(self) -> bool:
        return self in (Delivery.STAMPED, Delivery.PREPARED)

    @property
    def is_by_keys(self) -> bool:
        return self in (Delivery.KEYED, Delivery.LOOKED_UP)


def choose_delivery(mode: Idempotence | None, *, by_keys: bool, plain: Sequence[str]) -> Delivery:
    """The delivery that keeps a mode's guarantee, if the brokers ``plain`` do not know sinks.

    Raises:
        SinkRefused: no delivery keeps it on these brokers.
    """
    if mode is Idempotence.NONE:
        return Delivery.PLAIN
    if not plain:
        if by_keys:
            return Delivery.KEYED
        return Delivery.PREPARED if mode is Idempotence.TRANSACTIONAL else Delivery.STAMPED
    named = ", ".join(plain)
    if mode is Idempotence.TRANSACTIONAL:
        raise SinkRefused(
            f"idempotence=transactional: {named} cannot commit a batch as a whole, only Contrail's "
            "brokers can: set idempotence=none, or dedupe with dedupeBy=keys"
        )
    if by_keys:
        return Delivery.LOOKED_UP
    if mode is Idempotence.DEDUPE:
        raise SinkRefused(
            f"idempotence=dedupe: {named} cannot tell repeated rows by their position, only "
            "Contrail's brokers can: set dedupeBy=keys and give a keys column, or idempotence=none"
        )
    warn_once(
        f"{named} cannot tell repeated rows, only Contrail's brokers can: rows may be there twice "
        "after a retry; set idempotence=none to say that this is fine, or dedupeBy=keys"
    )
    return Delivery.PLAIN


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning once per process, not for each task and batch."""
    if text not in _warned:
        _warned.add(text)
        _log.warning("%s", text)


# Keys.


def id_of_key(topic: str, key: str) -> str:
    """The message id of a row with a key: always the same, in the usual form of ids."""
    digest = hashlib.blake2b(f"{topic}\0{key}".encode(), digest_size=16)
    return digest.hexdigest().upper()


def require_window(topic: str, attributes: Mapping[str, Mapping[str, str]]) -> None:
    """Raises ``SinkRefused`` for a topic that stores repeated ids; ``attributes`` by broker."""
    without = sorted(
        name
        for name, given in attributes.items()
        if not any(one in given for one in _WINDOW_ATTRIBUTES)
    )
    if without:
        raise SinkRefused(
            f"dedupeBy=keys: topic {topic!r} keeps repeated keys on {', '.join(without)}: give it "
            f"the attribute {_WINDOW_ATTRIBUTES[0]} that covers the longest time until a retry"
        )


# Sending.


def alone(queue: MessageQueue, unit: bytes) -> Outgoing:
    """A unit as a single message, compressed: a delayed message may not be in a batch."""
    (found,) = decode_batch(unit)
    properties = decode_properties(found.properties)
    body, sys_flag = found.body, 0
    if len(body) >= _RULES.compress_over_bytes:
        packed, flag = compress(body, _RULES.compression, _RULES.compress_level)
        if len(packed) < len(body):
            body, sys_flag = packed, flag
    return Outgoing(
        queue.topic, body, properties, found.flag, sys_flag, unique_id=properties[UNIQ_KEY]
    )


async def send_plainly(requests: SinkRequests, parcel: Parcel) -> Stored:
    """Send as an ordinary producer does."""
    if parcel.alone is not None:
        return await requests.send_outgoing(parcel.queue, parcel.alone)
    return await requests.send_batch(parcel.queue, parcel.units, parcel.row_count)


class LookedUpSends:
    """Sends messages whose ids are not stored yet and were not sent by this task before."""

    def __init__(self) -> None:
        self._sent: set[str] = set()

    async def __call__(self, requests: SinkRequests, parcel: Parcel) -> Stored:
        if parcel.alone is not None:
            if not await self._is_new(requests, parcel.queue.topic, parcel.alone.unique_id):
                return Stored(0, 1)
            return await requests.send_outgoing(parcel.queue, parcel.alone)
        fresh: list[BatchUnit] = []
        for unit in decode_batch(parcel.units):
            unique_id = decode_properties(unit.properties)[UNIQ_KEY]
            if await self._is_new(requests, parcel.queue.topic, unique_id):
                fresh.append(unit)
        if fresh:
            await requests.send_batch(parcel.queue, encode_batch(fresh), len(fresh))
        return Stored(len(fresh), parcel.row_count - len(fresh))

    async def _is_new(self, requests: SinkRequests, topic: str, unique_id: str) -> bool:
        if unique_id in self._sent or await requests.is_stored(topic, unique_id):
            return False
        self._sent.add(unique_id)
        return True

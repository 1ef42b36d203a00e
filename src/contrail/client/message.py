"""The values of an application: messages to send, receipts, received messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from contrail.errors import MessageUnreadable
from contrail.model.host import unpack_host
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import (
    KEYS,
    TAGS,
    UNIQ_KEY,
    decode_properties,
    read_property,
)
from contrail.protocol.json_style import MessageQueue as MessageQueue


@dataclass(slots=True)
class Message:
    """A message to be sent. ``deliver_at``, ``delay`` and ``delay_level`` exclude each other.

    ``deliver_at`` is a ``datetime`` or epoch milliseconds, ``delay`` a ``timedelta`` or seconds.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str | None = None
    delay_level: int = 0
    deliver_at: datetime | int | None = None
    delay: timedelta | float | None = None
    flag: int = 0
    wait_store_ok: bool = True


class SendStatus(Enum):
    """How far a stored message got; only SEND_OK means all configured copies and flushes."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """The broker's answer for a message it stored."""

    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str = ""
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True


class ReceivedMessage:
    """A message as a consumer sees it; the body is decompressed.

    ``decode_error`` is None, or says why the message could not be decoded: ``body`` then holds the
    bytes as they came. Pull consumers and the admin client hand such a message out like any other;
    a push consumer does not give it to its handler, it counts as failed.

    Properties and ids are decoded from the record on first access: most handlers look at the body
    only, and a consumer makes a hundred thousand of these a second.
    """

    __slots__ = (
        "_message_id",
        "_offset_message_id",
        "_properties",
        "body",
        "body_crc",
        "born_timestamp_ms",
        "decode_error",
        "flag",
        "packed_born_host",
        "packed_store_host",
        "physical_offset",
        "prepared_transaction_offset",
        "queue",
        "queue_offset",
        "reconsume_times",
        "record_bytes",
        "store_timestamp_ms",
        "sys_flag",
        "topic",
    )

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    reconsume_times: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    flag: int
    sys_flag: int
    physical_offset: int
    packed_born_host: bytes
    packed_store_host: bytes
    body_crc: int
    record_bytes: int
    prepared_transaction_offset: int
    decode_error: MessageUnreadable | None
    # In stored form until the first access.
    _properties: dict[str, str] | bytes
    _message_id: str
    _offset_message_id: str

    def __init__(
        self,
        topic: str,
        body: bytes,
        queue: MessageQueue,
        queue_offset: int,
        message_id: str,
        offset_message_id: str,
        properties: dict[str, str] | bytes,
        reconsume_times: int,
        born_timestamp_ms: int,
        store_timestamp_ms: int,
        flag: int,
        sys_flag: int,
        physical_offset: int,
        packed_born_host: bytes = b"",
        packed_store_host: bytes = b"",
        body_crc: int = 0,
        record_bytes: int = 0,
        prepared_transaction_offset: int = 0,
        decode_error: MessageUnreadable | None = None,
    ) -> None:
        """An empty ``message_id`` or ``offset_message_id`` is computed on first access."""
        self.topic = topic
        self.body = body
        self.queue = queue
        self.queue_offset = queue_offset
        self._message_id = message_id
        self._offset_message_id = offset_message_id
        self._properties = properties
        self.reconsume_times = reconsume_times
        self.born_timestamp_ms = born_timestamp_ms
        self.store_timestamp_ms = store_timestamp_ms
        self.flag = flag
        self.sys_flag = sys_flag
        self.physical_offset = physical_offset
        self.packed_born_host = packed_born_host
        self.packed_store_host = packed_store_host
        self.body_crc = body_crc
        self.record_bytes = record_bytes
        self.prepared_transaction_offset = prepared_transaction_offset
        self.decode_error = decode_error

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.message_id} of {self.topic!r}, "
            f"queue {self.queue.broker_name}:{self.queue.queue_id} at {self.queue_offset}, "
            f"{len(self.body)} bytes{', not decoded' if self.decode_error else ''}>"
        )

    @property
    def properties(self) -> dict[str, str]:
        properties = self._properties
        if isinstance(properties, bytes):
            properties = self._properties = decode_properties(properties)
        return properties

    def peek_property(self, name: str) -> str | None:
        """One property, without reading them all."""
        properties = self._properties
        if isinstance(properties, bytes):
            return read_property(properties, name)
        return properties.get(name)

    @property
    def offset_message_id(self) -> str:
        """The offset id: address of the store host and physical offset."""
        if not self._offset_message_id and self.packed_store_host:
            self._offset_message_id = encode_offset_message_id(
                self.packed_store_host, self.physical_offset
            )
        return self._offset_message_id

    @property
    def message_id(self) -> str:
        """The unique id its producer gave it, else the offset id."""
        if not self._message_id:
            self._message_id = self.properties.get(UNIQ_KEY) or self.offset_message_id
        return self._message_id

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(KEYS, "").split()

    @property
    def born_host(self) -> str:
        return str(unpack_host(self.packed_born_host))

    @property
    def store_host(self) -> str:
        return str(unpack_host(self.packed_store_host))

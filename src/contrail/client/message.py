"""What an application hands in, what it gets back, and what it receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from contrail.model.host import unpack_host
from contrail.model.properties import KEYS, TAGS
from contrail.protocol.json_style import MessageQueue as MessageQueue

_NOTHING: Mapping[str, str] = {}


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
    """How far a stored message got; only SEND_OK means everything that was configured."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """What a broker said about a message it stored."""

    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str = ""
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True


@dataclass(slots=True, eq=False)
class ReceivedMessage:
    """A message as a consumer sees it; the body is decompressed."""

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    message_id: str
    offset_message_id: str
    properties: dict[str, str]
    reconsume_times: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    flag: int
    sys_flag: int
    physical_offset: int
    packed_born_host: bytes = b""
    packed_store_host: bytes = b""
    body_crc: int = 0
    record_bytes: int = 0
    prepared_transaction_offset: int = 0

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

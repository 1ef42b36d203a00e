"""A message before it is stored (a draft) and after (a stored message)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from contrail.model.properties import decode_properties

LOOPBACK_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"


class MessageDraft(NamedTuple):
    """A message as handed to the store, already in stored form (topic and properties encoded).

    A tuple rather than a dataclass: the record kernel reads its fields by index, which keeps the
    append of one message under a microsecond.
    """

    topic: bytes
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = LOOPBACK_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    def with_properties(self, properties: bytes) -> MessageDraft:
        """The same message with other properties, in a third of the steps of ``_replace``."""
        return tuple.__new__(MessageDraft, (*self[:3], properties, *self[4:]))


@dataclass(frozen=True)
class StoredMessage:
    """One record of the commit log, decoded."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    body: bytes
    raw_properties: bytes
    flag: int
    sys_flag: int
    body_crc: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int

    @cached_property
    def properties(self) -> dict[str, str]:
        """The properties as a mapping; decoded on first use, since most readers never ask."""
        return decode_properties(self.raw_properties)

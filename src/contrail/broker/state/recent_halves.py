"""Half messages that were stored a moment ago, so that their ends need not read them back.

Most transactions are ended within milliseconds. This keeps halves as they were handed to the log;
a request for any other half reads the log.
"""

from __future__ import annotations

from contrail.kernels.stretch_crc import crc32
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import CRC32
from contrail.model.record import (
    CRC_MASK,
    RECORD_BYTES_MIN,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
)

_COUNT_MAX = 4096
_BYTES_MAX = 8 << 20
_HOST_BITS = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
_V4_BYTES, _V6_BYTES = 8, 20
# The store drops a sender's own checksum: a half that holds this word may be stored otherwise.
_CRC_WORD = CRC32.encode()

_Kept = tuple[MessageDraft, int, int, int]
"""The message, its queue offset, the size of its record, and when it was stored."""


class RecentHalves:
    """The latest half messages by their physical offsets; the oldest go first."""

    def __init__(
        self, *, store_host: bytes, count_max: int = _COUNT_MAX, bytes_max: int = _BYTES_MAX
    ) -> None:
        self._store_host = store_host
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._kept: dict[int, _Kept] = {}
        self._byte_count = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, physical_offset: int) -> bool:
        return physical_offset in self._kept

    def put(
        self,
        draft: MessageDraft,
        *,
        queue_offset: int,
        physical_offset: int,
        store_timestamp_ms: int,
    ) -> None:
        """A half message was stored there."""
        if _CRC_WORD in draft.properties:
            return
        texts = len(draft.body) + len(draft.topic) + len(draft.properties)
        hosts = len(draft.born_host) + len(self._store_host) - 2 * _V4_BYTES
        record_bytes = RECORD_BYTES_MIN + texts + hosts
        self._kept[physical_offset] = (draft, queue_offset, record_bytes, store_timestamp_ms)
        self._byte_count += record_bytes
        while len(self._kept) > self._count_max or self._byte_count > self._bytes_max:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Forget all: they may be cut from the log."""
        self._kept.clear()
        self._byte_count = 0

    def take(self, physical_offset: int) -> StoredMessage | None:
        """The message that was stored there, for its end; asked again, it is not here any more."""
        kept = self._kept.get(physical_offset)
        if kept is None:
            return None
        self._drop(physical_offset)
        draft, queue_offset, record_bytes, store_timestamp_ms = kept
        return StoredMessage(
            topic=draft.topic.decode(),
            queue_id=draft.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            record_bytes=record_bytes,
            body=draft.body,
            raw_properties=draft.properties,
            flag=draft.flag,
            sys_flag=self._stored_flags(draft),
            body_crc=crc32(draft.body) & CRC_MASK,
            born_timestamp_ms=draft.born_timestamp_ms,
            born_host=draft.born_host,
            store_timestamp_ms=store_timestamp_ms,
            store_host=self._store_host,
            reconsume_times=draft.reconsume_times,
            prepared_transaction_offset=draft.prepared_transaction_offset,
        )

    def _drop(self, physical_offset: int) -> None:
        self._byte_count -= self._kept.pop(physical_offset)[2]

    def _stored_flags(self, draft: MessageDraft) -> int:
        flags = draft.sys_flag & ~_HOST_BITS
        if len(draft.born_host) == _V6_BYTES:
            flags |= SYS_FLAG_BORN_HOST_V6
        if len(self._store_host) == _V6_BYTES:
            flags |= SYS_FLAG_STORE_HOST_V6
        return flags

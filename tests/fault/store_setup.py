"""Small stores for tests: tiny files, so that every roll happens within a few messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore


def small_config(root: Path, **changes: Any) -> StoreConfig:
    """8 KiB segments, queue files of 50 rows, an index of 60 entries, async flush."""
    settings: dict[str, Any] = {
        "root": root,
        "segment_bytes": 8192,
        "queue_file_bytes": 50 * 20,
        "index_slot_count": 40,
        "index_entry_count": 60,
        "flush_disk_type": FlushDiskType.ASYNC_FLUSH,
        "segments_prepared_ahead": False,
        # Damage is planted a moment after it was written, and must be found all the same.
        "sound_ms": 0,
    }
    return StoreConfig(**{**settings, **changes})


def draft(
    number: int,
    *,
    topic: str = "orders",
    queue_id: int = 0,
    body_bytes: int = 100,
    **properties: str,
) -> MessageDraft:
    """A message whose body begins with its number."""
    named = {"UNIQ_KEY": f"ID{number:06d}", "KEYS": f"k{number % 10}", "TAGS": f"t{number % 3}"}
    return MessageDraft(
        topic.encode(),
        queue_id,
        f"{number:08d}".encode().ljust(body_bytes, b"."),
        encode_properties({**named, **properties}),
        born_timestamp_ms=1_760_000_000_000 + number,
    )


def append_numbers(store: MessageStore, first: int, last: int, **options: Any) -> None:
    """Append messages one run at a time and derive them."""
    store.append([draft(number, **options) for number in range(first, last)])
    store.dispatch()


def numbers_of(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[int]:
    """Every message of a queue from its minimum on, by the number in its body."""
    found: list[int] = []
    queue_offset = store.queue_offset_min(topic.encode(), queue_id)
    while queue_offset < store.queue_offset_max(topic.encode(), queue_id):
        result = store.get(topic.encode(), queue_id, queue_offset)
        messages = result.messages
        assert result.next_queue_offset > queue_offset, result.status
        found += [int(message.body[:8]) for message in messages]
        queue_offset = result.next_queue_offset
    return found

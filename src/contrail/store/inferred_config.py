"""The settings a folder was written with, as far as its files tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS
from contrail.store.config import StoreConfig
from contrail.store.reader import StoreReader

_INDEX_ENTRIES_PER_SLOT = 4


def inferred_config(
    reader: StoreReader,
    *,
    log_folders: tuple[Path, ...] = (),
    delay_levels: str = DEFAULT_DELAY_LEVELS,
) -> StoreConfig:
    """Sizes come from the files' lengths; without files, the defaults stand."""
    config = StoreConfig(
        root=reader.root,
        commit_log_paths=log_folders,
        segment_bytes=max(reader.segment_bytes, 4096),
        queue_ext_enabled=(reader.root / "consumequeue_ext").exists(),
        delay_levels=delay_levels,
    )
    slot_count = reader.index_slot_count
    entry_counts = [file.entry_limit for file in reader.index_files()]
    return replace(
        config,
        queue_file_bytes=_file_bytes(reader, is_batch=False) or config.queue_file_bytes,
        batch_queue_file_bytes=_file_bytes(reader, is_batch=True) or config.batch_queue_file_bytes,
        index_slot_count=slot_count,
        index_entry_count=max(entry_counts, default=slot_count * _INDEX_ENTRIES_PER_SLOT),
    )


def _file_bytes(reader: StoreReader, *, is_batch: bool) -> int:
    lengths = [q.file_bytes for q in reader.queues.values() if q.is_batch == is_batch]
    return max(lengths, default=0)

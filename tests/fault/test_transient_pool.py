"""The transient pool: appends to memory, committed to the file, then synced."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import ConfigError, StorePoisoned
from contrail.runtime.files import FileSystem
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.disk import buffer_pool
from contrail.store.log import MessageStore
from tests.fakes.failing_files import FailingFileSystem, Fault
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config

NEVER_MS = 3_600_000


def pool_config(root: Path, **changes: Any) -> StoreConfig:
    """A pool that commits only on request, unless a test sets otherwise."""
    settings: dict[str, Any] = {
        "transient_pool_enabled": True,
        "commit_interval_ms": NEVER_MS,
        "commit_thorough_interval_ms": NEVER_MS,
    }
    return small_config(root, **{**settings, **changes})


@pytest.mark.proves("store.files.transient-pool")
def test_readers_see_records_once_they_are_committed_to_the_file(tmp_path: Path) -> None:
    with MessageStore.open(pool_config(tmp_path)) as store:
        run = store.append([draft(number) for number in range(5)])
        assert store.dispatch() == 0
        assert store.queue_offset_max(b"orders", 0) == 0
        assert store.wait_flushed(run.physical_end, 30_000)
        store.dispatch()
        assert numbers_of(store) == list(range(5))


@pytest.mark.proves("store.files.transient-pool")
def test_the_log_reaches_the_file_by_itself_after_an_interval(tmp_path: Path) -> None:
    config = pool_config(tmp_path, commit_interval_ms=1, commit_thorough_interval_ms=1)
    with MessageStore.open(config) as store:
        run = store.append_one(draft(1))
        pause = threading.Event()
        for _ in range(30_000):
            if store.visible_end >= run.physical_end or pause.wait(0.001):
                break
        assert store.visible_end == run.physical_end


def test_everything_is_there_after_a_close_across_many_segments(tmp_path: Path) -> None:
    with MessageStore.open(pool_config(tmp_path, transient_pool_size=2)) as store:
        for first in range(0, 300, 10):
            store.append([draft(number) for number in range(first, first + 10)])
    with MessageStore.open(small_config(tmp_path)) as store:
        assert numbers_of(store) == list(range(300))


def test_a_killed_process_loses_the_pool_and_nothing_else(tmp_path: Path) -> None:
    with MessageStore.open(pool_config(tmp_path / "live")) as store:
        run = store.append([draft(number) for number in range(20)])
        store.wait_flushed(run.physical_end)
        store.append([draft(number) for number in range(20, 30)])
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    with MessageStore.open(pool_config(tmp_path / "killed")) as store:
        assert numbers_of(store) == list(range(20))
        append_numbers(store, 50, 52)
        store.wait_flushed(store.physical_end)
        store.dispatch()
        assert numbers_of(store) == [*range(20), 50, 51]


def test_a_commit_that_fails_poisons_the_store(tmp_path: Path) -> None:
    files = FailingFileSystem(Fault("pwrite", "commitlog", error=errno.EIO))
    store = MessageStore.open(pool_config(tmp_path), files=files)
    run = store.append_one(draft(1))
    with pytest.raises(StorePoisoned, match="transient pool"):
        store.wait_flushed(run.physical_end, 30_000)
    with pytest.raises(StorePoisoned):
        store.append_one(draft(2))
    store.close()


@pytest.mark.proves("store.files.transient-pool")
def test_a_buffer_that_cannot_be_locked_is_used_and_the_store_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_pool, "_lock_in_memory", lambda buffer: "Cannot allocate memory")
    with MessageStore.open(pool_config(tmp_path)) as store:
        append_numbers(store, 0, 3)
        assert any("LimitMEMLOCK" in note for note in store.notes)


def test_a_buffer_is_locked_where_that_is_permitted() -> None:
    pool = buffer_pool.BufferPool(1, 1 << 16)
    buffer = pool.take()
    assert buffer is not None and len(buffer) == 1 << 16
    assert pool.take() is None, "there was only one"
    pool.give_back(buffer)
    assert pool.take() is buffer


def test_the_pool_cannot_go_with_synchronous_flush(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="transientStorePoolEnable"):
        pool_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)


def test_without_the_pool_nothing_is_noted(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path), files=FileSystem()) as store:
        append_numbers(store, 0, 3)
        assert store.notes == []

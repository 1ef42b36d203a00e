"""Durable means synced: no send is acknowledged before, and a failed sync poisons the store."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from contrail.errors import StorePoisoned
from contrail.runtime.files import FileSystem
from contrail.store.config import FlushDiskType
from contrail.store.log import MessageStore
from tests.fault.store_setup import draft, numbers_of, small_config


class GatedSync(FileSystem):
    """Holds back every sync of a log segment until the gate is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.sync_count = 0
        self.fails = False

    def fdatasync(self, fd: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{fd}"):
            self.entered.set()
            assert self.gate.wait(30)
            self.sync_count += 1
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")
        super().fdatasync(fd)


def sync_store(root: Path, files: FileSystem) -> MessageStore:
    config = small_config(root, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    return MessageStore.open(config, files=files)


@pytest.mark.proves("store.queues.durable-reads")
def test_a_waiter_is_released_only_when_its_bytes_are_synced(tmp_path: Path) -> None:
    files = GatedSync()
    with sync_store(tmp_path, files) as store:
        files.gate.clear()
        run = store.append_one(draft(1))
        assert not store.wait_flushed(run.physical_end, timeout_ms=20)
        assert store.dispatch() == 0, "readers must not see what is not durable"
        files.gate.set()
        assert store.wait_flushed(run.physical_end, timeout_ms=30_000)
        store.dispatch()
        assert numbers_of(store) == [1]


def test_a_producer_is_told_by_the_flush_policy(tmp_path: Path) -> None:
    files = GatedSync()
    config = small_config(
        tmp_path / "sync", flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout_ms=20
    )
    with MessageStore.open(config, files=files) as store:
        files.gate.clear()
        run = store.append_one(draft(1))
        assert not store.wait_acknowledged(run), "the sync did not return in time"
        files.gate.set()
        assert store.wait_flushed(run.physical_end, 30_000)
        assert store.wait_acknowledged(run)
    with MessageStore.open(small_config(tmp_path / "async"), files=files) as store:
        files.gate.clear()
        assert store.wait_acknowledged(store.append_one(draft(1)))
        files.gate.set()


@pytest.mark.proves("store.files.group-commit")
def test_sends_that_arrive_during_a_sync_share_the_next_sync(tmp_path: Path) -> None:
    files = GatedSync()
    with sync_store(tmp_path, files) as store:
        files.gate.clear()
        files.entered.clear()
        first = store.append_one(draft(0))
        assert files.entered.wait(30)
        begun = files.sync_count
        runs = [store.append_one(draft(number)) for number in range(1, 20)]
        assert store.flushed_end < first.physical_end
        files.gate.set()
        assert store.wait_flushed(runs[-1].physical_end, timeout_ms=30_000)
        assert files.sync_count - begun == 2


@pytest.mark.proves("store.files.poisoned")
def test_a_failed_sync_poisons_the_store_and_nothing_is_acknowledged_after_it(
    tmp_path: Path,
) -> None:
    files = GatedSync()
    store = sync_store(tmp_path, files)
    good = store.append_one(draft(1))
    assert store.wait_flushed(good.physical_end, 30_000)
    files.fails = True
    bad = store.append_one(draft(2))
    with pytest.raises(StorePoisoned, match="Input/output error"):
        store.wait_flushed(bad.physical_end, 30_000)
    files.fails = False
    assert store.flushed_end == good.physical_end
    with pytest.raises(StorePoisoned):
        store.append_one(draft(3))
    with pytest.raises(StorePoisoned):
        store.wait_flushed(bad.physical_end, 1000)
    store.close()
    assert (tmp_path / "abort").exists(), "a poisoned store was not closed in order"
    with sync_store(tmp_path, FileSystem()) as store:
        assert numbers_of(store)[0] == 1


def test_the_listeners_get_each_flush_and_the_poisoning(tmp_path: Path) -> None:
    files = GatedSync()
    flushed: list[int] = []
    poisoned: list[StorePoisoned] = []
    config = small_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store = MessageStore.open(
        config, files=files, on_flushed=flushed.append, on_poisoned=poisoned.append
    )
    run = store.append_one(draft(1))
    store.wait_flushed(run.physical_end, 30_000)
    files.fails = True
    with pytest.raises(StorePoisoned):
        store.wait_flushed(store.append_one(draft(2)).physical_end, 30_000)
    store.close()
    assert flushed[-1] == run.physical_end
    assert len(poisoned) == 1


@pytest.mark.proves("store.files.async-flush")
def test_under_async_flush_closing_makes_everything_durable(tmp_path: Path) -> None:
    files = GatedSync()
    with MessageStore.open(small_config(tmp_path), files=files) as store:
        store.append([draft(number) for number in range(5)])
        end = store.physical_end
    assert store.flushed_end == end
    assert files.sync_count >= 1

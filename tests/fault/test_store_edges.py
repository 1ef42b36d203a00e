"""Rare uses of a store: deletions before a flush, timeouts, failing listeners, odd folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from contrail.errors import DiskFull, RecordDamaged, StoreClosed, StoreError, StorePoisoned
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore
from tests.fakes.failing_files import FailingFileSystem, Fault
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config
from tests.fault.test_flush import GatedSync


def sync_config(root: Path) -> StoreConfig:
    return small_config(root, flush_disk_type=FlushDiskType.SYNC_FLUSH)


def test_a_deleted_topic_loses_all_records_appended_before_even_unflushed_ones(
    tmp_path: Path,
) -> None:
    with MessageStore.open(sync_config(tmp_path)) as store:
        store.append([draft(number) for number in range(5)])
        store.delete_topic(b"orders")
        run = store.append([draft(number) for number in range(100, 103)])
        store.wait_flushed(run.physical_end)
        store.dispatch()
        assert run.queue_offsets == [0, 1, 2]
        assert numbers_of(store) == [100, 101, 102]


@pytest.mark.proves("store.queues.durable-reads")
def test_a_record_that_is_not_durable_yet_cannot_be_read_by_its_offset(tmp_path: Path) -> None:
    files = GatedSync()
    with MessageStore.open(sync_config(tmp_path), files=files) as store:
        files.gate.clear()
        run = store.append_one(draft(1))
        with pytest.raises(RecordDamaged):
            store.record(run.physical_offsets[0])
        files.gate.set()
        store.wait_flushed(run.physical_end)
        assert store.record(run.physical_offsets[0]).queue_offset == 0


def test_a_closed_store_changes_no_file_any_more(tmp_path: Path) -> None:
    store = MessageStore.open(small_config(tmp_path))
    append_numbers(store, 0, 3)
    store.close()
    with MessageStore.open(small_config(tmp_path)) as second:
        for call in (store.checkpoint, store.tick, store.dispatch):
            with pytest.raises(StoreClosed):
                call()
        with pytest.raises(StoreClosed):
            store.delete_topic(b"orders")
        assert numbers_of(second) == [0, 1, 2]


def test_waiting_for_bytes_that_do_not_exist_times_out_and_harms_nothing(tmp_path: Path) -> None:
    files = GatedSync()
    with MessageStore.open(sync_config(tmp_path), files=files) as store:
        assert not store.wait_flushed(10**9, timeout_ms=20)
        syncs = files.sync_count
        run = store.append_one(draft(1))
        assert store.wait_flushed(run.physical_end, 30_000)
        assert files.sync_count - syncs == 1


def test_a_listener_that_raises_poisons_the_store_instead_of_hanging_it(tmp_path: Path) -> None:
    def broken(position: int) -> None:
        raise RuntimeError("listener bug")

    store = MessageStore.open(sync_config(tmp_path), on_flushed=broken)
    run = store.append_one(draft(1))
    assert store.wait_flushed(run.physical_end, 30_000)
    with pytest.raises(StorePoisoned, match="listener bug"):
        store.wait_flushed(run.physical_end + 1, 30_000)
    store.close()


def test_refusals_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        store._set_disk_full("the disk is full")
        depths = set()
        for _ in range(3):
            with pytest.raises(DiskFull) as refused:
                store.append_one(draft(1))
            depth, trace = 0, refused.value.__traceback__
            while trace is not None:
                depth, trace = depth + 1, trace.tb_next
            depths.add(depth)
        assert len(depths) == 1


def test_full_segments_are_closed_once_they_are_durable(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path, segment_bytes=4096)) as store:
        append_numbers(store, 0, 10)
        store.wait_flushed(store.physical_end)
        before = len(os.listdir("/proc/self/fd"))
        for first in range(10, 1000, 10):
            store.append([draft(number) for number in range(first, first + 10)])
        store.wait_flushed(store.physical_end)
        assert store.physical_end // 4096 > 50
        assert len(os.listdir("/proc/self/fd")) - before < 5


def test_offsets_of_lost_messages_are_not_used_again_after_later_restarts(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with MessageStore.open(config) as store:
        append_numbers(store, 0, 200)
    sorted((tmp_path / "commitlog").iterdir())[1].unlink()
    MessageStore.open(config, accept_loss=True).close()
    MessageStore.open(config).close()
    with MessageStore.open(config) as store:
        run = store.append_one(draft(900))
        assert run.queue_offsets == [200]
        store.dispatch()
        assert numbers_of(store)[-1] == 900
    with MessageStore.open(config) as store:
        assert store.append_one(draft(901)).queue_offsets == [201]


def test_a_checkpoint_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with MessageStore.open(config) as store:
        append_numbers(store, 0, 5)
    for name, field in (
        ("contrail.checkpoint", "recordCrcFrom"),
        ("contrail.queues", "offsetFloors"),
    ):
        rewrite_without(tmp_path / name, field)
    with MessageStore.open(config) as store:
        assert store.recovery.problems == []
        assert numbers_of(store) == list(range(5))


def rewrite_without(path: Path, field: str) -> None:
    """The sealed file as a release that did not know ``field`` would have written it."""
    content = json.loads(path.read_bytes().split(b"\n#sealed")[0])
    del content[field]
    write_state(FileSystem(), path, json.dumps(content).encode(), sealed=True)


def test_a_lock_that_cannot_be_written_is_no_lock(tmp_path: Path) -> None:
    files = FailingFileSystem(Fault("pwrite", "lock"))
    with pytest.raises(StoreError, match="cannot be opened"):
        MessageStore.open(small_config(tmp_path), files=files)
    MessageStore.open(small_config(tmp_path)).close()


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("not a folder")
    with pytest.raises(StoreError, match="root"):
        MessageStore.open(small_config(tmp_path / "root"), files=FileSystem())

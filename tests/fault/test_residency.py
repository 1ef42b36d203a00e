"""Reads of records that have left memory: the store names the missing parts before a read waits."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import Any

import pytest

from contrail.clock import monotonic_ms
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.runtime.files import FilePart, FileSystem
from contrail.store.log import MessageStore
from contrail.store.services.queue_runs import Reach
from contrail.store.services.reading import GetResult
from contrail.store.state.reading import GetStatus
from tests.fakes.cold_files import ColdFileSystem
from tests.fault.store_setup import append_numbers, numbers_of, small_config

ORDERS = b"orders"
STEPS_MAX = 8
LARGE = {"segment_bytes": 64 << 10, "queue_file_bytes": 20 * 3000}


def restarted(root: Path, count: int, **changes: Any) -> tuple[MessageStore, ColdFileSystem]:
    """A store of ``count`` messages in two queues, opened again, with nothing in memory."""
    with MessageStore.open(small_config(root, **changes)) as store:
        for first in range(0, count, 10):
            append_numbers(store, first, first + 10, queue_id=first // 10 % 2)
    files = ColdFileSystem()
    store = MessageStore.open(small_config(root, **changes), files=files)
    files.chill()
    return store, files


def bring_in(store: MessageStore, queue_offset: int, **options: Any) -> int:
    """Bring in the parts that the store names for a read; returns in how many steps."""
    for step in range(STEPS_MAX + 1):
        parts = store.on_disk(ORDERS, 0, queue_offset, **options).parts
        if not parts:
            return step
        for part in parts:
            store.bring_in(part)
    raise AssertionError("the store never has enough")


def log_parts(store: MessageStore, result: GetResult) -> list[FilePart]:
    """Where the records of a result are."""
    found = []
    for record in result.records:
        physical_offset = int.from_bytes(record[28:36], "big")
        [part] = store.record_parts(physical_offset, len(record))
        found.append(part)
    return found


@pytest.mark.parametrize("changes", [{}, LARGE, {"queue_ext_enabled": True}])
@pytest.mark.parametrize(
    "options",
    [
        {"count_max": 1},
        {"count_max": 32},
        {"count_max": 32, "bytes_max": 700},
        {"count_max": 5, "tag_codes": frozenset({ord("t") * 31 + ord("1")})},
    ],
    ids=["one", "many", "few bytes", "a tag"],
)
def test_a_read_waits_for_no_disk_once_its_parts_were_brought_in(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any]
) -> None:
    store, files = restarted(tmp_path, 400, **changes)
    with store:
        for queue_offset in range(0, store.queue_offset_max(ORDERS, 0), 17):
            files.chill()
            assert not store.is_near(ORDERS, 0, queue_offset)
            step_count = bring_in(store, queue_offset, **options)
            files.waits.clear()
            result = store.get(ORDERS, 0, queue_offset, **options)
            if result.status is GetStatus.FOUND:
                assert step_count > 0
            else:
                # The rest of this file's rows have another tag.
                assert result.status is GetStatus.NO_MATCHED_MESSAGE
            assert files.waits == [], "a row had to come from the disk"
            for part in log_parts(store, result):
                assert files.holds(*part), "a record had to come from the disk"


def test_asking_for_missing_parts_waits_for_no_disk(tmp_path: Path) -> None:
    store, files = restarted(tmp_path, 400)
    with store:
        files.waits.clear()
        for queue_offset in range(store.queue_offset_max(ORDERS, 0)):
            store.is_near(ORDERS, 0, queue_offset)
            store.on_disk(ORDERS, 0, queue_offset)
            store.runs(ORDERS, 0).read(queue_offset, 32, 1 << 18, Reach.NEAR, monotonic_ms())
        assert files.waits == []


def test_records_this_process_appended_are_near_and_read_without_waiting(tmp_path: Path) -> None:
    store, _ = restarted(tmp_path, 40, sound_ms=60_000)
    with store:
        old_end = store.queue_offset_max(ORDERS, 0)
        append_numbers(store, 1000, 1010)
        assert not store.is_near(ORDERS, 0, old_end - 1)
        runs = store.runs(ORDERS, 0)
        assert runs.read(old_end - 1, 1, 1 << 18, Reach.NEAR, monotonic_ms()) is None
        assert store.is_near(ORDERS, 0, old_end)
        assert runs.read(old_end, 1, 1 << 18, Reach.NEAR, monotonic_ms()) is not None


def test_offsets_outside_the_queue_need_no_parts(tmp_path: Path) -> None:
    store, _ = restarted(tmp_path, 40)
    with store:
        for queue_id, queue_offset in ((0, -1), (0, 10**6), (7, 0)):
            assert store.is_near(ORDERS, queue_id, queue_offset)
            assert store.on_disk(ORDERS, queue_id, queue_offset).parts == []


def test_a_queue_of_batches_is_found_in_a_few_steps(tmp_path: Path) -> None:
    config = small_config(tmp_path, **LARGE)
    with MessageStore.open(config, batch_topics=frozenset({ORDERS})) as store:
        for _ in range(600):
            store.append_inner_batch(
                MessageDraft(
                    ORDERS, 0, b"x" * 50, encode_properties({"INNER_NUM": "3"}), sys_flag=0xC0
                )
            )
            store.dispatch()
    files = ColdFileSystem()
    with MessageStore.open(config, files=files, batch_topics=frozenset({ORDERS})) as store:
        for queue_offset in (0, 4, 900, 1799):
            files.chill()
            assert bring_in(store, queue_offset, count_max=4) > 0
            files.waits.clear()
            assert store.get(ORDERS, 0, queue_offset, count_max=4).status is GetStatus.FOUND
            assert files.waits == []


def test_a_file_that_retention_takes_meanwhile_is_no_error_for_the_reader(tmp_path: Path) -> None:
    store, _ = restarted(tmp_path, 400)
    with store:
        for part in store.on_disk(ORDERS, 0, 0).parts:
            store.bring_in(part)
        [part] = store.on_disk(ORDERS, 0, 0, count_max=1).parts
        store._segments.remove_first()
        with pytest.raises(FileNotFoundError):
            store.bring_in(part)
        assert store.get(ORDERS, 0, 0).status is GetStatus.MESSAGE_WAS_REMOVING


def test_a_hint_brings_in_old_records_and_is_no_more_than_a_hint(tmp_path: Path) -> None:
    store, files = restarted(tmp_path, 400)
    with store:
        [part] = store.record_parts(100, 200)
        assert not files.holds(*part)
        store.will_need(100, 200)
        assert files.holds(*part)
        store.will_need(store.physical_end, 1 << 30)
        store.will_need(10**15, 10)


def test_everything_is_read_as_before_from_a_cold_store(tmp_path: Path) -> None:
    store, _ = restarted(tmp_path, 400)
    with store:
        wanted = [number for number in range(400) if number // 10 % 2 == 0]
        assert numbers_of(store) == wanted


# The real file system.


@pytest.fixture
def cold_file(tmp_path: Path) -> Path:
    """A file of 64 pages that the system has forgotten."""
    path = tmp_path / "file"
    deadline = time.monotonic() + 10
    with path.open("wb") as file:
        file.write(bytes(64 * mmap.PAGESIZE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # The system keeps a page that is busy at that moment.
        while not _is_cold(path) and time.monotonic() < deadline:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if os.uname().sysname != "Linux" or not _is_cold(path):
        pytest.skip("this file system does not let go of pages: tmpfs, for one")
    return path


def _is_cold(path: Path) -> bool:
    starts = range(0, 64 * mmap.PAGESIZE, mmap.PAGESIZE)
    return all(_absent(path, start, start + 1) == start for start in starts)


def _absent(path: Path, start: int, end: int) -> int:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return FileSystem().absent_at(mapped, start, end)


def test_the_system_says_which_pages_are_in_memory(cold_file: Path) -> None:
    page, end = mmap.PAGESIZE, 64 * mmap.PAGESIZE
    assert _absent(cold_file, 10, end) == 10
    with cold_file.open("rb") as file:
        # The question makes the system fetch the page, and a fast disk is done before the answer.
        found = FileSystem().pread_resident(file.fileno(), 10, 10 * page)
        assert found is None or _absent(cold_file, 10 * page, 10 * page + 10) == 10 * page + 10
        FileSystem().bring_in(FilePart(cold_file, 0, end))
        assert _absent(cold_file, 10, end) == end
        assert FileSystem().pread_resident(file.fileno(), 10, 10 * page) == bytes(10)


@pytest.mark.parametrize("refusal", [BlockingIOError(), None])
def test_bytes_not_or_only_partly_in_memory_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: OSError | None
) -> None:
    def preadv(fd: int, buffers: tuple[bytearray], position: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        if refusal is not None:
            raise refusal
        return len(buffers[0]) - 1

    monkeypatch.setattr(os, "preadv", preadv)
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with path.open("rb") as file:
        assert FileSystem().pread_resident(file.fileno(), 10, 0) is None


def test_a_map_that_was_asked_about_can_be_closed(cold_file: Path) -> None:
    with cold_file.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        FileSystem().absent_at(mapped, 0, 10)
        # Raises while a buffer of the map is still held.
        mapped.close()

"""Segments prepared ahead: zeros never overwrite records, and a full disk only refuses appends."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import DiskFull, StoreError, StorePoisoned, StoreReadOnly
from contrail.runtime.files import FileSystem
from contrail.store import log
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.disk.segments import segment_name
from contrail.store.log import MessageStore
from contrail.store.services import zeros_ahead
from contrail.store.services.prepare import SegmentPreparer
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config

SEGMENT_BYTES = 4 << 20


class SlowZeros(FileSystem):
    """Stops before the second step of zeros until the test lets it go on."""

    def __init__(self) -> None:
        self.first_step = threading.Event()
        self.go_on = threading.Event()
        self.steps = 0

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if len(data) == 1 << 20:
            self.steps += 1
            if self.steps == 2:
                self.first_step.set()
                assert self.go_on.wait(30)
        return super().pwrite(fd, data, position)


class NoRoom(FileSystem):
    """A disk that can be full and free again."""

    full = False

    def allocate(self, fd: int, byte_count: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(fd, byte_count)


class RoomForOne(FileSystem):
    """A disk that, once it is full, takes one more segment."""

    full = False
    left_count = 1

    def allocate(self, fd: int, byte_count: int) -> None:
        if self.full:
            if not self.left_count:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left_count -= 1
        super().allocate(fd, byte_count)


class NoDescriptors(FileSystem):
    """A process that may have no descriptor left for another segment."""

    are_none_left = False

    def open(self, path: Path, **options: Any) -> int:
        if self.are_none_left and path.parent.name == "commitlog":
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, **options)


def synced_config(root: Path) -> StoreConfig:
    """Segments so large that their zeros take a while."""
    return small_config(
        root,
        segment_bytes=64 << 20,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        segments_prepared_ahead=True,
    )


def preparer(files: FileSystem, root: Path) -> SegmentPreparer:
    return SegmentPreparer(
        files, segment_bytes=SEGMENT_BYTES, path_for=lambda start: root / segment_name(start)
    )


@pytest.fixture
def close_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros are written right ahead of the log, so that a small segment has room for them."""
    monkeypatch.setattr(zeros_ahead, "_DISTANCE_BYTES", 0)


@pytest.mark.proves("store.log.next-segment", "apache.peers.warm-up")
@pytest.mark.usefixtures("close_by")
def test_a_segment_taken_early_is_not_overwritten_with_zeros_later(tmp_path: Path) -> None:
    files = SlowZeros()
    prepare = preparer(files, tmp_path)
    prepare.prepare(0)
    assert files.first_step.wait(30)
    segment = prepare.take(0)
    # The worker is about to write its second MiB; the log is not going there yet.
    prepare.reach(1 << 20)
    files.pwrite(segment.fd, b"data" * 256, 0)
    waiting = threading.Thread(target=prepare.reach, args=((2 << 20) + 4096,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive(), "the log waits for the zeros that are where it goes"
    files.go_on.set()
    waiting.join(30)
    assert not waiting.is_alive()
    files.pwrite(segment.fd, b"more" * 1024, 2 << 20)
    job = prepare._taken
    assert job is not None
    assert job.finished.wait(30)
    prepare.close()
    assert bytes(segment.view(0, 4)) == b"data"
    assert bytes(segment.view(2 << 20, 4096)) == b"more" * 1024
    assert files.steps == 3, "two whole steps before the log came, one and a rest after"


@pytest.mark.usefixtures("close_by")
def test_zeros_and_log_race_through_a_segment_and_the_log_is_whole(tmp_path: Path) -> None:
    prepare = preparer(FileSystem(), tmp_path)
    prepare.prepare(0)
    segment = prepare.take(0)
    run = b"r" * 50_000
    for position in range(0, SEGMENT_BYTES - len(run), len(run)):
        prepare.reach(position + len(run))
        os.pwrite(segment.fd, run, position)
    prepare.close()
    whole = SEGMENT_BYTES // len(run) * len(run)
    assert bytes(segment.view(0, whole)) == b"r" * whole


def test_zeros_stop_when_the_store_closes(tmp_path: Path) -> None:
    files = SlowZeros()
    prepare = preparer(files, tmp_path)
    prepare.prepare(0)
    assert files.first_step.wait(30)
    prepare.take(0)
    files.go_on.set()
    prepare.close()
    assert files.steps <= 3
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [SEGMENT_BYTES]


def test_zeros_stop_when_a_poisoned_store_is_released(tmp_path: Path) -> None:
    store = MessageStore.open(synced_config(tmp_path))
    append_numbers(store, 0, 3)
    job = store._appender._preparer._taken or store._appender._preparer._job
    assert job is not None
    store._poison(StorePoisoned("the disk failed"))
    store.close()
    assert job.finished.is_set(), "whoever opens the folder next would be written over"


def test_zeros_stop_when_a_store_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[threading.Event] = []
    prepare = SegmentPreparer.prepare

    def noted(preparer: SegmentPreparer, start: int) -> None:
        prepare(preparer, start)
        assert preparer._job is not None
        jobs.append(preparer._job.finished)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SegmentPreparer, "prepare", noted)
    monkeypatch.setattr(log, "write_abort", no_room)
    with pytest.raises(StoreError, match="cannot be opened"):
        MessageStore.open(synced_config(tmp_path))
    assert [finished.is_set() for finished in jobs] == [True]


def test_a_segment_in_use_is_not_removed_as_one_that_was_prepared(tmp_path: Path) -> None:
    """A run over three segments that finds no room for the third leaves the second behind."""
    files = RoomForOne()
    config = small_config(tmp_path, segments_prepared_ahead=True)
    with MessageStore.open(config, files=files) as store:
        append_numbers(store, 0, 2)
        files.full = True
        with pytest.raises(DiskFull):
            append_numbers(store, 100, 180)
        files.full = False
        for number in range(2, 62):
            append_numbers(store, number, number + 1)
        assert numbers_of(store) == list(range(62))
    with MessageStore.open(config) as store:
        assert numbers_of(store) == list(range(62))


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_no_descriptor_for_the_next_segment_refuses_appends_and_passes_by_itself(
    tmp_path: Path, flush: FlushDiskType
) -> None:
    files = NoDescriptors()
    config = small_config(tmp_path, flush_disk_type=flush, segments_prepared_ahead=True)
    with MessageStore.open(config, files=files) as store:
        append_numbers(store, 0, 30)
        files.are_none_left = True
        first = 30
        refusal: StoreReadOnly | None = None
        while refusal is None and first < 200:
            try:
                store.append([draft(first)])
                first += 1
            except StoreReadOnly as error:
                refusal = error
        assert "cannot be opened now" in str(refusal)
        assert store.poisoned is None
        files.are_none_left = False
        store.append([draft(number) for number in range(first, 200)])
        store.wait_flushed(store.physical_end)
        store.dispatch()
        assert numbers_of(store) == list(range(200))


def test_a_segment_whose_zeros_cannot_be_written_still_takes_records(tmp_path: Path) -> None:
    class NoZeros(FileSystem):
        def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
            raise OSError(errno.EIO, "Input/output error")

    prepare = preparer(NoZeros(), tmp_path)
    prepare.prepare(0)
    segment = prepare.take(0)
    prepare.reach(SEGMENT_BYTES)
    assert segment.byte_count == SEGMENT_BYTES
    prepare.close()


def test_a_prepared_segment_that_the_log_never_took_is_removed(tmp_path: Path) -> None:
    prepare = preparer(FileSystem(), tmp_path)
    prepare.prepare(0)
    prepare.close()
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_the_next_segment_refuses_appends_and_passes_by_itself(tmp_path: Path) -> None:
    files = NoRoom()
    with MessageStore.open(small_config(tmp_path), files=files) as store:
        append_numbers(store, 0, 20)
        files.full = True
        with pytest.raises(DiskFull, match="fileReservedTime"):
            append_numbers(store, 20, 80)
        assert store.poisoned is None
        assert numbers_of(store) == list(range(20)), "reads go on, nothing of the run was stored"
        assert len(list((tmp_path / "commitlog").iterdir())) == 1
        files.full = False
        append_numbers(store, 20, 80)
        assert numbers_of(store) == list(range(80))

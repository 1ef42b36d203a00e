"""Segments prepared ahead: never in the way, never over data, and a full disk is no disaster."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from contrail.errors import DiskFull
from contrail.runtime.files import FileSystem
from contrail.store.disk.segments import Segment, segment_name
from contrail.store.log import MessageStore
from contrail.store.services.prepare import SegmentPreparer
from tests.fault.store_setup import append_numbers, numbers_of, small_config

SEGMENT_BYTES = 4 << 20


class SlowZeros(FileSystem):
    """Stops before the second step of zeros until told to go on."""

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


def preparer(files: FileSystem, root: Path) -> SegmentPreparer:
    return SegmentPreparer(
        files, segment_bytes=SEGMENT_BYTES, path_for=lambda start: root / segment_name(start)
    )


def test_a_segment_taken_early_is_not_overwritten_with_zeros_later(tmp_path: Path) -> None:
    files = SlowZeros()
    prepare = preparer(files, tmp_path)
    prepare.prepare(0)
    assert files.first_step.wait(30)
    job = prepare._job
    assert job is not None
    taken: list[Segment] = []
    taker = threading.Thread(target=lambda: taken.append(prepare.take(0)))
    taker.start()
    # The worker goes on only once the segment is asked for, in the middle of its zeros.
    assert job.taken.wait(30)
    files.go_on.set()
    taker.join(30)
    segment = taken[0]
    assert files.steps == 2, "the worker stopped at its step"
    files.pwrite(segment.fd, b"data" * 1024, 3 << 20)
    assert bytes(segment.view(3 << 20, 4)) == b"data"
    prepare.close()


def test_a_prepared_segment_that_nobody_took_is_removed(tmp_path: Path) -> None:
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

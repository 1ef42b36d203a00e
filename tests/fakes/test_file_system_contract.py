"""The contract of a FileSystem, asked of the real one and of every fake."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.runtime.files import FileSystem, opened
from tests.fakes.failing_files import FailingFileSystem, Fault
from tests.fakes.recording_files import (
    Created,
    FolderMade,
    FolderSynced,
    RecordingFileSystem,
    Removed,
    Renamed,
    Resized,
    Synced,
    Wrote,
)

MAKERS: dict[str, Callable[[Path], FileSystem]] = {
    "real": lambda root: FileSystem(),
    "recording": RecordingFileSystem,
    "failing, unarmed": lambda root: FailingFileSystem(),
}


@pytest.fixture(params=MAKERS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return MAKERS[request.param](tmp_path)


def test_written_values_are_read_back(files: FileSystem, tmp_path: Path) -> None:
    with opened(files, tmp_path / "a", create=True) as fd:
        assert files.pwrite(fd, memoryview(b"hello"), 3) == 5
        files.fdatasync(fd)
        files.fsync(fd)
        assert files.pread(fd, 10, 0) == b"\0\0\0hello"
        assert files.size(fd) == 8
        with files.map_read(fd, 8) as mapped:
            assert mapped[3:8] == b"hello"
    assert files.read_bytes(tmp_path / "a") == b"\0\0\0hello"


def test_truncate_sets_the_length_and_allocate_only_grows_it(
    files: FileSystem, tmp_path: Path
) -> None:
    with opened(files, tmp_path / "a", create=True) as fd:
        files.truncate(fd, 100)
        files.allocate(fd, 50)
        assert files.size(fd) == 100
        files.allocate(fd, 200)
        assert files.size(fd) == 200
        files.truncate(fd, 10)
        assert files.size(fd) == 10


def test_names_come_and_go(files: FileSystem, tmp_path: Path) -> None:
    files.make_folder(tmp_path / "x" / "y")
    files.make_folder(tmp_path / "x" / "y")
    with opened(files, tmp_path / "x" / "one", create=True):
        pass
    with opened(files, tmp_path / "x" / "two", create=True):
        pass
    files.rename(tmp_path / "x" / "one", tmp_path / "x" / "two")
    files.sync_folder(tmp_path / "x")
    assert [entry.name for entry in files.entries(tmp_path / "x")] == ["two", "y"]
    files.unlink(tmp_path / "x" / "two")
    files.remove_folder(tmp_path / "x" / "y")
    assert files.entries(tmp_path / "x") == []
    assert files.entries(tmp_path / "nowhere") == []
    assert not files.exists(tmp_path / "x" / "two")


def test_a_missing_file_is_not_created_unasked(files: FileSystem, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "missing")


def test_the_usage_is_a_share_and_the_modification_time_is_milliseconds(
    files: FileSystem, tmp_path: Path
) -> None:
    with opened(files, tmp_path / "a", create=True):
        pass
    assert 0 <= files.usage_ratio(tmp_path) <= 1
    assert files.modified_ms(tmp_path / "a") > 1_600_000_000_000


_LOCK_FROM_OUTSIDE = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        sys.exit("refused")
"""


def _locked_from_outside(path: Path) -> bool:
    command = [sys.executable, "-c", _LOCK_FROM_OUTSIDE, str(path)]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_a_lock_is_refused_to_another_process(files: FileSystem, tmp_path: Path) -> None:
    with opened(files, tmp_path / "lock", create=True) as fd:
        assert files.lock_exclusively(fd)
        assert not _locked_from_outside(tmp_path / "lock")
    assert _locked_from_outside(tmp_path / "lock")


def test_the_recording_holds_every_change_in_order(tmp_path: Path) -> None:
    files = RecordingFileSystem(tmp_path)
    files.make_folder(tmp_path / "x" / "y")
    with opened(files, tmp_path / "x" / "a", create=True) as fd:
        files.allocate(fd, 4096)
        files.pwrite(fd, b"abc", 7)
        files.fdatasync(fd)
        files.truncate(fd, 9)
    files.rename(tmp_path / "x" / "a", tmp_path / "x" / "b")
    files.sync_folder(tmp_path / "x")
    files.unlink(tmp_path / "x" / "b")
    assert files.operations == [
        FolderMade(tmp_path / "x"),
        FolderMade(tmp_path / "x" / "y"),
        Created(tmp_path / "x" / "a", 0),
        Resized(0, 4096, True),
        Wrote(0, 7, b"abc"),
        Synced(0, 5),
        Resized(0, 9, False),
        Renamed(tmp_path / "x" / "a", tmp_path / "x" / "b"),
        FolderSynced(tmp_path / "x", 8),
        Removed(tmp_path / "x" / "b"),
    ]


def test_the_recording_starts_from_the_files_that_existed(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"was here")
    files = RecordingFileSystem(tmp_path)
    with opened(files, tmp_path / "old") as fd:
        files.pwrite(fd, b"W", 0)
    assert files.baseline.contents[files.baseline.names[tmp_path / "old"]] == b"was here"
    assert files.operations == [Wrote(0, 0, b"W")]


def test_a_fault_strikes_the_nth_matching_operation_only(tmp_path: Path) -> None:
    files = FailingFileSystem(Fault("pwrite", "log", nth=2))
    with (
        opened(files, tmp_path / "log", create=True) as log,
        opened(files, tmp_path / "queue", create=True) as queue,
    ):
        files.pwrite(log, b"1", 0)
        files.pwrite(queue, b"1", 0)
        with pytest.raises(OSError) as caught:
            files.pwrite(log, b"2", 1)
        assert caught.value.errno == errno.EIO
        files.pwrite(log, b"3", 1)
    assert (tmp_path / "log").read_bytes() == b"13"


def test_a_short_write_stores_the_part_it_admits(tmp_path: Path) -> None:
    files = FailingFileSystem(Fault("pwrite", short_bytes=2))
    with opened(files, tmp_path / "log", create=True) as fd:
        assert files.pwrite(fd, b"hello", 0) == 2
    assert (tmp_path / "log").read_bytes() == b"he"


@pytest.mark.parametrize(
    "operation", ["fdatasync", "fsync", "truncate", "allocate", "sync_folder", "rename", "unlink"]
)
def test_every_kind_of_operation_can_be_made_to_fail(operation: str, tmp_path: Path) -> None:
    files = FailingFileSystem(Fault(operation, error=errno.ENOSPC))
    path = tmp_path / "a"
    calls: dict[str, Callable[[int], object]] = {
        "fdatasync": files.fdatasync,
        "fsync": files.fsync,
        "truncate": lambda fd: files.truncate(fd, 1),
        "allocate": lambda fd: files.allocate(fd, 1),
        "sync_folder": lambda fd: files.sync_folder(tmp_path),
        "rename": lambda fd: files.rename(path, tmp_path / "b"),
        "unlink": lambda fd: files.unlink(path),
    }
    with opened(files, path, create=True) as fd, pytest.raises(OSError) as caught:
        calls[operation](fd)
    assert caught.value.errno == errno.ENOSPC
    assert path.exists()

"""The model disk itself: what it must keep, what it may lose."""

from __future__ import annotations

import random
from pathlib import Path

from contrail.runtime.files import opened
from tests.fakes.recording_files import RecordingFileSystem
from tests.fault.campaigns.crash_states import (
    PAGE_BYTES,
    Disk,
    Survival,
    everything_survives,
    materialise,
    nothing_survives,
    some_survive,
)


def _after(files: RecordingFileSystem, survival: Survival) -> dict[str, bytes | None]:
    disk = Disk(files.baseline)
    for index, operation in enumerate(files.operations):
        disk.follow(index, operation)
    found = disk.crash(survival)
    return {str(path.relative_to(files.root)): held for path, held in found.items()}


def test_without_a_sync_no_write_need_survive(tmp_path: Path) -> None:
    files = RecordingFileSystem(tmp_path)
    with opened(files, tmp_path / "a", create=True) as fd:
        files.pwrite(fd, b"data", 0)
    assert _after(files, nothing_survives) == {".": None}
    assert _after(files, everything_survives) == {".": None, "a": b"data"}


def test_synced_data_needs_a_synced_name_too(tmp_path: Path) -> None:
    files = RecordingFileSystem(tmp_path)
    with opened(files, tmp_path / "a", create=True) as fd:
        files.pwrite(fd, b"data", 0)
        files.fdatasync(fd)
    assert "a" not in _after(files, nothing_survives)
    files.sync_folder(tmp_path)
    assert _after(files, nothing_survives)["a"] == b"data"


def test_a_file_in_an_unsynced_folder_is_lost_with_it(tmp_path: Path) -> None:
    files = RecordingFileSystem(tmp_path)
    files.make_folder(tmp_path / "x")
    with opened(files, tmp_path / "x" / "a", create=True) as fd:
        files.fsync(fd)
    files.sync_folder(tmp_path / "x")
    assert _after(files, nothing_survives) == {".": None}
    files.sync_folder(tmp_path)
    assert _after(files, nothing_survives) == {".": None, "x": None, "x/a": b""}


def test_a_rename_is_the_old_or_the_new_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    files = RecordingFileSystem(tmp_path)
    with opened(files, tmp_path / "a.tmp", create=True) as fd:
        files.pwrite(fd, b"new", 0)
        files.fsync(fd)
    files.rename(tmp_path / "a.tmp", tmp_path / "a")
    assert _after(files, nothing_survives) == {".": None, "a": b"old"}
    assert _after(files, everything_survives) == {".": None, "a": b"new"}
    seen = {_after(files, some_survive(random.Random(seed)))["a"] for seed in range(50)}
    assert seen == {b"old", b"new"}


def test_a_removed_name_may_come_back_until_the_folder_is_synced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    files = RecordingFileSystem(tmp_path)
    files.unlink(tmp_path / "a")
    assert _after(files, nothing_survives) == {".": None, "a": b"old"}
    files.sync_folder(tmp_path)
    assert _after(files, nothing_survives) == {".": None}


def test_pages_of_one_write_are_lost_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(4 * PAGE_BYTES))
    files = RecordingFileSystem(tmp_path)
    with opened(files, tmp_path / "a") as fd:
        files.pwrite(fd, b"\1" * 4 * PAGE_BYTES, 0)
    seen = set()
    for seed in range(200):
        held = _after(files, some_survive(random.Random(seed)))["a"]
        assert held is not None
        seen.add(tuple(held[page * PAGE_BYTES] for page in range(4)))
        assert all(
            len(set(held[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])) == 1 for page in range(4)
        )
    assert (1, 0, 1, 0) in seen and (0, 0, 0, 0) in seen and (1, 1, 1, 1) in seen


def test_a_page_never_holds_a_later_write_without_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(PAGE_BYTES))
    files = RecordingFileSystem(tmp_path)
    with opened(files, tmp_path / "a") as fd:
        for position in range(5):
            files.pwrite(fd, b"x", position)
    seen = set()
    for seed in range(300):
        held = _after(files, some_survive(random.Random(seed)))["a"]
        assert held is not None
        seen.add(held[:5])
    assert seen == {b"x" * count + bytes(5 - count) for count in range(6)}


def test_a_sync_covers_only_writes_made_before_it_began(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10))
    files = RecordingFileSystem(tmp_path)
    with opened(files, tmp_path / "a") as fd:
        files.pwrite(fd, b"1", 0)
        files.fdatasync(fd)
        files.pwrite(fd, b"2", 1)
    assert _after(files, nothing_survives)["a"] == b"1" + bytes(9)


def test_a_state_is_laid_out_as_files(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    files = RecordingFileSystem(source)
    files.make_folder(source / "x" / "y")
    with opened(files, source / "x" / "a", create=True) as fd:
        files.truncate(fd, 5)
    disk = Disk(files.baseline)
    for index, operation in enumerate(files.operations):
        disk.follow(index, operation)
    assert disk.unsynced_count == 4
    materialise(disk.crash(everything_survives), source=source, target=target)
    assert (target / "x" / "a").read_bytes() == bytes(5)
    assert (target / "x" / "y").is_dir()

"""Small state files when the process dies, the disk fails or the files are damaged."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import StateFileDamaged
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import StateRead, read_state, write_state
from tests.fakes.failing_files import FailingFileSystem, Fault

OLDER, OLD, NEW = b'{"v":"older"}', b'{"v":"old"}', b'{"v":"new and longer"}'
CHANGES = ("open", "truncate", "pwrite", "fsync", "close", "rename", "sync_folder", "make_folder")
POINTS = (
    "state_file.tmp_created",
    "state_file.tmp_written",
    "state_file.tmp_synced",
    "state_file.backup_made",
    "state_file.renamed",
    "state_file.folder_synced",
)


def whole(data: bytes) -> bytes:
    """The parser of these tests: a torn document has lost its last brace."""
    if not (data.startswith(b"{") and data.endswith(b"}")):
        raise ValueError("no whole document")
    return data


def read(path: Path, *, sealed: bool, **options: Any) -> StateRead[bytes]:
    return read_state(FileSystem(), path, sealed=sealed, parse=whole, **options)


def write_all(path: Path, *contents: bytes, sealed: bool) -> None:
    for content in contents:
        write_state(FileSystem(), path, content, sealed=sealed)


class PowerCut(BaseException):
    """Not an ``Exception``: nothing in the product may catch it."""


class StoppingFileSystem(FileSystem):
    """Stops the process before its nth change to the disk."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._counted(found) if name in CHANGES else found

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                raise PowerCut
            return operation(*arguments, **options)

        return run


@pytest.fixture(params=[True, False], ids=["sealed", "plain"])
def sealed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_written_file_is_read_and_the_one_before_is_kept(tmp_path: Path, sealed: bool) -> None:
    path = tmp_path / "deep" / "config" / "state.json"
    assert read(path, sealed=sealed) == StateRead(None, "none")
    write_all(path, OLD, NEW, sealed=sealed)
    assert read(path, sealed=sealed) == StateRead(NEW, "main")
    assert read(path.with_name("state.json.bak"), sealed=sealed).value == OLD
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["state.json", "state.json.bak"]


def test_a_plain_file_holds_nothing_but_its_content(tmp_path: Path) -> None:
    write_all(tmp_path / "topics.json", NEW, sealed=False)
    assert (tmp_path / "topics.json").read_bytes() == NEW


@pytest.mark.parametrize("before", [(), (OLD,), (OLDER, OLD)], ids=["first", "second", "third"])
def test_a_stop_before_any_step_leaves_the_old_or_the_new_content(
    tmp_path: Path, sealed: bool, before: tuple[bytes, ...]
) -> None:
    old = before[-1] if before else None
    values = []
    for nth in itertools.count(1):
        path = tmp_path / str(nth) / "state.json"
        path.parent.mkdir()
        write_all(path, *before, sealed=sealed)
        try:
            write_state(StoppingFileSystem(nth), path, NEW, sealed=sealed)
        except PowerCut:
            values.append(read(path, sealed=sealed).value)
            write_all(path, NEW, sealed=sealed)
            assert read(path, sealed=sealed) == StateRead(NEW, "main")
        else:
            break
    assert set(values) == {old, NEW}
    assert values == sorted(values, key=lambda value: value == NEW), "never back from new to old"


@pytest.mark.parametrize("lost", [*itertools.product([True, False], repeat=2)], ids=str)
def test_renames_may_reach_the_disk_in_any_order(
    tmp_path: Path, sealed: bool, lost: tuple[bool, bool]
) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLDER, OLD, sealed=sealed)
    with pytest.raises(PowerCut):
        write_state(_StoppedBeforeRenames(), path, NEW, sealed=sealed)
    backup_lost, main_lost = lost
    if not backup_lost:
        os.replace(path, tmp_path / "state.json.bak")
    if not main_lost:
        os.replace(tmp_path / "state.json.tmp", path)
    assert read(path, sealed=sealed).value == (OLD if main_lost else NEW)


class _StoppedBeforeRenames(FileSystem):
    def rename(self, source: Path, target: Path) -> None:
        raise PowerCut


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("operation", "nth"),
    [
        ("create", 1),
        ("truncate", 1),
        ("pwrite", 1),
        ("fsync", 1),
        ("rename", 1),
        ("rename", 2),
        ("sync_folder", 1),
    ],
)
def test_an_error_at_any_step_is_raised_and_leaves_the_old_or_the_new_content(
    tmp_path: Path, sealed: bool, operation: str, nth: int, error: int
) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLDER, OLD, sealed=sealed)
    files = FailingFileSystem(Fault(operation, nth=nth, error=error))
    with pytest.raises(OSError, match="planted") as caught:
        write_state(files, path, NEW, sealed=sealed)
    assert caught.value.errno == error
    assert read(path, sealed=sealed).value == (NEW if operation == "sync_folder" else OLD)
    write_state(files, path, NEW, sealed=sealed)
    assert read(path, sealed=sealed) == StateRead(NEW, "main")


def test_a_short_write_is_continued(tmp_path: Path, sealed: bool) -> None:
    files = FailingFileSystem(Fault("pwrite", short_bytes=3))
    write_state(files, tmp_path / "state.json", NEW, sealed=sealed)
    assert read(tmp_path / "state.json", sealed=sealed).value == NEW


def test_a_longer_file_left_by_a_crash_does_not_show_through(tmp_path: Path, sealed: bool) -> None:
    (tmp_path / "state.json.tmp").write_bytes(b"x" * 10_000)
    write_all(tmp_path / "state.json", NEW, sealed=sealed)
    assert read(tmp_path / "state.json", sealed=sealed).value == NEW


@pytest.mark.proves("store.files.config-files")
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_process_leaves_the_old_or_the_new_content(tmp_path: Path, point: str) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLDER, OLD, sealed=True)
    program = (
        "import sys; from pathlib import Path\n"
        "from contrail.runtime.files import FileSystem\n"
        "from contrail.runtime.state_file import write_state\n"
        "write_state(FileSystem(), Path(sys.argv[1]), sys.argv[2].encode(), sealed=True)\n"
    )
    environment = {**os.environ, "CONTRAIL_CRASH_AT": f"{point}:1", "PYTHONPATH": "src"}
    finished = subprocess.run(
        [sys.executable, "-c", program, str(path), NEW.decode()],
        env=environment,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert finished.returncode == -9
    is_new = point in ("state_file.renamed", "state_file.folder_synced")
    assert read(path, sealed=True).value == (NEW if is_new else OLD)


def test_a_main_file_cut_at_any_byte_falls_back_and_says_so(tmp_path: Path, sealed: bool) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLD, NEW, sealed=sealed)
    full = path.read_bytes()
    for length in range(len(full)):
        path.write_bytes(full[:length])
        found = read(path, sealed=sealed)
        assert (found.value, found.source) == (OLD, "backup")
        assert found.problem is not None
        assert str(path) in found.problem
        assert "backup was read instead" in found.problem


def test_a_sealed_file_with_any_bit_flipped_falls_back(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLD, NEW, sealed=True)
    full = path.read_bytes()
    for position, bit in itertools.product(range(len(full)), range(8)):
        flipped = bytearray(full)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        assert read(path, sealed=True).source == "backup"


@pytest.mark.parametrize("damage", [b"\x00" * 40, b'{"v":"new', b"{}\x00"], ids=repr)
def test_a_damaged_file_is_set_aside_and_its_backup_survives_the_next_write(
    tmp_path: Path, sealed: bool, damage: bytes
) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLD, NEW, sealed=sealed)
    path.write_bytes(damage)
    assert read(path, sealed=sealed).source == "backup"
    assert (tmp_path / "state.json.damaged").read_bytes() == damage
    assert not path.exists()
    write_all(path, NEW, sealed=sealed)
    assert read(path, sealed=sealed) == StateRead(NEW, "main")
    assert read(path.with_name("state.json.bak"), sealed=sealed).value == OLD


def test_a_reader_that_may_not_touch_the_folder_leaves_the_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLD, NEW, sealed=False)
    path.write_bytes(b"{")
    assert read(path, sealed=False, set_aside=False).source == "backup"
    assert path.read_bytes() == b"{"


@pytest.mark.parametrize("damage", [b"", b"{"], ids=["emptied", "torn"])
def test_a_damaged_file_never_becomes_the_backup_unread(
    tmp_path: Path, sealed: bool, damage: bytes
) -> None:
    if damage and not sealed:
        damage = b""  # Without a seal a writer cannot know that a file is torn; a reader does.
    path = tmp_path / "state.json"
    write_all(path, OLD, NEW, sealed=sealed)
    path.write_bytes(damage)
    write_all(path, NEW, sealed=sealed)
    assert read(path.with_name("state.json.bak"), sealed=sealed).value == OLD


@pytest.mark.parametrize("copies", ["both", "main alone", "backup alone"])
def test_when_no_copy_can_be_read_both_are_named_with_the_fix_and_left_alone(
    tmp_path: Path, sealed: bool, copies: str
) -> None:
    path, backup = tmp_path / "state.json", tmp_path / "state.json.bak"
    if copies != "backup alone":
        path.write_bytes(b"{torn")
    if copies != "main alone":
        backup.write_bytes(b"{torn too")
    with pytest.raises(StateFileDamaged) as caught:
        read(path, sealed=sealed)
    text = str(caught.value)
    assert str(path) in text
    assert str(backup) in text
    assert "Restore one of the two" in text
    assert not (tmp_path / "state.json.damaged").exists()


def test_empty_plain_files_hold_nothing_as_for_rocketmq(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.touch()
    found = read(path, sealed=False)
    assert (found.value, found.source) == (None, "none")
    assert found.problem is not None
    (tmp_path / "topics.json.bak").touch()
    assert read(path, sealed=False).source == "none"
    with pytest.raises(StateFileDamaged):
        read(path, sealed=True)


def test_a_bad_sector_under_the_main_file_falls_back(tmp_path: Path, sealed: bool) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLD, NEW, sealed=sealed)
    found = read_state(_Unreadable(errno.EIO), path, sealed=sealed, parse=whole)
    assert (found.value, found.source) == (OLD, "backup")


def test_a_missing_permission_is_not_hidden_behind_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_all(path, OLD, NEW, sealed=False)
    with pytest.raises(PermissionError):
        read_state(_Unreadable(errno.EACCES), path, sealed=False, parse=whole)
    assert read(path, sealed=False).value == NEW


class _Unreadable(FileSystem):
    """Cannot read the main file."""

    def __init__(self, error: int) -> None:
        self._error = error

    def read_bytes(self, path: Path) -> bytes:
        if path.name == "state.json":
            raise OSError(self._error, os.strerror(self._error))
        return super().read_bytes(path)


def test_a_store_copied_between_the_renames_opens_from_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "a" / "state.json"
    write_all(path, OLD, sealed=False)
    os.replace(path, tmp_path / "a" / "state.json.bak")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = read(tmp_path / "b" / "state.json", sealed=False)
    assert (found.value, found.source) == (OLD, "backup")
    assert found.problem is not None
    assert "missing" in found.problem

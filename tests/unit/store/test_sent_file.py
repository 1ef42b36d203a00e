"""The descriptor of the segment that is being sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contrail.runtime.files import FileSystem
from contrail.store.disk.segments import Segment
from contrail.store.disk.sent_file import SentFile


def segment(folder: Path, start: int) -> Segment:
    path = folder / f"{start:020d}"
    path.write_bytes(b"%03d" % start + bytes(97))
    return Segment(FileSystem(), path, start, 100)


def test_a_place_is_a_position_in_the_file_of_its_segment(tmp_path: Path) -> None:
    sent = SentFile(FileSystem())
    first, second = segment(tmp_path, 0), segment(tmp_path, 100)
    assert os.pread(*_read(sent, first, 0)) == b"000"
    assert os.pread(*_read(sent, second, 100)) == b"100"
    assert sent.place(second, 142).position == 42
    sent.close()


def _read(sent: SentFile, segment: Segment, physical_offset: int) -> tuple[int, int, int]:
    fd, position = sent.place(segment, physical_offset)
    return fd, 3, position


def test_one_descriptor_is_open_at_a_time_and_none_in_the_end(tmp_path: Path) -> None:
    sent = SentFile(FileSystem())
    first, second = segment(tmp_path, 0), segment(tmp_path, 100)
    fd = sent.place(first, 0).fd
    assert sent.place(first, 50).fd == fd
    sent.place(second, 100)
    names = {os.readlink(f"/proc/self/fd/{open_fd}") for open_fd in _open_fds()}
    assert str(second.path) in names and str(first.path) not in names
    sent.close()
    sent.close()
    assert str(second.path) not in {os.readlink(f"/proc/self/fd/{fd}") for fd in _open_fds()}


def _open_fds() -> list[str]:
    """Of this process; the listing's own descriptor is closed again."""
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]


def test_the_segments_own_descriptor_may_be_closed_meanwhile(tmp_path: Path) -> None:
    sent, first = SentFile(FileSystem()), segment(tmp_path, 0)
    place = sent.place(first, 0)
    assert first.fd != place.fd
    first.close_descriptor()
    assert os.pread(place.fd, 3, place.position) == b"000"
    sent.close()


def test_a_file_that_is_gone_is_told_and_asked_for_again(tmp_path: Path) -> None:
    sent, first = SentFile(FileSystem()), segment(tmp_path, 0)
    kept = first.path.read_bytes()
    first.path.unlink()
    with pytest.raises(FileNotFoundError):
        sent.place(first, 0)
    first.path.write_bytes(kept)
    assert sent.place(first, 7).position == 7
    sent.close()

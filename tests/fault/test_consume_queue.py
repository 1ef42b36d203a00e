"""Consume queues on real files: layout, duplicates, gaps, damage, crashes and failing disks."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.handles import FileHandles
from contrail.store.disk.row_queue import QueueMark
from contrail.store.state.row_layout import BLANK_ROW

ROWS_PER_FILE = 300
RECORD_BYTES = 100
LOG_END = 1 << 40


class FaultyFiles(FileSystem):
    """Fails every ``pwrite`` while ``error`` is set, and remembers what was synced."""

    def __init__(self) -> None:
        self.error = 0
        self.write_count = 0
        self.sync_count = 0

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self.error:
            raise OSError(self.error, "no")
        self.write_count += 1
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        if self.error:
            raise OSError(self.error, "no")
        self.sync_count += 1
        super().fdatasync(fd)


def queue_at(root: Path, files: FileSystem | None = None) -> ConsumeQueue:
    config = StoreConfig(root=root, queue_file_bytes=ROWS_PER_FILE * 20)
    files = files or FileSystem()
    return ConsumeQueue(
        root / "consumequeue" / "orders" / "0",
        config=config,
        files=files,
        handles=FileHandles(files, 8),
    )


def physical(queue_offset: int) -> int:
    return queue_offset * 3 * RECORD_BYTES


def run(first: int, last: int) -> tuple[int, int, bytearray, int]:
    """Rows for queue offsets ``first`` to ``last``: the queue has every third record of the log."""
    rows = bytearray()
    for queue_offset in range(first, last):
        rows += struct.pack(">qiq", physical(queue_offset), RECORD_BYTES, queue_offset % 7)
    return first, last - first, rows, physical(last - 1) + RECORD_BYTES


def filled(root: Path, first: int, last: int, files: FileSystem | None = None) -> ConsumeQueue:
    queue = queue_at(root, files)
    queue.put(*run(first, last))
    queue.write_pending()
    queue.sync()
    return queue


def reloaded(root: Path, *, limit: int = LOG_END, mark: QueueMark | None = None) -> ConsumeQueue:
    queue = queue_at(root)
    assert queue.load(physical_limit=limit, expected=mark) is None
    return queue


def everything(queue: ConsumeQueue) -> bytes:
    found, queue_offset = b"", queue.queue_offset_min
    while piece := queue.rows(queue_offset, 1 << 20):
        found += piece
        queue_offset += len(piece) // 20
    return found


def files_of(queue: ConsumeQueue) -> list[Path]:
    return sorted(queue.folder.iterdir())


@pytest.mark.proves("store.queues.rows")
def test_rows_lie_at_twenty_times_their_offset_in_full_length_files(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 700)
    first, second, third = files_of(queue)
    assert [path.name for path in (first, second, third)] == [
        "00000000000000000000",
        "00000000000000006000",
        "00000000000000012000",
    ]
    rows = bytes(run(0, 700)[2])
    assert first.read_bytes() + second.read_bytes() + third.read_bytes() == rows.ljust(18000, b"\0")


def test_a_full_file_is_followed_by_the_next_one_only_when_a_row_needs_it(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, ROWS_PER_FILE)
    assert len(files_of(queue)) == 1
    assert reloaded(tmp_path).queue_offset_max == ROWS_PER_FILE


def test_rows_are_readable_before_and_after_they_are_written(tmp_path: Path) -> None:
    queue = queue_at(tmp_path)
    for first in range(0, 650, 50):
        queue.put(*run(first, first + 50))
        assert everything(queue) == bytes(run(0, first + 50)[2])
    queue.write_pending()
    assert everything(queue) == bytes(run(0, 650)[2])
    queue.cool()
    assert everything(queue) == bytes(run(0, 650)[2])


def test_one_read_stays_within_one_file(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 700)
    assert len(queue.rows(290, 100)) == 10 * 20
    assert queue.rows(300, 5) == bytes(run(300, 305)[2])
    assert queue.rows(700, 5) == b""


def test_rows_fed_twice_are_taken_once(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 100)
    assert queue.put(*run(0, 100)) == 0
    assert queue.put(*run(50, 150)) == 50
    assert queue.queue_offset_max == 150
    assert everything(queue) == bytes(run(0, 150)[2])


def test_few_rows_wait_in_memory_and_many_are_written_at_once(tmp_path: Path) -> None:
    files = FaultyFiles()
    queue = queue_at(tmp_path, files)
    queue.put(*run(0, 64))
    assert files.write_count == 0
    assert queue.mark().queue_offset_max == 0
    queue.put(*run(64, 1064))
    assert queue.mark().queue_offset_max == 1064


def test_a_queue_that_starts_above_zero_is_filled_up_to_its_first_row(tmp_path: Path) -> None:
    queue = filled(tmp_path, 310, 320)
    (path,) = files_of(queue)
    assert path.name == "00000000000000006000"
    expected = BLANK_ROW * 10 + bytes(run(310, 320)[2])
    assert path.read_bytes() == expected.ljust(6000, b"\0")
    assert (queue.queue_offset_min, queue.queue_offset_max) == (310, 320)
    again = reloaded(tmp_path)
    assert (again.queue_offset_min, again.queue_offset_max) == (310, 320)


@pytest.mark.parametrize("first", [0, 10, 310])
def test_a_queue_made_after_the_last_mark_is_fed_again_to_the_same_bytes(
    tmp_path: Path, first: int
) -> None:
    queue = filled(tmp_path, first, first + 50)
    before = [path.read_bytes() for path in files_of(queue)]
    for mark in (None, QueueMark(0, 0, 0)):
        again = reloaded(tmp_path, limit=physical(first), mark=mark)
        assert again.physical_end == 0
        assert again.put(*run(first, first + 50)) == 50
        again.write_pending()
        assert [path.read_bytes() for path in files_of(again)] == before
        assert (again.queue_offset_min, again.queue_offset_max) == (first, first + 50)


def test_a_gap_in_the_middle_keeps_later_rows_at_their_offsets(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 10)
    queue.put(*run(400, 410))
    queue.write_pending()
    assert queue.rows(10, 1) == BLANK_ROW
    assert queue.rows(400, 10) == bytes(run(400, 410)[2])
    again = reloaded(tmp_path)
    assert (again.queue_offset_min, again.queue_offset_max) == (0, 410)
    again.correct_minimum(physical(5))
    assert again.queue_offset_min == 5
    again.correct_minimum(physical(11))
    assert again.queue_offset_min == 400


def test_a_record_with_an_impossible_queue_offset_is_left_out(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 10)
    assert queue.put(*run(1 << 32, (1 << 32) + 1)) == 0
    assert queue.queue_offset_max == 10


def test_loading_finds_the_end_with_and_without_a_mark(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 640)
    for mark in (None, queue.mark(), QueueMark(0, 100, physical(99) + RECORD_BYTES)):
        again = reloaded(tmp_path, mark=mark)
        assert again.mark() == queue.mark()
        assert everything(again) == bytes(run(0, 640)[2])


def test_rows_above_the_limit_are_forgotten_for_good(tmp_path: Path) -> None:
    filled(tmp_path, 0, 640)
    queue = reloaded(tmp_path, limit=physical(250))
    assert queue.queue_offset_max == 250
    assert len(files_of(queue)) == 1
    # The log grew again, past where the forgotten rows pointed: they must not count again.
    again = reloaded(tmp_path)
    assert again.queue_offset_max == 250


def test_a_page_lost_in_a_crash_ends_the_queue_before_it(tmp_path: Path) -> None:
    mark = filled(tmp_path, 0, 40).mark()
    queue = filled(tmp_path / "other", 0, 290)
    path = files_of(queue_at(tmp_path))[0]
    image = bytearray(files_of(queue)[0].read_bytes())
    image[1000:4096] = bytes(3096)
    path.write_bytes(image)
    again = reloaded(tmp_path, mark=mark)
    assert again.queue_offset_max == 50
    again.put(*run(50, 51))
    again.write_pending()
    assert reloaded(tmp_path, mark=mark).queue_offset_max == 51


def test_without_a_mark_rows_after_a_hole_are_a_problem(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 290)
    path = files_of(queue)[0]
    image = bytearray(path.read_bytes())
    image[1000:1020] = bytes(20)
    path.write_bytes(image)
    problem = queue_at(tmp_path).load(physical_limit=LOG_END, expected=None)
    assert problem is not None and "hole" in problem


@pytest.mark.parametrize("damage", ["removed", "emptied", "halved", "doubled", "renamed", "stray"])
def test_damaged_files_are_a_problem_and_a_reset_queue_is_empty(
    tmp_path: Path, damage: str
) -> None:
    queue = filled(tmp_path, 0, 640)
    mark = queue.mark()
    middle = files_of(queue)[1]
    if damage == "removed":
        middle.unlink()
    elif damage == "renamed":
        middle.rename(middle.with_name("00000000000000006020"))
    elif damage == "stray":
        (middle.parent / "notes.txt").write_text("hello")
    else:
        data = middle.read_bytes()
        middle.write_bytes({"emptied": b"", "halved": data[:3000], "doubled": data * 2}[damage])
    damaged = queue_at(tmp_path)
    assert damaged.load(physical_limit=LOG_END, expected=mark) is not None
    damaged.reset()
    assert files_of(damaged) == []
    damaged.put(*run(0, 640))
    damaged.write_pending()
    assert reloaded(tmp_path, mark=mark).mark() == mark


def test_a_queue_shorter_or_other_than_its_mark_is_a_problem(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 100)
    for mark in (
        QueueMark(0, 101, physical(100) + RECORD_BYTES),
        QueueMark(0, 1000, physical(999) + RECORD_BYTES),
        QueueMark(0, 100, physical(99) + 1),
    ):
        assert queue_at(tmp_path).load(physical_limit=LOG_END, expected=mark) is not None
    assert queue_at(tmp_path).load(physical_limit=LOG_END, expected=queue.mark()) is None


def test_an_empty_last_file_is_no_problem(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, ROWS_PER_FILE)
    (queue.folder / "00000000000000006000").touch()
    assert reloaded(tmp_path).queue_offset_max == ROWS_PER_FILE
    (queue.folder / "00000000000000006000").write_bytes(bytes(6000))
    again = reloaded(tmp_path)
    assert again.queue_offset_max == ROWS_PER_FILE
    again.put(*run(300, 301))
    again.write_pending()
    assert reloaded(tmp_path).queue_offset_max == 301


@given(rows=st.integers(1, 700), kept=st.integers(0, 700), written=st.booleans())
def test_a_truncation_survives_any_restart(
    tmp_path_factory: pytest.TempPathFactory, rows: int, kept: int, written: bool
) -> None:
    root = tmp_path_factory.mktemp("queue")
    queue = queue_at(root)
    queue.put(*run(0, rows))
    if written:
        queue.write_pending()
    queue.truncate(physical(kept))
    kept = min(kept, rows)
    assert queue.queue_offset_max == kept
    queue.write_pending()
    again = reloaded(root)
    assert again.queue_offset_max == kept
    assert everything(again) == bytes(run(0, kept)[2] if kept else b"")
    again.put(*run(kept, kept + 3))
    assert everything(again) == bytes(run(0, kept + 3)[2])


def test_a_truncation_syncs_before_it_returns(tmp_path: Path) -> None:
    files = FaultyFiles()
    queue = filled(tmp_path, 0, 100, files)
    before = files.sync_count
    queue.truncate(physical(50))
    assert files.sync_count == before + 1
    assert files_of(queue)[0].read_bytes()[1000:] == bytes(5000)


@pytest.mark.proves("store.queues.minimum-offsets")
def test_the_minimum_moves_up_to_the_first_record_the_log_still_has(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 640)
    queue.correct_minimum(physical(17) - 1)
    assert queue.queue_offset_min == 17
    queue.correct_minimum(physical(17))
    assert queue.queue_offset_min == 17
    assert queue.rows(16, 1) == b""
    queue.correct_minimum(LOG_END)
    assert (queue.queue_offset_min, queue.queue_offset_max) == (640, 640)
    again = reloaded(tmp_path, mark=queue.mark())
    assert (again.queue_offset_min, again.queue_offset_max) == (640, 640)


def test_files_without_live_records_go_but_never_the_last(tmp_path: Path) -> None:
    queue = filled(tmp_path, 0, 640)
    assert queue.drop_files_before(physical(299)) == []
    (dropped,) = queue.drop_files_before(physical(310))
    assert dropped.name == "00000000000000000000" and not dropped.exists()
    assert queue.queue_offset_min == 310
    assert len(queue.drop_files_before(LOG_END)) == 1
    assert [path.name for path in files_of(queue)] == ["00000000000000012000"]
    assert queue.queue_offset_max == 640
    assert reloaded(tmp_path).queue_offset_max == 640


def test_a_full_disk_loses_no_row_and_recovers_by_itself(tmp_path: Path) -> None:
    files = FaultyFiles()
    queue = queue_at(tmp_path, files)
    files.error = errno.ENOSPC
    assert queue.put(*run(0, 600)) == 600
    with pytest.raises(OSError):
        queue.write_pending()
    assert everything(queue) == bytes(run(0, 600)[2])
    files.error = 0
    queue.put(*run(600, 610))
    queue.write_pending()
    assert everything(reloaded(tmp_path)) == bytes(run(0, 610)[2])


def test_a_failed_sync_is_raised_and_tried_again_by_the_next(tmp_path: Path) -> None:
    files = FaultyFiles()
    queue = queue_at(tmp_path, files)
    queue.put(*run(0, 10))
    queue.write_pending()
    files.error = errno.EIO
    with pytest.raises(OSError):
        queue.sync()
    files.error = 0
    queue.sync()
    assert files.sync_count == 1
    queue.sync()
    assert files.sync_count == 1


@pytest.mark.proves("store.queues.rows")
def test_never_more_descriptors_than_allowed(tmp_path: Path) -> None:
    files = FileSystem()
    handles = FileHandles(files, 3)
    for number in range(10):
        fd = handles.fd(tmp_path / str(number), create_bytes=4096)
        assert files.size(fd) == 4096
        assert handles.open_count <= 3
    handles.close(tmp_path / "9")
    handles.close(tmp_path / "never-opened")
    assert handles.open_count == 2
    handles.close_all()
    assert handles.open_count == 0

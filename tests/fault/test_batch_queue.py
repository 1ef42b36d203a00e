"""Queues of batches on real files."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.kernels.record_layout import BATCH_ROW_BYTES
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.batch_queue import BatchQueue
from contrail.store.disk.handles import FileHandles
from contrail.store.disk.row_queue import QueueMark
from contrail.store.state.time_search import Boundary

ROWS_PER_FILE = 100
RECORD_BYTES = 500
LOG_END = 1 << 40


def queue_at(root: Path) -> BatchQueue:
    files = FileSystem()
    return BatchQueue(
        root / "batchconsumequeue" / "orders" / "0",
        config=StoreConfig(root=root, batch_queue_file_bytes=ROWS_PER_FILE * BATCH_ROW_BYTES),
        files=files,
        handles=FileHandles(files, 8),
    )


def size_of(number: int) -> int:
    return 1 + number % 4


def base_of(number: int) -> int:
    return sum(size_of(earlier) for earlier in range(number))


def run(first: int, last: int) -> tuple[int, int, bytearray, int]:
    """Batches number ``first`` to ``last``, of 1, 2, 3, 4, 1, ... messages."""
    rows = bytearray()
    base = base_of(first)
    for number in range(first, last):
        place = (number * RECORD_BYTES, RECORD_BYTES, 9, 1000 + number * 10, base)
        rows += struct.pack(">qiqqqhii", *place, size_of(number), -1, 0)
        base += size_of(number)
    return base_of(first), base - base_of(first), rows, last * RECORD_BYTES


def filled(root: Path, last: int) -> BatchQueue:
    queue = queue_at(root)
    queue.put(*run(0, last))
    queue.write_pending()
    queue.sync()
    return queue


def reloaded(root: Path, *, limit: int = LOG_END, mark: QueueMark | None = None) -> BatchQueue:
    queue = queue_at(root)
    assert queue.load(physical_limit=limit, expected=mark) is None
    return queue


def test_rows_follow_each_other_in_full_length_files(tmp_path: Path) -> None:
    queue = filled(tmp_path, 150)
    first, second = sorted(queue.folder.iterdir())
    assert second.name == f"{ROWS_PER_FILE * BATCH_ROW_BYTES:020d}"
    whole = first.read_bytes() + second.read_bytes()
    assert whole == bytes(run(0, 150)[2]).ljust(200 * BATCH_ROW_BYTES, b"\0")


@pytest.mark.proves("store.queues.batch-rows")
def test_a_queue_offset_finds_the_batch_that_holds_it(tmp_path: Path) -> None:
    queue = filled(tmp_path, 150)
    queue.put(*run(150, 160))
    for number in range(160):
        for inside in range(size_of(number)):
            assert queue.rows(base_of(number) + inside, 1) == bytes(run(number, number + 1)[2])
    assert queue.rows(base_of(160), 1) == b""
    assert queue.queue_offset_max == base_of(160)
    assert len(queue.rows(base_of(98), 50)) == 2 * BATCH_ROW_BYTES


def test_batches_fed_twice_are_taken_once(tmp_path: Path) -> None:
    queue = filled(tmp_path, 20)
    assert queue.put(*run(0, 20)) == 0
    assert queue.put(*run(10, 30)) == 10
    assert queue.row_count == 30
    assert queue.queue_offset_max == base_of(30)


def test_loading_gives_back_what_was_written(tmp_path: Path) -> None:
    queue = filled(tmp_path, 150)
    for mark in (None, queue.mark()):
        assert reloaded(tmp_path, mark=mark).mark() == queue.mark()


def test_batches_above_the_limit_do_not_come_back(tmp_path: Path) -> None:
    filled(tmp_path, 150)
    assert reloaded(tmp_path, limit=70 * RECORD_BYTES).row_count == 70
    assert reloaded(tmp_path).row_count == 70


@pytest.mark.parametrize("rows", [140, 151])
def test_a_queue_other_than_its_mark_is_a_problem(tmp_path: Path, rows: int) -> None:
    filled(tmp_path, 150)
    mark = QueueMark(0, base_of(rows), rows * RECORD_BYTES + (rows == 140))
    assert queue_at(tmp_path).load(physical_limit=LOG_END, expected=mark) is not None


@given(rows=st.integers(1, 250), kept=st.integers(0, 250), written=st.booleans())
def test_a_truncation_survives_any_restart(
    tmp_path_factory: pytest.TempPathFactory, rows: int, kept: int, written: bool
) -> None:
    root = tmp_path_factory.mktemp("queue")
    queue = queue_at(root)
    queue.put(*run(0, rows))
    if written:
        queue.write_pending()
    queue.truncate(kept * RECORD_BYTES)
    kept = min(kept, rows)
    assert queue.queue_offset_max == base_of(kept)
    queue.write_pending()
    again = reloaded(root)
    assert again.row_count == kept
    assert again.queue_offset_max == base_of(kept)
    assert again.put(*run(kept, kept + 2)) == 2


def test_the_minimum_follows_the_last_batch_that_is_gone(tmp_path: Path) -> None:
    queue = filled(tmp_path, 250)
    queue.correct_minimum(10 * RECORD_BYTES)
    assert queue.queue_offset_min == base_of(10)
    assert queue.rows(base_of(10) - 1, 1) == b""
    assert len(queue.drop_files_before(150 * RECORD_BYTES)) == 1
    assert queue.queue_offset_min == base_of(150)
    assert len(queue.drop_files_before(LOG_END)) == 1
    assert queue.queue_offset_min == queue.queue_offset_max == base_of(250)
    assert reloaded(tmp_path, mark=queue.mark()).mark() == queue.mark()


def test_time_is_answered_with_the_base_of_a_batch(tmp_path: Path) -> None:
    queue = filled(tmp_path, 150)
    assert queue.offset_by_time(1000 + 70 * 10) == base_of(70)
    assert queue.offset_by_time(1000 + 70 * 10 - 5, Boundary.LOWER) == base_of(70)
    assert queue.offset_by_time(0) == 0
    assert queue.offset_by_time(LOG_END) == base_of(149)
    assert queue_at(tmp_path / "empty").offset_by_time(5) == 0


def test_a_reset_queue_is_empty(tmp_path: Path) -> None:
    queue = filled(tmp_path, 150)
    queue.reset()
    assert list(queue.folder.iterdir()) == []
    assert (queue.row_count, queue.queue_offset_max, queue.physical_end) == (0, 0, 0)
    assert queue.put(*run(0, 5)) == 5


def test_the_minimum_is_a_batch_that_is_there_even_when_rows_between_are_missing(
    tmp_path: Path,
) -> None:
    queue = queue_at(tmp_path)
    queue.put(*run(0, 3))
    queue.put(*run(6, 8))
    queue.correct_minimum(4 * RECORD_BYTES)
    assert queue.queue_offset_min == base_of(6)
    queue.correct_minimum(8 * RECORD_BYTES)
    assert queue.queue_offset_min == queue.queue_offset_max == base_of(8)

"""All queues of a store together: loading, feeding, syncing, deleting topics."""

from __future__ import annotations

import errno
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import StoreLayoutError
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.queue_table import Arrival, QueueTable

LOG_END = 1 << 40


class CountingFiles(FileSystem):
    """Counts what costs time, and can fail every write."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.full = False

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "full")
        self._count("pwrite")
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        self._count("fdatasync")
        super().fdatasync(fd)

    def sync_folder(self, folder: Path) -> None:
        self._count("sync_folder")
        super().sync_folder(folder)

    def sync_everything(self, folder: Path) -> None:
        self._count("sync_everything")
        super().sync_everything(folder)


def table_at(root: Path, files: FileSystem | None = None, **options: Any) -> QueueTable:
    config = StoreConfig(root=root, queue_file_bytes=2000, open_files_max=8)
    return QueueTable(config, files or FileSystem(), **options)


def run(first: int, last: int, physical_offset: int) -> list[Any]:
    """Rows of ``last - first`` records of 100 bytes from ``physical_offset`` on."""
    rows = bytearray()
    for number in range(last - first):
        rows += struct.pack(">qiq", physical_offset + number * 100, 100, 0)
    return [first, last - first, rows, physical_offset + (last - first) * 100, 1]


def written_counts(table: QueueTable) -> dict[bytes, int]:
    """How many rows of each topic's queue are in its file."""
    return {topic: mark.queue_offset_max for (topic, _), mark in table.marks().items()}


def filled(root: Path, **options: Any) -> QueueTable:
    table = table_at(root, **options)
    table.put({b"orders": {0: [run(0, 10, 0)], 3: [run(0, 5, 1000)]}})
    table.put({b"%RETRY%group": {0: [run(0, 2, 1500)]}})
    table.write_pending()
    table.sync()
    return table


def test_only_queues_that_grew_are_reported(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    runs = {b"orders": {0: [run(0, 10, 0), run(10, 12, 5000)], 1: [run(0, 1, 9000)]}}
    assert table.put(runs) == [Arrival(b"orders", 0, 12, 12), Arrival(b"orders", 1, 1, 1)]
    assert table.put(runs) == []
    assert table.physical_end_max == 9100


def test_a_loaded_table_is_the_one_that_was_written(tmp_path: Path) -> None:
    table = filled(tmp_path)
    again = table_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=table.marks()) == []
    assert again.marks() == table.marks()
    assert sorted(again.topics()) == [b"%RETRY%group", b"orders"]
    assert again.physical_end_max == 1700
    queue = again.get(b"orders", 3)
    assert queue is not None and queue.queue_offset_max == 5
    assert again.get(b"orders", 1) is None and again.get(b"nobody", 0) is None


def test_folders_that_are_no_queues_are_ignored(tmp_path: Path) -> None:
    table = filled(tmp_path)
    (tmp_path / "consumequeue" / "orders" / "backup").mkdir()
    (tmp_path / "consumequeue" / "notes.txt").write_text("hello")
    again = table_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=table.marks()) == []
    assert len(list(again.queues())) == 3


def test_a_missing_or_damaged_queue_is_a_problem_and_starts_over(tmp_path: Path) -> None:
    marks = filled(tmp_path).marks()
    (tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}").write_bytes(b"short")
    (tmp_path / "consumequeue" / "orders" / "3" / f"{0:020d}").unlink()
    (tmp_path / "consumequeue" / "orders" / "3").rmdir()
    again = table_at(tmp_path)
    problems = again.load(physical_limit=LOG_END, marks=marks)
    assert sorted((problem.topic, problem.queue_id) for problem in problems) == [
        (b"orders", 0),
        (b"orders", 3),
    ]
    assert "orders" in str(problems[0])
    assert again.put({b"orders": {0: [run(0, 10, 0)]}}) == [Arrival(b"orders", 0, 10, 10)]


def test_an_idle_queue_costs_no_write_and_no_sync(tmp_path: Path) -> None:
    files = CountingFiles()
    table = table_at(tmp_path, files)
    for topic in range(50):
        table.put({b"t%d" % topic: {0: [run(0, 1, topic * 100)]}})
    table.write_pending()
    table.sync()
    files.counts.clear()
    table.put({b"t7": {0: [run(1, 2, 100_000)]}})
    assert table.has_pending
    table.write_pending()
    table.sync()
    assert files.counts == {"pwrite": 1, "fdatasync": 1}
    assert not table.has_pending


def test_many_dirty_files_are_synced_in_one_call(tmp_path: Path) -> None:
    files = CountingFiles()
    table = table_at(tmp_path, files)
    for topic in range(100):
        table.put({b"t%d" % topic: {0: [run(0, 1, topic * 100)]}})
    table.write_pending()
    table.sync()
    assert files.counts == {"pwrite": 100, "sync_everything": 1}
    assert table.open_count <= 8


def test_of_many_queues_those_that_waited_longest_are_written_first(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    for topic in (b"first", b"second", b"third"):
        table.put({topic: {0: [run(0, 1, 0)]}})
    table.write_pending()
    for topic in (b"first", b"second", b"third"):
        table.put({topic: {0: [run(1, 2, 100)]}})
    assert not table.write_pending(queues_max=2)
    assert written_counts(table) == {b"first": 2, b"second": 2, b"third": 1}
    table.put({b"first": {0: [run(2, 3, 200)]}})
    assert not table.write_pending(queues_max=1)
    assert written_counts(table) == {b"first": 2, b"second": 2, b"third": 2}
    assert table.write_pending(queues_max=1)
    assert written_counts(table) == {b"first": 3, b"second": 2, b"third": 2}


def test_a_new_queue_counts_for_many_that_have_a_file(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.put({b"old%d" % topic: {0: [run(0, 1, 0)]} for topic in range(10)})
    table.write_pending()
    old = set(table.marks())
    table.put({b"new%d" % topic: {0: [run(0, 1, 100)]} for topic in range(3)})
    table.put({b"old%d" % topic: {0: [run(1, 2, 200)]} for topic in range(10)})
    assert not table.write_pending(queues_max=20)
    assert set(table.marks()) == {*old, (b"new0", 0)}
    assert not table.write_pending(queues_max=40)
    assert written_counts(table)[b"new2"] == 1
    assert written_counts(table)[b"old0"] == 1
    assert table.write_pending(queues_max=10)
    assert written_counts(table)[b"old9"] == 2


def test_the_rows_owed_are_those_that_waited_at_the_call(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.put({b"early": {0: [run(0, 2, 0)]}, b"deleted": {0: [run(0, 1, 0)]}})
    owed = table.owe()
    assert {key: mark.queue_offset_max for key, mark in owed.items()} == {
        (b"early", 0): 2,
        (b"deleted", 0): 1,
    }
    table.put({b"late": {0: [run(0, 1, 300)]}})
    table.delete_topic(b"deleted", 100)
    assert table.is_owing
    table.write_pending(queues_max=1)
    assert not table.is_owing
    assert table.has_pending


def test_marks_follow_rows_written_early_too(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.put({b"orders": {0: [run(0, 1000, 0)]}})
    assert table.marks() == {}
    table.write_pending()
    assert table.marks()[b"orders", 0].queue_offset_max == 1000


def test_a_full_disk_keeps_rows_pending_until_there_is_room(tmp_path: Path) -> None:
    files = CountingFiles()
    table = table_at(tmp_path, files)
    files.full = True
    assert len(table.put({b"orders": {0: [run(0, 1000, 0)], 1: [run(0, 1, 100_000)]}})) == 2
    with pytest.raises(OSError):
        table.write_pending()
    assert table.has_pending
    files.full = False
    table.write_pending()
    assert not table.has_pending
    again = table_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=table.marks()) == []


def test_a_deleted_topic_is_gone_and_stays_gone_when_the_log_is_fed_again(tmp_path: Path) -> None:
    table = filled(tmp_path)
    deleted = table.get(b"orders", 0)
    table.delete_topic(b"orders", 5000)
    # A holder of the old queue must look it up again.
    assert deleted is not None and not deleted.takes_fast_rows
    assert not (tmp_path / "consumequeue" / "orders").exists()
    assert table.tombstones == {b"orders": 5000}
    assert (b"orders", 0) not in table.marks()
    assert table.put({b"orders": {0: [run(0, 10, 0)]}}) == []
    assert table.get(b"orders", 0) is None
    # The topic made again counts from zero.
    arrivals = table.put({b"orders": {0: [run(0, 2, 5000)]}})
    assert arrivals == [Arrival(b"orders", 0, 2, 2)]


def test_a_run_across_the_deletion_loses_only_its_dead_rows(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.tombstones[b"orders"] = 300
    assert table.put({b"orders": {0: [run(0, 5, 0)]}}) == [Arrival(b"orders", 0, 5, 2)]
    queue = table.get(b"orders", 0)
    assert queue is not None and queue.queue_offset_min == 3


def test_a_deletion_cut_short_by_a_crash_is_ended_at_the_next_start(tmp_path: Path) -> None:
    marks = filled(tmp_path).marks()
    (tmp_path / "consumequeue" / "orders" / "3" / f"{0:020d}").unlink()
    again = table_at(tmp_path)
    again.tombstones[b"orders"] = 5000
    again.load(physical_limit=LOG_END, marks=marks)
    assert again.topics() == [b"%RETRY%group"]
    assert not (tmp_path / "consumequeue" / "orders").exists()


def test_tombstones_go_when_the_log_has_no_dead_record_left(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.delete_topic(b"orders", 1500)
    table.correct_minimums(1499)
    assert b"orders" in table.tombstones
    table.correct_minimums(1500)
    assert table.tombstones == {}


def test_a_topic_is_deleted_while_another_thread_syncs_it(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    failures: list[BaseException] = []
    stop = threading.Event()

    def sync() -> None:
        while not stop.is_set():
            try:
                table.sync()
            except BaseException as error:
                failures.append(error)
                return

    worker = threading.Thread(target=sync)
    worker.start()
    for cycle in range(300):
        table.put({b"orders": {0: [run(0, 3, cycle * 1000)]}})
        table.write_pending()
        table.delete_topic(b"orders", cycle * 1000 + 300)
    stop.set()
    worker.join()
    assert failures == []


def test_a_reader_near_the_end_is_served_after_its_file_was_dropped(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.put({b"orders": {0: [run(0, 250, 0)]}})
    table.write_pending()
    queue = table.get(b"orders", 0)
    assert queue is not None
    held = queue.rows(0, 10)
    assert len(table.drop_files_before(15_000)) == 1
    assert len(held) == 200
    assert queue.rows(0, 10) == b""
    assert queue.queue_offset_min == 150
    assert len(queue.rows(150, 10)) == 200


def test_a_topic_of_the_other_type_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(StoreLayoutError, match="orders"):
        table_at(tmp_path, batch_topics=frozenset([b"orders"])).load(
            physical_limit=LOG_END, marks=None
        )
    table = table_at(tmp_path)
    table.load(physical_limit=LOG_END, marks=None)
    with pytest.raises(StoreLayoutError, match="orders"):
        table.add_batch_topic(b"orders")


def test_a_batch_topic_gets_a_queue_of_batches(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.add_batch_topic(b"batches")
    rows = bytearray(struct.pack(">qiqqqhii", 0, 500, 0, 1, 0, 20, -1, 0))
    assert table.put({b"batches": {0: [[0, 20, rows, 500, 1]]}}) == [Arrival(b"batches", 0, 20, 1)]
    table.write_pending()
    assert (tmp_path / "batchconsumequeue" / "batches" / "0" / f"{0:020d}").exists()
    again = table_at(tmp_path, batch_topics=frozenset([b"batches"]))
    assert again.load(physical_limit=LOG_END, marks=table.marks()) == []


@pytest.mark.parametrize("topic", [b"", b"..", b"a/b", b"../../escape", b"nul\0"])
def test_a_topic_that_is_no_folder_name_never_leaves_the_store(
    tmp_path: Path, topic: bytes
) -> None:
    root = tmp_path / "deep" / "store"
    table = table_at(root)
    assert table.put({topic: {0: [run(0, 1, 0)]}}) == []
    table.write_pending()
    assert not root.exists()


def test_truncating_the_table_truncates_every_queue(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.truncate(1200)
    assert table.physical_end_max == 1200
    again = table_at(tmp_path)
    assert again.load(physical_limit=LOG_END, marks=table.marks()) == []
    maxima = {(t, q): queue.queue_offset_max for t, q, queue in again.queues()}
    assert maxima == {(b"orders", 0): 10, (b"orders", 3): 2, (b"%RETRY%group", 0): 0}

"""A store whose log is held back: readers, retention and deletions go by the right position."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.errors import RecordDamaged
from contrail.runtime.files import FileSystem
from contrail.store.config import FlushDiskType
from contrail.store.log import MessageStore
from contrail.store.state.positions import NO_LIMIT
from tests.fakes.failing_files import FailingFileSystem
from tests.fault.group_log import append_some, begin_epoch, commit_all, open_member
from tests.fault.raw_log import SEGMENT, cut, feed, master_log, open_slave
from tests.fault.store_setup import append_numbers, numbers_of, small_config

pytestmark = pytest.mark.proves("replication.ground.positions")


class HeldSyncs(FileSystem):
    """A disk whose syncs take until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self._may_sync = threading.Event()
        self._may_sync.set()

    def hold(self) -> None:
        self._may_sync.clear()

    def release(self) -> None:
        self._may_sync.set()

    def fdatasync(self, fd: int) -> None:
        self._may_sync.wait(60)
        super().fdatasync(fd)


def test_no_reader_sees_a_record_above_the_commit_limit(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 3)
        limit = store.physical_end
        store.positions.commit_limit = limit
        append_numbers(store, 3, 6)
        assert numbers_of(store) == [0, 1, 2]
        assert store.dispatched_end == store.visible_end == limit
        assert store.underived_bytes == 0
        assert store.query(b"orders", b"k4") == [] != store.query(b"orders", b"k1")
        assert [one.queue_offset for one in store.messages_between(0, store.physical_end)] == [
            *range(3)
        ]
        with pytest.raises(RecordDamaged):
            store.record(limit)
        assert store.damage.known() == [], "held back is not damaged"
        store.positions.commit_limit = NO_LIMIT
        store.dispatch()
        assert numbers_of(store) == [*range(6)]


def test_too_few_replicas_hold_back_answers_and_no_reader(tmp_path: Path) -> None:
    """As at Apache's master: its consumers see what its slaves may not have yet."""
    with MessageStore.open(small_config(tmp_path)) as store:
        store.positions.replicated_end = 0
        append_numbers(store, 0, 3)
        store.wait_flushed(store.physical_end)
        assert numbers_of(store) == [0, 1, 2]
        assert store.acknowledged_end == 0
        assert store.settled_end == store.kept_end == store.physical_end


def record_ends(folder: Path) -> list[int]:
    with MessageStore.open(small_config(folder)) as store:
        rows = [row for key in store.queues() for row in store.rows(*key, 0, 1_000)]
    return sorted(row.physical_offset + row.byte_count for row in rows)


@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_limit_inside_a_record_or_a_blank_end_waits_for_its_last_byte(
    tmp_path: Path, is_fresh: bool
) -> None:
    """The limit goes on byte by byte: a record is seen with its last one, and nothing is raised."""
    log = master_log(tmp_path / "master", 30)
    ends = record_ends(tmp_path / "master")
    assert len(log) == ends[-1] > SEGMENT
    with open_slave(tmp_path / "slave") as slave:
        slave.positions.commit_limit = 0
        feed(slave, log, cut(log, [900] * 50))
        if not is_fresh:
            slave._dispatcher._fresh.clear()
        for limit in range(len(log) + 1):
            slave.positions.commit_limit = limit
            slave.dispatch()
            assert slave.dispatched_end <= limit
            if limit in ends:
                seen = sum(slave.queue_offset_max(*key) for key in slave.queues())
                assert seen == ends.index(limit) + 1
        assert slave.dispatched_end == len(log)


@pytest.mark.parametrize("stored_size", [0, 1 << 20])
def test_a_damaged_record_below_the_limit_is_not_waited_for(
    tmp_path: Path, stored_size: int
) -> None:
    store = MessageStore.open(small_config(tmp_path))
    store.positions.commit_limit = 0
    append_numbers(store, 0, 2)
    store._dispatcher._fresh.clear()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(stored_size.to_bytes(4, "big"))
    store.positions.commit_limit = 100
    with pytest.raises(RecordDamaged):
        store.dispatch()
    store._release()


def test_retention_keeps_what_is_not_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = time.struct_time((2026, 1, 1, 4, 0, 0, 3, 1, 0))
    monkeypatch.setattr("contrail.store.services.retention.time.localtime", lambda _: moment)
    files = FailingFileSystem()
    files.usage = 0.10
    config = small_config(tmp_path, delete_interval_ms=0)
    with MessageStore.open(config, clock=ManualClock(), files=files) as store:
        append_numbers(store, 0, 200)
        store.wait_flushed(store.physical_end)
        newest = max(path.stat().st_mtime_ns for path in (tmp_path / "commitlog").iterdir())
        later_ms = newest // 1_000_000 + 73 * 3_600_000
        # All is derived; a later leader may still cut what lies above.
        store.positions.commit_limit = 2 * SEGMENT - 1
        for step in range(3):
            store.retention.run_once(later_ms + step * 10_000)
        assert store.physical_min == SEGMENT
        store.positions.commit_limit = NO_LIMIT
        for step in range(3, 6):
            store.retention.run_once(later_ms + step * 10_000)
        assert store.physical_min > SEGMENT


def test_a_closed_store_has_derived_no_more_than_was_visible(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 3)
        store.positions.commit_limit = limit = store.physical_end
        append_numbers(store, 3, 6)
    assert store.dispatched_end == limit
    # As long as no file says otherwise, the next start takes the whole log for committed.
    with MessageStore.open(small_config(tmp_path)) as again:
        assert numbers_of(again) == [*range(6)]


def test_a_deleted_topic_takes_no_record_along_that_may_never_be(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 3)
        store.positions.commit_limit = limit = store.physical_end
        append_numbers(store, 3, 6)
        store.delete_topic(b"orders")
        assert store.dispatched_end == limit
        assert store._queues.tombstones[b"orders"] == limit
        assert not store.has_topic(b"orders")


def test_under_sync_flush_a_record_is_read_and_acknowledged_once_it_is_flushed(
    tmp_path: Path,
) -> None:
    files = HeldSyncs()
    config = small_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with MessageStore.open(config, files=files) as store:
        files.hold()
        append_numbers(store, 0, 3)
        assert numbers_of(store) == [] and store.acknowledged_end == store.settled_end == 0
        files.release()
        store.wait_flushed(store.physical_end)
        store.dispatch()
        assert numbers_of(store) == [0, 1, 2]
        assert store.acknowledged_end == store.settled_end == store.physical_end


@pytest.mark.proves("replication.failover.retention")
def test_a_member_keeps_what_no_snapshot_stands_for_and_its_last_two_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = time.struct_time((2026, 1, 1, 4, 0, 0, 3, 1, 0))
    monkeypatch.setattr("contrail.store.services.retention.time.localtime", lambda _: moment)
    files = FailingFileSystem()
    files.usage = 0.10
    with open_member(tmp_path, files=files, delete_interval_ms=0) as store:
        begin_epoch(store, 0)
        append_some(store, 0, 60)
        commit_all(store)
        newest = max(path.stat().st_mtime_ns for path in (tmp_path / "commitlog").iterdir())
        rounds = iter(range(newest // 1_000_000 + 73 * 3_600_000, 1 << 60, 10_000))

        def kept_after_rounds() -> int:
            for _ in range(4):
                store.retention.run_once(next(rounds))
            return store.physical_min

        assert kept_after_rounds() == 0
        store.retention_limits["snapshot"] = lambda: 2 * SEGMENT + 100
        assert kept_after_rounds() == 2 * SEGMENT
        store.retention_limits["snapshot"] = lambda: store.physical_end
        store.retention_limits["learners"] = lambda: 3 * SEGMENT
        assert kept_after_rounds() == 3 * SEGMENT
        del store.retention_limits["learners"]
        last = store.physical_end // SEGMENT * SEGMENT
        assert kept_after_rounds() == last - SEGMENT

"""Segments are removed by age and disk use, with the files derived from them, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.errors import DiskFull
from contrail.store.log import MessageStore
from tests.fakes.failing_files import FailingFileSystem, Fault
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config

HOUR_MS = 3_600_000


@pytest.fixture
def files() -> FailingFileSystem:
    made = FailingFileSystem()
    made.usage = 0.10
    return made


def old_store(
    root: Path, files: FailingFileSystem, count: int = 300, **settings: object
) -> MessageStore:
    """A store of several segments; ``later`` is a time at which all of them are past their age."""
    config = small_config(root, delete_interval_ms=0, **settings)
    store = MessageStore.open(config, clock=ManualClock(), files=files)
    append_numbers(store, 0, count)
    store.wait_flushed(store.physical_end)
    return store


def later(store: MessageStore, hours: float = 73) -> int:
    """Some hours after every segment was last written, at noon: not an hour of deletion."""
    newest = max(path.stat().st_mtime_ns for path in segments(store)) // 1_000_000
    return newest + int(hours * HOUR_MS)


def segments(store: MessageStore) -> list[Path]:
    return sorted((store._config.root / "commitlog").iterdir())


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is always noon, so that only disk use or a request has segments removed."""
    set_hour(monkeypatch, 12)


def set_hour(monkeypatch: pytest.MonkeyPatch, hour: int) -> None:
    import time

    moment = time.struct_time((2026, 1, 1, hour, 0, 0, 3, 1, 0))
    monkeypatch.setattr("contrail.store.services.retention.time.localtime", lambda _: moment)


@pytest.mark.proves("store.retention.age")
def test_at_the_hour_of_deletion_all_old_segments_but_the_last_go(
    tmp_path: Path, files: FailingFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with old_store(tmp_path, files) as store:
        before = segments(store)
        assert store.retention.run_once(later(store)) == []
        set_hour(monkeypatch, 4)
        assert store.retention.run_once(later(store, 71)) == []
        removed = store.retention.run_once(later(store))
        assert set(before[:-1]) <= set(removed)
        assert segments(store) == before[-1:]
        assert numbers_of(store)[-1] == 299
        assert store.queue_offset_min(b"orders", 0) == numbers_of(store)[0] > 0


@pytest.mark.proves("store.retention.derived-cleaned")
def test_queue_and_index_files_below_the_minimum_go_too(
    tmp_path: Path, files: FailingFileSystem
) -> None:
    with old_store(tmp_path, files) as store:
        store.checkpoint()
        queue_folder, index_folder = tmp_path / "consumequeue/orders/0", tmp_path / "index"
        queue_files, index_files = (
            len(list(queue_folder.iterdir())),
            len(list(index_folder.iterdir())),
        )
        files.usage = 0.95
        store.retention.run_once(later(store))
        assert len(list(queue_folder.iterdir())) < queue_files
        assert len(list(index_folder.iterdir())) < index_files
        assert store.query(b"orders", b"ID000000") == []
        assert len(store.query(b"orders", b"ID000299")) == 1


@pytest.mark.proves("store.retention.age")
def test_a_round_removes_no_more_than_its_cap(tmp_path: Path, files: FailingFileSystem) -> None:
    with old_store(tmp_path, files, delete_files_max=2) as store:
        count = len(segments(store))
        files.usage = 0.80
        store.retention.run_once(later(store))
        assert len(segments(store)) == count - 2
        assert store.retention.due_again_ms is None


def test_between_two_removals_an_interval_passes(tmp_path: Path, files: FailingFileSystem) -> None:
    config = small_config(tmp_path, delete_interval_ms=100)
    with MessageStore.open(config, clock=ManualClock(), files=files) as store:
        append_numbers(store, 0, 300)
        store.wait_flushed(store.physical_end)
        count, now_ms = len(segments(store)), later(store)
        files.usage = 0.80
        store.retention.run_once(now_ms)
        assert len(segments(store)) == count - 1
        assert store.retention.due_again_ms == now_ms + 100
        store.retention.run_once(now_ms + 99)
        assert len(segments(store)) == count - 1
        store.retention.run_once(now_ms + 100)
        assert len(segments(store)) == count - 2


@pytest.mark.proves("store.retention.disk-ratios")
def test_a_forced_disk_takes_young_segments_and_stops_when_it_is_calm_again(
    tmp_path: Path, files: FailingFileSystem
) -> None:
    with old_store(tmp_path, files) as store:
        count = len(segments(store))
        files.usage = 0.86
        calm_after = 2
        remove_first = store._segments.remove_first

        def removing() -> object:
            if count - len(store._segments) + 1 == calm_after:
                files.usage = 0.50
            return remove_first()

        store._segments.remove_first = removing  # type: ignore[assignment,method-assign]
        store.retention.run_once(later(store, 0))
        assert len(segments(store)) == count - calm_after


@pytest.mark.proves("store.retention.disk-ratios")
def test_a_full_disk_refuses_appends_and_takes_them_again_by_itself(
    tmp_path: Path, files: FailingFileSystem
) -> None:
    with old_store(tmp_path, files, clean_forcibly=False) as store:
        files.usage = 0.91
        store.retention.judge_disk()
        with pytest.raises(DiskFull, match="91 % full"):
            store.append([draft(300)])
        assert numbers_of(store)[:3] == [0, 1, 2]
        files.usage = 0.86
        store.retention.judge_disk()
        with pytest.raises(DiskFull):
            store.append([draft(300)])
        files.usage = 0.85
        store.retention.judge_disk()
        append_numbers(store, 300, 301)
        assert numbers_of(store)[-1] == 300


def test_a_segment_that_is_not_dispatched_yet_stays(
    tmp_path: Path, files: FailingFileSystem
) -> None:
    config = small_config(tmp_path, delete_interval_ms=0)
    with MessageStore.open(config, clock=ManualClock(), files=files) as store:
        store.append([draft(number) for number in range(300)])
        store.wait_flushed(store.physical_end)
        files.usage = 0.95
        assert store.retention.run_once(later(store)) == []
        store.dispatch()
        assert store.retention.run_once(later(store)) != []


@pytest.mark.proves("store.retention.readers-kept")
def test_a_reader_keeps_its_views_while_the_segment_is_removed(
    tmp_path: Path, files: FailingFileSystem
) -> None:
    with old_store(tmp_path, files) as store:
        result = store.get(b"orders", 0, 0, count_max=3)
        files.usage = 0.95
        store.retention.run_once(later(store))
        assert store.physical_min > 0
        assert [int(message.body[:8]) for message in result.messages] == [0, 1, 2]
        del result


def test_a_manual_request_removes_old_segments_at_any_hour(
    tmp_path: Path, files: FailingFileSystem
) -> None:
    with old_store(tmp_path, files) as store:
        store.retention.request_manual()
        assert store.retention.run_once(later(store, 71)) == []
        assert store.retention.run_once(later(store)) != []


def test_a_segment_that_cannot_be_removed_is_named_and_tried_again(
    tmp_path: Path, files: FailingFileSystem
) -> None:
    with old_store(tmp_path, files) as store:
        files.usage = 0.80
        files.faults.append(Fault("unlink", "commitlog"))
        before = segments(store)
        assert store.retention.run_once(later(store)) == []
        assert "planted on unlink" in (store.retention.problem or "")
        assert segments(store) == before
        assert store.retention.run_once(later(store)) != []
        assert store.retention.problem is None


def test_after_retention_the_store_reopens_where_it_was(
    tmp_path: Path, files: FailingFileSystem
) -> None:
    with old_store(tmp_path, files) as store:
        files.usage = 0.95
        store.retention.run_once(later(store))
        kept, minimum = numbers_of(store), store.physical_min
    with MessageStore.open(small_config(tmp_path)) as store:
        assert store.recovery.problems == []
        assert store.physical_min == minimum
        assert numbers_of(store) == kept
        append_numbers(store, 300, 302)
        assert numbers_of(store) == [*kept, 300, 301]

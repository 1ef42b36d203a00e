"""Starts after crashes, with damage, and on folders another broker wrote."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import StoreCorrupt, StoreLayoutError
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config


def crashed_copy(store: MessageStore, root: Path, target: Path) -> StoreConfig:
    """The folder as a kill -9 would leave it now."""
    shutil.copytree(root, target)
    return small_config(target)


def last_segment(root: Path) -> Path:
    return sorted((root / "commitlog").iterdir())[-1]


def data_end(segment: Path) -> int:
    return len(segment.read_bytes().rstrip(b"\0"))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def stopped_store(root: Path, count: int = 60, **changes: Any) -> StoreConfig:
    config = small_config(root, **changes)
    with MessageStore.open(config) as store:
        append_numbers(store, 0, count)
    return config


@pytest.mark.proves("store.queues.dispatch")
def test_a_killed_store_finds_everything_it_had_written(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path / "a")) as store:
        append_numbers(store, 0, 55)
        store.append([draft(number) for number in range(55, 75)])
        config = crashed_copy(store, tmp_path / "a", tmp_path / "b")
    with MessageStore.open(config) as store:
        assert not store.recovery.was_clean
        assert numbers_of(store) == list(range(75))
        assert store.query(b"orders", b"ID000071")[0].queue_offset == 71


@pytest.mark.proves("store.files.checkpoint")
def test_a_torn_tail_is_dropped_and_the_record_before_it_kept(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path / "a")) as store:
        append_numbers(store, 0, 10)
        config = crashed_copy(store, tmp_path / "a", tmp_path / "b")
    segment = last_segment(tmp_path / "b")
    overwrite(segment, data_end(segment) - 40, bytes(40))
    with MessageStore.open(config) as store:
        assert numbers_of(store) == list(range(9))
        assert store.recovery.cut_at == store.physical_end
        append_numbers(store, 100, 103)
        assert numbers_of(store) == [*range(9), 100, 101, 102]


@pytest.mark.proves("store.files.durable-cut")
def test_a_stale_record_behind_the_cut_never_comes_back(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path / "a")) as store:
        append_numbers(store, 0, 10)
        size = store.physical_end // 10
        config = crashed_copy(store, tmp_path / "a", tmp_path / "b")
    overwrite(last_segment(tmp_path / "b"), 5 * size + 4, b"\0\0\0\0")
    with MessageStore.open(config) as store:
        assert numbers_of(store) == [0, 1, 2, 3, 4]
        append_numbers(store, 50, 51)
        again = crashed_copy(store, tmp_path / "b", tmp_path / "c")
    with MessageStore.open(again) as store:
        assert numbers_of(store) == [0, 1, 2, 3, 4, 50]


@pytest.mark.proves("store.files.corruption-refused")
def test_damage_below_the_durable_position_is_refused_with_its_byte_range(tmp_path: Path) -> None:
    config = stopped_store(tmp_path)
    segment = last_segment(tmp_path)
    overwrite(segment, data_end(segment) - 100, b"XX")
    with pytest.raises(StoreCorrupt, match="--accept-loss") as refusal:
        MessageStore.open(config)
    assert refusal.value.physical_start < refusal.value.physical_end
    before = segment.read_bytes()
    with MessageStore.open(config, accept_loss=True) as store:
        numbers = numbers_of(store)
        assert numbers == list(range(59))
        append_numbers(store, 90, 91)
        assert numbers_of(store) == [*range(59), 90]
    tail = next((tmp_path / "contrail.lost").iterdir())
    assert tail.read_bytes() in before


@pytest.mark.proves("store.files.corruption-refused")
def test_a_missing_segment_is_refused_and_can_be_accepted(tmp_path: Path) -> None:
    config = stopped_store(tmp_path, 200)
    segments = sorted((tmp_path / "commitlog").iterdir())
    segments[1].unlink()
    with pytest.raises(StoreCorrupt, match="no segment for bytes 8192"):
        MessageStore.open(config)
    with MessageStore.open(config, accept_loss=True) as store:
        kept = numbers_of(store)
        assert kept == list(range(len(kept)))
        assert store.physical_end <= 8192


def test_the_last_segments_missing_is_noticed_after_a_clean_stop(tmp_path: Path) -> None:
    config = stopped_store(tmp_path, 200)
    last_segment(tmp_path).unlink()
    with pytest.raises(StoreCorrupt, match="no segment"):
        MessageStore.open(config)


def test_a_strange_file_or_length_among_the_segments_is_named(tmp_path: Path) -> None:
    config = stopped_store(tmp_path)
    stray = tmp_path / "commitlog" / "notes.txt"
    stray.write_text("hello")
    with pytest.raises(StoreLayoutError, match=r"notes\.txt"):
        MessageStore.open(config)
    stray.unlink()
    with pytest.raises(StoreLayoutError, match="mappedFileSizeCommitLog"):
        MessageStore.open(small_config(tmp_path, segment_bytes=16384))


@pytest.mark.proves("store.files.derived-rebuilt")
@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_derived_folders_can_be_deleted_and_come_back_the_same(tmp_path: Path, folder: str) -> None:
    config = stopped_store(tmp_path, 130)
    before = {
        p.relative_to(tmp_path): p.read_bytes()
        for p in (tmp_path / folder).rglob("*")
        if p.is_file()
    }
    shutil.rmtree(tmp_path / folder)
    with MessageStore.open(config) as store:
        assert numbers_of(store) == list(range(130))
        assert [int(m.body[:8]) for m in store.query(b"orders", b"ID000099")] == [99]
    after = {
        p.relative_to(tmp_path): p.read_bytes()
        for p in (tmp_path / folder).rglob("*")
        if p.is_file()
    }
    if folder == "consumequeue":
        assert after == before
    else:
        assert sorted(after.values()) == sorted(before.values())


@pytest.mark.proves("store.files.derived-rebuilt")
def test_one_queue_missing_among_many_is_noticed_after_a_clean_stop(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with MessageStore.open(config) as store:
        for queue_id in range(4):
            append_numbers(store, 0, 20, queue_id=queue_id)
    shutil.rmtree(tmp_path / "consumequeue" / "orders" / "2")
    with MessageStore.open(config) as store:
        assert any("queue 2" in problem for problem in store.recovery.problems)
        for queue_id in range(4):
            assert numbers_of(store, queue_id=queue_id) == list(range(20))


@pytest.mark.proves("store.files.checkpoint")
@pytest.mark.parametrize("crash", [False, True])
def test_a_folder_without_contrails_own_files_is_taken_over(tmp_path: Path, crash: bool) -> None:
    """The folder looks as RocketMQ's broker leaves it: without files of Contrail's own."""
    config = stopped_store(tmp_path, 150)
    for path in tmp_path.glob("contrail.*"):
        path.unlink()
    if crash:
        (tmp_path / "abort").write_text("1")
    with MessageStore.open(config) as store:
        assert store.recovery.foreign
        assert numbers_of(store) == list(range(150))
        append_numbers(store, 150, 160)
        assert numbers_of(store) == list(range(160))


def test_a_foreign_folder_with_a_hole_in_the_middle_is_refused_rather_than_cut(
    tmp_path: Path,
) -> None:
    config = stopped_store(tmp_path, 200)
    for path in tmp_path.glob("contrail.*"):
        path.unlink()
    (tmp_path / "abort").write_text("1")
    overwrite(sorted((tmp_path / "commitlog").iterdir())[0], 3000, b"XXXXXXXXXXXXXXXXXXXXX")
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(StoreCorrupt):
        MessageStore.open(config)


def test_contrails_positions_are_ignored_when_another_broker_wrote_last(tmp_path: Path) -> None:
    config = stopped_store(tmp_path, 30)
    overwrite(tmp_path / "checkpoint", 0, (1_760_000_009_999).to_bytes(8, "big"))
    with MessageStore.open(config) as store:
        assert store.recovery.foreign
        assert any("another broker" in problem for problem in store.recovery.problems)
        assert numbers_of(store) == list(range(30))


def test_a_queue_whose_messages_retention_removed_keeps_its_next_offset(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with MessageStore.open(config) as store:
        append_numbers(store, 0, 20, topic="quiet")
        append_numbers(store, 0, 200)
        while store.physical_min < 16384:
            store._segments.remove_first()
    shutil.rmtree(tmp_path / "consumequeue" / "quiet")
    with MessageStore.open(config) as store:
        run = store.append_one(draft(1, topic="quiet"))
        assert run.queue_offsets == [20]
        store.dispatch()
        assert store.queue_offset_max(b"quiet", 0) == 21
        assert numbers_of(store, "quiet") == [1]


def test_an_interrupted_segment_creation_is_tidied_up(tmp_path: Path) -> None:
    config = stopped_store(tmp_path, 100)
    last = last_segment(tmp_path)
    (last.parent / f"{int(last.name) + 8192:020d}").touch()
    with MessageStore.open(config) as store:
        assert any("interrupted" in problem for problem in store.recovery.problems)
        assert numbers_of(store) == list(range(100))


def test_a_new_queue_whose_first_file_a_power_cut_took_is_derived_from_its_first_message(
    tmp_path: Path,
) -> None:
    """The name of a file made since the last checkpoint may be lost, and that of the next stay."""
    store = MessageStore.open(small_config(tmp_path))
    store.checkpoint()
    append_numbers(store, 0, 120)
    store._queues.write_pending()
    store._release()
    (tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}").unlink()
    with MessageStore.open(small_config(tmp_path)) as again:
        assert again.queue_offset_min(b"orders", 0) == 0
        assert numbers_of(again) == [*range(120)]

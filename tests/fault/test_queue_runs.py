"""A reader that goes on in a queue: its remembered window ends as soon as its facts do not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.clock import monotonic_ms
from contrail.store.log import MessageStore
from contrail.store.services import residency
from contrail.store.services.queue_runs import FAR, QueueRuns, Reach
from tests.fakes.cold_files import ColdFileSystem
from tests.fault.store_setup import append_numbers, small_config

ORDERS = b"orders"
BYTES_MAX = 1 << 18
SOUND_MS = 60_000


def filled(root: Path, count: int, sound_ms: int = SOUND_MS) -> MessageStore:
    """Messages of two queues, ten of each in turn."""
    store = MessageStore.open(small_config(root, sound_ms=sound_ms))
    for first in range(0, count, 10):
        append_numbers(store, first, first + 10, queue_id=first // 10 % 2)
    return store


def read(runs: QueueRuns, queue_offset: int, reach: Reach = Reach.WARM) -> bytes | None:
    run = runs.read(queue_offset, 3, BYTES_MAX, reach, monotonic_ms())
    return None if run is None or run is FAR else b"".join(run[0])


@pytest.mark.parametrize("sound_ms", [0, SOUND_MS])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_walk_that_remembers_finds_what_single_reads_find(
    tmp_path: Path, sound_ms: int, is_restarted: bool
) -> None:
    store = filled(tmp_path, 400, sound_ms)
    if is_restarted:
        store.close()
        store = MessageStore.open(small_config(tmp_path, sound_ms=sound_ms))
    with store:
        runs = store.runs(ORDERS, 0)
        for _ in range(3):
            for queue_offset in range(store.queue_offset_max(ORDERS, 0)):
                alone = store.runs(ORDERS, 0).read(
                    queue_offset, 3, BYTES_MAX, Reach.ANY, monotonic_ms()
                )
                kept = runs.read(queue_offset, 3, BYTES_MAX, Reach.ANY, monotonic_ms())
                assert (alone is None) == (kept is None)
                if alone is not None and kept is not None and alone is not FAR and kept is not FAR:
                    assert kept[1:] == alone[1:]
                    assert b"".join(kept[0]) == b"".join(alone[0])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_inside_its_window_a_read_asks_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    store = filled(tmp_path, 10)
    if is_restarted:
        store.close()
        store = MessageStore.open(small_config(tmp_path, sound_ms=SOUND_MS))
    with store:
        runs = store.runs(ORDERS, 0)
        for _ in range(3):
            assert runs.read(0, 10, BYTES_MAX, Reach.WARM, monotonic_ms()) not in (None, FAR)
        monkeypatch.setattr(QueueRuns, "_look", lambda *_: None)
        assert read(runs, 4) is not None


def test_a_record_that_is_not_its_rows_is_not_handed_out(tmp_path: Path) -> None:
    with filled(tmp_path, 10) as store:
        runs = store.runs(ORDERS, 0)
        for _ in range(2):
            assert read(runs, 0) is not None
        with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as log:
            log.seek(12)
            log.write(b"\0\0\0\7")
        assert read(runs, 0) is None
        assert read(runs, 3) is not None


def test_a_deleted_queue_is_empty_and_its_successor_is_found(tmp_path: Path) -> None:
    with filled(tmp_path, 10) as store:
        runs = store.runs(ORDERS, 0)
        for _ in range(2):
            assert read(runs, 0) is not None
        store.delete_topic(ORDERS)
        assert read(runs, 0) is None
        append_numbers(store, 100, 120)
        found = read(runs, store.queue_offset_min(ORDERS, 0))
        assert found is not None
        assert b"00000100" in found


def test_bytes_found_to_have_left_memory_are_asked_about_again(tmp_path: Path) -> None:
    filled(tmp_path, 10).close()
    files = ColdFileSystem()
    with MessageStore.open(small_config(tmp_path, sound_ms=SOUND_MS), files=files) as store:
        store.get(ORDERS, 0, 0)
        runs = store.runs(ORDERS, 0)
        for _ in range(3):
            assert read(runs, 0) is not None
        assert read(runs, 0, Reach.NEAR) is None
        files.chill()
        # As if a quarter of a second had passed, and another reader had asked for these bytes.
        store._reading.residency._warm.clear()
        store._reading._sound.left_memory(0, 1)
        assert runs.read(0, 3, BYTES_MAX, Reach.WARM, monotonic_ms()) is FAR


def walk_in_small_blocks(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Where the window of a reader in the first segment ends, before and after its second read."""
    monkeypatch.setattr(residency, "_WARM_BLOCK_BYTES", 1024)
    runs = store.runs(ORDERS, 0)
    ends = []
    for queue_offset in (0, 5):
        # The first window has run out by then: the second read asks about the next blocks.
        assert read(runs, queue_offset) is not None
        assert runs._window is not None
        ends.append(runs._window.end)
        runs._window = runs._window._replace(until_ms=0)
    return ends[0], ends[1]


def test_a_reader_that_goes_on_learns_of_the_next_blocks_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 100).close()
    with MessageStore.open(small_config(tmp_path, sound_ms=SOUND_MS)) as store:
        store._reading._sound.verified(0, 8192, monotonic_ms())
        first_end, next_end = walk_in_small_blocks(store, monkeypatch)
        assert first_end <= 2048
        assert next_end >= first_end + residency._WARM_AHEAD_BLOCKS * 1024


def test_next_blocks_that_are_on_the_disk_only_are_not_in_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, 100).close()
    files = ColdFileSystem()
    with MessageStore.open(small_config(tmp_path, sound_ms=SOUND_MS), files=files) as store:
        store.get(ORDERS, 0, 0)
        store._reading._sound.verified(0, 8192, monotonic_ms())
        left_count = store._reading._sound.left_count
        segment = store._reading._segments.at(0)
        assert segment is not None
        files.chill()
        files._resident |= files._pages(segment.path, 0, 4096)
        monkeypatch.setattr(residency, "_WARM_BLOCK_BYTES", 1024)
        around = store._reading.residency.warm_around(
            segment, 0, 600, monotonic_ms(), reads_on=True
        )
        assert around is not None
        assert around[:2] == (0, 4096)
        assert store._reading._sound.left_count == left_count, "nobody asked for it"

"""The scrubber finds bytes that the disk changed, and repairs rows and index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.log import MessageStore
from contrail.store.services.scrub import CHUNK_BYTES_MIN, ScrubBudget, ScrubReport
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config

QUEUE_FILE = f"consumequeue/orders/0/{0:020d}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    clock = ManualClock()
    with MessageStore.open(small_config(tmp_path), clock=clock) as made:
        append_numbers(made, 0, 200)
        clock.advance(ms=5)
        append_numbers(made, 200, 230, topic="bills", queue_id=3)
        made.checkpoint()
        yield made


def whole_pass(store: MessageStore, step_bytes: int = 10_000) -> ScrubReport:
    """Step until a pass ends; returns the sums of its steps."""
    total = ScrubReport()
    for _ in range(1000):
        step = store.scrubber.run_once(step_bytes)
        total.bytes_checked += step.bytes_checked
        total.records_checked += step.records_checked
        total.damaged += step.damaged
        total.repaired_rows += step.repaired_rows
        total.repaired_index_files += step.repaired_index_files
        if step.finished_pass:
            return total
    raise AssertionError("the pass does not end")


def overwrite(path: Path, position: int, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, data, position)
    finally:
        os.close(fd)


def flip(path: Path, position: int, bit: int = 0) -> None:
    byte = path.read_bytes()[position]
    overwrite(path, position, bytes([byte ^ (1 << bit)]))


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def test_a_sound_store_passes_with_every_record_checked(store: MessageStore) -> None:
    report = whole_pass(store)
    assert report.records_checked == 230
    assert report.damaged == []
    assert (report.repaired_rows, report.repaired_index_files) == (0, 0)
    whole_pass(store)
    assert store.scrubber.counters.passes == 2
    assert store.scrubber.counters.records_checked == 460


def test_a_step_reads_about_as_much_as_it_may(tmp_path: Path) -> None:
    config = small_config(tmp_path, segment_bytes=1 << 20)
    with MessageStore.open(config) as store:
        append_numbers(store, 0, 2000, body_bytes=200)
        steps = [store.scrubber.run_once(100_000) for _ in range(3)]
    assert all(100_000 <= step.bytes_checked < 300_000 for step in steps)


@pytest.mark.proves("store.files.scrubber")
@pytest.mark.parametrize("column", [0, 7, 8, 11, 12, 19])
def test_a_flipped_bit_in_a_queue_row_is_put_right(
    store: MessageStore, tmp_path: Path, column: int
) -> None:
    path = tmp_path / QUEUE_FILE
    sound = path.read_bytes()
    flip(path, 20 * 7 + column, bit=3)
    assert whole_pass(store).repaired_rows == 1
    assert path.read_bytes() == sound
    assert whole_pass(store).repaired_rows == 0
    assert numbers_of(store) == list(range(200))


def test_a_zeroed_page_of_rows_is_put_right(store: MessageStore, tmp_path: Path) -> None:
    path = tmp_path / QUEUE_FILE
    sound = path.read_bytes()
    overwrite(path, 200, bytes(400))
    assert whole_pass(store).repaired_rows == 20
    assert path.read_bytes() == sound


def test_a_queue_file_cut_short_is_made_whole(store: MessageStore, tmp_path: Path) -> None:
    path = tmp_path / QUEUE_FILE
    sound = path.read_bytes()
    os.truncate(path, 300)
    whole_pass(store)
    assert path.read_bytes() == sound


@pytest.mark.proves("store.files.scrubber")
@pytest.mark.parametrize("file", [0, 1, -1])
@pytest.mark.parametrize("place", ["slot", "hash", "offset", "seconds", "previous"])
def test_a_flipped_bit_in_the_index_has_it_rebuilt_from_that_file_on(
    store: MessageStore, tmp_path: Path, file: int, place: str
) -> None:
    path = index_files(tmp_path)[file]
    slot = next(at for at in range(40, 200) if path.read_bytes()[at])
    entry = 40 + 40 * 4 + 20 * 3
    places = {"slot": slot, "hash": entry, "offset": entry + 11, "seconds": entry + 15}
    flip(path, places.get(place, entry + 19), bit=5)
    count = len(index_files(tmp_path))
    expected = count - (file % count)
    assert whole_pass(store).repaired_index_files == expected
    assert whole_pass(store).repaired_index_files == 0
    for number in range(200):
        assert len(store.query(b"orders", f"ID{number:06d}".encode())) == 1
    assert store.scrubber.counters.repaired_index_files == expected


def test_the_index_rebuilt_under_the_store_survives_a_reopening(
    store: MessageStore, tmp_path: Path
) -> None:
    flip(index_files(tmp_path)[1], 40 + 160 + 20 * 4 + 9)
    assert whole_pass(store).repaired_index_files
    append_numbers(store, 230, 260)
    store.close()
    with MessageStore.open(small_config(tmp_path)) as again:
        assert again.recovery.problems == []
        assert len(again.query(b"orders", b"ID000259")) == 1
        assert whole_pass(again).repaired_index_files == 0


@pytest.mark.proves("store.files.scrubber")
def test_damage_in_the_log_is_reported_with_its_bytes_and_counted_once(
    store: MessageStore, tmp_path: Path
) -> None:
    victim = store.record(0)
    at = victim.record_bytes * 3
    flip(tmp_path / "commitlog" / f"{0:020d}", at + 95)
    for _ in range(2):
        (found,) = whole_pass(store).damaged
        assert (found.physical_start, found.physical_end) == (at, at + victim.record_bytes)
        assert "checksum" in found.reason
    assert store.scrubber.counters.damaged_ranges == 1


def test_an_unreadable_record_does_not_stop_the_pass(store: MessageStore, tmp_path: Path) -> None:
    size = store.record(0).record_bytes
    overwrite(tmp_path / "commitlog" / f"{0:020d}", size, b"\xff" * (size * 2 + 10))
    report = whole_pass(store)
    (found,) = report.damaged
    assert (found.physical_start, found.physical_end) == (size, size * 4)
    assert report.records_checked == 227


def test_a_pass_goes_on_after_retention_removed_its_segment(
    store: MessageStore, tmp_path: Path
) -> None:
    store.scrubber.run_once(1)
    while store._segments.physical_min <= 8192:
        store._segments.remove_first()
    report = whole_pass(store)
    assert report.damaged == []
    assert report.repaired_index_files == 0
    assert whole_pass(store).repaired_index_files == 0


def test_messages_that_arrive_during_a_pass_are_part_of_it(store: MessageStore) -> None:
    store.scrubber.run_once(1)
    append_numbers(store, 300, 350)
    report = whole_pass(store)
    assert (report.damaged, report.repaired_rows, report.repaired_index_files) == ([], 0, 0)


def test_a_deleted_topic_is_left_alone(store: MessageStore, tmp_path: Path) -> None:
    store.delete_topic(b"bills")
    report = whole_pass(store)
    assert (report.repaired_rows, report.repaired_index_files) == (0, 0)
    assert not (tmp_path / "consumequeue/bills").exists()


def test_rows_of_batches_are_put_right(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        for number in range(20):
            properties = encode_properties({"UNIQ_KEY": f"U{number}", "INNER_NUM": "3"})
            store.append_inner_batch(MessageDraft(b"batches", 0, b"x", properties, sys_flag=0xC0))
        store.dispatch()
        store.checkpoint()
        path = next((tmp_path / "batchconsumequeue/batches/0").iterdir())
        sound = path.read_bytes()
        flip(path, 46 * 4 + 2)
        flip(path, 46 * 9 + 35, bit=6)
        assert whole_pass(store).repaired_rows == 2
        assert path.read_bytes() == sound


def test_rows_with_an_extension_are_put_right(tmp_path: Path) -> None:
    config = small_config(tmp_path, queue_ext_enabled=True, queue_ext_file_bytes=4096)
    with MessageStore.open(config) as store:
        append_numbers(store, 0, 100)
        store.checkpoint()
        assert whole_pass(store).repaired_rows == 0
        sound = (tmp_path / QUEUE_FILE).read_bytes()
        flip(tmp_path / QUEUE_FILE, 20 * 5 + 10)
        assert whole_pass(store).repaired_rows == 1
        assert (tmp_path / QUEUE_FILE).read_bytes() == sound


@pytest.mark.parametrize("extension", [False, True], ids=["rows", "queue extension"])
@pytest.mark.parametrize("column", [0, 11, 12, 15, 18, 19])
def test_a_damaged_row_of_a_delayed_message_is_put_right(
    tmp_path: Path, column: int, extension: bool
) -> None:
    with MessageStore.open(small_config(tmp_path, queue_ext_enabled=extension)) as store:
        properties = encode_properties({"DELAY": "3", "REAL_TOPIC": "t", "REAL_QID": "0"})
        store.append([MessageDraft(b"SCHEDULE_TOPIC_XXXX", 2, b"x", properties)])
        store.dispatch()
        store.checkpoint()
        path = tmp_path / "consumequeue/SCHEDULE_TOPIC_XXXX/2" / f"{0:020d}"
        for bit in range(8):
            due_ms = store.rows(b"SCHEDULE_TOPIC_XXXX", 2, 0, 1)[0].tags_code
            flip(path, column, bit)
            assert whole_pass(store).repaired_rows == 1
            assert store.rows(b"SCHEDULE_TOPIC_XXXX", 2, 0, 1)[0].tags_code == due_ms
        assert whole_pass(store).repaired_rows == 0


def test_an_empty_store_passes(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        assert store.scrubber.run_once(1000).finished_pass
        store.append([draft(0)])
        store.dispatch()
        assert whole_pass(store).records_checked == 1


def test_a_damaged_row_whose_record_retention_removed_stops_no_reader(
    store: MessageStore, tmp_path: Path
) -> None:
    overwrite(tmp_path / QUEUE_FILE, 0, b"\x7f" * 20 * 5)
    while store.physical_min < 8192 * 2:
        store._segments.remove_first()
    store._queues.correct_minimums(store.physical_min)
    first_left = next(n for n in range(200) if store.query(b"orders", f"ID{n:06d}".encode()))
    whole_pass(store)
    assert store.queue_offset_min(b"orders", 0) == first_left
    assert numbers_of(store) == list(range(first_left, 200))


SECOND = 1000


@pytest.mark.parametrize("rate", [1_000, 300_000, 8 << 20])
@pytest.mark.parametrize("interval_ms", [1, 7, 100, 1000])
def test_the_rate_is_kept_whatever_the_interval_and_the_size_of_a_step(
    rate: int, interval_ms: int
) -> None:
    budget, spent, seconds = ScrubBudget(rate), 0, 200
    for now_ms in range(5, seconds * SECOND, interval_ms):
        bytes_max = budget.available(now_ms)
        if bytes_max:
            # A step checks whole records, so more than it was given.
            spent += bytes_max + 5_000
            budget.spend(bytes_max + 5_000)
    slack = max(rate, CHUNK_BYTES_MIN) + 5_000
    assert rate * seconds - slack <= spent <= rate * seconds + slack


def test_a_clock_set_back_neither_stalls_nor_bursts() -> None:
    budget = ScrubBudget(1 << 20)
    assert budget.available(10_000_000) == 0
    assert budget.available(9_000_000) == 0
    assert budget.available(9_000_500) == 1 << 19
    budget.spend(1 << 19)
    # A long pause, or a clock set forward, is worth one second.
    assert budget.available(99_000_000) == 1 << 20


def test_a_rate_of_zero_checks_no_bytes() -> None:
    budget = ScrubBudget(0)
    assert [budget.available(now_ms) for now_ms in range(0, 100_000, 1000)] == [0] * 100


@pytest.mark.parametrize("interval_ms", [1, 50])
def test_ticks_scrub_at_the_configured_rate(tmp_path: Path, interval_ms: int) -> None:
    rate = 200_000
    clock = ManualClock()
    config = small_config(tmp_path, segment_bytes=1 << 20, scrub_bytes_per_second=rate)
    with MessageStore.open(config, clock=clock) as store:
        append_numbers(store, 0, 3000, body_bytes=200)
        # The first steps after so many messages are slow ones.
        tick_for(store, clock, 4 * SECOND, interval_ms)
        before = store.scrubber.counters.bytes_checked
        assert before < 3 * rate
        tick_for(store, clock, 2 * SECOND, interval_ms)
        checked = store.scrubber.counters.bytes_checked - before
    assert 1.5 * rate <= checked <= 2.5 * rate


def tick_for(store: MessageStore, clock: ManualClock, span_ms: int, interval_ms: int) -> None:
    for _ in range(span_ms // interval_ms):
        clock.advance(ms=interval_ms)
        store.tick()


def test_an_empty_store_is_not_scrubbed_at_every_tick(tmp_path: Path) -> None:
    clock = ManualClock()
    config = small_config(tmp_path, scrub_bytes_per_second=CHUNK_BYTES_MIN)
    with MessageStore.open(config, clock=clock) as store:
        tick_for(store, clock, 5 * SECOND, 10)
        assert store.scrubber.counters.passes == 1
        tick_for(store, clock, 21 * 60 * SECOND, SECOND)
        assert store.scrubber.counters.passes == 3

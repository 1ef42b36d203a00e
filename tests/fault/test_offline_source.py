"""The offline source reads real folders: live, stopped, copied, damaged, cut in any way."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.errors import DataLost, OptionInvalid
from contrail.model.batch import BatchUnit, encode_batch, mark_inner_batch
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.pipeline import offline_files, offline_plan
from contrail.pipeline.columns import MESSAGE_COLUMNS, plan_columns, schema_of
from contrail.pipeline.offline import OfflineSlice, plan_offline, read_offline
from contrail.pipeline.options import SourceSettings
from contrail.store.log import MessageStore
from contrail.store.reader import StoreReader
from tests.fault.store_setup import append_numbers, draft, small_config
from tests.unit.pipeline.record_material import rows_of

BEGIN_MS = 1_760_000_000_000
EVERYTHING = plan_columns(schema_of(list(MESSAGE_COLUMNS)))
HEADERS = plan_columns(schema_of(["queueOffset"]))


def planned(root: Path, **options: str) -> list[OfflineSlice]:
    """The slices of a read, as they arrive at the executors."""
    settings = SourceSettings.of({"storePath": str(root), **options}, streaming=False)
    slices: list[OfflineSlice] = pickle.loads(pickle.dumps(plan_offline(settings)))
    return slices


def numbers(root: Path, **options: str) -> list[int]:
    return [
        int(row["body"][:8])
        for piece in planned(root, **options)
        for row in rows_of(read_offline(piece, EVERYTHING))
    ]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[MessageStore]:
    """300 messages of two topics, one each 10 ms; half of them since the last checkpoint."""
    clock = ManualClock(BEGIN_MS)
    with MessageStore.open(small_config(tmp_path / "store"), clock=clock) as store:
        for number in range(0, 300, 2):
            store.append([draft(number), draft(number + 1, topic="bills", queue_id=number % 4)])
            clock.advance(ms=10)
            if number == 150:
                store.dispatch()
                store.checkpoint()
        store.dispatch()
        yield store


@pytest.fixture
def stopped(live: MessageStore, tmp_path: Path) -> Path:
    live.close()
    return tmp_path / "store"


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A large topic, and 40 messages of a small one among them."""
    root = tmp_path / "sparse"
    with MessageStore.open(small_config(root, segment_bytes=65_536)) as store:
        for number in range(0, 400, 10):
            append_numbers(store, number, number + 9, body_bytes=900)
            append_numbers(store, number + 9, number + 10, topic="bills", queue_id=number % 20)
    return root


SMALL = [*range(9, 400, 20), *range(19, 400, 20)]


def flip(root: Path, physical_offset: int, byte_count: int = 1) -> None:
    """Flip bits of the log."""
    reader = StoreReader.open(root)
    file = next(f for f in reader.segments if f.start <= physical_offset < f.end)
    fd = os.open(file.path, os.O_RDWR)
    try:
        data = os.pread(fd, byte_count, physical_offset - file.start)
        os.pwrite(fd, bytes(byte ^ 0x55 for byte in data), physical_offset - file.start)
    finally:
        os.close(fd)


def place_of(root: Path, number: int) -> tuple[int, int]:
    """Where a message starts and ends in the log."""
    found = next(m for m in StoreReader.open(root).messages() if int(m.body[:8]) == number)
    return found.physical_offset, found.physical_offset + found.record_bytes


# Reads.


def test_a_live_store_is_read_to_its_last_message(live: MessageStore, tmp_path: Path) -> None:
    assert numbers(tmp_path / "store") == list(range(300))
    assert numbers(tmp_path / "store", subscribe="orders") == list(range(0, 300, 2))


def test_messages_stored_after_the_planning_are_not_read(
    live: MessageStore, tmp_path: Path
) -> None:
    slices = planned(tmp_path / "store")
    append_numbers(live, 300, 310)
    rows = [row for piece in slices for row in rows_of(read_offline(piece, HEADERS))]
    assert len(rows) == 300


def test_every_column_says_what_the_reader_says(stopped: Path) -> None:
    (piece,) = planned(stopped, assign='{"orders": ["broker-a:0"]}')
    rows = rows_of(read_offline(piece, EVERYTHING))
    messages = list(StoreReader.open(stopped).messages(topic="orders"))
    assert [row["physicalOffset"] for row in rows] == [m.physical_offset for m in messages]
    assert [row["properties"] for row in rows] == [m.properties for m in messages]
    assert {row["brokerName"] for row in rows} == {"broker-a"}


@pytest.mark.proves("spark.source.offline")
def test_queues_offsets_times_tags_and_patterns_are_respected(stopped: Path) -> None:
    assert numbers(stopped, assign='{"bills": ["a:2"]}') == list(range(3, 300, 4))
    some = {"startingOffsets": '{"orders":{"a:0":3}}', "endingOffsets": '{"orders":{"a:0":5}}'}
    assert numbers(stopped, subscribe="orders", **some) == [6, 8]
    times = {"startingTimestamp": str(BEGIN_MS + 1000), "endingTimestamp": str(BEGIN_MS + 1030)}
    assert numbers(stopped, **times) == list(range(200, 206))
    by_time = {"startingOffsetsByTimestamp": f'{{"orders":{{"a:0":{BEGIN_MS + 1480}}}}}'}
    assert numbers(stopped, subscribe="orders", **by_time) == [296, 298]
    assert numbers(stopped, tags="t1 || t2") == [n for n in range(300) if n % 3]
    assert numbers(stopped, subscribePattern="ord.*") == list(range(0, 300, 2))
    assert numbers(stopped, subscribe="orders,bills") == list(range(300))


def test_the_first_and_the_next_offset_stand_for_the_ends_of_a_queue(stopped: Path) -> None:
    ends = {"startingOffsets": '{"orders":{"a:0":-2}}', "endingOffsets": '{"orders":{"a:0":-1}}'}
    assert numbers(stopped, subscribe="orders", **ends) == list(range(0, 300, 2))


@pytest.mark.proves("spark.source.offline")
def test_the_brokers_own_messages_are_read_on_request_only(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 2)
        append_numbers(store, 2, 3, topic="SCHEDULE_TOPIC_XXXX")
        store.append([MessageDraft(b"orders", 0, b"00000003", b"", sys_flag=0x4)])
        store.dispatch()
    assert numbers(tmp_path) == [0, 1]
    assert numbers(tmp_path, internalTopics="true") == [0, 1, 2, 3]
    assert numbers(tmp_path, subscribePattern=".*") == [0, 1]
    assert numbers(tmp_path, subscribePattern=".*", internalTopics="true") == [0, 1, 2]
    assert numbers(tmp_path, subscribe="SCHEDULE_TOPIC_XXXX") == [2]
    assert numbers(tmp_path, subscribe="orders") == [0, 1]


def test_messages_of_a_deleted_topic_are_not_read_for_the_topic_made_anew(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 20)
        store.delete_topic(b"orders")
        append_numbers(store, 20, 25)
    assert numbers(tmp_path, subscribe="orders") == list(range(20, 25))
    assert numbers(tmp_path) == list(range(25))


@pytest.mark.parametrize("is_dense", [True, False])
def test_inner_batches_are_cut_by_the_offsets_of_their_messages(
    tmp_path: Path, is_dense: bool
) -> None:
    with MessageStore.open(small_config(tmp_path, segment_bytes=65_536)) as store:
        for first in (0, 4, 8):
            if not is_dense:
                append_numbers(store, 100, 140, body_bytes=900)
            units = [BatchUnit(f"{first + n:08d}".encode()) for n in range(4)]
            batch = MessageDraft(b"batches", 0, encode_batch(units), encode_properties({}))
            store.append_inner_batch(mark_inner_batch(batch))
            store.dispatch()
    some = {"startingOffsets": '{"batches":{"a:0":3}}', "endingOffsets": '{"batches":{"a:0":9}}'}
    slices = planned(tmp_path, subscribe="batches", **some)
    assert [piece.queue is None for piece in slices] == [is_dense]
    assert numbers(tmp_path, subscribe="batches", **some) == list(range(3, 9))
    assert numbers(tmp_path, subscribe="batches") == list(range(12))


# How it is cut.


def test_a_topic_that_fills_the_log_is_read_as_log(stopped: Path) -> None:
    (piece,) = planned(stopped, subscribe="orders")
    assert piece.queue is None


def test_a_small_topic_in_a_large_log_is_read_by_its_rows(sparse: Path) -> None:
    slices = planned(sparse, subscribe="bills")
    assert [piece.queue is None for piece in slices] == [False, False]
    assert numbers(sparse, subscribe="bills") == SMALL
    ordered = planned(sparse, subscribe="bills", physicalOrder="true")
    assert [piece.queue is None for piece in ordered] == [True]
    assert numbers(sparse, subscribe="bills", physicalOrder="true") == sorted(SMALL)


def test_rows_that_are_not_written_yet_are_found_in_the_log(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path, segment_bytes=65_536)) as store:
        append_numbers(store, 0, 5, topic="bills")
        append_numbers(store, 5, 205, body_bytes=900)
        store.checkpoint()
        store.append([draft(205, topic="bills"), draft(206, topic="bills", queue_id=1)])
        store.dispatch()
        slices = planned(tmp_path, subscribe="bills")
        assert [piece.queue is None for piece in slices] == [False, True]
        assert numbers(tmp_path, subscribe="bills") == [*range(5), 205, 206]
        assert numbers(tmp_path, assign='{"bills": ["a:1"]}') == [206]


def test_a_log_is_cut_where_records_start(stopped: Path) -> None:
    slices = planned(stopped, minPartitions="7")
    assert len(slices) == 7
    ends = [piece.physical_end for piece in slices]
    assert [piece.physical_start for piece in slices] == [0, *ends[:-1]]
    assert numbers(stopped, minPartitions="7") == list(range(300))


def test_a_log_without_rows_is_cut_at_its_segments(stopped: Path) -> None:
    shutil.rmtree(stopped / "consumequeue")
    slices = planned(stopped, minPartitions="4")
    assert all(piece.physical_start % 8192 == 0 for piece in slices) and len(slices) == 4
    assert numbers(stopped, minPartitions="4") == list(range(300))
    assert numbers(stopped, subscribe="orders") == list(range(0, 300, 2))


def test_a_queue_is_cut_into_slices_of_rows(sparse: Path) -> None:
    slices = planned(sparse, subscribe="bills", maxRecordsPerPartition="7")
    rows = [piece.queue.row_stop - piece.queue.row_start for piece in slices if piece.queue]
    assert sum(rows) == 40 and max(rows) <= 7
    assert numbers(sparse, subscribe="bills", maxRecordsPerPartition="7") == SMALL
    assert len(planned(sparse, subscribe="bills", minPartitions="6")) == 6


def test_large_logs_are_cut_by_bytes(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_plan, "SLICE_BYTES", 20_000)
    assert len(planned(stopped)) == 4
    assert numbers(stopped) == list(range(300))


@pytest.mark.parametrize("read_bytes", [100, 300, 5000])
def test_records_larger_than_a_read_are_read_whole(
    stopped: Path, sparse: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(offline_files, "READ_BYTES", read_bytes)
    assert numbers(stopped) == list(range(300))
    assert numbers(sparse, subscribe="bills") == SMALL


# Other folders.


def test_a_folder_another_broker_wrote_is_read(stopped: Path) -> None:
    for path in stopped.glob("contrail.*"):
        path.unlink()
    assert numbers(stopped) == list(range(300))
    assert numbers(stopped, subscribe="orders") == list(range(0, 300, 2))
    (stopped / "abort").touch()
    assert numbers(stopped, subscribe="orders") == list(range(0, 300, 2))


def test_an_empty_store_has_no_slices(tmp_path: Path) -> None:
    MessageStore.open(small_config(tmp_path)).close()
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    assert planned(tmp_path) == []


def test_a_folder_without_a_store_or_the_topic_is_refused(stopped: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionInvalid, match=r"storePath: .*nowhere does not exist"):
        planned(tmp_path / "nowhere")
    with pytest.raises(OptionInvalid, match="has no topic 'order': it has bills, orders"):
        planned(stopped, subscribe="order")
    with pytest.raises(OptionInvalid, match="8192"):
        planned(stopped, segmentBytes="4096")
    with pytest.raises(OptionInvalid, match="one broker, not of a and b"):
        planned(stopped, assign='{"orders": ["a:0", "b:0"]}')


# Losses.


def kept_in_spite_of_losses(
    root: Path, caplog: pytest.LogCaptureFixture, **options: str
) -> tuple[list[int], list[str]]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = numbers(root, failOnDataLoss="false", **options)
    return found, [record.getMessage() for record in caplog.records]


def test_a_damaged_body_names_its_bytes(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    start, end = place_of(stopped, 20)
    flip(stopped, start + 100)
    problem = f"bytes {start} to {end} of the log cannot be read: a body whose checksum is wrong"
    for options in ({}, {"subscribe": "orders"}):
        with pytest.raises(DataLost, match=problem):
            numbers(stopped, **options)
        found, said = kept_in_spite_of_losses(stopped, caplog, **options)
        assert 20 not in found and 18 in found and 22 in found
        assert len(said) == 1 and problem in said[0]
    assert len(numbers(stopped, subscribe="bills")) == 150


def test_a_query_without_bodies_does_not_check_them(stopped: Path) -> None:
    flip(stopped, place_of(stopped, 20)[0] + 100)
    (piece,) = planned(stopped)
    assert sum(batch.num_rows for batch in read_offline(piece, HEADERS)) == 300


def test_damaged_lengths_cost_the_records_up_to_the_next_whole_one(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, end = place_of(stopped, 20)
    flip(stopped, start, 8)
    problem = f"bytes {start} to {end} of the log cannot be read"
    with pytest.raises(DataLost, match=problem):
        numbers(stopped)
    found, said = kept_in_spite_of_losses(stopped, caplog)
    assert found == [*range(20), *range(21, 300)]
    assert len(said) == 1 and problem in said[0]


def test_damage_at_the_end_of_a_slice_costs_no_other_slice(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, _ = place_of(stopped, 20)
    flip(stopped, start, 8)
    found, said = kept_in_spite_of_losses(stopped, caplog, minPartitions="30")
    assert found == [*range(20), *range(21, 300)]
    assert len(said) == 1


def test_a_missing_segment_names_its_bytes(stopped: Path, caplog: pytest.LogCaptureFixture) -> None:
    (stopped / "commitlog" / f"{8192:020d}").unlink()
    with pytest.raises(DataLost, match=r"bytes 8192 to 16384 .* no segment file holds them"):
        numbers(stopped)
    found, said = kept_in_spite_of_losses(stopped, caplog)
    assert 250 < len(found) < 300
    assert len(said) == 1


def test_a_segment_removed_since_the_planning_is_lost(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (strict,) = planned(stopped)
    (patient,) = planned(stopped, failOnDataLoss="false")
    (stopped / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLost, match=r"bytes 0 to 8192 .* was there when the read was planned"):
        list(read_offline(strict, HEADERS))
    with caplog.at_level(logging.WARNING):
        rows = sum(batch.num_rows for batch in read_offline(patient, HEADERS))
    assert 250 < rows < 300 and len(caplog.records) == 1


def test_a_segment_cut_short_is_lost_from_there_on(
    stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slices = planned(stopped)
    os.truncate(stopped / "commitlog" / f"{8192:020d}", 4000)
    with pytest.raises(DataLost, match="to 16384 of the log cannot be read"):
        list(read_offline(slices[0], HEADERS))
    slices[0].fail_on_data_loss = False
    rows = sum(batch.num_rows for batch in read_offline(slices[0], HEADERS))
    assert 270 < rows < 300


def test_rows_that_lead_nowhere_are_lost(sparse: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = sparse / "consumequeue/bills/0" / f"{0:020d}"
    rows = bytearray(path.read_bytes())
    other = (sparse / "consumequeue/orders/0" / f"{0:020d}").read_bytes()
    rows[40:60] = other[20:40]
    rows[60:80] = bytes(20)
    rows[80:88] = (1 << 40).to_bytes(8, "big")
    rows[103] ^= 1
    path.write_bytes(rows)
    with pytest.raises(DataLost):
        numbers(sparse, subscribe="bills")
    found, said = kept_in_spite_of_losses(sparse, caplog, subscribe="bills")
    assert found == [n for n in SMALL if n not in (49, 69, 89, 109)]
    told = "\n".join(said)
    assert "1 rows of queue 0 of 'bills' are damaged or were removed" in told
    assert "leads to another's record" in told
    assert f"bytes {1 << 40} to" in told


def test_rows_removed_since_the_planning_are_lost(sparse: Path) -> None:
    slices = planned(sparse, subscribe="bills")
    shutil.rmtree(sparse / "consumequeue/bills/0")
    with pytest.raises(DataLost, match="20 rows of queue 0 of 'bills'"):
        list(read_offline(slices[0], HEADERS))


def test_an_offset_that_retention_has_passed_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 100)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    start = {"startingOffsets": '{"orders":{"a:0":0}}'}
    with pytest.raises(DataLost, match="queue 0 of 'orders' has lost 0 to"):
        planned(tmp_path, subscribe="orders", **start)
    found, said = kept_in_spite_of_losses(tmp_path, caplog, subscribe="orders", **start)
    assert found == numbers(tmp_path, subscribe="orders") and len(said) == 1


def test_damaged_numbers_are_found_where_records_have_checksums(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with MessageStore.open(small_config(tmp_path, record_crc_enabled=True)) as store:
        append_numbers(store, 0, 30)
    start, _ = place_of(tmp_path, 20)
    flip(tmp_path, start + 16)
    with pytest.raises(DataLost, match=f"bytes {start} to .* a record whose checksum is wrong"):
        numbers(tmp_path)
    found, said = kept_in_spite_of_losses(tmp_path, caplog)
    assert found == [*range(20), *range(21, 30)] and len(said) == 1

"""A store folder is read as it is: live, stopped, copied, damaged, read-only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.errors import RecordDamaged, StoreLayoutError
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.model.topic import TopicConfig
from contrail.runtime.files import FileSystem
from contrail.store.config_files import TopicTable, save_topics
from contrail.store.log import MessageStore
from contrail.store.reader import StoreReader
from contrail.store.services.folder_files import UntouchedFiles
from tests.fault.store_setup import append_numbers, draft, small_config

BEGIN_MS = 1_760_000_000_000


def opened(root: Path) -> StoreReader:
    return StoreReader.open(root, index_slot_count=40)


def numbers(reader: StoreReader, **choice: object) -> list[int]:
    return [int(message.body[:8]) for message in reader.messages(**choice)]  # type: ignore[arg-type]


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


def changes_of(root: Path) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in root.rglob("*")}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


@pytest.mark.proves("store.reader.folders")
def test_a_live_store_is_read_to_its_last_message(live: MessageStore, tmp_path: Path) -> None:
    reader = opened(tmp_path / "store")
    assert reader.physical_end == live.physical_end
    assert numbers(reader) == list(range(300))
    assert numbers(reader, topic="orders") == list(range(0, 300, 2))
    assert reader.is_in_use() is not False
    assert not reader.was_clean


def test_a_live_store_keeps_its_lock_and_its_files(live: MessageStore, tmp_path: Path) -> None:
    before = changes_of(tmp_path / "store")
    reader = opened(tmp_path / "store")
    assert len(reader.by_key("orders", "ID000298")) == 1
    reader.topics()
    assert changes_of(tmp_path / "store") == before
    assert opened(tmp_path / "store").is_in_use() is not False


@pytest.mark.proves("store.reader.folders")
def test_a_stopped_store_says_the_same_as_the_store_did(stopped: Path) -> None:
    reader = opened(stopped)
    with MessageStore.open(small_config(stopped)) as store:
        expected = {
            (topic.decode(), queue_id): (
                store.queue_offset_min(topic, queue_id),
                store.queue_offset_max(topic, queue_id),
            )
            for topic, queue_id in store.queues()
        }
    found = {
        (topic, queue.queue_id): (queue.queue_offset_min, queue.queue_offset_max)
        for topic, queues in reader.topics().items()
        for queue in queues
    }
    assert found == expected
    assert reader.was_clean
    assert reader.is_in_use() is not True


def test_a_queue_is_read_from_an_offset_to_an_offset(stopped: Path) -> None:
    reader = opened(stopped)
    assert numbers(reader, topic="orders", queue_offset_start=140) == list(range(280, 300, 2))
    part = numbers(reader, topic="orders", queue_offset_start=3, queue_offset_end=5)
    assert part == [6, 8]
    assert numbers(reader, topic="bills", queue_id=2) == list(range(3, 300, 4))
    assert numbers(reader, topic="bills", queue_id=7) == []


def test_times_are_inclusive_by_queue_and_in_log_order(stopped: Path) -> None:
    reader = opened(stopped)
    begin_ms, end_ms = BEGIN_MS + 1000, BEGIN_MS + 1020
    chosen = numbers(reader, topic="orders", begin_ms=begin_ms, end_ms=end_ms)
    assert chosen == [200, 202, 204]
    assert numbers(reader, begin_ms=begin_ms, end_ms=end_ms) == list(range(200, 206))


def test_first_and_last_times_are_those_of_the_messages(stopped: Path) -> None:
    (orders,) = opened(stopped).topics()["orders"]
    assert orders.first_store_timestamp_ms == BEGIN_MS
    assert orders.last_store_timestamp_ms == BEGIN_MS + 1490


def test_times_are_found_in_a_log_with_a_segment_prepared_ahead(
    live: MessageStore, tmp_path: Path
) -> None:
    start = (live.physical_end // 8192 + 1) * 8192
    (tmp_path / "store/commitlog" / f"{start:020d}").write_bytes(bytes(8192))
    reader = opened(tmp_path / "store")
    assert numbers(reader, begin_ms=BEGIN_MS + 1000) == list(range(200, 300))
    assert numbers(reader, begin_ms=BEGIN_MS + 1480) == [296, 297, 298, 299]
    assert numbers(reader, topic="orders", begin_ms=BEGIN_MS + 1480) == [296, 298]


def test_no_message_is_lost_to_a_clock_that_was_set_back(tmp_path: Path) -> None:
    clock = ManualClock(BEGIN_MS)
    with MessageStore.open(small_config(tmp_path), clock=clock) as store:
        append_numbers(store, 0, 100)
        clock.advance(ms=-50_000)
        append_numbers(store, 100, 200)
        clock.advance(ms=60_000)
        append_numbers(store, 200, 300)
    reader = opened(tmp_path)
    late = [*range(100), *range(200, 300)]
    assert len({message.store_timestamp_ms for message in reader.messages()}) == 3
    for topic in (None, "orders"):
        assert numbers(reader, topic=topic, begin_ms=BEGIN_MS) == late
        assert numbers(reader, topic=topic, end_ms=BEGIN_MS - 1) == list(range(100, 200))
        assert numbers(reader, topic=topic, begin_ms=BEGIN_MS, end_ms=BEGIN_MS) == late[:100]


@pytest.mark.parametrize("index", ["kept", "removed"])
def test_a_key_is_found_with_and_without_an_index(stopped: Path, index: str) -> None:
    if index == "removed":
        shutil.rmtree(stopped / "index")
    reader = opened(stopped)
    assert [m.body[:8] for m in reader.by_key("orders", "ID000010")] == [b"00000010"]
    assert len(reader.by_key("orders", "k4")) == 30
    assert reader.by_key("orders", "ID000011") == []


def test_a_folder_without_its_queues_is_read_from_the_log(stopped: Path) -> None:
    shutil.rmtree(stopped / "consumequeue")
    (stopped / "contrail.queues").unlink()
    (stopped / "contrail.queues.bak").unlink(missing_ok=True)
    reader = opened(stopped)
    assert numbers(reader, topic="orders") == list(range(0, 300, 2))


def test_a_folder_another_broker_wrote_is_read(stopped: Path) -> None:
    for path in stopped.glob("contrail.*"):
        path.unlink()
    reader = opened(stopped)
    assert reader.known.log is None
    assert numbers(reader) == list(range(300))
    assert numbers(reader, topic="orders") == list(range(0, 300, 2))


@pytest.mark.proves("store.reader.folders")
def test_a_read_only_copy_is_read(stopped: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stopped, copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert numbers(opened(copy), topic="orders") == list(range(0, 300, 2))
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755)


def test_a_damaged_record_is_skipped_and_named(stopped: Path) -> None:
    reader = opened(stopped)
    damaged = next(m for m in reader.messages(topic="orders") if m.body.startswith(b"00000020"))
    flip(reader, damaged.physical_offset + 100)
    reader = opened(stopped)
    assert 20 not in numbers(reader, topic="orders")
    assert len(numbers(reader)) == 299
    assert {found.physical_start for found in reader.damaged} == {damaged.physical_offset}
    with pytest.raises(RecordDamaged):
        reader.record(damaged.physical_offset)


def test_a_row_that_leads_to_another_queue_gives_no_message(stopped: Path) -> None:
    path = stopped / "consumequeue/orders/0" / f"{0:020d}"
    other = stopped / "consumequeue/bills/0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[40:60] = other.read_bytes()[:20]
    path.write_bytes(data)
    reader = opened(stopped)
    assert numbers(reader, topic="orders")[:4] == [0, 2, 6, 8]
    assert "another record" in reader.damaged[0].reason


def test_a_missing_segment_is_a_damaged_range(stopped: Path) -> None:
    paths = sorted((stopped / "commitlog").iterdir())
    paths[1].unlink()
    reader = opened(stopped)
    assert len(numbers(reader)) < 300
    assert [(d.physical_start, d.physical_end) for d in reader.damaged] == [(8192, 16384)]


def test_a_torn_tail_ends_the_log(live: MessageStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    end = live.physical_end
    live.append([draft(300)])
    shutil.copytree(tmp_path / "store", copy)
    reader = opened(copy)
    assert reader.physical_end > end
    last = next(file for file in reader.segments if file.start <= end < file.end)
    with open(last.path, "r+b") as file:
        file.seek(end - last.start + 100)
        file.write(b"torn")
    reader = opened(copy)
    assert reader.physical_end == end
    assert reader.damaged == []


def test_the_brokers_own_messages_are_shown_on_request_only(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 2)
        append_numbers(store, 2, 3, topic="SCHEDULE_TOPIC_XXXX")
        prepared = MessageDraft(b"orders", 0, b"00000003", encode_properties({}), sys_flag=0x4)
        store.append([prepared])
        store.dispatch()
    reader = opened(tmp_path)
    assert numbers(reader) == [0, 1]
    assert numbers(reader, internal=True) == [0, 1, 2, 3]


def test_batches_are_read_from_their_own_queue(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        for number in range(3):
            properties = encode_properties({"UNIQ_KEY": f"U{number}", "INNER_NUM": "4"})
            body = f"{number:08d}".encode()
            store.append_inner_batch(MessageDraft(b"batches", 0, body, properties, sys_flag=0xC0))
        store.dispatch()
    reader = opened(tmp_path)
    (queue,) = reader.topics()["batches"]
    assert (queue.queue_offset_min, queue.queue_offset_max) == (0, 12)
    assert numbers(reader, topic="batches", queue_offset_start=4) == [1, 2]


def killed_with_batches(tmp_path: Path) -> Path:
    """A folder whose process was killed before the first queue was made."""
    config = small_config(tmp_path / "live")
    with MessageStore.open(config, batch_topics=frozenset({b"batches"})) as store:
        append_numbers(store, 0, 3)
        store.append([draft(3, topic="batches")])
        properties = encode_properties({"UNIQ_KEY": "U4", "INNER_NUM": "4"})
        store.append_inner_batch(
            MessageDraft(b"batches", 0, b"00000004", properties, sys_flag=0xC0)
        )
        copy = Path(shutil.copytree(tmp_path / "live", tmp_path / "killed"))
    for name in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(copy / name, ignore_errors=True)
    return copy


def configure(root: Path, topic: str, **attributes: str) -> None:
    named = {name.replace("_", "."): value for name, value in attributes.items()}
    save_topics(FileSystem(), root, TopicTable({topic: TopicConfig(topic, attributes=named)}))


def test_inner_batches_at_the_end_of_the_log_show_that_their_topic_is_a_batch_topic(
    tmp_path: Path,
) -> None:
    reader = opened(killed_with_batches(tmp_path))
    assert reader.batch_topics == {b"batches"}
    (queue,) = reader.topics()["batches"]
    assert (queue.queue_offset_min, queue.queue_offset_max) == (0, 5)
    assert numbers(reader, topic="batches") == [3, 4]


def test_topics_json_names_batch_topics_before_their_first_message(tmp_path: Path) -> None:
    MessageStore.open(small_config(tmp_path)).close()
    configure(tmp_path, "batches", queue_type="BatchCQ")
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    assert opened(tmp_path).batch_topics == {b"batches"}


def test_topics_json_outweighs_old_records_of_a_topic(tmp_path: Path) -> None:
    root = killed_with_batches(tmp_path)
    configure(root, "batches", queue_type="SimpleCQ")
    assert opened(root).batch_topics == frozenset()


@pytest.mark.parametrize("content", [b"{", b"", None])
def test_a_topic_config_that_cannot_be_read_is_a_note(stopped: Path, content: bytes | None) -> None:
    path = stopped / "config/topics.json"
    path.parent.mkdir()
    path.mkdir() if content is None else path.write_bytes(content)
    reader = opened(stopped)
    assert any("topics.json" in note for note in reader.notes)
    assert numbers(reader, topic="orders") == list(range(0, 300, 2))


def test_a_queue_of_messages_for_a_topic_of_batches_is_a_problem(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 5)
    configure(tmp_path, "orders", queue_type="BatchCQ")
    reader = opened(tmp_path)
    assert reader.queues == {}
    assert "consumequeue/orders/0 does not fit" in reader.problems[0]


class CountedFiles(UntouchedFiles):
    """Counts how often a file is opened."""

    def __init__(self) -> None:
        self.open_count = 0

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        self.open_count += 1
        return super().open(path, create=create, writable=writable)


def test_the_search_for_a_queues_rows_opens_its_file_once(tmp_path: Path) -> None:
    config = small_config(tmp_path, queue_file_bytes=300_000 * 20)
    with MessageStore.open(config) as store:
        append_numbers(store, 0, 50)
    files = CountedFiles()
    (queue,) = StoreReader.open(tmp_path, files=files).queues.values()
    files.open_count = 0
    assert queue.live_rows(0, 1 << 40) == range(50)
    assert files.open_count == 1


def test_a_missing_segment_is_known_without_reading_the_log(stopped: Path) -> None:
    (stopped / "commitlog" / f"{8192:020d}").unlink()
    (found,) = opened(stopped).missing_ranges()
    assert (found.physical_start, found.physical_end) == (8192, 16384)


def test_a_missing_last_segment_is_known_from_the_checkpoint(stopped: Path) -> None:
    assert opened(stopped).missing_ranges() == []
    last = sorted((stopped / "commitlog").iterdir())[-1]
    last.unlink()
    reader = opened(stopped)
    (found,) = reader.missing_ranges()
    assert (found.physical_start, found.physical_end) == (int(last.name), reader.durable_end)


@pytest.mark.parametrize("slot_count", [0, -7, 999_999_999])
def test_an_index_of_more_slots_than_it_has_bytes_for_is_refused(
    stopped: Path, slot_count: int
) -> None:
    with pytest.raises(StoreLayoutError, match="maxHashSlotNum"):
        StoreReader.open(stopped, index_slot_count=slot_count)


def test_an_empty_store_has_no_topics(tmp_path: Path) -> None:
    MessageStore.open(small_config(tmp_path)).close()
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    reader = opened(tmp_path)
    assert (reader.physical_end, reader.topics(), numbers(reader)) == (0, {}, [])


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_a_folder_that_is_no_store_is_refused_by_name(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "file":
        path.write_text("not a folder")
    elif what == "empty":
        path.mkdir()
    with pytest.raises(StoreLayoutError, match=what):
        StoreReader.open(path)


def test_a_wrong_segment_size_is_refused_with_the_right_one(stopped: Path) -> None:
    with pytest.raises(StoreLayoutError, match="8192"):
        StoreReader.open(stopped, segment_bytes=4096)


def test_a_damaged_state_file_stays_where_it_is(stopped: Path) -> None:
    path = stopped / "contrail.checkpoint"
    path.write_bytes(b"noise")
    assert numbers(opened(stopped)) == list(range(300))
    assert path.read_bytes() == b"noise"


def flip(reader: StoreReader, physical_offset: int) -> None:
    """Flip one bit of the log."""
    file = next(f for f in reader.segments if f.start <= physical_offset < f.end)
    fd = os.open(file.path, os.O_RDWR)
    try:
        (byte,) = os.pread(fd, 1, physical_offset - file.start)
        os.pwrite(fd, bytes([byte ^ 1]), physical_offset - file.start)
    finally:
        os.close(fd)


def test_a_queue_whose_first_file_is_being_made_is_read_from_the_log(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 5)
        queue = tmp_path / "consumequeue" / "orders" / "0"
        queue.mkdir(parents=True, exist_ok=True)
        (queue / f"{0:020d}").write_bytes(b"")
        reader = StoreReader.open(tmp_path)
        assert [int(one.body[:8]) for one in reader.messages(topic="orders")] == [*range(5)]
        assert reader.problems == []

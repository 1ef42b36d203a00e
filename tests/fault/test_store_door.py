"""The store as its users see it: append, read, close, open again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.errors import (
    BatchIllegal,
    BodyTooLarge,
    MessageIllegal,
    PropertiesTooLarge,
    StoreClosed,
    StoreLocked,
    TopicNameIllegal,
    TopicTooLong,
)
from contrail.kernels.java_hash import java_hash
from contrail.model.batch import BatchUnit, encode_batch, mark_inner_batch
from contrail.model.message import MessageDraft
from contrail.store.config import FlushDiskType
from contrail.store.disk.queue_table import Arrival
from contrail.store.log import MessageStore
from contrail.store.state.reading import GetStatus
from tests.fault.store_setup import append_numbers, draft, numbers_of, small_config


@pytest.mark.proves("store.log.segments")
def test_appended_messages_are_read_in_order_across_segments_and_queue_files(
    tmp_path: Path,
) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        for first in range(0, 200, 20):
            append_numbers(store, first, first + 20)
        assert len(list((tmp_path / "commitlog").iterdir())) > 3
        assert numbers_of(store) == list(range(200))


@pytest.mark.proves("store.files.checkpoint")
def test_a_closed_store_opens_clean_and_goes_on_where_it_stood(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 70)
    assert not (tmp_path / "abort").exists()
    with MessageStore.open(small_config(tmp_path)) as store:
        assert store.recovery.was_clean
        assert store.recovery.scanned_bytes == 0
        assert store.recovery.problems == []
        append_numbers(store, 70, 90)
        assert numbers_of(store) == list(range(90))


@pytest.mark.proves("store.files.lock")
def test_a_second_opener_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from contrail.store.config import StoreConfig;"
        "from contrail.store.log import MessageStore;"
        "MessageStore.open(StoreConfig(root=Path(sys.argv[1]), segment_bytes=8192))"
    )
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 3)
        store.checkpoint()
        before = sorted(os.listdir(tmp_path))
        child = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
        )
        assert child.returncode != 0
        assert StoreLocked.__name__ in child.stderr
        assert sorted(os.listdir(tmp_path)) == before
        with pytest.raises(StoreLocked, match="in this process"):
            MessageStore.open(small_config(tmp_path))
        assert numbers_of(store) == [0, 1, 2]


def test_under_sync_flush_readers_see_only_what_is_durable(tmp_path: Path) -> None:
    config = small_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with MessageStore.open(config) as store:
        run = store.append_one(draft(1))
        assert store.wait_flushed(run.physical_end, 60_000)
        assert store.flushed_end >= run.physical_end
        store.dispatch()
        assert numbers_of(store) == [1]


@pytest.mark.proves("store.queues.dispatch")
def test_the_listener_hears_of_each_queue_that_grew_and_not_of_recovery(tmp_path: Path) -> None:
    heard: list[list[Arrival]] = []
    with MessageStore.open(small_config(tmp_path), on_arrival=heard.append) as store:
        store.append([draft(1), draft(2, queue_id=1), draft(3)])
        store.dispatch()
        assert [(a.queue_id, a.queue_offset_max, a.rows) for a in heard[0]] == [
            (0, 2, 2),
            (1, 1, 1),
        ]
    heard.clear()
    (tmp_path / "contrail.queues").unlink()
    (tmp_path / "contrail.queues.bak").unlink(missing_ok=True)
    with MessageStore.open(small_config(tmp_path), on_arrival=heard.append) as store:
        assert store.recovery.redispatched_from == 0
    assert heard == []


def test_a_read_outside_the_queue_says_where_to_go_on(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        assert store.get(b"nosuch", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        append_numbers(store, 0, 5)
        at_end = store.get(b"orders", 0, 5)
        assert (at_end.status, at_end.next_queue_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 5)
        beyond = store.get(b"orders", 0, 99)
        assert (beyond.status, beyond.next_queue_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 5)


def test_a_read_by_tag_returns_only_that_tag_and_moves_past_the_rest(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 30)
        wanted = frozenset([java_hash(b"t1")])
        result = store.get(b"orders", 0, 0, tag_codes=wanted)
        assert [int(m.body[:8]) for m in result.messages] == list(range(1, 30, 3))
        assert result.next_queue_offset == 30
        none = store.get(b"orders", 0, 0, tag_codes=frozenset([12345]))
        assert (none.status, none.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 30)


@pytest.mark.proves("store.queues.key-index")
def test_messages_are_found_by_key_and_by_unique_id(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 50)
        assert [int(m.body[:8]) for m in store.query(b"orders", b"k7")] == [7, 17, 27, 37, 47]
        assert [int(m.body[:8]) for m in store.query(b"orders", b"ID000012")] == [12]
        assert store.query(b"orders", b"nosuch") == []
        assert store.query(b"other", b"k7") == []


@pytest.mark.proves("store.queues.search-by-time")
def test_a_moment_finds_its_queue_offset_on_either_side(tmp_path: Path) -> None:
    clock = ManualClock(1_000)
    with MessageStore.open(small_config(tmp_path), clock=clock) as store:
        for number in range(10):
            append_numbers(store, number, number + 1)
            clock.advance(ms=10)
        assert store.queue_offset_by_time(b"orders", 0, 1_035) == 4
        assert store.queue_offset_by_time(b"orders", 0, 1_040) == 4
        assert store.queue_offset_by_time(b"orders", 0, 1_035, "upper") == 3
        assert store.queue_offset_by_time(b"orders", 0, 0) == 0
        assert store.queue_offset_by_time(b"orders", 0, 99_999) == 10


@pytest.mark.proves("store.log.limits")
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (MessageDraft(b"orders", 0, b"x" * 2000), BodyTooLarge),
        (MessageDraft(b"orders", 0, b"x", b"p" * 40_000), PropertiesTooLarge),
        (MessageDraft(b"o" * 200, 0, b"x"), TopicTooLong),
        (MessageDraft(b"../../etc", 0, b"x"), TopicNameIllegal),
        (MessageDraft(b"orders", -1, b"x"), MessageIllegal),
    ],
)
def test_a_message_over_a_limit_is_refused_by_name_and_stores_nothing(
    tmp_path: Path, bad: MessageDraft, error: type[Exception]
) -> None:
    with MessageStore.open(small_config(tmp_path, body_bytes_max=1000)) as store:
        append_numbers(store, 0, 2)
        end = store.physical_end
        with pytest.raises(error):
            store.append([draft(2), bad])
        assert store.physical_end == end
        append_numbers(store, 2, 4)
        assert numbers_of(store) == [0, 1, 2, 3]


@pytest.mark.proves("store.log.batches")
def test_a_split_batch_has_consecutive_offsets_in_one_segment(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 30)
        run = store.append_batch([draft(number) for number in range(30, 40)])
        store.dispatch()
        assert run.queue_offsets == list(range(30, 40))
        assert len({offset // 8192 for offset in run.physical_offsets}) == 1
        assert numbers_of(store) == list(range(40))
        with pytest.raises(BatchIllegal):
            store.append_batch([draft(1), draft(2, queue_id=1)])
        with pytest.raises(MessageIllegal):
            store.append_batch([draft(1, DELAY="3")])


@pytest.mark.proves("store.log.batches")
def test_an_inner_batch_is_one_record_and_takes_an_offset_per_message(tmp_path: Path) -> None:
    units = [BatchUnit(f"{number:08d}".encode()) for number in range(5)]
    batch = mark_inner_batch(draft(0, topic="batches")._replace(body=encode_batch(units)))
    config = small_config(tmp_path, batch_queue_file_bytes=46 * 50)
    topics = frozenset([b"batches"])
    with MessageStore.open(config, batch_topics=topics) as store:
        for _ in range(3):
            store.append_inner_batch(batch)
        store.dispatch()
        assert store.queue_offset_max(b"batches", 0) == 15
        result = store.get(b"batches", 0, 7)
        assert [m.queue_offset for m in result.messages] == [5, 10]
        assert result.next_queue_offset == 15
    with MessageStore.open(config, batch_topics=topics) as store:
        run = store.append_inner_batch(batch)
        assert run.queue_offsets == [15]


def test_a_deleted_topic_is_gone_and_starts_again_at_zero(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append_numbers(store, 0, 20)
        append_numbers(store, 0, 20, topic="kept")
        store.delete_topic(b"orders")
        assert store.get(b"orders", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        append_numbers(store, 100, 103)
        assert numbers_of(store) == [100, 101, 102]
    for name in ("contrail.queues", "contrail.checkpoint"):
        assert (tmp_path / name).exists()
    with MessageStore.open(small_config(tmp_path)) as store:
        assert numbers_of(store) == [100, 101, 102]
        assert numbers_of(store, "kept") == list(range(20))


def test_a_closed_store_refuses_appends_and_closing_twice_is_closing_once(tmp_path: Path) -> None:
    store = MessageStore.open(small_config(tmp_path))
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.append_one(draft(1))


@pytest.mark.proves("store.log.several-folders")
def test_segments_take_turns_in_several_folders_and_all_are_read_again(tmp_path: Path) -> None:
    folders = (tmp_path / "a", tmp_path / "b")
    config = small_config(tmp_path / "root", commit_log_paths=folders)
    with MessageStore.open(config) as store:
        append_numbers(store, 0, 200)
    counts = [len(list(folder.iterdir())) for folder in folders]
    assert min(counts) >= 2
    with MessageStore.open(config) as store:
        assert numbers_of(store) == list(range(200))


@pytest.mark.proves("store.log.next-segment")
def test_the_next_segment_is_prepared_ahead_and_an_unused_one_removed_at_close(
    tmp_path: Path,
) -> None:
    with MessageStore.open(small_config(tmp_path, segments_prepared_ahead=True)) as store:
        append_numbers(store, 0, 200)
        assert numbers_of(store) == list(range(200))
        used = store.physical_end // 8192 + 1
    assert len(list((tmp_path / "commitlog").iterdir())) == used


def test_a_long_backlog_is_read_with_few_segments_mapped_at_a_time(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path, segment_bytes=4096)) as store:
        for first in range(0, 1500, 100):
            append_numbers(store, first, first + 100)
        before = len(os.listdir("/proc/self/fd"))
        early = store.get(b"orders", 0, 0)
        assert numbers_of(store) == list(range(1500))
        assert store.physical_end // 4096 > 80
        assert len(os.listdir("/proc/self/fd")) - before <= 64
        assert int(early.messages[0].body[:8]) == 0, "views outlive the map they came from"


@pytest.mark.proves("store.log.record-versions")
def test_ipv6_hosts_and_long_retry_topics_are_stored_and_read(tmp_path: Path) -> None:
    topic = "%RETRY%" + "g" * 180
    host = bytes(range(16)) + (10911).to_bytes(4, "big")
    with MessageStore.open(small_config(tmp_path), store_host=host) as store:
        store.append_one(draft(7, topic=topic)._replace(born_host=host))
        store.dispatch()
        message = store.get(topic.encode(), 0, 0).messages[0]
        assert (message.topic, message.born_host, message.store_host) == (topic, host, host)


@pytest.mark.proves("store.log.checksums")
def test_with_the_record_checksum_on_every_record_carries_it(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path, record_crc_enabled=True)) as store:
        append_numbers(store, 0, 5)
        for message in store.get(b"orders", 0, 0).messages:
            assert message.raw_properties[-20:].startswith(b"__CRC32#\x01")


def test_drafts_may_be_plain_tuples_even_where_a_segment_ends(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        plain = [tuple(draft(number, body_bytes=700)) for number in range(20)]
        run = store.append(plain)  # type: ignore[arg-type]
        assert run.queue_offsets == list(range(20))
        store.dispatch()
        assert numbers_of(store) == list(range(20))
        assert len(list((tmp_path / "commitlog").iterdir())) > 1

"""Queries by key: every hit and only hits, whatever the index's hashes and seconds say."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import encode_properties
from contrail.store.log import MessageStore
from tests.fault.store_setup import small_config

# Java gives both the same hash, alone and behind a topic.
ONE, OTHER = "Aa", "BB"


def append(store: MessageStore, body: str, **properties: str) -> int:
    """Append one message and derive it; returns its physical offset."""
    message = MessageDraft(b"orders", 0, body.encode(), encode_properties(properties))
    run = store.append([message])
    store.dispatch()
    return run.physical_offsets[0]


def bodies(found: list[StoredMessage]) -> list[str]:
    return [message.body.decode() for message in found]


@pytest.mark.parametrize("collisions", [1, 5, 300])
def test_collisions_do_not_use_up_the_count(tmp_path: Path, collisions: int) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append(store, "wanted", KEYS=ONE)
        for number in range(collisions):
            append(store, f"other {number}", KEYS=OTHER)
        assert bodies(store.query(b"orders", ONE.encode(), count_max=1)) == ["wanted"]
        assert bodies(store.query(b"orders", OTHER.encode(), count_max=1)) == [
            f"other {collisions - 1}"
        ]


def test_the_newest_are_returned_in_log_order_when_there_are_more(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        for number in range(200):
            append(store, str(number), KEYS=ONE if number % 2 else OTHER)
        assert bodies(store.query(b"orders", b"Aa", count_max=3)) == ["195", "197", "199"]
        # maxMsgsNumBatch is the most that is ever returned.
        assert bodies(store.query(b"orders", b"Aa", count_max=1000)) == [
            str(number) for number in range(73, 200, 2)
        ]
        assert store.query(b"orders", b"Aa", count_max=0) == []


def test_a_message_that_carries_a_key_several_times_is_returned_once(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append(store, "first", KEYS="dup dup", UNIQ_KEY="dup")
        append(store, "second", KEYS="dup x dup", UNIQ_KEY="y")
        assert bodies(store.query(b"orders", b"dup")) == ["first", "second"]
        assert bodies(store.query(b"orders", b"dup", count_max=2)) == ["first", "second"]


def test_times_are_compared_to_the_millisecond(tmp_path: Path) -> None:
    clock = ManualClock(1_760_000_000_700)
    with MessageStore.open(small_config(tmp_path), clock=clock) as store:
        times = []
        for number in range(8):
            append(store, str(number), KEYS="k")
            times.append(clock.now_ms())
            clock.advance(ms=450)
        for first in range(8):
            for last in range(first, 8):
                found = store.query(b"orders", b"k", begin_ms=times[first], end_ms=times[last])
                assert bodies(found) == [str(number) for number in range(first, last + 1)]
        assert store.query(b"orders", b"k", begin_ms=times[3] + 1, end_ms=times[4] - 1) == []
        assert store.query(b"orders", b"k", end_ms=times[0] - 1) == []
        assert store.query(b"orders", b"k", begin_ms=times[7] + 1) == []


def test_messages_outside_the_time_span_do_not_use_up_the_count(tmp_path: Path) -> None:
    clock = ManualClock()
    with MessageStore.open(small_config(tmp_path), clock=clock) as store:
        append(store, "wanted", KEYS="k")
        end_ms = clock.now_ms()
        clock.advance(ms=1)
        for number in range(10):
            append(store, f"too late {number}", KEYS="k")
        found = store.query(b"orders", b"k", count_max=1, end_ms=end_ms)
        assert bodies(found) == ["wanted"]


def test_the_first_message_of_an_index_file_is_found_by_its_own_time(tmp_path: Path) -> None:
    """Its entry counts the seconds from the end of the file before: here, hours too many."""
    clock = ManualClock()
    with MessageStore.open(small_config(tmp_path), clock=clock) as store:
        for number in range(59):
            append(store, f"filler {number}", KEYS=f"f{number}")
        clock.advance(hours=5)
        append(store, "first of the second file", KEYS="k")
        stored_ms = clock.now_ms()
        clock.advance(ms=10)
        append(store, "after", KEYS="k")
        store.checkpoint()
        assert len(list((tmp_path / "index").iterdir())) == 2
        found = store.query(b"orders", b"k", begin_ms=stored_ms, end_ms=stored_ms)
        assert bodies(found) == ["first of the second file"]
        assert len(store.query(b"orders", b"k", begin_ms=stored_ms, end_ms=stored_ms + 10)) == 2


def test_a_topic_or_key_that_is_no_text_finds_nothing(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path)) as store:
        append(store, "x", KEYS="k")
        assert store.query(b"\xff\xfe", b"k") == []
        assert store.query(b"orders", b"\xff\xfe") == []
        assert store.query(b"orders", b"") == []


def test_a_store_without_an_index_finds_nothing_by_key(tmp_path: Path) -> None:
    with MessageStore.open(small_config(tmp_path, index_enabled=False)) as store:
        append(store, "x", KEYS="k")
        assert store.query(b"orders", b"k") == []

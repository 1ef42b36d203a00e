"""Lookups of messages that have left memory: none waits, each names the parts it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contrail.clock import ManualClock
from contrail.errors import RecordDamaged
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.disk.segments import Segment
from contrail.store.log import MessageStore
from contrail.store.services.residency import NotInMemory
from tests.fakes.cold_files import ColdFileSystem
from tests.fault.store_setup import draft, small_config

ORDERS, BATCHES = b"orders", b"batches"
MESSAGE_COUNT = 400
STEPS_MAX = 200
START_MS = 1_760_000_000_000

Lookup = Callable[[MessageStore], Any]


def fill(store: MessageStore, clock: ManualClock) -> None:
    """A message each second, and a batch of two."""
    properties = encode_properties({"INNER_NUM": "2"})
    for number in range(MESSAGE_COUNT):
        # Records of more than a page are brought in by more than one step.
        store.append([draft(number, body_bytes=6000 if number % 50 == 7 else 100)])
        store.append_inner_batch(MessageDraft(BATCHES, 0, b"x", properties, sys_flag=0xC0))
        store.dispatch()
        clock.advance(ms=1000)


@dataclass(frozen=True)
class Folder:
    """Where a store is, and how it was written."""

    root: Path
    changes: dict[str, Any]

    def open(self, **options: Any) -> MessageStore:
        config = small_config(self.root, **self.changes)
        return MessageStore.open(config, batch_topics=frozenset({BATCHES}), **options)


@pytest.fixture(scope="module", params=[{}, {"queue_ext_enabled": True}], ids=["plain", "ext"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    folder = Folder(tmp_path_factory.mktemp("store"), request.param)
    clock = ManualClock(START_MS)
    with folder.open(clock=clock) as store:
        fill(store, clock)
    return folder


class Cold:
    """The store opened again, with nothing in memory, and watched."""

    def __init__(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = ColdFileSystem()
        self.store = folder.open(files=self.files)
        self.files.chill()
        self.steps = 0
        self._watch_maps(monkeypatch)

    def _watch_maps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        view = Segment.view

        def watched(segment: Segment, physical_offset: int, byte_count: int) -> memoryview:
            if self.store.disk_waits.are_forbidden:
                position = physical_offset - segment.start
                end = min(position + byte_count, segment.byte_count)
                assert self.files.holds(segment.path, position, end - position), "the loop waits"
            return view(segment, physical_offset, byte_count)

        monkeypatch.setattr(Segment, "view", watched)

    def find(self, lookup: Lookup) -> Any:
        """The result of a lookup after every missing part was brought in."""
        while self.steps < STEPS_MAX:
            self.files.waits.clear()
            try:
                with self.store.disk_waits:
                    return lookup(self.store)
            except NotInMemory as absent:
                parts = absent.parts
            finally:
                assert self.files.waits == [], "the loop waits"
            self.steps += 1
            for part in parts:
                self.store.bring_in(part)
        raise AssertionError("the lookup never has enough")


@pytest.fixture
def cold(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cold]:
    cold = Cold(folder, monkeypatch)
    with cold.store:
        yield cold


def place_of(store: MessageStore, queue_offset: int) -> int:
    return store.rows(ORDERS, 0, queue_offset, 1)[0].physical_offset


def record_at(physical_offset: int, store: MessageStore) -> bytes:
    return store.record_bytes(physical_offset)


def by_time(second: float, topic: bytes = ORDERS, boundary: Any = "lower") -> Lookup:
    timestamp_ms = START_MS + int(second * 1000)
    return lambda store: store.queue_offset_by_time(topic, 0, timestamp_ms, boundary)


LOOKUPS: dict[str, Lookup] = {
    "a few by key": lambda store: store.query(ORDERS, b"k3", count_max=4),
    "all by key": lambda store: store.query_places(ORDERS, b"k7", count_max=64),
    "by key and time": lambda store: store.query(
        ORDERS, b"k3", begin_ms=START_MS + 50_000, end_ms=START_MS + 90_000
    ),
    "by unique id": lambda store: store.query(ORDERS, b"ID000007"),
    "no such key": lambda store: store.query(ORDERS, b"nobody's"),
    "time": by_time(123),
    "between two times": by_time(122.5, boundary="upper"),
    "before all times": by_time(-5),
    "after all times": by_time(9999),
    "time of a batch": by_time(200, BATCHES),
    "a batch between": by_time(77.5, BATCHES, "upper"),
    "a batch after all times": by_time(9999, BATCHES),
    "rows": lambda store: store.rows(ORDERS, 0, 30, 100),
    "rows of batches": lambda store: store.rows(BATCHES, 0, 100, 10),
    "one message": lambda store: store.get(ORDERS, 0, 57, count_max=1).messages,
}


@pytest.mark.proves("kinds.backlogs.cold-queries")
@pytest.mark.parametrize("name", LOOKUPS)
def test_a_lookup_that_may_not_wait_finds_the_same_without_waiting(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with folder.open() as warm:
        expected = LOOKUPS[name](warm)
    cold = Cold(folder, monkeypatch)
    with cold.store:
        assert cold.find(LOOKUPS[name]) == expected
        assert cold.steps > 0
        # Now that all parts are in memory, the lookup needs no other.
        steps = cold.steps
        assert cold.find(LOOKUPS[name]) == expected
        assert cold.steps == steps


def test_a_record_of_any_size_is_brought_in_whole(cold: Cold) -> None:
    for queue_offset in (6, 7, 57):
        physical_offset = place_of(cold.store, queue_offset)
        record = cold.find(partial(record_at, physical_offset))
        assert int.from_bytes(record[:4], "big") == len(record)
        [part] = cold.store.record_parts(physical_offset, len(record))
        assert cold.files.holds(*part)
    assert cold.steps >= 3


@pytest.mark.parametrize("place", [-1, 1, 100, 1 << 40])
def test_an_offset_without_a_record_is_refused_as_if_it_were_in_memory(
    cold: Cold, place: int
) -> None:
    with pytest.raises(RecordDamaged):
        cold.find(lambda store: store.record(place))


def test_a_key_of_many_old_messages_takes_few_steps(cold: Cold) -> None:
    found = cold.find(lambda store: store.query_places(ORDERS, b"k7", count_max=64))
    assert len(found.places) == 40 and found.damage is None
    # Files of the index one after another, then all records at once.
    index_files = len(cold.store._index.paths) if cold.store._index is not None else 0
    assert cold.steps <= 2 * index_files + 10


def test_records_this_process_stored_count_as_in_memory(cold: Cold) -> None:
    cold.store.append([draft(9000, KEYS="fresh")])
    cold.store.dispatch()
    newest = cold.store.queue_offset_max(ORDERS, 0) - 1
    found = cold.find(lambda store: store.rows(ORDERS, 0, newest, 1))
    assert cold.find(lambda store: store.record(found[0].physical_offset)).queue_offset == newest
    assert cold.steps == 0


def test_outside_of_the_block_reads_wait_for_the_disk(cold: Cold) -> None:
    assert len(cold.store.query(ORDERS, b"k3", count_max=64)) == 40
    assert cold.files.waits != []

"""Messages are popped, acknowledged and prolonged: one append a tick, undone when that fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from contrail.broker.services.pop_admission import PopPlan
from contrail.broker.services.pop_reads import Read, Taken
from contrail.broker.services.pops import Pops
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.placement import TimerRules, place
from contrail.broker.state.pop_offsets import PopOffsets
from contrail.broker.state.pop_records import Ack, CheckpointKey, checkpoint_draft
from contrail.broker.state.pop_table import PopTable
from contrail.clock import ManualClock
from contrail.errors import DiskFull, RequestRejected, StoreError
from contrail.model.message import MessageDraft
from contrail.model.properties import decode_properties, encode_properties
from contrail.store import AppendedRun, GetResult, GetStatus

QUEUE = ("g", "t", 0)


class Log:
    """Takes what is appended; each record is 100 bytes long."""

    def __init__(self) -> None:
        self.appends: list[list[MessageDraft]] = []
        self.is_full = False
        self.end = 1000
        self.settled_end = 0

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        if self.is_full:
            raise DiskFull("full")
        self.appends.append(list(drafts))
        places = [self.end + 100 * index for index in range(len(drafts))]
        self.end += 100 * len(drafts)
        return AppendedRun([0] * len(drafts), places, 0, self.end)

    @property
    def tags(self) -> list[list[str]]:
        return [[decode_properties(one.properties)["TAGS"] for one in run] for run in self.appends]


class Room:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = Log()
        self.table = PopTable(1000)
        self.offsets = ConsumerOffsets({"t@g": {0: 0}})
        self.next = PopOffsets()
        self.told: list[tuple[int, bool]] = []
        self.pops = Pops(
            self.table,
            self.next,
            self.offsets,
            self.log,
            self.clock,
            broker_name="b",
            revive_topic="rmq_sys_REVIVE_LOG_c",
            store_host=b"\x7f\x00\x00\x01\x00\x00\x00\x01",
            timers=TimerRules(),
        )

    def tell(self, physical_end: int, error: StoreError | None) -> None:
        self.told.append((physical_end, error is None))

    def take(self, *offsets: int) -> CheckpointKey:
        """Pop these messages of the queue, which follow each other."""
        records = [bytes(20) + offset.to_bytes(8, "big") + bytes(8) for offset in offsets]
        views = [memoryview(len(one).to_bytes(4, "big") + one[4:]) for one in records]
        result = GetResult(GetStatus.FOUND, offsets[-1] + 1, 0, 99, views, len(offsets), 36)
        read = Read([Taken("t", 0, offsets[0], False, False, result)], len(offsets))
        _, _, given = self.pops.take(plan(), read, "c", self.tell)
        assert given[0].checkpoint.offsets == offsets
        return given[0].checkpoint.key

    def ack(self, key: CheckpointKey, *offsets: int, broker_name: str = "b") -> int:
        return self.pops.acknowledge(Ack(key, offsets, broker_name), self.tell)


def plan(invisible_ms: int = 60_000) -> PopPlan:
    return PopPlan("g", "t", 0, 1, 32, invisible_ms, 0, 0, True, None, None)


@pytest.mark.proves("kinds.pop.one-append")
def test_a_tick_is_one_append_and_the_acks_of_a_checkpoint_one_record() -> None:
    room = Room()
    first, second = room.take(0, 1, 2), room.take(3, 4)
    room.pops.append_run()
    assert room.log.tags == [["ck", "ck"]]
    assert room.told == [(1200, True)] * 2
    third = room.take(5)
    assert room.ack(first, 0) == room.ack(first, 2) == room.ack(second, 4) == 1
    assert room.ack(first, 2) == room.ack(third._replace(pop_time_ms=1), 5) == 0
    room.pops.append_run()
    assert room.log.tags[1:] == [["ck", "bAck", "ack"]]
    assert len(room.told) == 2 + 1 + 5, "late and repeated ones are answered, too"
    assert len(room.table) == 6 - 3
    room.pops.append_run()
    assert len(room.log.appends) == 2, "nothing changed"


@pytest.mark.proves("kinds.pop.durable-offsets")
def test_offsets_are_committed_behind_the_disk() -> None:
    room = Room()
    room.take(0, 1)
    room.pops.append_run()
    assert room.next.next_of(QUEUE) == 2 and room.offsets.query(*QUEUE) == 0
    room.log.settled_end = 1099
    room.pops.commit_durable()
    assert room.offsets.query(*QUEUE) == 0
    room.log.settled_end = 1100
    room.pops.commit_durable()
    assert room.offsets.query(*QUEUE) == 2 and room.next.next_of(QUEUE) is None


def test_nothing_has_happened_when_the_store_takes_nothing() -> None:
    room = Room()
    first = room.take(0, 1)
    room.pops.append_run()
    room.log.is_full = True
    room.take(2, 3)
    room.ack(first, 0)
    prolonged = room.pops.prolong(Ack(first, (1,), "b"), 5000, room.tell, "c")
    assert prolonged is not None
    room.pops.append_run()
    assert room.told[1:] == [(0, False)] * 3
    assert room.next.next_of(QUEUE) == 2, "the next pop gets them"
    found = room.table.find(first)
    assert found is not None and found.open_offsets == [0, 1] and len(room.table) == 2


def test_a_new_time_makes_a_new_checkpoint_and_kills_the_old_receipt() -> None:
    room = Room()
    key = room.take(0, 1)
    room.pops.append_run()
    room.clock.advance(ms=10)
    now_ms = room.pops.prolong(Ack(key, (1,), "b"), 5000, room.tell, "c")
    assert now_ms == room.clock.now_ms()
    assert room.pops.prolong(Ack(key, (1,), "b"), 5000, room.tell, "c") is None
    assert room.pops.prolong(Ack(key, (0,), "other"), 5000, room.tell, "c") is None
    room.pops.append_run()
    assert room.log.tags[1:] == [["ck", "ack"]]
    assert room.ack(key, 1) == 0
    assert room.ack(CheckpointKey("g", "t", 0, 1, now_ms), 1) == 1


@pytest.mark.proves("kinds.pop.upstream-faults")
def test_two_pops_of_one_place_in_a_millisecond_have_names_of_their_own() -> None:
    room = Room()
    first = room.take(0)
    assert room.take(0) == first._replace(pop_time_ms=first.pop_time_ms + 1)


def test_times_beyond_the_timers_are_refused() -> None:
    room = Room()
    room.pops.require_keepable(86_400_000)
    with pytest.raises(RequestRejected, match="timerMaxDelaySec"):
        room.pops.require_keepable(400 * 86_400_000)


@pytest.mark.proves("kinds.pop.upstream-faults")
def test_a_new_time_that_ends_with_the_old_one_keeps_the_message() -> None:
    room = Room()
    key = room.take(0)
    room.pops.append_run()
    room.clock.advance(ms=10_000)
    popped_ms = room.pops.prolong(Ack(key, (0,), "b"), 50_000, room.tell, "c")
    assert popped_ms is not None
    room.pops.append_run()
    (checkpoint,) = room.table.of_queue(QUEUE)
    assert checkpoint.visible_ms == key.pop_time_ms + 60_000, "the same time as before"
    assert checkpoint.open_offsets == [0] and len(room.table) == 1


@pytest.mark.parametrize("invisible_ms", [-5, 0, 999, 1000, 1001, 60_000, 86_400_000])
def test_records_are_placed_as_any_timed_message_is(invisible_ms: int) -> None:
    room = Room()
    room.take(0, 2)
    checkpoint = next(room.table.of_group("g"))
    checkpoint.invisible_ms = invisible_ms
    room.pops.append_run()
    now_ms = room.clock.now_ms()
    host = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
    draft, properties = checkpoint_draft(checkpoint, "rmq_sys_REVIVE_LOG_c", now_ms, host)
    placed = place(draft, properties, level_max=0, timers=TimerRules(), now_ms=now_ms)
    expected = placed._replace(properties=encode_properties(properties))
    assert room.log.appends == [[expected]]

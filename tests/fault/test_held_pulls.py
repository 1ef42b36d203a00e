"""Held pulls over a real store: woken a bounded number in a turn, and ended at their time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.handlers.pull import PullHandler
from contrail.broker.services.groups import Groups
from contrail.broker.services.pull_admission import PullAdmission
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.parked_pulls import DEADLINE_GRAIN_MS
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.sql92 import compile_sql
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.topics import TopicTable
from contrail.clock import ManualClock
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.runtime.schedule import Schedule
from contrail.runtime.turns import STEPS_PER_TURN
from contrail.store.log import MessageStore
from contrail.wire.peer import LATER
from tests.fakes.loops import FakeLoop
from tests.fakes.peers import FakePeer
from tests.fault.store_setup import append_numbers, small_config

HOLD_MS = 15_000
MANY = 3 * STEPS_PER_TURN + 10


class Room:
    """A pull handler over a store with two queues of ``orders``, and a loop turned by hand."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.loop = FakeLoop()
        self.store = MessageStore.open(
            small_config(root),
            clock=self.clock,
            on_arrival=lambda news: self.pulls.held.arrived(news),
        )
        settings = self.settings = RuntimeSettings(BrokerConfig())
        self.groups = Groups(GroupTable(), settings)
        topics = Topics(TopicTable({"orders": TopicConfig("orders", 2, 2)}), settings)
        admission = PullAdmission(
            settings,
            topics,
            self.groups,
            ConsumerTable(),
            FilterTable(compile_sql),
            self.clock,
        )
        self.pulls = PullHandler(
            settings,
            admission,
            self.store,
            ConsumerOffsets(),
            BrokerStats("DefaultCluster", started_ms=self.clock.now_ms()),
            self.clock,
            self.loop,
            memory_bytes=1 << 30,
        )
        self.store.watch(self.pulls.held.parked.by_queue)
        self.peer = FakePeer()
        self.schedule = Schedule(self.clock.now_ms())
        self.schedule.when_over(
            self.pulls.held.end_in_ms,
            lambda now_ms: self.pulls.held.expire(self.clock.elapsed_ms()),
            name="held pulls that end",
        )

    def hold(self, opaque: int, queue_id: int = 0, **changes: object) -> None:
        fields: dict[str, object] = {"consumerGroup": "g", "topic": "orders", "queueId": queue_id}
        fields |= {"queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6, "subVersion": 0}
        fields |= {"commitOffset": 0, "suspendTimeoutMillis": HOLD_MS, "subscription": "*"}
        texts = {name: str(value) for name, value in (fields | changes).items()}
        request = Request(RequestCode.PULL_MESSAGE, opaque, texts)
        assert self.pulls.handle_pull(request, self.peer) is LATER

    @property
    def answered(self) -> list[int]:
        return [request.opaque for request, _ in self.peer.replies]

    def turns(self) -> list[int]:
        """Turn the loop until nothing is due; how many pulls each turn has answered."""
        counts, before = [], len(self.peer.replies)
        while self.loop.turn():
            counts.append(len(self.peer.replies) - before)
            before = len(self.peer.replies)
        return counts


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    room.store.close()


def test_a_few_held_pulls_are_answered_with_the_arrival_itself(room: Room) -> None:
    for opaque in range(5):
        room.hold(opaque)
    append_numbers(room.store, 0, 1)
    assert room.answered == [0, 1, 2, 3, 4]
    assert not room.loop.soon and not room.pulls.held.parked


@pytest.mark.proves("wire.fairness.turns")
def test_many_held_pulls_are_woken_a_bounded_number_in_a_turn_in_order_and_once(
    room: Room,
) -> None:
    for opaque in range(MANY):
        room.hold(opaque)
    append_numbers(room.store, 0, 1)
    # Arrivals during the wake reach every pull that has not been answered, and none twice.
    append_numbers(room.store, 1, 2)
    counts = room.turns()
    assert max(counts) <= STEPS_PER_TURN
    assert len(counts) > MANY // STEPS_PER_TURN
    assert room.answered == [*range(MANY)]
    assert {response.code for _, response in room.peer.replies} == {ResponseCode.SUCCESS}


def test_a_held_pull_of_another_queue_is_woken_while_many_are(room: Room) -> None:
    for opaque in range(MANY):
        room.hold(opaque)
    room.hold(MANY, queue_id=1)
    append_numbers(room.store, 0, 1)
    append_numbers(room.store, 1, 2, queue_id=1)
    room.loop.turn()
    assert MANY in room.answered


def test_pulls_whose_filter_wants_no_message_are_checked_in_turns_and_stay_held(room: Room) -> None:
    for opaque in range(MANY):
        room.hold(opaque, subscription="TagB")
    append_numbers(room.store, 0, 1, TAGS="TagA")
    assert room.turns() == [0] * (MANY // STEPS_PER_TURN + 1)
    assert len(room.pulls.held.parked) == MANY
    append_numbers(room.store, 1, 2, TAGS="TagB")
    assert max(room.turns()) <= STEPS_PER_TURN
    assert room.answered == [*range(MANY)]


def test_pulls_whose_peer_goes_away_during_a_wake_are_not_answered(room: Room) -> None:
    for opaque in range(MANY):
        room.hold(opaque)
    append_numbers(room.store, 0, 1)
    room.loop.turn()
    answered_count = len(room.answered)
    room.peer.is_closed = True
    room.loop.settle()
    assert len(room.answered) == answered_count
    assert not room.pulls.held.parked


def test_a_changed_topic_wakes_its_pulls_in_turns(room: Room) -> None:
    for opaque in range(MANY):
        room.hold(opaque, queue_id=opaque % 2)
    room.pulls.held.wake_topic(b"orders")
    assert max(room.turns()) <= STEPS_PER_TURN
    assert sorted(room.answered) == [*range(MANY)]


@pytest.mark.proves("broker.pull.rights-taken-away")
def test_pulls_of_a_disabled_group_are_refused_in_turns_and_others_stay_held(room: Room) -> None:
    for opaque in range(MANY):
        room.hold(opaque)
        room.hold(MANY + opaque, consumerGroup="other")
    room.groups.update([SubscriptionGroupConfig("g", consume_enable=False)], 1)
    room.pulls.held.check_held("g")
    counts = room.turns()
    assert max(counts) <= STEPS_PER_TURN
    assert room.answered == [*range(MANY)]
    assert {response.code for _, response in room.peer.replies} == {ResponseCode.NO_PERMISSION}
    assert len(room.pulls.held.parked) == MANY


@pytest.mark.proves("broker.pull.rights-taken-away")
def test_a_setting_that_changes_while_pulls_are_checked_counts_for_all_of_them(room: Room) -> None:
    for opaque in range(MANY):
        room.hold(opaque)
    room.pulls.held.check_held("g")
    room.loop.turn()
    room.settings.change({"brokerPermission": "2"}, 1)
    room.pulls.held.check_held()
    room.pulls.held.check_held()
    room.turns()
    assert sorted(room.answered) == [*range(MANY)]
    assert {response.code for _, response in room.peer.replies} == {ResponseCode.NO_PERMISSION}


@pytest.mark.proves("broker.pull.rights-taken-away")
def test_a_deleted_group_that_is_made_again_for_a_pull_is_not_made_by_one_that_is_held(
    room: Room,
) -> None:
    room.hold(1)
    room.groups.delete("g", 1)
    room.pulls.held.check_held("g")
    room.turns()
    assert room.groups.table.get("g") is None
    assert room.answered == []
    room.settings.change({"autoCreateSubscriptionGroup": "false"}, 1)
    room.pulls.held.check_held("g")
    room.turns()
    [(_, answer)] = room.peer.replies
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_broker_that_stops_during_a_wake_answers_every_pull_once(room: Room) -> None:
    for opaque in range(MANY):
        room.hold(opaque)
    append_numbers(room.store, 0, 1)
    room.loop.turn()
    asyncio.run(room.pulls.release_all())
    room.loop.settle()
    assert sorted(room.answered) == [*range(MANY)]


@pytest.mark.proves("broker.long-polls.end-in-time")
def test_a_held_pull_ends_at_its_time_and_not_at_the_next_sweep(room: Room) -> None:
    room.hold(1)
    room.clock.advance(ms=3)
    room.hold(2, suspendTimeoutMillis=20_000)
    began_ms = room.clock.now_ms() - 3
    ended: dict[int, int] = {}
    for elapsed_ms in range(0, 21_000, 5):
        now_ms = began_ms + elapsed_ms
        room.clock.advance(ms=now_ms - room.clock.now_ms())
        room.schedule.run_due(now_ms)
        room.loop.settle()
        for opaque in room.answered:
            ended.setdefault(opaque, elapsed_ms)
    assert 0 <= ended[1] - HOLD_MS <= DEADLINE_GRAIN_MS + 5
    assert 0 <= ended[2] - 20_003 <= DEADLINE_GRAIN_MS + 5
    assert [response.code for _, response in room.peer.replies] == [
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_NOT_FOUND,
    ]


def test_the_periodic_jobs_wait_no_longer_than_until_the_first_pull_ends(room: Room) -> None:
    room.schedule.every(60_000, lambda now_ms: None, name="seldom")
    room.hold(1)
    due_in_ms = room.schedule.due_in_ms(room.clock.now_ms())
    assert 0 <= due_in_ms - HOLD_MS <= DEADLINE_GRAIN_MS


@pytest.mark.proves("broker.long-polls.end-in-time")
def test_a_hold_shorter_than_the_periodic_jobs_interval_has_a_timer(room: Room) -> None:
    room.hold(1, suspendTimeoutMillis=200)
    room.hold(2, suspendTimeoutMillis=300)
    [(delay_s, _)] = room.loop.later
    assert 0.2 <= delay_s <= 0.25
    room.clock.advance(ms=200 + DEADLINE_GRAIN_MS)
    room.loop.ring()
    room.loop.settle()
    assert room.answered == [1]
    [(delay_s, _)] = room.loop.later
    assert 0.05 <= delay_s <= 0.11
    room.clock.advance(ms=100)
    room.loop.ring()
    room.loop.settle()
    assert room.answered == [1, 2]


def test_pulls_that_end_together_are_answered_in_turns(room: Room) -> None:
    for opaque in range(MANY):
        room.hold(opaque)
    room.clock.advance(ms=HOLD_MS + DEADLINE_GRAIN_MS)
    room.schedule.run_due(room.clock.now_ms())
    assert max(room.turns()) <= STEPS_PER_TURN
    assert room.answered == [*range(MANY)]


@pytest.mark.proves("broker.edges.monotonic-waits")
@pytest.mark.parametrize("step_ms", [-3_600_000, -1000, 1000, 3_600_000])
def test_a_step_of_the_wall_clock_neither_ends_nor_prolongs_a_hold(
    room: Room, step_ms: int
) -> None:
    room.hold(1)
    room.hold(2, suspendTimeoutMillis=300)
    room.clock.step(step_ms)
    assert room.schedule.due_in_ms(room.clock.now_ms()) <= 300 + DEADLINE_GRAIN_MS
    room.schedule.run_due(room.clock.now_ms())
    room.loop.ring()
    room.loop.settle()
    assert room.answered == []
    room.clock.advance(ms=300 + DEADLINE_GRAIN_MS)
    room.loop.ring()
    room.loop.settle()
    assert room.answered == [2]
    room.clock.advance(ms=HOLD_MS - 301 - DEADLINE_GRAIN_MS)
    room.schedule.run_due(room.clock.now_ms())
    room.loop.settle()
    assert room.answered == [2]
    room.clock.advance(ms=1 + DEADLINE_GRAIN_MS)
    room.schedule.run_due(room.clock.now_ms())
    room.loop.settle()
    assert room.answered == [2, 1]

"""The progress of pulls over a real store: where each group's next pull starts."""

from __future__ import annotations

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
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.sql92 import compile_sql
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.topics import TopicTable
from contrail.clock import ManualClock
from contrail.model.topic import TopicConfig
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.store.log import MessageStore
from tests.fakes.loops import FakeLoop
from tests.fakes.peers import FakePeer
from tests.fault.store_setup import append_numbers, small_config


class Room:
    """A pull handler over a store with three messages in queue 0 of ``orders``."""

    def __init__(self, root: Path) -> None:
        clock = ManualClock()
        self.store = MessageStore.open(small_config(root), clock=clock)
        settings = RuntimeSettings(BrokerConfig())
        topics = Topics(TopicTable({"orders": TopicConfig("orders", 2, 2)}), settings)
        self.offsets = ConsumerOffsets()
        admission = PullAdmission(
            settings,
            topics,
            Groups(GroupTable(), settings),
            ConsumerTable(),
            FilterTable(compile_sql),
            clock,
        )
        stats = BrokerStats("DefaultCluster", started_ms=clock.now_ms())
        self.pulls = PullHandler(
            settings,
            admission,
            self.store,
            self.offsets,
            stats,
            clock,
            FakeLoop(),
            memory_bytes=1 << 30,
        )
        append_numbers(self.store, 0, 3)

    def pull(self, queue_offset: int, **changes: object) -> int:
        fields: dict[str, object] = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
        fields |= {"queueOffset": queue_offset, "maxMsgNums": 32, "sysFlag": 4, "subVersion": 0}
        fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*"}
        texts = {name: str(value) for name, value in (fields | changes).items()}
        answer = self.pulls.handle_pull(Request(RequestCode.PULL_MESSAGE, 1, texts), FakePeer())
        assert isinstance(answer, Response)
        return answer.code


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    room.store.close()


@pytest.mark.parametrize(
    ("queue_offset", "code", "starts_at"),
    [
        (1, ResponseCode.SUCCESS, 3),
        (3, ResponseCode.PULL_NOT_FOUND, 3),
        (500, ResponseCode.PULL_OFFSET_MOVED, 3),
    ],
)
def test_the_next_pulls_start_is_noted_whatever_the_outcome_of_this_pull(
    room: Room, queue_offset: int, code: ResponseCode, starts_at: int
) -> None:
    assert room.pull(queue_offset) == code
    assert room.offsets.pulled() == {"orders@g": {0: starts_at}}


def test_a_reset_by_an_operator_is_where_the_next_pull_starts(room: Room) -> None:
    room.offsets.assign_reset("g", "orders", 0, 2)
    assert room.pull(3, sysFlag=5, commitOffset=3) == ResponseCode.PULL_OFFSET_MOVED
    assert room.offsets.pulled() == {"orders@g": {0: 2}}
    assert room.offsets.query("g", "orders", 0) == 2, "the older commit is ignored"


def test_an_expression_that_names_no_tag_finds_nothing(room: Room) -> None:
    assert room.pull(0, subscription=" ") == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert room.pull(0, subscription="*") == ResponseCode.SUCCESS

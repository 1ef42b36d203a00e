"""The general way of a pull over a store of paper."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contrail.broker.handlers.pull import PullHandler
from contrail.broker.services.cold_reads import FarPull
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.parked_pulls import LONG_PULLS_MAX
from contrail.broker.state.pull_plan import FLAG_COMMIT, FLAG_SUSPEND, PullPlan
from contrail.broker.state.stats import BrokerStats
from contrail.clock import ManualClock
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.store import GetResult, GetStatus
from contrail.wire.peer import LATER

PLAN = PullPlan(
    "billing", "orders", b"orders", 0, 5, 32, FLAG_COMMIT | FLAG_SUSPEND, None, None, 0, 0
)
FIELDS = {"commitOffset": "4", "suspendTimeoutMillis": "15000"}


class PaperPeer:
    """Keeps the answers that it is given."""

    address, is_closed, is_choked = "10.0.0.1:5", False, False

    def __init__(self, replies: list[Response]) -> None:
        self._replies = replies

    def reply(self, request: Request, response: Response) -> None:
        self._replies.append(response)


class Room:
    """A handler, and everything it asks made of paper."""

    def __init__(self) -> None:
        self.plan = PLAN._replace(suggested_broker_id=3)
        self.result = GetResult(GetStatus.FOUND, 6, 0, 6, [memoryview(b"abc")], 1, 3)
        self.is_near = True
        self.offsets = ConsumerOffsets()
        self.replies: list[Response] = []
        self.peer = cast(Any, PaperPeer(self.replies))
        self.config = SimpleNamespace(
            parked_pulls_max=10,
            long_polling=True,
            server_side_reset=True,
            transfer_count_in_memory_max=4,
            transfer_bytes_in_memory_max=900,
            memory_ratio_max=40,
        )
        store: Any = SimpleNamespace(
            physical_end=0,
            physical_min=0,
            is_near=lambda *place: self.is_near,
            get=lambda *place, **limits: self.result,
            queue_offset_min=lambda *queue: 0,
            queue_offset_max=lambda *queue: 6,
            somebody_waits=lambda: None,
        )
        settings: Any = SimpleNamespace(config=self.config)
        admission: Any = SimpleNamespace(plan=lambda request, client: self.plan)
        loop: Any = SimpleNamespace(call_soon=lambda *given: None, call_later=lambda *given: None)
        stats = BrokerStats("cluster", started_ms=0)
        self.handler = PullHandler(
            settings,
            admission,
            store,
            self.offsets,
            stats,
            ManualClock(),
            loop,
            memory_bytes=1 << 20,
        )
        self.handler.cold_reads.begin(loop)

    def pulled(self) -> Any:
        return self.handler.handle_pull(
            Request(RequestCode.PULL_MESSAGE, 1, dict(FIELDS)), self.peer
        )


@pytest.fixture
def room() -> Room:
    return Room()


def test_messages_are_handed_out_and_offsets_noted(room: Room) -> None:
    answer = room.pulled()
    assert answer.code == ResponseCode.SUCCESS and answer.body == [memoryview(b"abc")]
    assert answer.fields["suggestWhichBrokerId"] == "3"
    assert room.offsets.query("billing", "orders", 0) == 4
    assert room.offsets.query_pulled("billing", "orders", 0) == 6


@pytest.mark.parametrize(
    ("sys_flag", "consumer_offset", "committed"),
    [(FLAG_COMMIT, 4, 4), (FLAG_COMMIT, -1, -1), (0, 4, -1)],
)
def test_a_pull_commits_the_offset_that_it_carries_if_it_says_so(
    room: Room, sys_flag: int, consumer_offset: int, committed: int
) -> None:
    room.handler.commit_carried(PLAN._replace(sys_flag=sys_flag), consumer_offset)
    assert room.offsets.query("billing", "orders", 0) == committed


def test_a_pull_that_finds_nothing_is_held_and_answered_when_the_broker_stops(room: Room) -> None:
    room.result = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 6, 0, 6)
    assert room.pulled() is LATER and len(room.handler.held.parked) == 1
    asyncio.run(room.handler.release_all())
    [answer] = room.replies
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert (answer.fields or {})["suggestWhichBrokerId"] == "3"


def test_a_pull_that_finds_nothing_and_no_room_is_told_busy(room: Room) -> None:
    room.result = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 6, 0, 6)
    room.config.parked_pulls_max = 0
    with pytest.raises(RequestRejected, match="too many pulls are held"):
        room.pulled()


def test_a_reset_by_an_operator_is_told_before_anything_is_read(room: Room) -> None:
    room.offsets.assign_reset("billing", "orders", 0, 2)
    answer = room.pulled()
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert answer.fields["nextBeginOffset"] == "2"
    assert answer.fields["suggestWhichBrokerId"] == "3"


def test_a_pull_of_old_messages_waits_in_line_until_the_broker_stops(room: Room) -> None:
    room.is_near = False
    assert room.pulled() is LATER and len(room.handler.cold_reads) == 1
    asyncio.run(room.handler.release_all())
    [answer] = room.replies
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "the broker stops")
    assert (answer.fields or {})["suggestWhichBrokerId"] == "3"


def test_fewer_pulls_with_long_fields_wait_in_line(room: Room) -> None:
    asked: list[int] = []
    room.config.parked_pulls_max = 2 * LONG_PULLS_MAX
    take: Any = lambda pull, *, count_max, count_per_peer_max: asked.append(count_max) or True  # noqa: E731
    room.handler.cold_reads.take = take  # type: ignore[method-assign]
    far = FarPull(Request(11, 1, {}), room.peer, PLAN, 32, 900)
    assert room.handler.wait_in_line(far) and room.handler.wait_in_line(far, is_big=True)
    assert asked == [2 * LONG_PULLS_MAX, LONG_PULLS_MAX]

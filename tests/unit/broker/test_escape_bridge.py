"""The way out of a slave's log: what is sent, in which order, and what the ledger says."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, cast

import pytest

from contrail.broker.services.escape_bridge import EscapeBridge
from contrail.broker.state.causes import cause_mark
from contrail.broker.state.escaped import COUNT_MAX, Escaped
from contrail.broker.state.stats import BrokerStats
from contrail.clock import ManualClock
from contrail.errors import CallFailed, DeliveryUnderWay, StoreReadOnly
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.store import MessageStore
from contrail.wire.caller import Caller
from tests.fakes.peers import received

ROUTE = TopicRouteData((QueueData("broker-b", 2, 2, 6),), (BrokerData("broker-b", "c", {0: "b0"}),))


class FakeCluster(Caller):
    """A NameServer at ``ns`` and a broker at ``b0`` in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[bytes] = []
        self.refused: dict[bytes, int] = {}
        self.lost: set[bytes] = set()
        self.route: TopicRouteData | None = ROUTE
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> ReceivedResponse:
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if self.route is None:
                return received(ResponseCode.TOPIC_NOT_EXIST)
            return received(body=self.route.encode())
        await self.may_answer.wait()
        if body in self.lost:
            raise CallFailed("gone")
        if body in self.refused:
            return received(self.refused[body])
        self.stored.append(body)
        return received()


class FakeStore:
    settled_end = 500


class World:
    """A bridge and what it talks to."""

    def __init__(self, *, is_enabled: bool = True) -> None:
        self.cluster = FakeCluster()
        self.escaped = Escaped()
        self.clock = ManualClock()
        self.bridge = EscapeBridge(
            cast(MessageStore, FakeStore()),
            cast(BrokerStats, None),
            lambda: self.cluster,
            self.escaped,
            broker_name="broker-a",
            name_servers=lambda: ["ns"],
            clock=self.clock,
            is_enabled=is_enabled,
        )
        self.bridge.open()

    async def delivered(self, places: list[int]) -> bool:
        """Ask as a service does; whether all were taken."""
        try:
            run = self.bridge.append([waiting(place) for place in places])
        except DeliveryUnderWay:
            await asyncio.gather(*self.bridge._tasks)
            return False
        assert len(run.physical_offsets) == len(places)
        assert run.physical_end == FakeStore.settled_end
        return True


def waiting(place: int) -> MessageDraft:
    return MessageDraft(b"orders", 0, b"%d" % place, prepared_transaction_offset=cause_mark(place))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_run_is_done_once_other_brokers_have_all_of_it() -> None:
    async def story() -> None:
        world = World()
        assert not await world.delivered([1, 2, 3])
        assert await world.delivered([1, 2, 3])
        assert world.cluster.stored == [b"1", b"2", b"3"]
        assert world.escaped.waited == {1, 2, 3}

    run(story())


def test_messages_on_their_way_are_not_sent_again() -> None:
    async def story() -> None:
        world = World()
        world.cluster.may_answer.clear()
        for places in ([1, 2], [1, 2, 3], [2, 3]):
            with pytest.raises(DeliveryUnderWay):
                world.bridge.append([waiting(place) for place in places])
            await asyncio.sleep(0)
        world.cluster.may_answer.set()
        assert not await world.delivered([1, 2, 3])
        assert not await world.delivered([1, 2, 3])
        assert await world.delivered([1, 2, 3])
        assert world.cluster.stored == [b"1", b"2", b"3"]

    run(story())


@pytest.mark.parametrize("is_lost", [True, False])
def test_no_message_of_a_run_overtakes_one_that_no_broker_took(is_lost: bool) -> None:
    async def story() -> None:
        world = World()
        if is_lost:
            world.cluster.lost.add(b"2")
        else:
            world.cluster.refused[b"2"] = ResponseCode.SYSTEM_BUSY
        for _ in range(3):
            assert not await world.delivered([1, 2, 3])
        assert world.cluster.stored == [b"1"]
        world.cluster.lost.clear()
        world.cluster.refused.clear()
        assert not await world.delivered([1, 2, 3])
        assert world.cluster.stored == [b"1"], "it rests a second"
        world.clock.advance(ms=1000)
        assert not await world.delivered([1, 2, 3])
        assert await world.delivered([1, 2, 3])
        assert world.cluster.stored == [b"1", b"2", b"3"]

    run(story())


def test_a_message_that_rests_holds_no_other_run() -> None:
    async def story() -> None:
        world = World()
        world.cluster.lost.add(b"1")
        assert not await world.delivered([1])
        assert not await world.delivered([5])
        assert await world.delivered([5])

    run(story())


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    ],
)
def test_a_message_that_is_stored_less_safely_is_not_sent_again(code: int) -> None:
    async def story() -> None:
        world = World()
        world.cluster.refused[b"1"] = code
        assert not await world.delivered([1])
        assert await world.delivered([1])

    run(story())


def test_without_another_broker_a_message_waits() -> None:
    async def story() -> None:
        world = World()
        world.cluster.route = None
        assert not await world.delivered([1])
        world.cluster.route = ROUTE
        world.clock.advance(ms=6000)
        assert not await world.delivered([1])
        assert await world.delivered([1])

    run(story())


def test_without_remote_escape_nothing_is_sent() -> None:
    async def story() -> None:
        world = World(is_enabled=False)
        with pytest.raises(StoreReadOnly, match="enableRemoteEscape"):
            world.bridge.append([waiting(1)])

    run(story())


def test_closing_waits_for_the_fate_of_a_send_and_begins_no_other() -> None:
    async def story() -> None:
        world = World()
        world.cluster.may_answer.clear()
        with pytest.raises(DeliveryUnderWay):
            world.bridge.append([waiting(1), waiting(2)])
        await asyncio.sleep(0)
        closing = asyncio.create_task(world.bridge.close())
        await asyncio.sleep(0)
        assert not closing.done()
        world.cluster.may_answer.set()
        await closing
        assert world.escaped.waited == {1}
        with pytest.raises(StoreReadOnly, match="back"):
            world.bridge.append([waiting(2)])
        world.bridge.open()
        assert not await world.delivered([2])
        assert await world.delivered([2])
        assert world.cluster.stored == [b"1", b"2"]

    run(story())


def test_a_full_ledger_stops_the_sending() -> None:
    async def story() -> None:
        world = World()
        world.escaped.waited = set(range(10, 10 + COUNT_MAX))
        with pytest.raises(StoreReadOnly, match="so many"):
            world.bridge.append([waiting(1)])

    run(story())


def test_a_half_message_is_in_the_ledger_once_another_broker_has_it() -> None:
    async def story() -> None:
        world = World()
        half = MessageDraft(b"orders", 0, b"half")
        world.cluster.lost.add(b"half")
        assert not await world.bridge.send_half(half, 70)
        world.cluster.lost.clear()
        assert await world.bridge.send_half(half, 70)
        assert world.escaped.halves == {70}
        assert world.cluster.stored == [b"half"]

    run(story())


@pytest.mark.proves("kinds.pop.replicas")
def test_records_of_pops_wait_for_the_master_and_hold_up_nothing() -> None:
    async def story() -> None:
        world = World()
        revive = b"rmq_sys_REVIVE_LOG_DefaultCluster"
        rolled = encode_properties({"REAL_TOPIC": revive.decode(), "REAL_QID": "3"})
        of_pops = [
            waiting(10)._replace(topic=revive),
            waiting(20)._replace(topic=b"rmq_sys_wheel_timer", properties=rolled),
        ]
        assert len(world.bridge.append(of_pops).physical_offsets) == 2
        assert not world.cluster.stored and not len(world.escaped)
        assert not await world.delivered([30])
        assert await world.delivered([30])

    run(story())

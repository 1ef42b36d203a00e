"""Beats for NameServers, and their news of the brokers of one name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from contrail.broker.services.members import Members
from contrail.broker.services.registration import Registration
from contrail.errors import CallFailed
from contrail.model.data_version import DataVersion
from contrail.protocol.bodies.routes import (
    BrokerData,
    BrokerMemberGroup,
    QueueData,
    TopicRouteData,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import encode_body
from contrail.wire.caller import Caller
from tests.fakes.peers import Sent, received

IDENTITY = {
    "brokerName": "broker-a",
    "brokerAddr": "a1",
    "clusterName": "c",
    "brokerId": "1",
}


class FakeRegistration:
    def __init__(self, servers: list[str]) -> None:
        self.name_servers = servers

    def identity(self) -> dict[str, str]:
        return dict(IDENTITY)


class FakeNameServers(Caller):
    """NameServers in memory, each with the brokers that it knows; one that is None is down."""

    def __init__(self, known: dict[str, dict[int, str] | None]) -> None:
        super().__init__()
        self.known = known
        self.sent: list[tuple[str, Sent]] = []

    async def notify(
        self, address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        if self.known[address] is None:
            raise CallFailed("down")
        self.sent.append((address, Sent(code, dict(fields or {}), body)))

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> ReceivedResponse:
        known = self.known[address]
        self.sent.append((address, Sent(code, dict(fields or {}), body)))
        if known is None:
            raise CallFailed("down")
        if code == RequestCode.GET_BROKER_MEMBER_GROUP:
            return received(body=BrokerMemberGroup("c", "broker-a", known).encode())
        if not known:
            return received(ResponseCode.TOPIC_NOT_EXIST)
        topic = (fields or {})["topic"]
        brokers = (BrokerData("broker-a", "c", known), BrokerData("broker-b", "c", {0: "b0"}))
        assert topic == "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
        return received(body=TopicRouteData((QueueData("broker-a", 1, 1, 6),), brokers).encode())


class World:
    """The members' service among NameServers."""

    def __init__(self, known: dict[str, dict[int, str] | None], *, asks_old_way: bool) -> None:
        self.servers = FakeNameServers(known)
        self.seen: list[dict[int, str]] = []
        self.members = Members(
            self.servers,
            cast(Registration, FakeRegistration(list(known))),
            data_version=lambda: DataVersion(0, 3, 9),
            asks_old_way=asks_old_way,
            on_members=lambda members: self.seen.append(dict(members)),
        )

    def alive(self) -> dict[int, str] | None:
        return asyncio.run(self.members.alive())


@pytest.mark.parametrize("asks_old_way", [True, False])
def test_a_broker_is_alive_while_any_name_server_lists_it(asks_old_way: bool) -> None:
    world = World(
        {"n1": {0: "a0", 1: "a1"}, "n2": {1: "a1", 2: "a2"}, "n3": None}, asks_old_way=asks_old_way
    )
    assert world.alive() == {0: "a0", 1: "a1", 2: "a2"}
    codes = {sent.code for _, sent in world.servers.sent}
    asked = RequestCode.GET_ROUTEINFO_BY_TOPIC
    assert codes == {asked if asks_old_way else RequestCode.GET_BROKER_MEMBER_GROUP}


@pytest.mark.parametrize("asks_old_way", [True, False])
def test_no_answer_is_not_the_answer_that_nobody_is_alive(asks_old_way: bool) -> None:
    assert World({"n1": None}, asks_old_way=asks_old_way).alive() is None
    assert World({"n1": {}, "n2": None}, asks_old_way=asks_old_way).alive() == {}
    assert World({}, asks_old_way=asks_old_way).alive() == {}


@pytest.mark.parametrize("asks_old_way", [True, False])
def test_beats_tell_every_name_server_of_the_broker(asks_old_way: bool) -> None:
    world = World({"n1": {}, "n2": None, "n3": {}}, asks_old_way=asks_old_way)

    async def story() -> None:
        world.members.beat(0)
        await asyncio.gather(*world.members._beats.values())

    asyncio.run(story())
    code = RequestCode.QUERY_DATA_VERSION if asks_old_way else RequestCode.BROKER_HEARTBEAT
    body = encode_body(DataVersion(0, 3, 9).to_fields()) if asks_old_way else b""
    assert world.servers.sent == [(server, Sent(code, IDENTITY, body)) for server in ("n1", "n3")]


def test_members_are_told_when_somebody_is_alive() -> None:
    world = World({"n1": {1: "a1"}}, asks_old_way=True)

    async def story() -> None:
        for known in ({1: "a1"}, {}, None):
            world.servers.known["n1"] = known
            world.members.look(0)
            assert world.members._watch is not None
            await world.members._watch
        await world.members.close()

    asyncio.run(story())
    assert world.seen == [{1: "a1"}]

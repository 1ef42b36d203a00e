"""How a broker keeps itself known to several NameServers, of which some are slow or gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any

import pytest

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.services import registration as registration_module
from contrail.broker.services.registration import Registration
from contrail.broker.services.topics import Topics
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.topics import TopicTable
from contrail.errors import CallFailed
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.registration import RegisterBrokerBody, body_crc32
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import encode_body
from contrail.wire.caller import Caller
from tests.fakes.peers import Sent, received

NOW_MS = 1_760_000_000_000
ONE, TWO, THREE = "10.0.0.1:9876", "10.0.0.2:9876", "ns.example:9876"
REGISTER = RequestCode.REGISTER_BROKER
PATIENCE_S = 60.0


class FakeCaller(Caller):
    """NameServers in memory: they answer, hang until they are let go, or are down."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, list[Sent]] = {}
        self.answers: dict[int, ReceivedResponse] = {}
        self.hung: dict[str, asyncio.Event] = {}
        self.down: set[str] = set()

    def codes(self, server: str) -> list[int]:
        return [sent.code for sent in self.sent.get(server, [])]

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> ReceivedResponse:
        if address in self.down:
            raise CallFailed(f"{address} cannot be reached")
        self.sent.setdefault(address, []).append(Sent(code, dict(fields or {}), body))
        if address in self.hung:
            await self.hung[address].wait()
        return self.answers.get(code, received())


class Room:
    """A registration with what surrounds it."""

    def __init__(self, *name_servers: str, **settings: Any) -> None:
        config = replace(BrokerConfig(), name_servers=";".join(name_servers), **settings)
        runtime = RuntimeSettings(config)
        self.topics = Topics(TopicTable(), runtime)
        self.caller = FakeCaller()
        self.masters: list[tuple[str, str]] = []
        self.registration = Registration(
            runtime,
            self.topics,
            self.caller,
            address="10.0.0.9:10911",
            ha_address="10.0.0.9:10912",
            now_ms=lambda: NOW_MS,
            on_master=lambda ha_address, address: self.masters.append((ha_address, address)),
        )

    async def settled(self) -> None:
        """Wait until no round is under way, but for those of NameServers that hang."""
        while any(
            task.get_name().startswith("register with ")
            and task.get_name().removeprefix("register with ") not in self.caller.hung
            for task in asyncio.all_tasks()
        ):
            await asyncio.sleep(0)

    async def asked(self, server: str) -> None:
        """Wait until a NameServer got a request; the body is encoded by another thread."""
        while not self.caller.codes(server):
            await asyncio.sleep(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story

    asyncio.run(bounded())


def test_every_name_server_is_told_the_broker_and_its_topics() -> None:
    async def story() -> None:
        room = Room(ONE, TWO, broker_name="b1", cluster_name="c1")
        room.topics.table.put(TopicConfig("orders"), NOW_MS)
        assert await room.registration.register_now()
        for server in (ONE, TWO):
            (sent,) = room.caller.sent[server]
            assert sent.code == REGISTER
            assert sent.fields == {
                "brokerName": "b1",
                "brokerAddr": "10.0.0.9:10911",
                "clusterName": "c1",
                "brokerId": "0",
                "haServerAddr": "10.0.0.9:10912",
                "compressed": "false",
                "bodyCrc32": str(body_crc32(sent.body)),
            }
            assert "orders" in RegisterBrokerBody.decode(sent.body).topics

    run(story())


def test_a_slave_registers_its_id_and_learns_its_masters_addresses() -> None:
    async def story() -> None:
        for role, broker_id in ((BrokerRole.SLAVE, 2), (BrokerRole.SYNC_MASTER, 0)):
            room = Room(ONE, role=role, broker_id=broker_id)
            fields = {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}
            room.caller.answers[REGISTER] = received(fields=fields)
            assert await room.registration.register_now()
            assert room.caller.sent[ONE][0].fields["brokerId"] == str(broker_id)
            told = [("10.0.0.1:10912", "10.0.0.1:10911")]
            assert room.masters == ([] if role.leads else told)

    run(story())


def test_without_name_servers_nobody_is_told() -> None:
    async def story() -> None:
        room = Room()
        assert not await room.registration.register_now()
        assert room.caller.sent == {}

    run(story())


def test_a_compressed_body_says_so_and_can_be_read() -> None:
    async def story() -> None:
        room = Room(ONE, register_compressed=True)
        room.topics.table.put(TopicConfig("orders"), NOW_MS)
        assert await room.registration.register_now()
        (sent,) = room.caller.sent[ONE]
        assert sent.fields["compressed"] == "true"
        assert sent.fields["bodyCrc32"] == str(body_crc32(sent.body))
        assert "orders" in RegisterBrokerBody.decode(sent.body, compressed=True).topics

    run(story())


def test_a_name_server_that_hangs_delays_neither_the_others_nor_the_start() -> None:
    async def story() -> None:
        room = Room(ONE, TWO)
        room.caller.hung[ONE] = asyncio.Event()
        assert not await room.registration.register_now(patience_ms=1)
        was_registering = room.registration.is_registering
        await room.settled()
        await room.asked(ONE)
        for round_count in (2, 3, 4):
            room.registration.register_soon()
            await room.settled()
            assert room.caller.codes(TWO) == [REGISTER] * round_count
        assert room.caller.codes(ONE) == [REGISTER]
        room.caller.hung.pop(ONE).set()
        await room.settled()
        assert was_registering and not room.registration.is_registering
        # All that was asked for meanwhile is one round.
        assert room.caller.codes(ONE) == [REGISTER] * 2

    run(story())


def test_asking_often_at_once_is_one_round_that_counts_as_a_change_if_one_was() -> None:
    async def story() -> None:
        room = Room(ONE, force_register=False)
        for is_change in (False, True, False, True):
            room.registration.register_soon(is_change=is_change)
        await room.settled()
        assert room.caller.codes(ONE) == [REGISTER]

    run(story())


def test_a_name_server_that_has_the_newest_topics_is_only_asked() -> None:
    async def story() -> None:
        room = Room(ONE, force_register=False)
        room.caller.answers[RequestCode.QUERY_DATA_VERSION] = received(fields={"changed": "false"})
        room.registration.register_soon(is_change=False)
        await room.settled()
        assert room.caller.codes(ONE) == [RequestCode.QUERY_DATA_VERSION]
        version = room.topics.table.data_version
        assert room.caller.sent[ONE][0].body == encode_body(version.to_fields())

    run(story())


@pytest.mark.parametrize(
    "answer", [received(fields={"changed": "true"}), received(), received(1, remark="no")]
)
def test_a_name_server_that_may_lack_topics_is_told_them(answer: ReceivedResponse) -> None:
    async def story() -> None:
        room = Room(ONE, force_register=False)
        room.caller.answers[RequestCode.QUERY_DATA_VERSION] = answer
        room.registration.register_soon(is_change=False)
        await room.settled()
        assert room.caller.codes(ONE) == [RequestCode.QUERY_DATA_VERSION, REGISTER]

    run(story())


def test_a_change_and_a_forced_round_ask_nothing_first() -> None:
    async def story() -> None:
        changed, forced = Room(ONE, force_register=False), Room(ONE, force_register=True)
        changed.registration.register_soon()
        forced.registration.register_soon(is_change=False)
        await changed.settled()
        assert changed.caller.codes(ONE) == forced.caller.codes(ONE) == [REGISTER]

    run(story())


def test_a_name_server_that_comes_up_later_is_registered_with_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        room = Room(ONE, TWO)
        room.caller.down.add(ONE)
        assert not await room.registration.register_now()
        assert room.caller.codes(TWO) == [REGISTER]
        room.caller.down.clear()
        assert await room.registration.register_now()
        assert room.caller.codes(ONE) == [REGISTER]

    with caplog.at_level(logging.INFO):
        run(story())
    lines = [record.getMessage() for record in caplog.records if ONE in record.getMessage()]
    assert "cannot be reached" in lines[0]
    assert "registered" in lines[1]


def test_a_refusal_is_no_registration_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        room = Room(ONE)
        room.caller.answers[REGISTER] = received(ResponseCode.SYSTEM_ERROR, remark="who are you")
        assert not await room.registration.register_now()

    run(story())
    assert "who are you" in caplog.text


def test_topics_of_the_order_configuration_become_ordered() -> None:
    async def story() -> None:
        room = Room(ONE)
        room.topics.table.put(TopicConfig("orders"), NOW_MS)
        body = encode_body({"table": {"orders": "b1:4", "nosuch": "b1:4"}})
        room.caller.answers[REGISTER] = received(body=body)
        assert await room.registration.register_now()
        ordered = room.topics.table.get("orders")
        assert ordered is not None
        assert ordered.order

    run(story())


def test_an_order_configuration_that_cannot_be_read_is_said_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        room = Room(ONE)
        room.caller.answers[REGISTER] = received(body=b"{")
        assert await room.registration.register_now()

    run(story())
    assert "order configuration" in caplog.text


def test_leaving_tells_every_name_server_and_ends_all_rounds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The one that hangs is waited for so long, the others have it to answer beside other work.
    monkeypatch.setattr(registration_module, "_UNREGISTER_TIMEOUT_MS", 300)

    async def story() -> None:
        room = Room(ONE, TWO, THREE)
        room.caller.down.add(TWO)
        room.caller.hung[THREE] = asyncio.Event()
        room.registration.register_soon()
        await room.settled()
        await room.asked(THREE)
        await room.registration.unregister()
        assert room.caller.codes(ONE) == [REGISTER, RequestCode.UNREGISTER_BROKER]
        assert room.caller.codes(THREE) == [REGISTER, RequestCode.UNREGISTER_BROKER]
        # A round after it would bring the broker back for two minutes.
        room.registration.register_soon()
        await room.settled()
        assert room.caller.codes(ONE)[-1] == RequestCode.UNREGISTER_BROKER

    run(story())
    for server in (TWO, THREE):
        assert f"NameServer {server} was not told" in caplog.text


def test_a_name_server_that_was_lost_is_told_again_as_soon_as_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration_module, "_RETURN_S_FIRST", 0.001)
    monkeypatch.setattr(registration_module, "_RETURN_S_MAX", 0.01)

    async def main() -> None:
        room = Room(ONE, TWO)
        await room.registration.register_now()
        room.caller.down.add(ONE)
        room.registration.lost(ONE)
        room.registration.lost(ONE)
        await asyncio.sleep(0.05)
        assert room.caller.codes(ONE) == [REGISTER]
        room.caller.down.clear()
        async with asyncio.timeout(PATIENCE_S):
            while room.caller.codes(ONE) != [REGISTER, REGISTER]:
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert room.caller.codes(ONE) == [REGISTER, REGISTER]
        assert room.caller.codes(TWO) == [REGISTER]
        await room.registration.unregister()

    asyncio.run(main())


def test_a_broker_that_leaves_returns_to_nobody() -> None:
    async def main() -> None:
        room = Room(ONE)
        await room.registration.register_now()
        room.registration.lost(ONE)
        await room.registration.unregister()
        room.registration.lost(ONE)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not any(name.startswith("return to") for name in names)

    asyncio.run(main())

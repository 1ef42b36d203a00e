"""A master that comes back takes over what its slaves did, before it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from contrail.broker.services import pre_online
from contrail.broker.services.pre_online import PreOnline
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.escaped import Escaped
from contrail.errors import CallFailed, OpeningAbandoned
from contrail.model.data_version import DataVersion
from contrail.protocol.bodies.ha_status import HaStatus, SlaveLink
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import encode_body
from contrail.store import CONSUMER_OFFSETS, DELAY_OFFSETS, ConsumerOffsetTable, DelayOffsetTable
from contrail.wire.caller import Caller
from tests.fakes.peers import received

SLAVE = "10.0.0.2:10911"
TELL = RequestCode.EXCHANGE_BROKER_HA_INFO
LEDGER = RequestCode.GET_ESCAPED_MESSAGES
DELAYS, OFFSETS = RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_ALL_CONSUMER_OFFSET


class FakeSlave(Caller):
    """A slave in memory; it connects once it was told where the master is."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: list[int] = []
        self.told: list[dict[str, str]] = []
        self.refuses: dict[int, list[int]] = {}
        self.connects = True
        self.bodies = {
            TELL: b"",
            LEDGER: Escaped([5, 6], [7]).encode(),
            DELAYS: encode_body(
                DELAY_OFFSETS.encode(DelayOffsetTable({2: 9}, DataVersion(0, 1, 1)))
            ),
            OFFSETS: encode_body(
                CONSUMER_OFFSETS.encode(
                    ConsumerOffsetTable({"orders@billing": {0: 7}}, DataVersion(0, 1, 1))
                )
            ),
        }

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> ReceivedResponse:
        assert address == SLAVE
        self.codes.append(code)
        if code == TELL:
            self.told.append(dict(fields or {}))
        if self.refuses.get(code):
            refusal = self.refuses[code].pop(0)
            if not refusal:
                raise CallFailed("gone")
            return received(refusal)
        return received(body=self.bodies[RequestCode(code)])


class World:
    """A master that starts, and its one slave."""

    def __init__(self) -> None:
        self.slave = FakeSlave()
        self.answers: list[dict[int, str] | None] = [{0: "10.0.0.1:10911", 1: SLAVE}]
        self.offsets = ConsumerOffsets()
        self.adopted: list[DelayOffsetTable] = []
        self.escaped = Escaped([1])
        self.broker_id: int | None = 1
        self.is_abandoned = False

    async def alive(self) -> dict[int, str] | None:
        return self.answers.pop(0)

    def adopt(self, table: DelayOffsetTable) -> None:
        self.adopted.append(table)

    def status(self) -> HaStatus:
        links: tuple[SlaveLink, ...] = ()
        if self.slave.connects and self.slave.told:
            links = (
                SlaveLink(
                    address="10.0.0.2:50000",
                    acknowledged_end=0,
                    lag_bytes=0,
                    in_sync=True,
                    broker_id=self.broker_id,
                    state="receiving",
                ),
            )
        return HaStatus(is_master=True, physical_end=0, slaves=links)

    def check(self) -> None:
        if self.is_abandoned:
            raise OpeningAbandoned("abandoned")

    def run(self, patience_s: float = 30.0) -> None:
        service = PreOnline(
            self.slave,
            alive=self.alive,
            address="10.0.0.1:10911",
            ha_address="10.0.0.1:10912",
            status=self.status,
            offsets=self.offsets,
            delays=self,
            escaped=self.escaped,
            check=self.check,
            patience_s=patience_s,
        )
        asyncio.run(service.run())

    @property
    def offset(self) -> int:
        return self.offsets.query("billing", "orders", 0)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds follow each other at once."""
    monkeypatch.setattr(pre_online, "_ROUND_S", 0)


def test_a_master_tells_its_slave_where_it_is_and_takes_everything_back() -> None:
    world = World()
    world.run()
    assert world.slave.codes == [TELL, LEDGER, DELAYS, OFFSETS]
    assert world.slave.told[0]["masterHaAddress"] == "10.0.0.1:10912"
    assert (world.escaped.waited, world.escaped.halves) == ({1, 5, 6}, {7})
    assert [table.queue_offsets for table in world.adopted] == [{2: 9}]
    assert world.offset == 7


def test_without_a_slave_alive_a_master_serves_at_once() -> None:
    for answer in ({}, {0: "10.0.0.1:10911"}):
        world = World()
        world.answers = [answer]
        world.run()
        assert world.slave.codes == []


def test_name_servers_are_asked_until_one_answers() -> None:
    world = World()
    world.answers = [None, None, {1: SLAVE}]
    world.run()
    assert world.offset == 7


def test_a_start_that_is_abandoned_waits_for_nobody() -> None:
    world = World()
    world.is_abandoned = True
    with pytest.raises(OpeningAbandoned):
        world.run()


def test_a_slave_that_is_still_at_work_is_asked_again() -> None:
    world = World()
    world.slave.refuses = {LEDGER: [ResponseCode.SERVICE_NOT_AVAILABLE, 0], TELL: [0]}
    world.run()
    assert world.escaped.waited == {1, 5, 6}
    assert world.offset == 7


def test_a_slave_that_never_connects_is_left_out_in_the_end() -> None:
    world = World()
    world.slave.connects = False
    world.run(patience_s=0.05)
    assert LEDGER not in world.slave.codes
    assert world.offset == -1


def test_a_slave_of_apache_has_no_ledger_and_no_id() -> None:
    world = World()
    world.broker_id = None
    world.slave.refuses = {LEDGER: [ResponseCode.REQUEST_CODE_NOT_SUPPORTED]}
    world.run()
    assert world.escaped.waited == {1}
    assert world.offset == 7 and len(world.adopted) == 1


def test_another_slave_that_is_connected_does_not_count() -> None:
    world = World()
    world.broker_id = 2
    world.run(patience_s=0.05)
    assert LEDGER not in world.slave.codes


def test_empty_tables_of_a_slave_change_nothing() -> None:
    world = World()
    refusals = [ResponseCode.SYSTEM_ERROR]
    world.slave.refuses = {DELAYS: refusals[:], OFFSETS: refusals[:]}
    world.run()
    assert world.adopted == [] and world.offset == -1

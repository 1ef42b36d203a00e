"""Requests between a master and its slaves."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.replication import HaFacts, ReplicationHandlers
from contrail.errors import RequestRejected
from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, Response
from tests.fakes.peers import FakePeer


class Room:
    """The handlers of a master or a slave."""

    def __init__(self, *, leads: bool, status: HaStatus | None = None) -> None:
        self.taken: list[tuple[str, str]] = []
        self.handlers = ReplicationHandlers(
            HaFacts(
                leads=leads,
                address="10.0.0.1:10911",
                ha_address="10.0.0.1:10912",
                first_end=77,
                status=lambda: status,
                take_master=lambda ha_address, address: self.taken.append((ha_address, address)),
                request_modes=lambda: b"modes",
            )
        )

    def ask(self, code: int, **fields: str) -> Response:
        answer = self.handlers.table()[code](Request(code, 1, fields), FakePeer())
        assert isinstance(answer, Response)
        return answer


def test_a_master_tells_where_it_is_and_that_it_is_ours() -> None:
    answer = Room(leads=True).ask(RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert answer.fields == {
        "masterHaAddress": "10.0.0.1:10912",
        "masterFlushOffset": "77",
        "masterAddress": "10.0.0.1:10911",
        "contrailHa": "1",
    }


def test_a_slave_takes_its_masters_addresses_and_a_master_takes_nobodys() -> None:
    slave, master = Room(leads=False), Room(leads=True)
    told = {"masterHaAddress": "10.0.0.9:10912", "masterAddress": "10.0.0.9:10911"}
    for room in (slave, master):
        assert room.ask(RequestCode.EXCHANGE_BROKER_HA_INFO, **told).code == 0
    assert slave.taken == [("10.0.0.9:10912", "10.0.0.9:10911")]
    assert master.taken == []
    assert slave.ask(RequestCode.EXCHANGE_BROKER_HA_INFO).fields is None


def test_request_modes_are_told() -> None:
    answer = Room(leads=True).ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert answer.body == b"modes"


def test_the_status_is_told_and_a_broker_without_replicas_says_so() -> None:
    status = HaStatus(is_master=True, physical_end=5)
    answer = Room(leads=True, status=status).ask(RequestCode.GET_BROKER_HA_STATUS)
    assert isinstance(answer.body, bytes)
    assert decode_ha_status(answer.body).physical_end == 5
    with pytest.raises(RequestRejected, match="no replication"):
        Room(leads=True).ask(RequestCode.GET_BROKER_HA_STATUS)


def test_a_flushed_offset_that_an_operator_sets_is_taken_and_means_nothing() -> None:
    assert Room(leads=False).ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, masterFlushOffset="3")
    with pytest.raises(RequestRejected, match="masterFlushOffset"):
        Room(leads=False).ask(RequestCode.RESET_MASTER_FLUSH_OFFSET)

"""The handlers of a slave: refused, or stripped of what they would write."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.role_gate import SlaveGate, slave_handlers
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.wire.peer import Answer, Handler, Peer
from tests.fakes.peers import FakePeer

PULL, QUERY = RequestCode.PULL_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET


class Gate:
    """A gate in front of handlers that remember what reached them."""

    def __init__(self, *, may_act: bool = False) -> None:
        self.is_prime = False
        self.reached: list[Request] = []
        self.reads_enabled = True
        self.outcome: Response | RequestRejected = Response()
        handlers: dict[int, Handler] = {int(code): self.handle for code in RequestCode}
        gate = SlaveGate(
            reads_enabled=lambda: self.reads_enabled,
            may_act=may_act,
            is_prime=lambda: self.is_prime,
        )
        self.handlers = slave_handlers(handlers, gate)

    def handle(self, request: Request, peer: Peer) -> Answer:
        self.reached.append(request)
        if isinstance(self.outcome, RequestRejected):
            raise self.outcome
        return self.outcome

    def ask(self, code: int, **fields: str) -> Answer:
        return self.handlers[code](Request(code, 7, fields), FakePeer())


def test_a_send_does_not_reach_its_handler() -> None:
    gate = Gate()
    with pytest.raises(RequestRejected, match="slave") as refusal:
        gate.ask(RequestCode.SEND_MESSAGE_V2)
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY
    assert gate.reached == []


def test_pulls_are_refused_while_reads_are_off_and_served_once_they_are_on() -> None:
    gate = Gate()
    gate.reads_enabled = False
    with pytest.raises(RequestRejected, match="slaveReadEnable") as refusal:
        gate.ask(PULL, sysFlag="2")
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY
    gate.reads_enabled = True
    assert isinstance(gate.ask(PULL, sysFlag="2"), Response)


@pytest.mark.parametrize(
    ("given", "reaches"), [("3", "2"), ("1", "0"), ("6", "6"), ("", ""), ("x", "x"), ("-1", "-1")]
)
def test_a_pull_brings_no_progress_along(given: str, reaches: str) -> None:
    gate = Gate()
    gate.ask(PULL, sysFlag=given, commitOffset="5")
    assert gate.reached[0].fields["sysFlag"] == reaches


def test_an_offset_that_a_slave_does_not_know_is_neither_zero_nor_new() -> None:
    gate = Gate()
    gate.outcome = RequestRejected(ResponseCode.QUERY_NOT_FOUND, "no offset")
    with pytest.raises(RequestRejected, match="ask the master") as refusal:
        gate.ask(QUERY, setZeroIfNotFound="true")
    assert refusal.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert gate.reached[0].fields["setZeroIfNotFound"] == "false"


def test_other_refusals_of_a_query_pass() -> None:
    gate = Gate()
    gate.outcome = RequestRejected(ResponseCode.NO_PERMISSION, "closed")
    with pytest.raises(RequestRejected) as refusal:
        gate.ask(QUERY)
    assert refusal.value.code == ResponseCode.NO_PERMISSION


PRIME_CODES = [
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.UPDATE_CONSUMER_OFFSET,
]


@pytest.mark.parametrize("code", PRIME_CODES)
def test_locks_and_commits_are_served_only_while_the_slave_answers_for_its_master(
    code: int,
) -> None:
    gate = Gate(may_act=True)
    for _ in range(2):
        with pytest.raises(RequestRejected) as refusal:
            gate.ask(code)
        assert refusal.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        gate.is_prime = True
        assert isinstance(gate.ask(code), Response)
        gate.is_prime = False


@pytest.mark.parametrize("code", PRIME_CODES)
def test_a_slave_that_may_not_act_refuses_locks_and_commits_always(code: int) -> None:
    gate = Gate()
    gate.is_prime = True
    with pytest.raises(RequestRejected):
        gate.ask(code)


def test_a_slave_that_answers_for_its_master_takes_progress_and_says_what_is_new() -> None:
    gate = Gate(may_act=True)
    gate.is_prime = True
    gate.ask(PULL, sysFlag="3")
    assert gate.reached[0].fields["sysFlag"] == "3"
    gate.outcome = RequestRejected(ResponseCode.QUERY_NOT_FOUND, "no offset")
    with pytest.raises(RequestRejected) as refusal:
        gate.ask(QUERY, setZeroIfNotFound="true")
    assert refusal.value.code == ResponseCode.QUERY_NOT_FOUND
    assert gate.reached[1].fields["setZeroIfNotFound"] == "true"


def test_a_slave_that_may_act_refuses_sends_as_a_store_that_takes_nothing() -> None:
    gate = Gate(may_act=True)
    for gate.is_prime in (False, True):
        with pytest.raises(RequestRejected) as refusal:
            gate.ask(RequestCode.SEND_MESSAGE_V2)
        assert refusal.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        with pytest.raises(RequestRejected) as refusal:
            gate.ask(RequestCode.END_TRANSACTION)
        assert refusal.value.code == ResponseCode.SLAVE_NOT_AVAILABLE

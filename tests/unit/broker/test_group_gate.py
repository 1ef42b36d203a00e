"""The handlers of a member of a failover group, by its role of the moment."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.group_gate import (
    LEASED,
    NOT_IN_GROUPS,
    group_handlers,
    not_leading,
)
from contrail.broker.state.roles import SERVED_BY_SLAVES
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.wire.peer import Answer, Handler, Peer
from tests.fakes.peers import FakePeer

pytestmark = pytest.mark.proves("replication.failover.gates")
LEADER = "127.0.0.1:10911"
PULL, QUERY = RequestCode.PULL_MESSAGE, RequestCode.QUERY_CONSUMER_OFFSET


class Standing:
    def __init__(self) -> None:
        self.leads = False
        self.leader_address = LEADER
        self.lease = True

    def has_lease(self) -> bool:
        return self.leads and self.lease


class Gate:
    """A gate in front of handlers that remember what reached them."""

    def __init__(self) -> None:
        self.standing = Standing()
        self.reached: list[Request] = []
        self.outcome: RequestRejected | None = None
        handlers: dict[int, Handler] = {int(code): self.handle for code in RequestCode}
        self.handlers = group_handlers(
            handlers, self.standing, "g", knows_topic=lambda topic: topic == "known"
        )

    def handle(self, request: Request, peer: Peer) -> Answer:
        self.reached.append(request)
        if self.outcome is not None:
            raise self.outcome
        return Response()

    def ask(self, code: int, **fields: str) -> Answer:
        return self.handlers[code](Request(code, 7, fields), FakePeer())


@pytest.mark.parametrize("code", sorted(set(RequestCode) - SERVED_BY_SLAVES))
def test_a_follower_refuses_each_change_of_log_or_tables_as_not_stored_and_names_the_leader(
    code: RequestCode,
) -> None:
    gate = Gate()
    with pytest.raises(RequestRejected, match=LEADER) as refused:
        gate.ask(code)
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused.value.fields == {"contrailLeader": LEADER}
    assert gate.reached == []
    gate.standing.leads = True
    if code in NOT_IN_GROUPS:
        with pytest.raises(RequestRejected, match="do not serve") as refused:
            gate.ask(code)
        assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    else:
        gate.ask(code)
    assert len(gate.reached) == (code not in NOT_IN_GROUPS)


def test_without_a_known_leader_the_refusal_says_so_and_names_none() -> None:
    standing = Standing()
    standing.leader_address = ""
    refusal = not_leading(standing, "g")
    assert refusal.fields is None and "no leader is known" in refusal.remark


def test_a_pull_at_a_follower_is_served_without_its_commit() -> None:
    gate = Gate()
    gate.ask(PULL, sysFlag="3", topic="known")
    gate.standing.leads = True
    gate.ask(PULL, sysFlag="3", topic="known")
    gate.standing.lease = False
    gate.ask(PULL, sysFlag="3", topic="known")
    assert [one.fields["sysFlag"] for one in gate.reached] == ["2", "3", "2"]


def test_a_follower_makes_nothing_up_about_a_topic_group_or_queue_that_it_does_not_know() -> None:
    gate = Gate()
    gate.outcome = RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    answer = gate.ask(PULL, queueOffset="7")
    assert isinstance(answer, Response)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.fields is not None and answer.fields["suggestWhichBrokerId"] == "0"
    with pytest.raises(RequestRejected) as refused:
        gate.ask(RequestCode.GET_MAX_OFFSET, topic="other")
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    gate.outcome = RequestRejected(ResponseCode.QUERY_NOT_FOUND, "none")
    with pytest.raises(RequestRejected) as unknown:
        gate.ask(QUERY)
    assert unknown.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert gate.reached[-1].fields["setZeroIfNotFound"] == "false"


@pytest.mark.parametrize("code", sorted(LEASED))
def test_a_leader_without_a_lease_changes_neither_offsets_nor_locks(code: RequestCode) -> None:
    gate = Gate()
    gate.standing.leads, gate.standing.lease = True, False
    with pytest.raises(RequestRejected, match="still leads") as refused:
        gate.ask(code)
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert gate.reached == []
    gate.standing.lease = True
    gate.ask(code)
    assert len(gate.reached) == 1

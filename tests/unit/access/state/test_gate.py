"""The gate: signature, then rights, for each request anew."""

from __future__ import annotations

import pytest

from contrail.access.state.gate import DECISIONS_MAX, AccessGate, Whitelists
from contrail.access.state.needs import SUB
from contrail.access.state.rights import Entry, PolicyType
from contrail.access.state.users import UserStatus, UserTable, UserType
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.signing import ACCESS_KEY, Credentials, signed_fields

SEND = RequestCode.SEND_MESSAGE
FROM = "10.0.0.9:4711"


class _Facts:
    cluster_name = "c"

    def has_topic(self, topic: str) -> bool:
        return False

    def sink_topics(self, sink_id: str) -> tuple[str, ...]:
        return ()


@pytest.fixture
def table() -> UserTable:
    table = UserTable()
    table.create_user("root", "root-secret", UserType.SUPER)
    table.create_user("alice", "alice-secret")
    table.merge("alice", {PolicyType.CUSTOM: (Entry.parse("Topic:orders", ["Pub"], [], "Allow"),)})
    return table


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def gate(table: UserTable, told: list[str]) -> AccessGate:
    return AccessGate(
        table, _Facts(), on_refused=lambda request, address, remark: told.append(remark)
    )


def request(name: str = "alice", topic: str = "orders", code: int = SEND) -> Request:
    fields = signed_fields({"topic": topic}, b"body", Credentials(name, f"{name}-secret"))
    return Request(code, 1, fields, b"body")


def refusal(gate: AccessGate, asked: Request, address: str = FROM) -> str:
    with pytest.raises(RequestRejected) as refused:
        gate.require(asked, address)
    assert refused.value.code == ResponseCode.NO_PERMISSION
    return str(refused.value.remark)


def test_a_user_does_what_it_may_and_no_more(gate: AccessGate, told: list[str]) -> None:
    gate.require(request(), FROM)
    assert told == []
    remark = refusal(gate, request(topic="secrets"))
    assert remark == "User:alice has no right to Pub on Topic:secrets from 10.0.0.9: " + (
        "no policy matches"
    )
    assert "Super" in refusal(gate, request(code=RequestCode.POP_LITE_MESSAGE))
    gate.require(request("root", code=RequestCode.POP_LITE_MESSAGE), FROM)
    assert len(told) == gate.counts["refused"] == 2


def test_unknown_users_and_wrong_signatures_are_not_told_apart(gate: AccessGate) -> None:
    wrong = request()._replace(body=b"another body")
    unknown = request("nobody")
    assert refusal(gate, wrong) == refusal(gate, unknown).replace("nobody", "alice")


def test_a_signature_of_one_request_says_nothing_of_the_next(gate: AccessGate) -> None:
    gate.require(request(), FROM)
    assert "not signed" in refusal(gate, Request(SEND, 2, {"topic": "orders"}))
    assert "not signed" in refusal(gate, Request(SEND, 3, {"topic": "orders", ACCESS_KEY: "alice"}))


@pytest.mark.proves("access.rules.cache")
def test_a_change_counts_from_the_next_request_on(gate: AccessGate, table: UserTable) -> None:
    gate.require(request(), FROM)
    table.remove("alice")
    assert "no policy" in refusal(gate, request())
    table.update_user("alice", status=UserStatus.DISABLE)
    assert "disabled" in refusal(gate, request())


@pytest.mark.proves("access.rules.cache")
def test_remembered_decisions_are_bounded_and_by_address(
    gate: AccessGate, table: UserTable
) -> None:
    table.merge(
        "alice",
        {PolicyType.CUSTOM: (Entry.parse("Topic:orders", ["Pub"], ["10.0.0.9"], "Allow"),)},
    )
    gate.require(request(), FROM)
    refusal(gate, request(), "10.0.0.8:1")
    gate.require(request(), "10.0.0.9:2")
    assert len(gate._decisions) == 2
    for number in range(DECISIONS_MAX + 10):
        gate._require(table.require("root"), (), str(number))
    assert len(gate._decisions) <= DECISIONS_MAX


@pytest.mark.proves("access.settings.whitelists")
def test_a_whitelisted_code_is_anonymous_whatever_name_it_carries(table: UserTable) -> None:
    anonymous = frozenset({int(SEND)})
    gate = AccessGate(table, _Facts(), whitelists=Whitelists(anonymous))
    assert "anonymous" in refusal(gate, request("root"))
    open_gate = AccessGate(table, _Facts(), whitelists=Whitelists(anonymous, anonymous))
    open_gate.require(Request(SEND, 1, {"topic": "secrets"}), FROM)
    free = AccessGate(table, _Facts(), whitelists=Whitelists(free=anonymous))
    free.require(request(topic="secrets"), FROM)
    assert "not signed" in refusal(free, Request(SEND, 1, {"topic": "secrets"}))


@pytest.mark.proves("access.gate.claims")
def test_a_producer_sees_half_messages_of_its_users_topics_alone(table: UserTable) -> None:
    beat = int(RequestCode.HEART_BEAT)
    gate = AccessGate(table, _Facts())
    assert gate.may_publish("alice", beat, FROM, "orders")
    assert not gate.may_publish("alice", beat, FROM, "secrets")
    assert gate.may_publish("root", beat, FROM, "secrets")
    assert not gate.may_publish("nobody", beat, FROM, "orders")
    # A heartbeat that needs no signature may carry any name.
    anonymous = AccessGate(table, _Facts(), whitelists=Whitelists(frozenset({beat})))
    assert not anonymous.may_publish("root", beat, FROM, "orders")
    table.update_user("alice", status=UserStatus.DISABLE)
    assert not gate.may_publish("alice", beat, FROM, "orders")


def test_a_held_request_is_judged_by_the_rights_of_now(gate: AccessGate, table: UserTable) -> None:
    held = request()
    gate.require_still(held, FROM)
    with pytest.raises(RequestRejected):
        gate.may_use(held, FROM, "orders", SUB)
    table.delete_user("alice")
    with pytest.raises(RequestRejected):
        gate.require_still(held, FROM)

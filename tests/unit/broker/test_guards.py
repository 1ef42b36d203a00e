"""The table of guards: which of them stand, and whether sends must ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.guards import PULLS, SENDS, Guard, Guards, Ruling, Verdict
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Response
from contrail.wire.connection import Connection
from contrail.wire.router import RequestRouter

PEER: Any = SimpleNamespace(is_closed=False, is_fast_port=False, in_flight_count=0)
NOT_YOU = Response(ResponseCode.NO_PERMISSION, "not for you")


def refuse(guards: Guards, peer: Connection, code: int) -> Verdict:
    return NOT_YOU


@pytest.fixture
def router() -> RequestRouter:
    return RequestRouter({}, in_flight_count_max=3)


@pytest.mark.proves("broker.fast.one-home")
def test_no_send_asks_while_no_guard_of_sends_stands(router: RequestRouter) -> None:
    guards = Guards(router)
    assert not guards.looks_at_sends
    assert [guards.verdict(PEER, code) for code in PULLS | SENDS] == [None] * 5


@pytest.mark.proves("broker.fast.one-home")
def test_all_sends_and_pulls_are_left_to_the_router_when_the_broker_goes_away(
    router: RequestRouter,
) -> None:
    guards = Guards(router)
    guards.go_away()
    assert router.is_going_away and guards.looks_at_sends
    assert {guards.verdict(PEER, code) for code in PULLS | SENDS} == {Ruling.GENERAL}
    assert guards.verdict(PEER, RequestCode.HEART_BEAT) is None


@pytest.mark.parametrize("code", sorted(SENDS))
def test_a_check_of_one_kind_of_send_makes_all_sends_ask(router: RequestRouter, code: int) -> None:
    guards = Guards(router, [Guard(frozenset({code}), refuse)])
    assert guards.looks_at_sends
    assert [one for one in sorted(SENDS) if guards.verdict(PEER, one) is NOT_YOU] == [code]


def test_a_guard_that_stands_no_more_is_asked_no_more(router: RequestRouter) -> None:
    may_write = [False]
    guards = Guards(router, [Guard(SENDS, refuse, stands=lambda guards: not may_write[0])])
    assert guards.looks_at_sends
    may_write[0] = True
    assert guards.verdict(PEER, 10) is NOT_YOU, "nobody has told that something changed"
    guards.begin_anew()
    assert guards.verdict(PEER, 10) is None and not guards.looks_at_sends


def test_the_first_guard_that_objects_decides(router: RequestRouter) -> None:
    def pass_on(guards: Guards, peer: Connection, code: int) -> Verdict:
        return None

    def drop(guards: Guards, peer: Connection, code: int) -> Verdict:
        return Ruling.DROP

    guards = Guards(router, [Guard(SENDS, pass_on), Guard(SENDS, refuse), Guard(SENDS, drop)])
    assert guards.verdict(PEER, 310) is NOT_YOU


def test_room_is_what_the_router_has(router: RequestRouter) -> None:
    peer: Any = SimpleNamespace(in_flight_count=1)
    assert Guards(router).room_of(peer) == 2


@pytest.mark.proves("replication.failover.gates")
def test_a_member_that_does_not_lead_refuses_sends_on_both_ways_and_names_the_leader(
    router: RequestRouter,
) -> None:
    guards = Guards(router)
    guards.not_leading = lambda: NOT_YOU
    guards.has_lease = lambda: False
    guards.begin_anew()
    assert guards.looks_at_sends
    assert [guards.verdict(PEER, code) for code in SENDS] == [NOT_YOU] * 3
    assert {guards.verdict(PEER, code) for code in PULLS} == {Ruling.GENERAL}
    guards.go_away()
    assert [guards.verdict(PEER, code) for code in SENDS] == [NOT_YOU] * 3


@pytest.mark.proves("replication.failover.gates")
def test_a_leader_takes_sends_without_a_guard_and_fast_pulls_while_it_has_its_lease(
    router: RequestRouter,
) -> None:
    guards, lease = Guards(router), [True]
    guards.has_lease = lambda: lease[0]
    guards.begin_anew()
    assert not guards.looks_at_sends
    assert {guards.verdict(PEER, code) for code in PULLS} == {None}
    lease[0] = False
    assert {guards.verdict(PEER, code) for code in PULLS} == {Ruling.GENERAL}

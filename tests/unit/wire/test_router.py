"""The codes that each port may ask, and how exceptions are answered."""

from __future__ import annotations

import logging

import pytest

from contrail.errors import ConfigError, DiskFull, RequestRejected, StoreError
from contrail.protocol.codes import CODE_CLASSES, CodeClass, RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse, Request, Response
from contrail.wire.connection import Connection
from contrail.wire.peer import LATER, Answer, Peer
from contrail.wire.request_times import RequestTimes
from contrail.wire.router import RequestRouter, code_class, parse_networks
from contrail.wire.server import Server
from tests.fakes.transports import EchoService, FakeTransport, connected, still

DATA, CLUSTER = RequestCode.PULL_MESSAGE, RequestCode.REGISTER_BROKER
READ_ADMIN, WRITE_ADMIN = RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG


def served(request: Request, peer: Peer) -> Answer:
    return Response(0, "served")


def peer_at(address: str = "127.0.0.1") -> tuple[Connection, FakeTransport]:
    return connected(still(Server(EchoService())), address)


def asked(
    router: RequestRouter, request: Request, address: str = "127.0.0.1"
) -> ReceivedResponse | None:
    connection, transport = peer_at(address)
    router.handle(request, connection)
    connection.flush()
    found = transport.frames()
    assert len(found) <= 1
    assert all(isinstance(frame, ReceivedResponse) for frame in found)
    return found[0] if found else None  # type: ignore[return-value]


def code_of(router: RequestRouter, code: int, address: str = "127.0.0.1") -> int:
    found = asked(router, Request(code, 1, {}), address)
    assert found is not None
    return found.code


def router_with(handler: object, **kwargs: object) -> RequestRouter:
    table = dict.fromkeys(RequestCode, handler)
    return RequestRouter(table, **kwargs)  # type: ignore[arg-type]


def test_every_code_of_the_table_is_taken_from_this_host() -> None:
    router = router_with(served)
    assert {code_of(router, code) for code in RequestCode} == {0}


@pytest.mark.proves("wire.server.strangers")
@pytest.mark.parametrize("code", list(RequestCode))
def test_from_elsewhere_only_data_is_taken(code: RequestCode) -> None:
    router = router_with(served)
    allowed = CODE_CLASSES[code] is CodeClass.DATA
    expected = ResponseCode.SUCCESS if allowed else ResponseCode.NO_PERMISSION
    assert code_of(router, code, "192.0.2.7") == expected


@pytest.mark.proves("wire.server.strangers")
def test_brokers_of_listed_networks_may_register_and_not_administer() -> None:
    router = router_with(served, cluster_networks=parse_networks("10.1.0.0/16; 2001:db8::/32"))
    assert code_of(router, CLUSTER, "10.1.2.3") == 0
    assert code_of(router, CLUSTER, "2001:db8::5") == 0
    assert code_of(router, CLUSTER, "::ffff:10.1.2.3") == 0
    assert code_of(router, CLUSTER, "10.2.2.3") == ResponseCode.NO_PERMISSION
    for code in (READ_ADMIN, WRITE_ADMIN):
        assert code_of(router, code, "10.1.2.3") == ResponseCode.NO_PERMISSION


@pytest.mark.proves("access.settings.admin-networks")
def test_administrators_of_listed_networks_ask_everything() -> None:
    router = router_with(served, admin_networks=parse_networks("10.1.0.0/16"))
    for code in (CLUSTER, READ_ADMIN, WRITE_ADMIN):
        assert code_of(router, code, "10.1.2.3") == 0
        assert code_of(router, code, "10.2.2.3") == ResponseCode.NO_PERMISSION


def test_a_list_of_networks_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="contrailClusterAllowList"):
        parse_networks("10.0.0.0/8,nowhere")


@pytest.mark.proves("wire.frames.unknown-codes")
@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.7"])
@pytest.mark.parametrize("code", [-1, 9, 54_321, 2_000_000_000])
def test_an_unknown_code_is_answered_as_not_supported(code: int, address: str) -> None:
    assert code_class(code) is None
    found = asked(RequestRouter({}), Request(code, 1, {}), address)
    assert found is not None and found.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert str(code) in (found.remark or "")


@pytest.mark.proves("wire.frames.codes-by-name")
def test_a_known_code_without_a_handler_is_named_in_the_answer() -> None:
    found = asked(RequestRouter({}), Request(RequestCode.POP_MESSAGE, 1, {}))
    assert found is not None and found.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "POP_MESSAGE" in (found.remark or "")


def refuse(request: Request, peer: Peer) -> Answer:
    raise RequestRejected(17, "no such topic")


def fill_the_disk(request: Request, peer: Peer) -> Answer:
    raise DiskFull("no room")


def break_down(request: Request, peer: Peer) -> Answer:
    raise KeyError("a bug")


def test_a_refusal_is_answered_with_its_code_and_counted() -> None:
    router = router_with(refuse)
    found = asked(router, Request(DATA, 1, {}))
    assert found is not None and (found.code, found.remark) == (17, "no such topic")
    assert router.counts["rejected_17"] == 1


def test_an_error_has_the_code_of_its_nearest_family() -> None:
    router = router_with(fill_the_disk, error_codes={StoreError: 14})
    assert code_of(router, DATA) == 14
    assert code_of(router_with(fill_the_disk), DATA) == ResponseCode.SYSTEM_ERROR


def test_a_bug_is_answered_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    router = router_with(break_down)
    with caplog.at_level(logging.CRITICAL):
        assert code_of(router, DATA) == ResponseCode.SYSTEM_ERROR
    assert router.counts["failed"] == 1


@pytest.mark.parametrize("handler", [served, refuse, break_down])
def test_a_one_way_request_is_never_answered(
    handler: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        assert asked(router_with(handler), Request(DATA, 1, {}, b"", FLAG_ONE_WAY)) is None


def test_a_parked_request_is_answered_later() -> None:
    parked: list[tuple[Request, Peer]] = []

    def park(request: Request, peer: Peer) -> Answer:
        parked.append((request, peer))
        return LATER

    connection, transport = peer_at()
    router_with(park).handle(Request(DATA, 5, {}), connection)
    connection.flush()
    assert transport.written == []
    parked[0][1].reply(parked[0][0], Response(0))
    connection.flush()
    assert [found.opaque for found in transport.frames()] == [5]


def timed_peer() -> tuple[Connection, RequestTimes]:
    connection, _ = peer_at()
    connection.times = times = RequestTimes(lambda: 100.0)
    return connection, times


def test_a_request_that_is_put_off_is_remembered_until_it_is_answered() -> None:
    connection, times = timed_peer()
    request = Request(DATA, 5, {})
    router_with(lambda request, peer: LATER).handle(request, connection)
    assert connection.put_off_count == 1
    connection.reply(request, Response())
    assert connection.put_off_count == 0
    assert [kind.is_held for kind, _, _ in times.rows()] == [True]


def test_a_request_that_its_handler_answers_itself_is_not_remembered() -> None:
    def answer_all(request: Request, peer: Peer) -> Answer:
        peer.reply(request, Response())
        # An append wakes other requests of the same connection.
        peer.reply(Request(DATA, 1000 + request.opaque, {}), Response())
        return LATER

    connection, times = timed_peer()
    router = router_with(answer_all)
    for opaque in range(10):
        router.handle(Request(DATA, opaque, {}), connection)
    assert connection.put_off_count == 0
    assert [(kind.is_held, sum(counts)) for kind, counts, _ in times.rows()] == [(False, 20)]


@pytest.mark.proves("wire.server.go-away")
@pytest.mark.parametrize(("version", "code"), [(475, 0), (476, 1500), (479, 1500)])
def test_newer_clients_are_told_to_go_away(version: int, code: int) -> None:
    router = router_with(served)
    router.is_going_away = True
    found = asked(router, Request(DATA, 1, {}, b"", 0, version))
    assert found is not None and found.code == code


@pytest.mark.proves("wire.server.answered-bounds")
def test_too_many_unanswered_requests_of_one_connection_are_answered_busy() -> None:
    router = router_with(served, in_flight_count_max=2)
    connection, transport = peer_at()
    for in_flight in range(4):
        connection.in_flight_count = in_flight
        router.handle(Request(DATA, in_flight, {}), connection)
    connection.flush()
    codes = [found.code for found in transport.frames()]
    assert codes == [0, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]

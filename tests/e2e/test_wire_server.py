"""A real broker and NameServer behind real sockets, and peers that keep no rule."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from contrail.broker.app import Broker
from contrail.errors import ConfigError
from contrail.protocol.codes import CODE_CLASSES, CodeClass, RequestCode, ResponseCode
from contrail.protocol.command import (
    FLAG_ONE_WAY,
    Request,
    Response,
    encode_binary_request,
    encode_request,
    encode_response,
)
from contrail.testing import LocalCluster, eventually
from contrail.testing.loop import LoopThread
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.server import Server, bind, bind_together
from tests.e2e.raw_client import RawClient, heartbeat, pull_fields, send_fields
from tests.fakes.transports import EchoService
from tests.unit.kernels.frame_material import BREAKERS

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[0].port) as connected:
        yield connected


def broker_of(cluster: LocalCluster) -> Broker:
    app = cluster.brokers[0].app
    assert app is not None
    return app


def server_side(server: Server, client: RawClient) -> Connection:
    """The server's end of a client's connection."""

    def found() -> list[Connection]:
        end = f":{client.local_port}"
        return [peer for peer in list(server.connections) if peer.address.endswith(end)]

    eventually(found, "the server accepts the connection")
    return found()[0]


def pretend_to_be(address: str, server: Server, client: RawClient) -> None:
    peer = server_side(server, client)
    peer.address = f"{address}:{client.local_port}"
    peer.is_this_host = False


@pytest.mark.proves("wire.server.one-way", "broker.send.forms")
def test_a_one_way_send_is_stored_and_not_answered(client: RawClient) -> None:
    assert client.call(SEND, send_fields("orders"), b"first").code == 0
    one_way = Request(SEND, 70, send_fields("orders"), b"second", FLAG_ONE_WAY)
    client.send(encode_request(one_way))
    third = client.call(SEND, send_fields("orders"), b"third")
    assert third.opaque != 70
    assert int(third.fields["queueOffset"]) >= 2


@pytest.mark.proves("wire.server.out-of-order")
def test_answers_come_when_they_are_ready_and_not_in_order(client: RawClient) -> None:
    sent = client.call(SEND, send_fields("later"), b"first")
    end = int(sent.fields["queueOffset"]) + 1
    client.send(encode_request(Request(PULL, 501, pull_fields("later", end))))
    client.send(encode_request(Request(RequestCode.GET_BROKER_CONFIG, 502, {})))
    first = client.next_frame()
    assert (first.opaque, first.code) == (502, 0)
    client.send(encode_request(Request(SEND, 503, send_fields("later"), b"second")))
    answers = {found.opaque: found for found in (client.next_frame(), client.next_frame())}
    assert answers.keys() == {501, 503}
    assert answers[501].code == 0 and b"second" in answers[501].body


@pytest.mark.proves("wire.server.broker-asks-client")
def test_the_broker_asks_a_client_over_the_clients_own_connection(
    cluster: LocalCluster, client: RawClient
) -> None:
    assert client.call(RequestCode.HEART_BEAT, {}, heartbeat("me@1", group="asked")).code == 0
    with RawClient(cluster.brokers[0].port) as admin:
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        fields = {"consumerGroup": "asked", "clientId": "me@1"}
        admin.send(encode_request(Request(code, 1, fields)))
        question = client.next_frame()
        while not (isinstance(question, Request) and question.code == code):
            question = client.next_frame()
        client.send(b"".join(encode_response(Response(0, None, {}, b"running"), question.opaque)))
        answer = admin.answer_to(1)
    assert (answer.code, answer.body) == (0, b"running")


@pytest.mark.proves("wire.frames.mixed-headers")
def test_both_header_forms_are_served_on_one_connection(client: RawClient) -> None:
    for number in range(4):
        encode = encode_binary_request if number % 2 else encode_request
        client.send(encode(Request(SEND, 900 + number, send_fields("forms"), b"x")))
    assert [client.next_frame().code for _ in range(4)] == [0] * 4


@pytest.mark.proves("wire.frames.unknown-codes")
def test_every_code_of_the_table_is_served_or_answered_as_not_supported(
    cluster: LocalCluster,
) -> None:
    ports = (cluster.brokers[0].port, cluster.nameservers[0].port)
    nameserver = cluster.nameservers[0].app
    assert nameserver is not None
    for port, router in zip(ports, (broker_of(cluster).router, nameserver.router), strict=True):
        with RawClient(port) as client:
            for code in RequestCode:
                answer = client.call(code)
                if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    assert code.name in (answer.remark or ""), code
            for code in (-1, 7, 32_000, 2_000_000_000):
                answer = client.call(code)
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                assert str(code) in (answer.remark or "")
        assert router.counts["failed"] == 0


@pytest.mark.proves("wire.server.strangers")
def test_a_stranger_may_send_and_pull_and_nothing_else(
    cluster: LocalCluster, client: RawClient
) -> None:
    pretend_to_be("192.0.2.7", broker_of(cluster).server, client)
    assert client.call(SEND, send_fields("orders"), b"x").code == 0
    assert client.call(PULL, pull_fields("orders", 0)).code == 0
    for code in RequestCode:
        if CODE_CLASSES[code] is not CodeClass.DATA:
            assert client.call(code).code == ResponseCode.NO_PERMISSION, code


@pytest.mark.proves("wire.server.strangers")
def test_a_stranger_registers_no_broker(cluster: LocalCluster) -> None:
    nameserver = cluster.nameservers[0].app
    assert nameserver is not None
    with RawClient(cluster.nameservers[0].port) as client:
        pretend_to_be("192.0.2.7", nameserver.server, client)
        fields = {
            "brokerName": "evil",
            "brokerAddr": "192.0.2.7:1",
            "clusterName": "DefaultCluster",
        }
        fields |= {"haServerAddr": "192.0.2.7:2", "brokerId": "0"}
        answer = client.call(RequestCode.REGISTER_BROKER, fields)
        assert answer.code == ResponseCode.NO_PERMISSION
        answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert answer.code == 0 and b"evil" not in answer.body


@pytest.mark.proves("wire.server.two-ports")
def test_the_fast_port_takes_sends_and_heartbeats_and_no_pulls(cluster: LocalCluster) -> None:
    with RawClient(cluster.brokers[0].port - 2) as client:
        assert client.call(SEND, send_fields("orders"), b"x").code == 0
        assert client.call(RequestCode.HEART_BEAT, {}, heartbeat("fast@1")).code == 0
        for code in (PULL, RequestCode.LITE_PULL_MESSAGE):
            answer = client.call(code, pull_fields("orders", 0))
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "main port" in (answer.remark or "")


@pytest.mark.proves("wire.server.two-ports")
def test_ports_at_fixed_distances_are_bound_together_or_not_at_all() -> None:
    bound = bind_together("127.0.0.1", 0, (-2, 1))
    try:
        main, *beside = (one.getsockname()[1] for one in bound)
        assert beside == [main - 2, main + 1]
        bound[0].close()
        bound[1].close()
        bound[2].listen()
        with pytest.raises(ConfigError, match=f":{main + 1} cannot be listened on"):
            bind_together("127.0.0.1", main, (-2, 1))
        bind("127.0.0.1", main - 2).close()
    finally:
        for one in bound:
            one.close()


@pytest.mark.proves("wire.server.framing-bounds")
@pytest.mark.parametrize(("name", "data"), BREAKERS.items(), ids=BREAKERS.keys())
@pytest.mark.parametrize("which", ["broker", "NameServer"])
def test_bytes_that_are_no_frame_end_their_connection_and_no_other(
    cluster: LocalCluster, which: str, name: str, data: bytes
) -> None:
    nameserver = cluster.nameservers[0].app
    assert nameserver is not None
    is_broker = which == "broker"
    server = broker_of(cluster).server if is_broker else nameserver.server
    port = cluster.brokers[0].port if is_broker else cluster.nameservers[0].port
    reason = f"closed_{name.partition(' ')[0]}"
    before = server.counts[reason]
    with RawClient(port) as bystander, RawClient(port) as hostile:
        hostile.send(data)
        hostile.wait_closed()
        eventually(lambda: server.counts[reason] == before + 1, f"{reason} is counted")
        code = RequestCode.GET_BROKER_CONFIG if is_broker else RequestCode.GET_NAMESRV_CONFIG
        assert bystander.call(code).code == 0


OVER_LIMIT = {
    "body over 4 MiB": (SEND, send_fields("orders"), bytes((4 << 20) + 1)),
    "properties over 32 KiB": (SEND, send_fields("orders", i="k\x01" + "v" * 33_000), b"x"),
    "topic over 127 characters": (SEND, send_fields("t" * 128), b"x"),
    "queue that does not exist": (SEND, send_fields("orders", e="1000000"), b"x"),
    "no body": (SEND, send_fields("orders"), b""),
    "number of 64 bits for a queue": (SEND, send_fields("orders", e=str(1 << 40)), b"x"),
    "heartbeat over 512 KiB": (
        RequestCode.HEART_BEAT,
        {},
        json.dumps({"clientID": "x" * (600 << 10)}).encode(),
    ),
    "heartbeat of many objects": (
        RequestCode.HEART_BEAT,
        {},
        b'{"consumerDataSet":[' + b"{}," * 60_000 + b"{}]}",
    ),
}


@pytest.mark.proves("wire.server.answered-bounds")
@pytest.mark.parametrize(("code", "fields", "body"), OVER_LIMIT.values(), ids=OVER_LIMIT.keys())
def test_a_frame_over_a_limit_is_answered(
    client: RawClient, code: int, fields: dict[str, str], body: bytes
) -> None:
    answer = client.call(code, fields, body)
    assert answer.code not in (0, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert answer.remark
    assert client.call(SEND, send_fields("orders"), b"still served").code == 0


@pytest.mark.proves("wire.server.go-away")
def test_clients_are_told_to_go_away_while_the_broker_stops(cluster: LocalCluster) -> None:
    guards = broker_of(cluster).intake.guards
    with RawClient(cluster.brokers[0].port) as client:
        assert client.call(SEND, send_fields("orders"), b"x").code == 0
        guards.go_away()
        try:
            for code, fields in ((SEND, send_fields("orders")), (PULL, pull_fields("orders", 0))):
                assert client.call(code, fields, b"x").code == ResponseCode.GO_AWAY
            # Older clients do not know what that means: they are served until the end.
            old = Request(SEND, 77, send_fields("orders"), b"x", 0, 475)
            client.send(encode_binary_request(old))
            assert client.answer_to(77).code == 0
            header = json.dumps(
                {"code": SEND, "version": 400, "opaque": 78, "extFields": send_fields("orders")}
            ).encode()
            size = 4 + len(header) + 1
            client.send(size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"x")
            assert client.answer_to(78).code == 0
        finally:
            broker_of(cluster).router.is_going_away = False
            guards.begin_anew()


# Time and caps, by a server of its own.


class EchoServer:
    """An echo server on a loop of its own, swept as often as the test wants."""

    def __init__(self, limits: Limits) -> None:
        self._thread = LoopThread("echo")
        self.server = Server(EchoService(), limits=limits)
        self.port = self._thread.run(self.server.listen("127.0.0.1", 0))

    def sweep_until_counted(self, reason: str) -> None:
        async def sweep() -> None:
            self.server.now_s = self._thread.loop.time()
            self.server.sweep()

        def is_counted() -> bool:
            self._thread.run(sweep())
            return self.server.counts[f"closed_{reason}"] == 1

        eventually(is_counted, f"{reason} is counted")

    def close(self) -> None:
        self._thread.run(self.server.stop())
        self._thread.close()


@pytest.fixture
def echo_server() -> Iterator[EchoServer]:
    limits = Limits(
        first_frame_s=0.05,
        partial_frame_s=0.05,
        idle_s=0.05,
        slow_write_s=0.05,
        write_bytes_max=1 << 16,
        connection_count_max=2,
    )
    running = EchoServer(limits)
    yield running
    running.close()


PING = encode_request(Request(34, 7, {}, b"ping"))


@pytest.mark.proves("wire.server.slow-peers")
@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", "no_first_frame"), (PING + PING[:9], "partial_frame_timeout"), (PING, "idle")],
)
def test_a_slow_peer_is_closed(echo_server: EchoServer, data: bytes, reason: str) -> None:
    with RawClient(echo_server.port) as client:
        client.send(data)
        if data:
            assert client.next_frame().body == b"ping"
        echo_server.sweep_until_counted(reason)
        client.wait_closed()


@pytest.mark.proves("wire.server.slow-peers")
def test_a_peer_that_does_not_read_is_closed(echo_server: EchoServer) -> None:
    with RawClient(echo_server.port) as client:
        for _ in range(8):
            client.send(encode_request(Request(34, 7, {}, bytes(4 << 20))))
        echo_server.sweep_until_counted("slow_reader")
        client.wait_closed()


@pytest.mark.proves("wire.server.connection-bounds")
def test_one_connection_too_many_is_closed_at_once(echo_server: EchoServer) -> None:
    with RawClient(echo_server.port) as first, RawClient(echo_server.port) as second:
        for client in (first, second):
            assert client.call(34, {}, b"hello").body == b"hello"
        with RawClient(echo_server.port) as third:
            third.wait_closed()
        assert echo_server.server.counts["closed_too_many_connections"] == 1
        assert first.call(34, {}, b"again").body == b"again"


def test_ports_that_are_scanned_leave_nothing_behind(cluster: LocalCluster) -> None:
    server = broker_of(cluster).server
    before = len(server.connections)
    for _ in range(50):
        RawClient(cluster.brokers[0].port).close()
        RawClient(cluster.brokers[0].port - 2).close()
    eventually(lambda: len(server.connections) <= before, "their connections are gone")

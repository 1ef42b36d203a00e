"""Changes of many routes: a bounded number of rows in a turn, and no topic lost in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from contrail.clock import ManualClock
from contrail.model.data_version import DataVersion
from contrail.model.topic import TopicConfig
from contrail.nameserver import changes as changes_module
from contrail.nameserver.app import NameServer
from contrail.nameserver.changes import HELD_PER_PEER_MAX, ROWS_PER_TURN, Begin, RouteChanges
from contrail.nameserver.config import NameServerConfig
from contrail.nameserver.handlers import (
    DECODED_AT_ONCE_BYTES_MAX,
    INFLATED_AT_ONCE_BYTES_MAX,
    RegistrationHandlers,
    RouteHandlers,
)
from contrail.nameserver.state.kv import KvTable
from contrail.nameserver.state.routes import RouteTables
from contrail.nameserver.state.settings import RuntimeSettings
from contrail.nameserver.state.topic_queues import TopicQueues
from contrail.protocol.bodies.registration import RegisterBrokerBody
from contrail.protocol.bodies.routes import QueueData, TopicRouteData
from contrail.protocol.bodies.tables import TopicList
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.wire.router import RequestRouter
from contrail.wire.sliced_requests import SlicedRequests
from tests.fakes.loops import FakeLoop
from tests.fakes.peers import FakePeer

COUNT = 3000
BROKER = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C"}
REGISTER = BROKER | {"haServerAddr": "10.0.0.1:10912", "brokerId": "0"}
LISTS = [
    (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, COUNT),
    (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}, COUNT),
    (RequestCode.GET_UNIT_TOPIC_LIST, {}, 0),
    (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, 0),
    (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, 0),
]


class Wire(FakePeer):
    """A connection as the router sees it."""

    in_hand: int | None = None

    def put_off(self, request: Request) -> None:
        """Does nothing: the test measures no times."""


class FakeWorker:
    """Decodes when the test calls it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Begin], Callable[..., None]]] = []
        self.is_closed = False

    def run(
        self, work: Callable[[], Begin], then: Callable[[Begin | None, Exception | None], None]
    ) -> None:
        self.waiting.append((work, then))

    def work(self) -> None:
        """Do one piece of work."""
        work, then = self.waiting.pop(0)
        try:
            begin = work()
        except Exception as error:
            then(None, error)
        else:
            then(begin, None)

    def close(self) -> None:
        self.is_closed = True


class Room:
    """A NameServer's routes without its socket; counts the rows that are put and looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
        files = {"kvConfigPath": "/kv", "configStorePath": "/config"}
        self.loop, self.worker, self.row_count = FakeLoop(), FakeWorker(), 0
        self.changes = RouteChanges(self.loop, self.worker)
        self.sliced = SlicedRequests(self.loop, rows_per_turn=ROWS_PER_TURN)
        self.tables = RouteTables(self.changes.clean)
        config = NameServerConfig.from_properties(files | settings)
        clock, kv, given = ManualClock(), KvTable(), RuntimeSettings(config)
        registrations = RegistrationHandlers(self.tables, kv, given, clock, self.changes)
        routes = RouteHandlers(self.tables, kv, given, clock, self.changes, self.sliced.handler)
        self.router = RequestRouter({**registrations.table(), **routes.table()})
        self.changes.replies_by(self.router.finish, self.router.handle)
        self.sliced.replies_by(self.router.finish)
        put, delete_on = TopicQueues.put, TopicQueues.delete_on

        def counted_put(table: TopicQueues, topic: str, queues: QueueData) -> None:
            self.row_count += 1
            put(table, topic, queues)

        def counted_delete(table: TopicQueues, topic: str, names: tuple[str, ...]) -> None:
            self.row_count += 1
            delete_on(table, topic, names)

        monkeypatch.setattr(TopicQueues, "put", counted_put)
        monkeypatch.setattr(TopicQueues, "delete_on", counted_delete)

    def ask(self, peer: FakePeer, code: int, body: bytes = b"", **fields: str) -> None:
        self.changes.take(Request(code, 1, fields, body), peer)

    def register(self, peer: FakePeer, first: int, last: int, counter: int, **fields: str) -> None:
        body = table(first, last, counter).encode(compressed=fields.get("compressed") == "true")
        self.ask(peer, RequestCode.REGISTER_BROKER, body, **(REGISTER | fields))

    def registered(self, first: int = 0, last: int = COUNT, **fields: str) -> Wire:
        peer = Wire()
        self.register(peer, first, last, 1, **fields)
        self.settle()
        assert peer.replies.pop()[1].code == ResponseCode.SUCCESS
        return peer

    def settle(self) -> None:
        while self.loop.soon or self.worker.waiting:
            if self.worker.waiting:
                self.worker.work()
            self.loop.settle()

    def turns(self) -> int:
        """Turn until all is done; no turn goes over more rows than it may."""
        count = 0
        while True:
            self.row_count = 0
            if not self.loop.turn():
                return count
            assert self.row_count <= ROWS_PER_TURN
            count += 1

    def has(self, number: int) -> bool:
        return self.tables.route(name(number)) is not None

    def close(self, peer: FakePeer) -> None:
        peer.is_closed = True
        self.tables.disconnect(peer)


def name(number: int) -> str:
    return f"topic{number:05}"


def table(first: int, last: int, counter: int) -> RegisterBrokerBody:
    topics = {name(n): TopicConfig(name(n), counter, counter) for n in range(first, last)}
    return RegisterBrokerBody(topics=topics, data_version=DataVersion(0, 3, counter))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    return Room(monkeypatch)


@pytest.mark.proves("broker.slices.sliced")
@pytest.mark.parametrize("compressed", ["false", "true"])
def test_a_large_registration_is_decoded_by_the_thread_and_taken_in_by_slices(
    room: Room, compressed: str
) -> None:
    peer = Wire()
    room.register(peer, 0, COUNT, 1, compressed=compressed)
    assert room.turns() == 0 and len(room.worker.waiting) == 1
    assert peer.in_flight_count == 1
    room.worker.work()
    assert room.turns() >= COUNT // ROWS_PER_TURN
    [(_, answer)] = peer.replies
    assert answer.code == ResponseCode.SUCCESS
    assert peer.in_flight_count == 0 and len(room.changes) == 0
    assert room.tables.topics.topics() == {name(n) for n in range(COUNT)}


@pytest.mark.parametrize("compressed", [False, True])
def test_a_small_registration_is_answered_at_once(room: Room, compressed: bool) -> None:
    body = table(0, 8, 1).encode(compressed=compressed)
    bytes_max = INFLATED_AT_ONCE_BYTES_MAX if compressed else DECODED_AT_ONCE_BYTES_MAX
    assert len(body) <= bytes_max
    peer = Wire()
    room.register(peer, 0, 8, 1, compressed=str(compressed).lower())
    assert len(peer.replies) == 1
    assert not room.worker.waiting and not room.loop.soon


def test_a_body_that_the_thread_cannot_read_is_refused(room: Room) -> None:
    peer = Wire()
    room.ask(peer, RequestCode.REGISTER_BROKER, b"{" * (DECODED_AT_ONCE_BYTES_MAX + 1), **REGISTER)
    room.settle()
    [(_, answer)] = peer.replies
    assert answer.code == ResponseCode.SYSTEM_ERROR and "RegisterBrokerBody" in (
        answer.remark or ""
    )
    assert len(room.changes) == 0


@pytest.mark.proves("broker.slices.sliced")
@pytest.mark.parametrize("deletes", ["false", "true"])
def test_topics_of_the_old_and_the_new_table_are_always_answered(
    monkeypatch: pytest.MonkeyPatch, deletes: str
) -> None:
    room = Room(monkeypatch, deleteTopicWithBrokerRegistration=deletes)
    peer = room.registered(0, 2000)
    room.register(peer, 1000, COUNT, 2)
    assert all(room.has(n) for n in range(2000))
    room.worker.work()
    assert not peer.replies
    while room.loop.turn():
        assert all(room.has(n) for n in range(1000, 2000))
    assert all(room.has(n) for n in range(1000, COUNT))
    assert room.has(0) is (deletes == "false")


@pytest.mark.proves("broker.slices.sliced")
def test_registrations_of_one_broker_keep_their_order(room: Room) -> None:
    """The second one comes over another connection while the first is taken in."""
    old, new = Wire("10.0.0.1:4001"), Wire("10.0.0.1:4002")
    room.register(old, 0, COUNT, 1)
    room.worker.work()
    room.loop.turn()
    room.register(new, 0, COUNT, 2)
    assert room.worker.waiting == []
    room.settle()
    assert len(old.replies) == len(new.replies) == 1
    queues = {room.tables.topics.of_topic(name(n))[0].read_queue_count for n in range(COUNT)}
    assert queues == {2}
    room.close(old)
    assert room.has(0), "the broker is registered over the new connection"


def test_a_small_registration_waits_for_the_large_one_before_it(room: Room) -> None:
    first, second = Wire(), Wire()
    room.register(first, 0, COUNT, 1)
    room.register(second, 0, 8, 2)
    room.settle()
    assert room.tables.topics.of_topic(name(0))[0].read_queue_count == 2
    assert room.tables.topics.of_topic(name(9))[0].read_queue_count == 1


def test_requests_behind_a_change_are_served_after_it_in_order(room: Room) -> None:
    peer, other = Wire(), Wire()
    room.register(peer, 0, COUNT, 1)
    room.changes.take(_route_request(7, 2), peer)
    room.changes.take(_route_request(8, 3), peer)
    assert peer.replies == [] and peer.in_flight_count == 3
    room.ask(other, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert len(other.replies) == 1, "another connection does not wait"
    room.settle()
    assert [request.opaque for request, _ in peer.replies] == [1, 2, 3]
    for _, answer in peer.replies[1:]:
        assert isinstance(answer.body, bytes) and TopicRouteData.decode(answer.body).brokers
    assert peer.in_flight_count == 0
    room.changes.take(_route_request(7, 4), peer)
    assert len(peer.replies) == 4


def test_a_change_behind_a_change_holds_back_the_requests_behind_it(room: Room) -> None:
    peer = Wire()
    for opaque, counter in ((1, 1), (3, 2)):
        body = table(0, COUNT, counter).encode()
        room.changes.take(Request(RequestCode.REGISTER_BROKER, opaque, REGISTER, body), peer)
        room.changes.take(_route_request(7, opaque + 1), peer)
    room.settle()
    assert [request.opaque for request, _ in peer.replies] == [1, 2, 3, 4]
    counts = [_queue_count(answer) for request, answer in peer.replies if request.opaque % 2 == 0]
    assert counts == [1, 2]


def test_no_more_requests_are_held_back_than_the_bounds_allow(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, large = Wire(), Wire()
    room.register(peer, 0, COUNT, 1)
    for opaque in range(2, HELD_PER_PEER_MAX + 3):
        room.changes.take(_route_request(7, opaque), peer)
    [(request, refusal)] = peer.replies
    assert refusal.code == ResponseCode.SYSTEM_BUSY
    assert request.opaque == HELD_PER_PEER_MAX + 2
    monkeypatch.setattr(changes_module, "WAITING_BYTES_MAX", 100_000)
    room.register(large, 0, COUNT, 2)
    assert large.replies[0][1].code == ResponseCode.SYSTEM_BUSY
    room.settle()
    assert len(peer.replies) == HELD_PER_PEER_MAX + 2
    assert peer.in_flight_count == large.in_flight_count == 0


@pytest.mark.proves("broker.slices.sliced")
@pytest.mark.parametrize("turn_count", [None, 0, 1, 3])
def test_a_broker_whose_connection_closes_meanwhile_stays_out(
    room: Room, turn_count: int | None
) -> None:
    """Closed while it is decoded (None), or after some slices of it."""
    peer = Wire()
    room.register(peer, 0, COUNT, 1)
    room.changes.take(Request(RequestCode.REGISTER_BROKER, 2, REGISTER, b""), peer)
    if turn_count is not None:
        room.worker.work()
        for _ in range(turn_count):
            room.loop.turn()
    room.close(peer)
    assert not room.has(0)
    room.settle()
    assert room.tables.cluster_info().brokers == {}
    assert room.tables.topics.topics() == frozenset()
    assert len(room.changes) == 0 and peer.in_flight_count == 0


def test_rows_of_a_lost_connection_go_before_the_registration_over_the_next(room: Room) -> None:
    old, new = room.registered(), Wire()
    room.register(new, 0, COUNT, 1)
    assert len(room.worker.waiting) == 1
    room.close(old)
    assert not room.has(0)
    room.worker.work()
    room.loop.settle()
    assert len(new.replies) == 1
    assert all(room.has(n) for n in range(COUNT))


@pytest.mark.proves("broker.slices.sliced")
def test_a_broker_that_unregisters_while_it_is_taken_in_is_gone(room: Room) -> None:
    peer, other = Wire(), Wire()
    room.register(peer, 0, COUNT, 1)
    room.worker.work()
    room.loop.turn()
    room.ask(other, RequestCode.UNREGISTER_BROKER, **(BROKER | {"brokerId": "0"}))
    assert other.replies == []
    room.settle()
    assert len(peer.replies) == len(other.replies) == 1
    assert room.tables.cluster_info().brokers == {}
    assert room.tables.topics.topics() == frozenset()


def test_a_broker_that_leaves_is_out_of_the_routes_at_once_and_its_rows_go_by_slices(
    room: Room,
) -> None:
    peer = room.registered()
    room.row_count = 0
    room.close(peer)
    assert room.row_count <= ROWS_PER_TURN
    assert not any(room.has(n) for n in range(COUNT))
    assert room.turns() >= COUNT // ROWS_PER_TURN - 1
    assert room.tables.topics.topics() == frozenset()


def test_another_brokers_queues_stay_while_the_rows_of_one_go(room: Room) -> None:
    peer = room.registered()
    other = {"brokerName": "broker-b", "brokerAddr": "10.0.0.2:10911"}
    room.registered(0, COUNT, **other)
    room.close(peer)
    while room.loop.turn():
        route = room.tables.route(name(COUNT - 1))
        assert route is not None
        assert [queues.broker_name for queues in route.queues] == ["broker-b"]
    assert len(room.tables.topics) == COUNT


@pytest.mark.proves("broker.slices.sliced")
@pytest.mark.parametrize(
    ("code", "field", "perms"),
    [
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount", {4}),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount", {6}),
    ],
)
def test_write_permission_is_changed_by_slices_and_in_all_topics(
    room: Room, code: int, field: str, perms: set[int]
) -> None:
    room.registered()
    peer = Wire()
    room.ask(peer, code, brokerName="broker-a")
    peer.is_closed = True  # A wipe is not left half done.
    assert room.turns() >= COUNT // ROWS_PER_TURN - 1
    assert {room.tables.topics.of_topic(name(n))[0].perm for n in range(COUNT)} == perms
    again = Wire()
    room.ask(again, code, brokerName="broker-a")
    room.settle()
    assert again.replies[0][1].fields == {field: str(COUNT)}


def test_wiping_and_adding_at_the_same_time_leave_what_came_last(room: Room) -> None:
    room.registered()
    first, second = Wire(), Wire()
    room.ask(first, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    room.ask(second, RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    room.settle()
    assert {room.tables.topics.of_topic(name(n))[0].perm for n in range(COUNT)} == {6}


@pytest.mark.proves("broker.slices.sliced")
@pytest.mark.parametrize(("code", "fields", "topic_count"), LISTS)
def test_topics_are_listed_by_slices(
    room: Room, code: int, fields: dict[str, str], topic_count: int
) -> None:
    room.registered()
    peer = Wire()
    room.ask(peer, code, **fields)
    assert peer.replies == []
    assert room.turns() >= (COUNT + topic_count) // ROWS_PER_TURN - 1
    [(_, answer)] = peer.replies
    expected = frozenset(name(n) for n in range(topic_count))
    assert answer.body == TopicList(expected).encode()


def test_a_topic_deleted_behind_a_registration_stays_deleted(room: Room) -> None:
    peer, admin = Wire(), Wire()
    room.register(peer, 0, COUNT, 1)
    room.ask(admin, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=name(5))
    room.settle()
    assert not room.has(5) and room.has(6)


def test_a_topic_registered_behind_a_registration_that_lacks_it_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room(monkeypatch, deleteTopicWithBrokerRegistration="true")
    peer, admin = room.registered(), Wire()
    room.register(peer, 0, COUNT, 2)
    body = TopicRouteData(queues=(QueueData("broker-a", 4, 4, 6, 0),)).encode()
    room.ask(admin, RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="later")
    assert room.tables.route("later") is not None
    room.settle()
    assert room.tables.route("later") is not None


def test_a_server_that_stops_answers_the_requests_under_way(room: Room) -> None:
    peers = [Wire(), Wire()]
    for counter, peer in enumerate(peers):
        room.register(peer, 0, COUNT, counter)
    room.changes.close()
    assert room.worker.is_closed
    codes = [peer.replies[0][1].code for peer in peers]
    assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    room.settle()
    assert [len(peer.replies) for peer in peers] == [1, 1]


def test_the_loop_runs_while_the_real_thread_decodes() -> None:
    asyncio.run(_beside_the_real_thread())


async def _beside_the_real_thread() -> None:
    files = {"kvConfigPath": "/kv", "configStorePath": "/config"}
    server = NameServer(NameServerConfig.from_properties(files), clock=ManualClock())
    peer, other = Wire(), Wire()
    body = table(0, COUNT, 1).encode()
    server.changes.take(Request(RequestCode.REGISTER_BROKER, 1, REGISTER, body), peer)
    served_count = 0
    while not peer.replies:
        server.changes.take(Request(RequestCode.GET_BROKER_CLUSTER_INFO, 1, {}), other)
        served_count += 1
        await asyncio.sleep(0)
    assert peer.replies[0][1].code == ResponseCode.SUCCESS
    assert served_count >= COUNT // ROWS_PER_TURN
    assert len(server.tables.topics) == COUNT
    await server.stop()


def _route_request(number: int, opaque: int) -> Request:
    return Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque, {"topic": name(number)})


def _queue_count(answer: Response) -> int:
    assert isinstance(answer.body, bytes)
    return TopicRouteData.decode(answer.body).queues[0].read_queue_count

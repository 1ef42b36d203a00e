"""Requests about whole tables over a real store: a bounded number of rows in a turn of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.handlers.broker_admin import BrokerAdminHandlers
from contrail.broker.handlers.consume_progress import ProgressHandlers
from contrail.broker.handlers.groups import GroupHandlers
from contrail.broker.handlers.locks import LockHandlers
from contrail.broker.handlers.offset_resets import ResetHandlers
from contrail.broker.handlers.offsets import OffsetHandlers
from contrail.broker.handlers.queries import QueryHandlers
from contrail.broker.handlers.topics import TopicHandlers
from contrail.broker.services.groups import Groups
from contrail.broker.services.runtime_report import RuntimeReport
from contrail.broker.services.sliced_requests import StoreSlicedRequests
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.sql92 import compile_sql
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.topics import TopicTable
from contrail.clock import ManualClock
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.locks import LockRequest, encode_lock_request
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.json_style import MessageQueue
from contrail.runtime.files import FilePart, FileSystem
from contrail.store.log import MessageStore
from contrail.store.services.residency import NotInMemory
from contrail.wire.peer import LATER, Answer, Handler, Peer
from contrail.wire.router import RequestRouter
from contrail.wire.sliced_requests import ROWS_PER_TURN, RUNNING_MAX, InSlices, Steps, in_one_go
from tests.fakes.loops import FakeLoop
from tests.fakes.peers import FakePeer
from tests.fault.store_setup import append_numbers, small_config

TOPICS, QUEUES, GROUPS = 90, 4, 80
WIDE, UNUSED = 300, 80


class Fetching:
    """Brings parts in when the test calls it."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[FilePart], Callable[[Exception | None], None]]] = []

    def fetch(self, parts: list[FilePart], then: Callable[[Exception | None], None]) -> None:
        self.asked.append((parts, then))


class Room:
    """The handlers of such requests, over tables of some hundred rows."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.loop = FakeLoop()
        config = small_config(root, queue_file_bytes=400 * 20)
        self.store = MessageStore.open(config, clock=self.clock)
        settings = RuntimeSettings(BrokerConfig())
        topics = {f"t{n:03}": TopicConfig(f"t{n:03}", QUEUES, QUEUES) for n in range(TOPICS)}
        topics["wide"] = TopicConfig("wide", WIDE, WIDE)
        self.topics = Topics(TopicTable(topics), settings)
        groups = {f"g{n:03}": SubscriptionGroupConfig(f"g{n:03}") for n in range(GROUPS)}
        self.groups = Groups(GroupTable(groups), settings)
        self.offsets = ConsumerOffsets()
        for number in range(GROUPS):
            for topic in (f"t{number % TOPICS:03}", "t000", "wide"):
                self.offsets.commit(f"g{number:03}", topic, 0, number)
                self.offsets.commit_pulled(f"g{number:03}", topic, 0, number)
        for number in range(TOPICS):
            self.offsets.commit("g000", f"t{number:03}", 1, 1)
        append_numbers(self.store, 0, 3, topic="t000")
        append_numbers(self.store, 3, 5, topic="wide", queue_id=7)
        for number in range(WIDE):
            append_numbers(
                self.store, number, number + 1, topic=f"unused{number % 80}", body_bytes=8
            )
        append_numbers(self.store, 0, WIDE, topic="long", body_bytes=8)
        self.stats = BrokerStats("DefaultCluster", started_ms=self.clock.now_ms())
        self._settings, self._config = settings, config
        self.fetching = Fetching()
        self.sliced = StoreSlicedRequests(self.loop, self.store.disk_waits, self.fetching)
        self.locks = QueueLocks()
        self.handlers = self.made(self.sliced.handler, self.sliced.change_handler)
        self.router = RequestRouter(self.handlers)
        self.sliced.replies_by(self.router.finish)

    def made(self, in_slices: InSlices, changes_in_slices: InSlices) -> dict[int, Handler]:
        clock, consumers = self.clock, ConsumerTable()
        report = RuntimeReport(
            self._settings, self.stats, self.store, self._config, files=FileSystem()
        )
        shared: dict[str, Any] = {
            "offsets": self.offsets,
            "consumers": consumers,
            "groups": self.groups.table,
            "topics": self.topics.table,
            "store": self.store,
            "clock": clock,
            "in_slices": in_slices,
        }
        families = (
            TopicHandlers(
                self.topics,
                self.offsets,
                self.stats,
                self.store,
                broker_name="broker-a",
                clock=clock,
                in_slices=in_slices,
            ),
            GroupHandlers(self.groups, self.offsets, self.stats, clock=clock, in_slices=in_slices),
            ProgressHandlers(
                rates=self.stats,
                settings=self._settings,
                broker_address="10.0.0.1:10911",
                **shared,
            ),
            OffsetHandlers(**shared),
            ResetHandlers(
                offsets=self.offsets,
                consumers=consumers,
                groups=self.groups.table,
                topics=self.topics.table,
                store=self.store,
                settings=self._settings,
                in_slices=changes_in_slices,
            ),
            LockHandlers(
                locks=self.locks,
                groups=self.groups.table,
                topics=self.topics.table,
                broker_name="broker-a",
                clock=clock,
                names=self.topics.names,
                in_slices=changes_in_slices,
            ),
            QueryHandlers(
                self.store,
                self.topics.table,
                consumers,
                FilterTable(compile_sql),
                names=self.topics.names,
                in_slices=in_slices,
            ),
            BrokerAdminHandlers(
                self._settings,
                self.stats,
                self.offsets,
                report,
                self._config,
                clock=clock,
                in_slices=in_slices,
            ),
        )
        return {code: handler for family in families for code, handler in family.table().items()}


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    room.store.close()


# Every request of the broker whose work grows with tables, and how many rows it has here.
ASKED: list[tuple[int, dict[str, str], int]] = [
    (RequestCode.GET_BROKER_CONSUME_STATS, {}, GROUPS * (QUEUES + WIDE)),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g000"}, TOPICS * QUEUES + WIDE),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "wide", "group": "g000"}, WIDE),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "wide"}, WIDE),
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, TOPICS),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, GROUPS),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, {}, GROUPS * 2),
    (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "t000", "compareGroup": "g001"}, GROUPS),
    (RequestCode.CLEAN_UNUSED_TOPIC, {}, UNUSED),
    (
        RequestCode.QUERY_CONSUME_QUEUE,
        {"topic": "long", "queueId": "0", "index": "0", "count": str(WIDE)},
        WIDE,
    ),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "wide", "group": "g000", "timestamp": "0"},
        2 * WIDE,
    ),
]


@pytest.mark.proves("broker.slices.sliced")
@pytest.mark.parametrize(("code", "fields", "row_count"), ASKED)
def test_a_turn_handles_a_bounded_number_of_rows(
    room: Room, code: int, fields: dict[str, str], row_count: int
) -> None:
    whole = None
    if code != RequestCode.CLEAN_UNUSED_TOPIC:
        whole = room.made(in_one_go, in_one_go)[code](Request(code, 1, fields), FakePeer())
    peer = FakePeer()
    assert room.handlers[code](Request(code, 1, fields), peer) is LATER
    assert peer.in_flight_count == 1
    turn_count = 0
    while not peer.replies:
        assert room.loop.turn(), "nothing is due and nothing was answered"
        turn_count += 1
    assert (turn_count + 1) * ROWS_PER_TURN >= row_count
    assert turn_count >= row_count // ROWS_PER_TURN - 1
    [(_, answer)] = peer.replies
    assert answer.code == ResponseCode.SUCCESS
    assert peer.in_flight_count == 0
    if whole is not None:
        assert answer == whole
    else:
        assert not any(topic.startswith(b"unused") for topic, _ in room.store.queues())


def test_a_small_table_is_answered_at_once(room: Room) -> None:
    code, fields = RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t000"}
    assert isinstance(room.handlers[code](Request(code, 1, fields), FakePeer()), Response)
    assert not room.loop.soon


@pytest.mark.proves("broker.slices.sliced")
def test_rows_are_looked_at_no_faster_than_a_slice_in_a_turn(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    progress = ProgressHandlers._queue_progress

    def counted(self: ProgressHandlers, *given: Any) -> Any:
        nonlocal looked
        looked += 1
        return progress(self, *given)

    monkeypatch.setattr(ProgressHandlers, "_queue_progress", counted)
    peer = FakePeer()
    room.handlers[RequestCode.GET_BROKER_CONSUME_STATS](_all_lags(), peer)
    while not peer.replies:
        assert looked <= ROWS_PER_TURN
        looked = 0
        room.loop.turn()


QUEUES_RENDERED = [
    (RequestCode.GET_BROKER_CONSUME_STATS, {}),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g000"}),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "wide", "group": "g000"}),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "wide"}),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "wide", "group": "g000", "timestamp": "0"},
    ),
    (RequestCode.LOCK_BATCH_MQ, {}),
]


@pytest.mark.proves("broker.slices.sliced")
@pytest.mark.parametrize(("code", "fields"), QUEUES_RENDERED)
def test_an_answer_is_written_no_faster_than_it_is_looked_up(
    room: Room, monkeypatch: pytest.MonkeyPatch, code: int, fields: dict[str, str]
) -> None:
    """Writing a queue into a body costs as much as finding out about it."""
    written = 0
    to_fields = MessageQueue.to_fields

    def counted(self: MessageQueue) -> dict[str, object]:
        nonlocal written
        written += 1
        return to_fields(self)

    body = _lock_body(range(WIDE)) if code == RequestCode.LOCK_BATCH_MQ else b""
    monkeypatch.setattr(MessageQueue, "to_fields", counted)
    peer, total = FakePeer(), 0
    room.handlers[code](Request(code, 1, fields, body), peer)
    while not peer.replies:
        assert written <= ROWS_PER_TURN
        total, written = total + written, 0
        assert room.loop.turn()
    assert total + written >= WIDE


def _lock_body(queue_ids: Iterable[int], *, topic: str = "wide", client_id: str = "c1") -> bytes:
    queues = tuple(MessageQueue(topic, "broker-a", queue_id) for queue_id in queue_ids)
    return encode_lock_request(LockRequest("g000", client_id, queues))


@pytest.mark.proves("broker.slices.sliced")
def test_queues_that_are_to_be_locked_are_looked_at_in_slices(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absent queues cost as much as existing ones."""
    looked = 0
    is_there = LockHandlers._is_there

    def counted(self: LockHandlers, queue: MessageQueue) -> bool:
        nonlocal looked
        looked += 1
        return is_there(self, queue)

    monkeypatch.setattr(LockHandlers, "_is_there", counted)
    code, peer, total = RequestCode.LOCK_BATCH_MQ, FakePeer(), 0
    body = _lock_body(range(1000), topic="absent")
    assert room.handlers[code](Request(code, 1, {}, body), peer) is LATER
    turn_count = 0
    while not peer.replies:
        assert looked <= ROWS_PER_TURN
        total, looked = total + looked, 0
        assert room.loop.turn()
        turn_count += 1
    assert total + looked == 1000
    # Reading the queues out of the body is sliced as well.
    assert turn_count >= 2 * 1000 // ROWS_PER_TURN - 1
    [(_, answer)] = peer.replies
    assert answer.remark == "1000 queues are not locked: 'broker-a' has none such"


@pytest.mark.proves("broker.slices.sliced")
def test_locks_and_unlocks_of_one_client_keep_their_order(room: Room) -> None:
    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    peer = FakePeer()
    asked = [(lock, range(WIDE)), (unlock, [7]), (lock, [8]), (unlock, range(WIDE)), (lock, [9])]
    for opaque, (code, queue_ids) in enumerate(asked):
        request = Request(code, opaque, {}, _lock_body(queue_ids))
        assert room.handlers[code](request, peer) is LATER
    # Another client does not wait for them.
    other = Request(lock, 99, {}, _lock_body([0], client_id="c2"))
    assert room.handlers[lock](other, FakePeer()) is not LATER
    room.loop.settle()
    assert [request.opaque for request, _ in peer.replies] == [0, 1, 2, 3, 4]
    now_ms = room.clock.now_ms()
    held = [
        queue_id
        for queue_id in range(WIDE)
        if room.locks.holder("g000", MessageQueue("wide", "broker-a", queue_id), now_ms) == "c1"
    ]
    assert held == [9]
    assert len(room.sliced) == 0


def test_the_same_change_is_made_as_often_as_it_is_asked_for(room: Room) -> None:
    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    peer, body = FakePeer(), _lock_body(range(WIDE))
    for opaque, code in enumerate([lock, unlock, lock]):
        room.handlers[code](Request(code, opaque, {}, body), peer)
    room.loop.settle()
    assert [request.opaque for request, _ in peer.replies] == [0, 1, 2]
    assert room.locks.shares.total == WIDE


@pytest.mark.proves("broker.slices.sliced")
def test_the_last_unlock_of_a_client_that_is_gone_is_carried_out(room: Room) -> None:
    lock, unlock = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
    peer, body = FakePeer(), _lock_body(range(WIDE))
    room.handlers[lock](Request(lock, 1, {}, body), peer)
    room.loop.settle()
    assert room.locks.shares.total == WIDE
    assert room.handlers[unlock](Request(unlock, 2, {}, body), peer) is LATER
    peer.is_closed = True
    room.loop.settle()
    assert room.locks.shares.total == 0
    assert peer.in_flight_count == 0


def test_a_request_equal_to_one_under_way_gets_the_same_answer(room: Room) -> None:
    handle = room.handlers[RequestCode.GET_BROKER_CONSUME_STATS]
    peers = [FakePeer() for _ in range(3)]
    for peer in peers:
        assert handle(_all_lags(), peer) is LATER
        room.loop.turn()
    assert len(room.sliced) == 1
    room.loop.settle()
    bodies = [peer.replies[0][1].body for peer in peers]
    assert bodies[0] == bodies[1] == bodies[2]
    assert [peer.in_flight_count for peer in peers] == [0, 0, 0]
    assert len(room.sliced) == 0


def test_no_more_rows_are_read_for_peers_that_are_gone(room: Room) -> None:
    peer = FakePeer()
    room.handlers[RequestCode.GET_BROKER_CONSUME_STATS](_all_lags(), peer)
    room.loop.turn()
    peer.is_closed = True
    assert room.loop.settle() <= 2
    assert len(room.sliced) == 0 and peer.in_flight_count == 0


def test_too_many_requests_under_way_are_refused(room: Room) -> None:
    def begin(request: Request, peer: Peer) -> Steps:
        for _ in range(10 * ROWS_PER_TURN):
            yield
        return Response()

    handle = room.sliced.handler(begin)
    for number in range(RUNNING_MAX):
        assert handle(Request(1, 1, {"n": str(number)}), FakePeer()) is LATER
    with pytest.raises(RequestRejected) as refusal:
        handle(Request(1, 1, {"n": "more"}), FakePeer())
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY
    # Half of a change has been carried out by then: it goes on.
    assert room.sliced.change_handler(begin)(Request(1, 1, {}), FakePeer()) is LATER


def test_rows_on_the_disk_are_brought_in_and_the_request_carried_out_again(room: Room) -> None:
    part = FilePart(Path("/log"), 0, 4096)
    missing = [part]

    def begin(request: Request, peer: Peer) -> Steps:
        for _ in range(2 * ROWS_PER_TURN):
            yield
        if missing:
            raise NotInMemory(list(missing))
        return Response(remark="all of it")

    peer = FakePeer()
    with room.store.disk_waits:
        assert room.sliced.handler(begin)(Request(1, 1, {}), peer) is LATER
    room.loop.settle()
    assert not peer.replies
    [(parts, then)] = room.fetching.asked
    assert parts == [part]
    missing.clear()
    then(None)
    room.loop.settle()
    assert [response.remark for _, response in peer.replies] == ["all of it"]


def test_an_error_of_one_row_is_the_answer(room: Room) -> None:
    def begin(request: Request, peer: Peer) -> Steps:
        for _ in range(2 * ROWS_PER_TURN):
            yield
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "it is gone")

    peer = FakePeer()
    answer: Answer = room.sliced.handler(begin)(Request(1, 1, {}), peer)
    assert answer is LATER
    room.loop.settle()
    [(_, response)] = peer.replies
    assert (response.code, response.remark) == (ResponseCode.TOPIC_NOT_EXIST, "it is gone")


def test_a_broker_that_stops_answers_the_requests_under_way(room: Room) -> None:
    peer = FakePeer()
    room.handlers[RequestCode.GET_BROKER_CONSUME_STATS](_all_lags(), peer)
    room.loop.turn()
    room.sliced.close()
    room.loop.settle()
    [(_, response)] = peer.replies
    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_asking_for_one_group_reads_no_other_groups_offsets(room: Room) -> None:
    """The cost of the table's questions by group and by topic does not grow with the others."""
    keys: list[str] = []

    class Watched(dict[str, dict[int, int]]):
        def __contains__(self, key: object) -> bool:
            keys.append(str(key))
            return super().__contains__(key)

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all keys are looked at")

    room.offsets._committed = Watched(room.offsets._committed)
    assert room.offsets.topics_of("g001") == {"t001", "t000", "wide"}
    assert len(keys) == 3
    assert "g001" in room.offsets.groups_of("t001")
    room.offsets.remove_group("g001")
    room.offsets.remove_topic("t002")
    assert room.offsets.topics_of("g001") == set()
    assert room.offsets.groups_of("t002") == set()


def test_deleting_a_topic_without_settings_lists_no_other_topics_queues(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> list[tuple[bytes, int]]:
        raise AssertionError("all queues are listed")

    with monkeypatch.context() as patch:
        patch.setattr(room.store, "queues", refuse)
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        room.handlers[code](Request(code, 1, {"topic": "unused7"}), FakePeer())
    left = {topic for topic, _ in room.store.queues()}
    assert b"unused7" not in left and b"unused8" in left


def _all_lags() -> Request:
    return Request(RequestCode.GET_BROKER_CONSUME_STATS, 1, {})

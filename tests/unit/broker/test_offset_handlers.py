"""Offsets over the wire: query, update, search, clone, correction and reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from contrail.broker.handlers.offset_resets import ResetHandlers
from contrail.broker.handlers.offsets import ABSENT_QUEUES_MAX, OffsetHandlers
from contrail.broker.state.client_channels import ClientChannel
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.heartbeat import ConsumerData
from contrail.protocol.bodies.reset import decode_reset_offsets
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Response
from contrail.protocol.json_style import MessageQueue
from tests.fakes.peers import FakePeer
from tests.unit.broker.client_setup import BROKER, Setup, request

LONG_MAX = (1 << 63) - 1


class _Broker(Setup):
    def __init__(self, **settings: bool) -> None:
        super().__init__(**settings)
        self.group_table.put(SubscriptionGroupConfig("g"), 1)
        self.handlers = OffsetHandlers(
            offsets=self.offsets,
            consumers=self.consumers,
            groups=self.group_table,
            topics=self.topic_table,
            store=self.store,
            clock=self.clock,
        )
        self.resets = ResetHandlers(
            offsets=self.offsets,
            consumers=self.consumers,
            groups=self.group_table,
            topics=self.topic_table,
            store=self.store,
            settings=self.settings,
        )

    def ask(self, code: int, **fields: object) -> Response:
        response = self.handlers.table()[code](request(code, fields), FakePeer())
        assert isinstance(response, Response)
        return response

    def number(self, code: int, **fields: object) -> int:
        """The only field of an answer."""
        response = self.ask(code, **fields)
        assert response.fields is not None
        ((name, value),) = response.fields.items()
        assert name == ("timestamp" if code == 32 else "offset")
        return int(value)

    def reset(self, *, language: str = "JAVA", **fields: object) -> dict[MessageQueue, int]:
        header = {"topic": "orders", "group": "g", "timestamp": -1, "isForce": True, **fields}
        wanted = request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, language=language)
        body = self.resets.handle_reset(wanted, FakePeer()).body
        assert isinstance(body, bytes)
        return decode_reset_offsets(body)

    def connect(self, client_id: str, *topics: str, version: int = 479) -> FakePeer:
        peer = FakePeer()
        subscriptions = tuple(SubscriptionData(topic) for topic in topics)
        channel = ClientChannel(peer, client_id, "JAVA", version, self.clock.now_ms())
        self.consumers.register(ConsumerData("g", subscriptions=subscriptions), channel)
        return peer


def _refusal(code: int, call: Callable[[], object]) -> str:
    with pytest.raises(RequestRejected) as caught:
        call()
    assert caught.value.code == code
    return caught.value.remark


def _queues(offsets: Mapping[int, int]) -> dict[MessageQueue, int]:
    return {MessageQueue("orders", BROKER, queue): value for queue, value in offsets.items()}


@pytest.mark.proves("broker.clients.offsets")
def test_a_committed_offset_is_answered() -> None:
    broker = _Broker()
    broker.ask(15, consumerGroup="g", topic="orders", queueId=1, commitOffset=42)
    assert broker.number(14, consumerGroup="g", topic="orders", queueId=1) == 42


@pytest.mark.proves("client.start.consume-from-where")
def test_without_an_offset_zero_is_answered_only_while_the_first_message_is_in_memory() -> None:
    broker = _Broker()
    where = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
    remark = _refusal(ResponseCode.QUERY_NOT_FOUND, lambda: broker.ask(14, **where))
    assert "first start" in remark
    broker.store.times[b"orders", 0] = [10, 20]
    assert broker.number(14, **where) == 0
    assert broker.number(14, **where, setZeroIfNotFound=True) == 0
    _refusal(ResponseCode.QUERY_NOT_FOUND, lambda: broker.ask(14, **where, setZeroIfNotFound=False))
    broker.store.cold.add((b"orders", 0))
    _refusal(ResponseCode.QUERY_NOT_FOUND, lambda: broker.ask(14, **where))
    broker.store.cold.clear()
    assert broker.number(14, **where) == 0
    broker.store.first[b"orders", 0] = 1
    _refusal(ResponseCode.QUERY_NOT_FOUND, lambda: broker.ask(14, **where))


@pytest.mark.proves("broker.clients.offsets")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"consumerGroup": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": None}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": None}, ResponseCode.INVALID_PARAMETER),
        ({"commitOffset": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": None}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_commit_is_checked(fields: dict[str, object], code: int) -> None:
    header = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 5, **fields}
    broker = _Broker()
    present = {name: value for name, value in header.items() if value is not None}
    _refusal(code, lambda: broker.ask(15, **present))
    assert broker.offsets.query("g", "orders", 0) == -1


def test_a_commit_is_acknowledged_and_ignored_while_a_reset_is_pending() -> None:
    broker = _Broker()
    broker.offsets.assign_reset("g", "orders", 0, 3)
    response = broker.ask(15, consumerGroup="g", topic="orders", queueId=0, commitOffset=9)
    assert response.code == 0
    assert response.remark is not None
    assert broker.number(14, consumerGroup="g", topic="orders", queueId=0) == 3


def test_five_hundred_commits_give_the_table_a_new_version() -> None:
    broker = _Broker()
    for count in range(500):
        broker.ask(15, consumerGroup="g", topic="orders", queueId=0, commitOffset=count)
    assert broker.offsets.data_version.counter == 1
    assert broker.offsets.data_version.timestamp_ms == broker.clock.now_ms()


@pytest.mark.proves("broker.clients.min-and-max")
def test_queues_tell_their_ends_and_their_oldest_message() -> None:
    broker = _Broker()
    broker.store.times[b"orders", 0] = [100, 200, 300]
    broker.store.first[b"orders", 0] = 7
    where = {"topic": "orders", "queueId": 0}
    assert broker.number(31, **where) == 7
    assert broker.number(30, **where) == 10
    assert broker.number(32, **where) == 100
    assert broker.number(30, topic="nothing", queueId=5) == 0
    assert broker.number(31, topic="nothing", queueId=5) == 0
    assert broker.number(32, topic="nothing", queueId=5) == -1


@pytest.mark.proves("broker.clients.search-by-time")
@pytest.mark.parametrize(
    ("boundary", "found"), [({}, 2), ({"boundaryType": "LOWER"}, 2), ({"boundaryType": "UPPER"}, 1)]
)
def test_a_search_by_time_finds_the_bound_it_is_asked_for(
    boundary: dict[str, str], found: int
) -> None:
    broker = _Broker()
    broker.store.times[b"orders", 0] = [100, 200, 300]
    assert broker.number(29, topic="orders", queueId=0, timestamp=250, **boundary) == found


@pytest.mark.proves("broker.clients.clone")
def test_a_clone_copies_one_topic_or_all() -> None:
    broker = _Broker()
    broker.offsets.commit("g", "orders", 0, 5)
    broker.offsets.commit("g", "gone", 0, 6)
    broker.ask(314, srcGroup="g", destGroup="h")
    assert broker.offsets.topics_of("h") == {"orders"}, "a topic that does not exist is left out"
    broker.ask(314, srcGroup="g", destGroup="i", topic="orders")
    assert broker.offsets.of_group("i", "orders") == {0: 5}


def test_a_clone_goes_to_every_name_that_a_file_can_hold() -> None:
    broker = _Broker()
    broker.offsets.commit("g", "orders", 0, 5)
    broker.ask(314, srcGroup="g", destGroup="\u00e9", topic="orders")
    assert broker.offsets.of_group("\u00e9", "orders") == {0: 5}, "as RocketMQ does"
    for group in ("", " ", "a\nb", "\ud800"):
        with pytest.raises(RequestRejected) as refused:
            broker.ask(314, srcGroup="g", destGroup=group, topic="orders")
        assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_a_clone_leaves_out_what_an_online_group_does_not_subscribe_to() -> None:
    broker = _Broker()
    broker.offsets.commit("g", "orders", 0, 5)
    broker.connect("c1", "bills")
    broker.ask(314, srcGroup="g", destGroup="h", topic="orders")
    assert broker.offsets.topics_of("h") == set()
    broker.ask(314, srcGroup="g", destGroup="h", topic="orders", offline=True)
    assert broker.offsets.topics_of("h") == {"orders"}


def test_correction_offsets_are_the_lowest_of_all_groups() -> None:
    broker = _Broker()
    broker.store.first[b"orders", 1] = 4
    for group, queue, value in (("g", 0, 9), ("h", 0, 5), ("g", 1, 3), ("h", 1, 6), ("i", 0, 1)):
        broker.offsets.commit(group, "orders", queue, value)
    answer = broker.ask(308, compareGroup="h", topic="orders", filterGroups="i,none")
    assert answer.body == b'{"correctionOffsets":{0:5,1:6}}'
    answer = broker.ask(308, compareGroup="i", topic="orders", filterGroups="i")
    assert answer.body == b'{"correctionOffsets":{0:%d,1:6}}' % LONG_MAX
    assert broker.offsets.query("i", "orders", 0) == 1, "what is left out is not deleted"


@pytest.mark.proves("broker.clients.reset")
def test_a_reset_here_moves_all_read_queues_and_is_pending_until_the_next_pull() -> None:
    broker = _Broker()
    broker.store.times[b"orders", 0] = [100, 200, 300]
    assert broker.reset(timestamp=150) == _queues({0: 1, 1: 0})
    assert broker.offsets.take_reset("g", "orders", 0) == 1
    assert broker.offsets.query("g", "orders", 0) == 1


def test_a_negative_time_resets_to_the_end() -> None:
    broker = _Broker()
    broker.store.times[b"orders", 0] = [100, 200, 300]
    assert broker.reset(queueId=0) == _queues({0: 3})
    assert broker.offsets.peek_reset("g", "orders", 1) is None


def test_a_reset_without_a_time_is_refused() -> None:
    broker = _Broker()
    fields = {"topic": "orders", "group": "g", "isForce": True}
    wanted = request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    with pytest.raises(RequestRejected, match="timestamp") as caught:
        broker.resets.handle_reset(wanted, FakePeer())
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert broker.offsets.peek_reset("g", "orders", 0) is None


def test_an_explicit_offset_must_lie_in_the_queue() -> None:
    broker = _Broker()
    broker.store.times[b"orders", 0] = [100, 200, 300]
    broker.store.first[b"orders", 0] = 10
    assert broker.reset(queueId=0, offset=14) == _queues({0: 14})
    assert broker.reset(queueId=0, offset=-1) == _queues({0: 13})
    for outside in (9, 15):
        with pytest.raises(RequestRejected, match="holds 10 to 13") as caught:
            broker.reset(queueId=0, offset=outside)
        assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_a_reset_needs_a_topic_and_here_also_a_group() -> None:
    broker = _Broker()
    _refusal(ResponseCode.TOPIC_NOT_EXIST, lambda: broker.reset(topic="nothing"))
    _refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, lambda: broker.reset(group="nobody"))


@pytest.mark.proves("broker.clients.reset-told")
def test_a_reset_by_clients_tells_each_of_them() -> None:
    broker = _Broker(server_side_reset=False)
    broker.store.times[b"orders", 0] = [100, 200, 300]
    broker.offsets.commit("g", "orders", 0, 3)
    broker.offsets.commit("g", "orders", 1, 0)
    peers = [broker.connect("c1"), broker.connect("c2")]
    assert broker.reset(timestamp=150) == _queues({0: 1, 1: 0})
    for peer in peers:
        (sent,) = peer.notified
        assert sent.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert (sent.fields["topic"], sent.fields["group"]) == ("orders", "g")
        assert sent.fields["timestamp"] == "150"
        assert decode_reset_offsets(sent.body) == _queues({0: 1, 1: 0})
    assert broker.offsets.query("g", "orders", 0) == 3, "the clients commit it themselves"


def test_without_force_a_group_only_goes_back() -> None:
    broker = _Broker(server_side_reset=False)
    broker.store.times[b"orders", 0] = [100, 200, 300]
    broker.offsets.commit("g", "orders", 0, 1)
    broker.offsets.commit("g", "orders", 1, 0)
    broker.connect("c1")
    assert broker.reset(isForce=False) == _queues({0: 1, 1: 0})
    assert broker.reset(isForce=True) == _queues({0: 3, 1: 0})


def test_cpp_clients_are_told_in_a_list() -> None:
    broker = _Broker(server_side_reset=False)
    for queue in (0, 1):
        broker.offsets.commit("g", "orders", queue, 5)
    peer = broker.connect("c1")
    broker.reset(language="CPP")
    assert peer.notified[0].body.startswith(b'{"offsetTable":[{"brokerName":"broker-a",')


def test_a_reset_by_clients_needs_offsets_and_clients_that_understand_it() -> None:
    broker = _Broker(server_side_reset=False)
    _refusal(ResponseCode.SYSTEM_ERROR, broker.reset)
    for queue in (0, 1):
        broker.offsets.commit("g", "orders", queue, 5)
    _refusal(ResponseCode.CONSUMER_NOT_ONLINE, broker.reset)
    peer = broker.connect("old", version=27)
    assert "too old" in _refusal(ResponseCode.SYSTEM_ERROR, broker.reset)
    assert peer.notified == []


def test_offsets_of_queues_that_are_not_there_are_taken_up_to_a_limit() -> None:
    broker = _Broker()

    def commit(queue_id: int) -> Response:
        place = {"consumerGroup": "g", "topic": "orders", "queueId": queue_id}
        return broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place, commitOffset=1)

    absent = range(2, 2 + ABSENT_QUEUES_MAX + 2)
    for queue_id in absent:
        assert commit(queue_id).code == 0
    broker.store.times[b"orders", 5000] = [7]
    for queue_id in (0, 1, 2, 5000):
        assert commit(queue_id).code == 0
    with pytest.raises(RequestRejected, match="queue -1 of") as refusal:
        commit(-1)
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER
    with pytest.raises(RequestRejected, match="queue 6000 of topic 'orders'") as refusal:
        commit(6000)
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER
    assert broker.offsets.query("g", "orders", 6000) == -1


@pytest.mark.proves("broker.tables.table-length")
def test_a_commit_that_cannot_be_written_is_answered_so() -> None:
    broker = _Broker()
    place = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 3}
    broker.offsets.too_long = "consumerOffset.json would have 300 bytes"
    with pytest.raises(RequestRejected, match=r"consumerOffset\.json would have 300") as refusal:
        broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place)
    assert refusal.value.code == ResponseCode.SYSTEM_ERROR
    with pytest.raises(RequestRejected, match="cannot be written"):
        broker.reset()
    broker.offsets.too_long = None
    assert broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place).code == 0


def test_a_refused_commit_reserves_nothing() -> None:
    broker = _Broker()
    before = broker.offsets.bytes.total
    for queue_id, consumer_offset in ((-1, 1), (1 << 31, 1)):
        place = {"consumerGroup": "g", "topic": "orders", "queueId": queue_id}
        with pytest.raises(RequestRejected):
            broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place, commitOffset=consumer_offset)
    assert broker.offsets.bytes.total == before


@pytest.mark.proves("broker.small-rules.batch-minimum")
def test_the_minimum_of_a_queue_of_batches_that_was_never_written_is_minus_one() -> None:
    broker = _Broker()
    attributes = {"queue.type": "BatchCQ"}
    broker.topic_table.put(TopicConfig("batches", attributes=attributes), 1)
    broker.topic_table.put(TopicConfig("plain"), 1)
    assert broker.number(RequestCode.GET_MIN_OFFSET, topic="batches", queueId=0) == -1
    assert broker.number(RequestCode.GET_MIN_OFFSET, topic="plain", queueId=0) == 0
    broker.store.times[b"batches", 0] = [1, 2, 3]
    assert broker.number(RequestCode.GET_MIN_OFFSET, topic="batches", queueId=0) == 0

"""Operators' view of groups: how far they have consumed, and which topics."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.consume_progress import ProgressHandlers
from contrail.broker.state.client_channels import ClientChannel
from contrail.errors import RequestRejected
from contrail.model.fastjson import JsonValue, loads
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.heartbeat import ConsumerData
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Response
from contrail.protocol.json_style import decode_message_queue
from tests.fakes.peers import FakePeer
from tests.unit.broker.client_setup import Setup, request


class _Rates:
    def group_get_per_second(self, topic: str, group: str) -> float:
        return {"orders": 1.5, "bills": 0.25}.get(topic, 0.0)


class _Broker(Setup):
    def __init__(self) -> None:
        super().__init__()
        self.topic_table.put(TopicConfig("bills", 1, 3, order=True), 1)
        self.group_table.put(SubscriptionGroupConfig("g"), 1)
        self.handlers = ProgressHandlers(
            offsets=self.offsets,
            consumers=self.consumers,
            groups=self.group_table,
            topics=self.topic_table,
            store=self.store,
            rates=_Rates(),
            settings=self.settings,
            broker_address="10.0.0.1:10911",
            clock=self.clock,
        )
        self.store.times[b"orders", 0] = [100, 200, 300]
        self.offsets.commit("g", "orders", 0, 2)
        self.offsets.commit("g", "bills", 0, 0)
        self.offsets.commit("g", "gone", 0, 0)

    def subscribe(self, *topics: str) -> None:
        subscriptions = tuple(SubscriptionData(topic) for topic in topics)
        channel = ClientChannel(FakePeer(), "c1", "JAVA", 479, 0)
        self.consumers.register(ConsumerData("g", subscriptions=subscriptions), channel)

    def ask(self, code: int, **fields: object) -> bytes:
        response = self.handlers.table()[code](request(code, fields), FakePeer())
        assert isinstance(response, Response)
        assert isinstance(response.body, bytes)
        return response.body

    def progress(self, **fields: object) -> tuple[float, dict[tuple[str, int], JsonValue]]:
        """The rate, and the entries of a group's stats by topic and queue."""
        answer = loads(self.ask(208, consumerGroup="g", **fields))
        assert isinstance(answer, dict)
        table, tps = answer["offsetTable"], answer["consumeTps"]
        assert isinstance(table, dict)
        assert isinstance(tps, float)
        queues = {decode_message_queue(key): entry for key, entry in table.items()}
        return tps, {(queue.topic, queue.queue_id): entry for queue, entry in queues.items()}


def test_consume_stats_cover_all_read_queues_of_the_groups_topics() -> None:
    broker = _Broker()
    broker.offsets.commit_pulled("g", "orders", 0, 3)
    tps, progress = broker.progress()
    nothing: JsonValue = {
        "brokerOffset": 0,
        "consumerOffset": 0,
        "lastTimestamp": 0,
        "pullOffset": 0,
    }
    assert tps == 1.75
    assert progress == {
        ("bills", 0): nothing,
        ("orders", 0): {
            "brokerOffset": 3,
            "consumerOffset": 2,
            "lastTimestamp": 200,
            "pullOffset": 3,
        },
        ("orders", 1): nothing,
    }


def test_consume_stats_leave_out_what_the_group_does_not_subscribe_to() -> None:
    broker = _Broker()
    broker.subscribe("bills")
    assert list(broker.progress()[1]) == [("bills", 0)]
    assert list(broker.progress(topic="orders")[1]) == []
    assert sorted(broker.progress(topicList="orders;gone;")[1]) == [("orders", 0), ("orders", 1)]
    assert list(broker.progress(topicList=" ")[1]) == [("bills", 0)], "a blank list is no list"


def test_a_pull_that_is_behind_its_commit_is_shown_at_the_commit() -> None:
    broker = _Broker()
    broker.offsets.commit_pulled("g", "orders", 0, 1)
    entry = broker.progress(topic="orders")[1]["orders", 0]
    assert isinstance(entry, dict)
    assert entry["pullOffset"] == 2


def test_the_brokers_stats_list_every_group() -> None:
    broker = _Broker()
    answer = loads(broker.ask(317, isOrder=False))
    assert isinstance(answer, dict)
    assert (answer["brokerAddr"], answer["totalDiff"]) == ("10.0.0.1:10911", 1)
    groups = answer["consumeStatsList"]
    assert isinstance(groups, list)
    assert len(groups) == len(broker.group_table.groups)
    (of_g,) = (entry["g"] for entry in groups if isinstance(entry, dict) and "g" in entry)
    assert isinstance(of_g, list)
    assert [len(stats["offsetTable"]) for stats in of_g if isinstance(stats, dict)] == [3, 2]  # type: ignore[arg-type]
    ordered = loads(broker.ask(317, isOrder=True))
    assert isinstance(ordered, dict)
    assert ordered["totalDiff"] == 0


def test_time_spans_tell_the_oldest_newest_and_consumed_message() -> None:
    broker = _Broker()
    answer = loads(broker.ask(303, topic="orders", group="g"))
    assert isinstance(answer, dict)
    spans = answer["consumeTimeSpanSet"]
    assert isinstance(spans, list)
    numbers = [
        tuple(
            span[name] for name in ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp", "delayTime")
        )
        for span in spans
        if isinstance(span, dict)
    ]
    assert numbers == [(100, 300, 200, broker.clock.now_ms() - 300), (-1, -1, -1, 1_000_001)]


def test_time_spans_need_a_topic() -> None:
    with pytest.raises(RequestRejected) as caught:
        _Broker().ask(303, topic="nothing", group="g")
    assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST


def test_groups_of_a_topic_are_those_online_and_those_with_offsets() -> None:
    broker = _Broker()
    broker.subscribe("invoices")
    assert broker.ask(300, topic="invoices") == b'{"groupList":["g"]}'
    assert broker.ask(300, topic="orders") == b'{"groupList":["g"]}'
    assert broker.ask(300, topic="nothing") == b'{"groupList":[]}'


def test_topics_of_a_group_are_those_with_offsets() -> None:
    answer = _Broker().ask(343, group="g")
    assert answer == b'{"brokerAddr":"10.0.0.1:10911","topicList":["bills","gone","orders"]}'


def test_a_subscription_is_shown_or_left_out() -> None:
    broker = _Broker()
    broker.subscribe("orders")
    assert b'"subscriptionData":{' in broker.ask(345, group="g", topic="orders")
    assert broker.ask(345, group="g", topic="bills") == b'{"group":"g","topic":"bills"}'
    assert broker.ask(345, group="g") == b'{"group":"g"}'

"""Answers for operators: the admin client decodes the values that a broker encoded."""

from __future__ import annotations

import pytest

from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies import connections, consume_stats, groups, reset, stats, topics
from contrail.protocol.bodies.connections import Connection
from contrail.protocol.bodies.consume_stats import ConsumeStats, QueueProgress, QueueTimeSpan
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from contrail.protocol.bodies.running_info import (
    decode_consumed_directly,
    decode_running_info,
)
from contrail.protocol.bodies.stats import StatItem, WindowFigures
from contrail.protocol.bodies.topics import QueueReach
from contrail.protocol.bodies.transactions import (
    ListedTransaction,
    decode_transactions,
    encode_transactions,
)
from contrail.protocol.json_style import MessageQueue, at_once

QUEUE = MessageQueue("orders", "broker-a", 3)
SUBSCRIPTION = SubscriptionData("orders", "paid", frozenset({"paid"}), frozenset({3433164}), 7)


def test_topics_are_decoded_as_encoded() -> None:
    config = TopicConfig("orders", 4, 2, perm=4, order=True, attributes={"message.type": "FIFO"})
    assert topics.decode_topic(topics.encode_topic(config)) == config
    table = {"orders": config, "other": TopicConfig("other")}
    assert topics.decode_topic_table(topics.encode_topic_table(table, DataVersion())) == table


def test_topic_stats_are_decoded_as_encoded() -> None:
    reaches = {QUEUE: QueueReach(1, 9, 1_700_000_000_000)}
    assert topics.decode_topic_stats(at_once(topics.topic_stats_steps(reaches, 2.5))) == (
        reaches,
        2.5,
    )


def test_topic_stats_of_a_broker_that_sends_no_rate_have_none() -> None:
    body = (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"orders"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":5,"minOffset":0}}}'
    )
    assert topics.decode_topic_stats(body) == ({QUEUE: QueueReach(0, 5, 0)}, 0.0)


def test_groups_are_decoded_as_encoded() -> None:
    table = {"billing": SubscriptionGroupConfig("billing", retry_count_max=3)}
    body = groups.encode_group_table(table, {}, DataVersion())
    assert groups.decode_group_table(body) == table


def test_consume_stats_are_decoded_as_encoded() -> None:
    entry = ConsumeStats({QUEUE: QueueProgress(9, 4, 6, 1_700_000_000_000)}, tps=1.5)
    assert consume_stats.decode_consume_stats(consume_stats.encode_consume_stats(entry)) == entry
    body = consume_stats.encode_consume_stats_list("127.0.0.1:1", {"billing": [entry], "idle": []})
    assert consume_stats.decode_consume_stats_list(body) == {"billing": [entry], "idle": []}


def test_time_spans_names_and_subscriptions_are_decoded_as_encoded() -> None:
    span = QueueTimeSpan(QUEUE, 1, 9, 4, 5)
    assert consume_stats.decode_time_spans(at_once(consume_stats.time_span_steps([span]))) == [span]
    assert consume_stats.decode_group_names(consume_stats.encode_group_list({"b", "a"})) == [
        "a",
        "b",
    ]
    body = consume_stats.encode_group_subscription("billing", "orders", SUBSCRIPTION)
    assert consume_stats.decode_group_subscription(body) == SUBSCRIPTION
    body = consume_stats.encode_group_subscription("billing", "orders", None)
    assert consume_stats.decode_group_subscription(body) is None


def test_consumer_connections_are_decoded_as_encoded() -> None:
    client = Connection("10.0.0.1@1", "10.0.0.1:5000", "PYTHON", 479)
    body = connections.encode_consumer_connection(
        [client],
        consume_type=ConsumeType.CONSUME_ACTIVELY,
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        subscriptions={"orders": SUBSCRIPTION},
    )
    found = connections.decode_consumer_connection(body)
    assert found.connections == (client,)
    assert found.consume_type == "CONSUME_ACTIVELY"
    assert found.message_model == "BROADCASTING"
    assert found.consume_from_where == "CONSUME_FROM_TIMESTAMP"
    assert found.subscriptions == {"orders": SUBSCRIPTION}


def test_producers_are_decoded_as_encoded_in_both_forms() -> None:
    client = Connection("10.0.0.1@1", "10.0.0.1:5000", "JAVA", 479, last_update_ms=8)
    plain = Connection("10.0.0.1@1", "10.0.0.1:5000", "JAVA", 479)
    body = connections.encode_producer_connection([client])
    assert connections.decode_producer_connection(body) == (plain,)
    body = connections.encode_producer_table({"writers": [client]})
    assert connections.decode_producer_table(body) == {"writers": (client,)}


def test_offsets_of_clients_are_decoded_by_client() -> None:
    by_client = {"10.0.0.1@1": {QUEUE: 5}, "10.0.0.2@1": {}}
    assert reset.decode_consumer_statuses(reset.encode_consumer_status(by_client)) == by_client


def test_a_stat_item_is_decoded_as_encoded() -> None:
    item = StatItem(WindowFigures(1, 2.0, 3.5), WindowFigures(4, 5.0, 6.0), WindowFigures(7, 8, 9))
    assert stats.decode_stats(stats.encode_stats(*item)) == item


def test_transactions_are_decoded_as_encoded() -> None:
    one = ListedTransaction("T1", "orders", "writers", "ID", 1, 2, 3, 4, 5, -1)
    assert decode_transactions(encode_transactions([one])) == [one]
    with pytest.raises(RequestRejected, match="no array"):
        decode_transactions(b"{}")


def test_running_info_of_a_java_client_is_read() -> None:
    body = (
        b'{"jstack":"main","mqPopTable":{},"mqTable":{{"brokerName":"broker-a","queueId":3,'
        b'"topic":"orders"}:{"cachedMsgCount":2,"cachedMsgMaxOffset":8,"cachedMsgMinOffset":7,'
        b'"cachedMsgSizeInMiB":0,"commitOffset":7,"droped":true,"lastConsumeTimestamp":3,'
        b'"lastLockTimestamp":1,"lastPullTimestamp":2,"locked":true}},'
        b'"properties":{"PROP_CONSUMEORDERLY":"true"},'
        b'"statusTable":{"orders":{"consumeFailedMsgs":1,"consumeFailedTPS":0.5,"consumeOKTPS":3.0,'
        b'"consumeRT":1.25,"pullRT":0.0,"pullTPS":4.0}},"subscriptionSet":[],"userConsumerInfo":{}}'
    )
    info = decode_running_info(body)
    queue = info.queues[QUEUE]
    assert (queue.consumer_offset, queue.cached_count, queue.cached_offset_max) == (7, 2, 8)
    assert (queue.is_locked, queue.is_dropped, queue.last_pull_ms) == (True, True, 2)
    assert (info.rates["orders"].consume_ms, info.rates["orders"].failed_count) == (1.25, 1)
    assert info.properties == {"PROP_CONSUMEORDERLY": "true"}
    assert (info.subscriptions, info.jstack) == ((), "main")


def test_a_direct_consumption_has_its_result() -> None:
    found = decode_consumed_directly(
        b'{"autoCommit":true,"consumeResult":"CR_THROW_EXCEPTION","order":false,'
        b'"remark":"no money","spentTimeMills":12}'
    )
    assert (found.result, found.remark, found.spent_ms) == ("CR_THROW_EXCEPTION", "no money", 12)


def test_a_rate_that_is_no_number_is_refused_with_its_name() -> None:
    with pytest.raises(RequestRejected, match="consumeTps must be a number"):
        consume_stats.decode_consume_stats(b'{"consumeTps":"fast","offsetTable":{}}')

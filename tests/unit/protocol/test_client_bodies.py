"""Bodies about clients, locks, resets and progress, in RocketMQ's own shape."""

from __future__ import annotations

import pytest

from contrail.errors import RequestRejected
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.connections import (
    Connection,
    decode_client_check,
    encode_consumer_connection,
    encode_consumer_ids,
    encode_producer_connection,
    encode_producer_table,
)
from contrail.protocol.bodies.consume_stats import (
    ConsumeStats,
    QueueProgress,
    QueueTimeSpan,
    encode_consume_stats,
    encode_consume_stats_list,
    encode_correction_offsets,
    encode_group_list,
    encode_group_subscription,
    time_span_steps,
)
from contrail.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from contrail.protocol.bodies.locks import (
    LockRequest,
    decode_lock_request,
    decode_locked_queues,
    encode_lock_request,
    locked_queues_steps,
)
from contrail.protocol.bodies.reset import (
    decode_consumer_status,
    decode_reset_offsets,
    encode_consumer_status,
    encode_reset_offsets,
    encode_reset_offsets_as_list,
)
from contrail.protocol.json_style import MessageQueue, at_once

QUEUE = MessageQueue("orders", "broker-a", 0)
QUEUE_TEXT = b'{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
CLIENT = Connection("10.0.0.9@1", "10.0.0.9:5123", "GO", 401, last_update_ms=17)


def test_connections_are_listed_as_mqadmin_reads_them() -> None:
    body = encode_consumer_connection(
        [CLIENT],
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        subscriptions={"orders": SubscriptionData("orders", sub_version=3)},
    )
    assert body == (
        b'{"connectionSet":[{"clientAddr":"10.0.0.9:5123","clientId":"10.0.0.9@1",'
        b'"language":"GO","version":401}],"consumeFromWhere":"CONSUME_FROM_TIMESTAMP",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":'
        b'{"orders":{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
        b'"subString":"*","subVersion":3,"tagsSet":[],"topic":"orders"}}}'
    )
    assert encode_producer_connection([CLIENT]) == body[: body.index(b"]") + 1] + b"}"


def test_all_producers_are_listed_by_group() -> None:
    assert encode_producer_table({"p": [CLIENT]}) == (
        b'{"data":{"p":[{"clientId":"10.0.0.9@1","language":"GO","lastUpdateTimestamp":17,'
        b'"remoteIP":"/10.0.0.9:5123","version":401}]}}'
    )
    assert encode_consumer_ids(["b", "a"]) == b'{"consumerIdList":["b","a"]}'


def test_a_client_check_is_read_with_and_without_a_subscription() -> None:
    check = decode_client_check(b'{"clientId":"c","group":"g","subscriptionData":{"topic":"t"}}')
    assert (check.client_id, check.group) == ("c", "g")
    assert check.subscription == SubscriptionData("t", "")
    assert decode_client_check(b"{}").subscription is None


def test_lock_bodies_go_both_ways() -> None:
    lock = LockRequest("g", "c", (QUEUE,), only_this_broker=True)
    body = encode_lock_request(lock)
    assert body == (
        b'{"clientId":"c","consumerGroup":"g","mqSet":[' + QUEUE_TEXT + b'],"onlyThisBroker":true}'
    )
    assert decode_lock_request(body) == lock
    assert at_once(locked_queues_steps([QUEUE])) == b'{"lockOKMQSet":[' + QUEUE_TEXT + b"]}"
    assert decode_locked_queues(at_once(locked_queues_steps([QUEUE]))) == {QUEUE: 0}
    assert decode_locked_queues(at_once(locked_queues_steps([QUEUE], [77]))) == {QUEUE: 77}
    other = at_once(locked_queues_steps([QUEUE], [1, 2]))
    assert decode_locked_queues(other) == {QUEUE: 0}, "numbers that belong to no queue"
    with pytest.raises(RequestRejected, match="queues to lock"):
        decode_lock_request(b'{"mqSet":[1]}')


def test_reset_tables_have_objects_as_keys_except_for_cpp() -> None:
    body = encode_reset_offsets({QUEUE: 123})
    assert body == b'{"offsetTable":{' + QUEUE_TEXT + b":123}}"
    assert decode_reset_offsets(body) == {QUEUE: 123}
    assert encode_reset_offsets_as_list({QUEUE: 123}) == (
        b'{"offsetTable":[{"brokerName":"broker-a","offset":123,"queueId":0,"topic":"orders"}]}'
    )


def test_a_clients_status_is_read_with_raw_and_quoted_keys() -> None:
    raw = b'{"messageQueueTable":{' + QUEUE_TEXT + b":5}}"
    quoted = b'{"messageQueueTable":{"' + QUEUE_TEXT.replace(b'"', b'\\"') + b'":5}}'
    assert decode_consumer_status(raw) == decode_consumer_status(quoted) == {QUEUE: 5}
    assert encode_consumer_status({"c": {QUEUE: 5}}) == (
        b'{"consumerTable":{"c":{' + QUEUE_TEXT + b':5}},"messageQueueTable":{}}'
    )
    with pytest.raises(RequestRejected):
        decode_consumer_status(b'{"messageQueueTable":{"no queue":5}}')


def test_consume_stats_count_messages_behind_and_in_flight() -> None:
    stats = ConsumeStats({QUEUE: QueueProgress(100, 90, 95, 17)}, 1.5)
    entry = b'{"brokerOffset":100,"consumerOffset":90,"lastTimestamp":17,"pullOffset":95}'
    text = b'{"consumeTps":1.5,"offsetTable":{' + QUEUE_TEXT + b":" + entry + b"}}"
    assert encode_consume_stats(stats) == text
    assert encode_consume_stats_list("h:1", {"g": [stats, stats], "idle": []}) == (
        b'{"brokerAddr":"h:1","consumeStatsList":[{"g":['
        + text
        + b","
        + text
        + b']},{"idle":[]}],"totalDiff":20,"totalInflightDiff":10}'
    )


def test_time_spans_carry_numbers_and_dates() -> None:
    span = QueueTimeSpan(QUEUE, min_ms=-1, max_ms=1_700_000_000_123, consumed_ms=0, delay_ms=4)
    assert at_once(time_span_steps([span])) == (
        b'{"consumeTimeSpanSet":[{"consumeTimeStamp":0,'
        b'"consumeTimeStampStr":"1970-01-01#00:00:00:000","delayTime":4,'
        b'"maxTimeStamp":1700000000123,"maxTimeStampStr":"2023-11-14#22:13:20:123",'
        b'"messageQueue":' + QUEUE_TEXT + b',"minTimeStamp":-1,'
        b'"minTimeStampStr":"1969-12-31#23:59:59:999"}]}'
    )
    far = QueueTimeSpan(QUEUE, min_ms=2**62, max_ms=0, consumed_ms=0, delay_ms=0)
    assert b'"minTimeStampStr":""' in at_once(time_span_steps([far]))


def test_small_answers_have_rocketmqs_names() -> None:
    assert encode_correction_offsets({1: 5, 0: 12}) == b'{"correctionOffsets":{0:12,1:5}}'
    assert encode_group_list({"b", "a"}) == b'{"groupList":["a","b"]}'
    assert encode_group_subscription("g", "t", None) == b'{"group":"g","topic":"t"}'
    found = encode_group_subscription("g", "t", SubscriptionData("t"))
    assert b'"subscriptionData":{"classFilterMode":false' in found

"""Bodies about topics, groups, statistics and the runtime, as RocketMQ's tools read them."""

from __future__ import annotations

import pytest

from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import loads
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.groups import (
    decode_group,
    decode_group_list,
    encode_group,
    encode_group_readable,
    encode_group_table,
)
from contrail.protocol.bodies.queue_rows import queue_rows_steps
from contrail.protocol.bodies.runtime_info import (
    bytes_text,
    capacity_text,
    encode_runtime_info,
    runtime_text,
    work_values,
)
from contrail.protocol.bodies.stats import encode_stats
from contrail.protocol.bodies.topics import (
    QueueReach,
    decode_topic_list,
    encode_topic,
    encode_topic_table,
    topic_stats_steps,
)
from contrail.protocol.json_style import MessageQueue, at_once, encode_body

VERSION = DataVersion(0, 3, 1_700_000_000_000)


def test_a_topic_is_written_as_the_original_writes_it() -> None:
    config = TopicConfig("orders", 8, 8, attributes={"message.type": "NORMAL"})
    assert encode_topic(config) == (
        b'{"attributes":{"message.type":"NORMAL"},"order":false,"perm":6,"readQueueNums":8,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"orders","topicSysFlag":0,"writeQueueNums":8}'
    )


def test_the_table_of_topics_names_its_version_and_empty_mappings() -> None:
    body = loads(encode_topic_table({"orders": TopicConfig("orders")}, VERSION))
    assert isinstance(body, dict)
    assert body["dataVersion"] == {
        "counter": 3,
        "stateVersion": 0,
        "timestamp": 1_700_000_000_000,
    }
    assert body["topicQueueMappingDetailMap"] == {}
    assert list(body["topicConfigTable"]) == ["orders"]  # type: ignore[arg-type]


def test_a_list_of_topics_is_read_and_a_malformed_one_refused() -> None:
    topics = [TopicConfig("a", 4, 4), TopicConfig("b", 1, 2, 4, order=True)]
    body = encode_body({"topicConfigList": [topic.to_fields() for topic in topics]})
    assert decode_topic_list(body) == topics
    for bad in (b"", b"[]", b'{"topicConfigList":[1]}', b'{"topicConfigList":[{"perm":"x"}]}'):
        with pytest.raises(RequestRejected):
            decode_topic_list(bad)


def test_topic_stats_have_raw_queues_as_keys() -> None:
    reaches = {MessageQueue("orders", "broker-a", 0): QueueReach(0, 100, 1_700_000_000_000)}
    assert at_once(topic_stats_steps(reaches, 0.0)) == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:'
        b'{"lastUpdateTimestamp":1700000000000,"maxOffset":100,"minOffset":0}},"topicPutTps":0.0}'
    )


def test_groups_are_written_and_read_back() -> None:
    config = SubscriptionGroupConfig("g1", consume_from_min_enable=False, retry_count_max=3)
    assert decode_group(encode_group(config)) == config
    body = encode_body({"groupConfigList": [config.to_fields()]})
    assert decode_group_list(body) == [config]
    with pytest.raises(RequestRejected):
        decode_group(b"nonsense")
    with pytest.raises(RequestRejected):
        decode_group_list(b'{"groupConfigList":7}')


def test_the_table_of_groups_has_forbidden_topics() -> None:
    body = loads(encode_group_table({}, {"g1": {"orders": 4}}, VERSION))
    assert isinstance(body, dict)
    assert body["forbiddenTable"] == {"g1": {"orders": 4}}
    assert body["subscriptionGroupTable"] == {}
    assert encode_group_readable("g1", "t", False) == b'{"group":"g1","readable":false,"topic":"t"}'


def test_statistics_show_three_windows() -> None:
    class Window:
        total, per_second, per_call = 5, 0.5, 1.0

    item = b'{"avgpt":1.0,"sum":5,"tps":0.5}'
    assert encode_stats(Window(), Window(), Window()) == (
        b'{"statsDay":' + item + b',"statsHour":' + item + b',"statsMinute":' + item + b"}"
    )


def test_rows_of_a_queue_say_when_their_code_is_an_address() -> None:
    class Row:
        physical_offset, byte_count = 100, 200

        def __init__(self, tags_code: int) -> None:
            self.tags_code = tags_code

    body = loads(
        at_once(queue_rows_steps([Row(7), Row(-(1 << 40))], queue_offset_min=0, queue_offset_max=2))
    )
    assert isinstance(body, dict)
    rows = body["queueData"]
    assert isinstance(rows, list)
    assert rows[0] == {"eval": False, "physicOffset": 100, "physicSize": 200, "tagsCode": 7}
    assert isinstance(rows[1], dict)
    assert "msg" in rows[1]
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 2)


@pytest.mark.parametrize(
    ("byte_count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_shown_in_binary_units(byte_count: int, text: str) -> None:
    assert bytes_text(byte_count) == text


def test_runtime_and_capacity_read_as_the_original() -> None:
    elapsed_ms = ((2 * 24 + 3) * 3600 + 4 * 60 + 5) * 1000 + 999
    assert runtime_text(elapsed_ms) == "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"
    assert capacity_text(2 << 30, 1 << 30) == "Total : 2.0 GiB, Free : 1.0 GiB."


def test_runtime_info_is_a_table_of_texts() -> None:
    values = work_values({"send": 3}, {"send": 10})
    assert values["sendThreadPoolQueueSize"] == "3"
    assert values["sendThreadPoolQueueCapacity"] == "10"
    assert values["ackThreadPoolQueueHeadWaitTimeMills"] == "0"
    assert encode_runtime_info({"a": "1"}) == b'{"table":{"a":"1"}}'

"""Apache's ``mqadmin`` works against the cluster: each command prints the cluster's facts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from contrail.model import fastjson
from contrail.testing import eventually
from tests.interop.mqadmin import (
    CLUSTER_NAME,
    QUEUE_COUNT,
    MqAdmin,
    Sent,
    Traffic,
    new_topic,
    route_rows,
    send_traffic,
)
from tests.interop.target import Broker, Cluster, open_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def mqadmin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with MqAdmin(cluster.namesrv, tmp_path_factory.mktemp("mqadmin")) as admin:
        yield admin


@pytest.fixture(scope="module")
def traffic(mqadmin: MqAdmin) -> Traffic:
    return send_traffic(mqadmin)


@pytest.fixture
def broker(cluster: Cluster) -> Broker:
    return cluster.brokers[0]


def _topics(mqadmin: MqAdmin) -> set[str]:
    return set(mqadmin.run("topicList").split())


def _properties(printed: str) -> dict[str, str]:
    """The ``Name:   value`` lines of the commands that show one message."""
    found = re.findall(r"^([A-Z][A-Za-z ]+): +(.*)$", printed, re.MULTILINE)
    return {name: value.strip() for name, value in found}


def _assert_shows(printed: str, sent: Sent, topic: str) -> None:
    shown = _properties(printed)
    assert shown["Topic"] == topic
    assert shown["Tags"] == "[TagA]"
    assert shown["Keys"] == f"[{sent.key}]"
    assert (shown["Queue ID"], shown["Queue Offset"]) == (
        str(sent.queue_id),
        str(sent.queue_offset),
    )
    assert f"UNIQ_KEY={sent.unique_key}" in shown["Properties"]
    assert shown["Reconsume Times"] == "0"


@pytest.mark.proves("nameserver.routes.cluster-info", "apache.mqadmin.cluster-list")
def test_cluster_list_shows_every_broker_with_its_address(
    cluster: Cluster, mqadmin: MqAdmin
) -> None:
    rows = mqadmin.rows("clusterList")
    shown = {(row[0], row[1], row[2], row[3], row[-1]) for row in rows}
    assert shown == {
        (CLUSTER_NAME, broker.name, "0", broker.address, "true") for broker in cluster.brokers
    }
    assert all(row[4].startswith("V5_") for row in rows)


def test_cluster_list_with_more_statistics_counts_todays_messages(
    cluster: Cluster, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    rows = {row[1]: int(row[4]) for row in mqadmin.rows("clusterList", "-m")}
    sent = Counter(one.broker_name for one in traffic.sent)
    assert rows.keys() == sent.keys()
    assert all(rows[name] >= count for name, count in sent.items())


@pytest.mark.proves("apache.mqadmin.topic-list")
def test_topic_list_names_user_topics_and_system_topics(mqadmin: MqAdmin, traffic: Traffic) -> None:
    assert {traffic.topic, "TBW102", CLUSTER_NAME, "broker-a", "broker-b"} <= _topics(mqadmin)


def test_topic_list_with_clusters_names_the_consumers(mqadmin: MqAdmin, traffic: Traffic) -> None:
    rows = mqadmin.rows("topicList", "-c")
    assert [CLUSTER_NAME, traffic.topic, traffic.consumer_group] in rows


@pytest.mark.proves("apache.mqadmin.topic-route")
def test_topic_route_prints_brokers_and_queues(
    cluster: Cluster, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    route: Any = fastjson.loads(mqadmin.run("topicRoute", "-t", traffic.topic))
    names = [broker.name for broker in cluster.brokers]
    assert {one["brokerName"]: one["brokerAddrs"] for one in route["brokerDatas"]} == {
        broker.name: {"0": broker.address} for broker in cluster.brokers
    }
    queues = {"perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
    by_name = sorted(route["queueDatas"], key=lambda one: str(one["brokerName"]))
    assert by_name == [{"brokerName": name} | queues for name in names]
    assert {one["cluster"] for one in route["brokerDatas"]} == {CLUSTER_NAME}


def test_topic_route_of_an_unknown_topic_says_so(mqadmin: MqAdmin) -> None:
    assert "CODE: 17" in mqadmin.run("topicRoute", "-t", "NobodyKnowsIt")


@pytest.mark.proves("apache.mqadmin.topic-status")
def test_topic_status_shows_the_offsets_of_every_queue(
    cluster: Cluster, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    rows = mqadmin.rows("topicStatus", "-t", traffic.topic)
    offsets = {(row[0], int(row[1])): (int(row[2]), int(row[3])) for row in rows if len(row) == 6}
    counts = traffic.queue_counts()
    assert offsets == {
        (broker.name, queue_id): (0, counts[broker.name, queue_id])
        for broker in cluster.brokers
        for queue_id in range(QUEUE_COUNT)
    }


@pytest.mark.proves("apache.mqadmin.update-topic")
def test_update_topic_creates_and_changes_queue_counts(cluster: Cluster, mqadmin: MqAdmin) -> None:
    topic = new_topic(mqadmin, "Grown")
    printed = mqadmin.run("updateTopic", "-c", CLUSTER_NAME, "-t", topic, "-r", "6", "-w", "5")
    for broker in cluster.brokers:
        assert f"create topic to {broker.address} success." in printed
    expected = [["6", "5", "6"]] * len(cluster.brokers)
    eventually(lambda: [row[3:] for row in route_rows(mqadmin, topic)] == expected)


def test_update_topic_refuses_an_illegal_name(broker: Broker, mqadmin: MqAdmin) -> None:
    printed = mqadmin.run("updateTopic", "-b", broker.address, "-t", "no spaces", "-r", "1")
    assert "success" not in printed
    assert "no spaces" not in _topics(mqadmin)


@pytest.mark.proves("apache.mqadmin.delete-topic")
def test_delete_topic_removes_it_from_brokers_and_name_server(mqadmin: MqAdmin) -> None:
    topic = new_topic(mqadmin, "Doomed")
    printed = mqadmin.run("deleteTopic", "-c", CLUSTER_NAME, "-t", topic)
    assert f"delete topic [{topic}] from cluster [{CLUSTER_NAME}] success." in printed
    assert f"delete topic [{topic}] from NameServer success." in printed
    assert topic not in _topics(mqadmin)
    assert "CODE: 17" in mqadmin.run("topicRoute", "-t", topic)


@pytest.mark.proves("broker.send.permissions", "apache.mqadmin.update-topic-perm")
def test_update_topic_perm_changes_one_broker(
    cluster: Cluster, broker: Broker, mqadmin: MqAdmin
) -> None:
    topic = new_topic(mqadmin, "ReadOnlyHere")
    printed = mqadmin.run("updateTopicPerm", "-t", topic, "-b", broker.address, "-p", "4")
    assert f"update topic perm from 6 to 4 in {broker.address} success." in printed
    expected = {one.name: "4" if one is broker else "6" for one in cluster.brokers}
    eventually(lambda: {row[1]: row[5] for row in route_rows(mqadmin, topic)} == expected)


@pytest.mark.proves("apache.mqadmin.update-sub-group")
def test_update_sub_group_creates_a_group_on_every_broker(
    cluster: Cluster, mqadmin: MqAdmin
) -> None:
    words = ("-c", CLUSTER_NAME, "-g", "Auditors", "-r", "5", "-q", "2", "-d", "true")
    printed = mqadmin.run("updateSubGroup", *words)
    for broker in cluster.brokers:
        assert f"create subscription group to {broker.address} success." in printed
    config = mqadmin.run("getConsumerConfig", "-g", "Auditors")
    assert re.search(r"retryMaxTimes += +5", config)
    assert re.search(r"retryQueueNums += +2", config)
    assert re.search(r"consumeBroadcastEnable += +true", config)


@pytest.mark.proves("apache.mqadmin.delete-sub-group")
def test_delete_sub_group_removes_it_from_every_broker(cluster: Cluster, mqadmin: MqAdmin) -> None:
    mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", "Leavers", "-r", "5")
    config = mqadmin.run("getConsumerConfig", "-g", "Leavers")
    assert re.search(r"retryMaxTimes += +5\b", config)
    printed = mqadmin.run("deleteSubGroup", "-c", CLUSTER_NAME, "-g", "Leavers")
    for broker in cluster.brokers:
        assert f"delete subscription group [Leavers] from broker [{broker.address}]" in printed
    # Apache makes the group anew with the defaults when it is asked for; its settings are gone.
    config = mqadmin.run("getConsumerConfig", "-g", "Leavers")
    assert not re.search(r"retryMaxTimes += +5\b", config)


@pytest.mark.proves("apache.mqadmin.consumer-progress")
def test_consumer_progress_shows_the_lag_of_each_queue(mqadmin: MqAdmin, traffic: Traffic) -> None:
    wanted = {queue: (count, count) for queue, count in traffic.queue_counts().items()}

    def all_consumed() -> bool:
        mqadmin.commit_offsets()
        rows = mqadmin.rows("consumerProgress", "-g", traffic.consumer_group)
        shown = [row for row in rows if row[0] == traffic.topic]
        return {(r[1], int(r[2])): (int(r[3]), int(r[4])) for r in shown} == wanted

    eventually(all_consumed)
    printed = mqadmin.run("consumerProgress", "-g", traffic.consumer_group)
    assert "Consume Diff Total: 0" in printed


def test_consumer_progress_of_all_groups_counts_the_clients(
    mqadmin: MqAdmin, traffic: Traffic
) -> None:
    rows = {row[0]: row[1:5] for row in mqadmin.rows("consumerProgress")}
    count, version, kind, model = rows[traffic.consumer_group]
    assert (count, kind, model) == ("1", "PUSH", "CLUSTERING")
    assert version.startswith("V5_")


@pytest.mark.proves("apache.mqadmin.consumer-connection")
def test_consumer_connection_shows_client_and_subscription(
    mqadmin: MqAdmin, traffic: Traffic
) -> None:
    printed = mqadmin.run("consumerConnection", "-g", traffic.consumer_group)
    rows = [line.split() for line in printed.splitlines()]
    assert [row for row in rows if row and row[0] == traffic.client_id and row[2] == "JAVA"]
    assert [traffic.topic, "*"] in rows
    assert [f"%RETRY%{traffic.consumer_group}", "*"] in rows
    assert "ConsumeType: CONSUME_PASSIVELY" in printed
    assert "MessageModel: CLUSTERING" in printed
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in printed


def test_consumer_connection_of_an_absent_group_says_so(mqadmin: MqAdmin) -> None:
    new_topic(mqadmin, "%RETRY%Absentees")  # The command finds the brokers of a group by it.
    assert "CODE: 206" in mqadmin.run("consumerConnection", "-g", "Absentees")


@pytest.mark.proves("apache.mqadmin.producer-connection")
def test_producer_connection_shows_the_client(mqadmin: MqAdmin, traffic: Traffic) -> None:
    words = ("-g", traffic.producer_group, "-t", traffic.topic)
    (row,) = mqadmin.rows("producerConnection", *words)
    assert row[1].endswith(f"@{traffic.producer_group}")
    assert row[2].startswith("127.0.0.1:")
    assert (row[3], row[4][:3]) == ("JAVA", "V5_")


@pytest.mark.proves("broker.running.runtime-info", "apache.mqadmin.broker-status")
def test_broker_status_counts_messages_and_bytes(
    broker: Broker, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    printed = mqadmin.run("brokerStatus", "-b", broker.address)
    table = {name.strip(): value.strip() for name, value in _colon_lines(printed)}
    sent = sum(one.broker_name == broker.name for one in traffic.sent)
    assert int(table["msgPutTotalTodayNow"]) >= sent
    assert int(table["msgGetTotalTodayNow"]) >= sent
    assert int(table["commitLogMaxOffset"]) > int(table["commitLogMinOffset"]) == 0
    assert table["brokerVersionDesc"].startswith("V5_")
    assert table["brokerActive"] == "true"
    assert {"putTps", "getTransferredTps", "runtime", "bootTimestamp"} <= table.keys()


def _colon_lines(printed: str) -> list[tuple[str, str]]:
    parts = [line.partition(":") for line in printed.splitlines()]
    return [(name, value) for name, colon, value in parts if colon]


@pytest.mark.proves("apache.mqadmin.get-broker-config")
def test_get_broker_config_shows_the_settings(broker: Broker, mqadmin: MqAdmin) -> None:
    printed = mqadmin.run("getBrokerConfig", "-b", broker.address)
    table = {row[0]: row[2:] for row in map(str.split, printed.splitlines()) if "=" in row[1:2]}
    assert f"============{broker.address}============" in printed
    assert table["brokerName"] == [broker.name]
    assert table["brokerClusterName"] == [CLUSTER_NAME]
    assert table["listenPort"] == [broker.address.rsplit(":", 1)[1]]
    assert table["autoCreateTopicEnable"] == ["true"]
    assert table["enablePropertyFilter"] == ["true"]


@pytest.mark.proves("apache.mqadmin.query-msg-by-id")
def test_query_by_id_finds_the_message_and_its_consuming_groups(
    mqadmin: MqAdmin, traffic: Traffic
) -> None:
    sent = traffic.sent[3]
    printed = mqadmin.run("queryMsgById", "-t", traffic.topic, "-i", sent.message_id)
    _assert_shows(printed, sent, traffic.topic)
    assert f"consumerGroup={traffic.consumer_group}" in printed


def test_query_by_id_of_an_absent_message_fails(mqadmin: MqAdmin, traffic: Traffic) -> None:
    absent = traffic.sent[0].message_id[:16] + f"{1 << 40:016X}"
    assert "Topic:" not in mqadmin.run("queryMsgById", "-t", traffic.topic, "-i", absent)


@pytest.mark.proves("apache.mqadmin.query-msg-by-key")
def test_query_by_key_finds_exactly_that_message(mqadmin: MqAdmin, traffic: Traffic) -> None:
    sent = traffic.sent[5]
    rows: list[list[str]] = []

    def found() -> bool:
        rows[:] = mqadmin.rows("queryMsgByKey", "-t", traffic.topic, "-k", sent.key)
        return bool(rows)

    eventually(found)
    assert [row[:3] for row in rows] == [
        [sent.unique_key, str(sent.queue_id), str(sent.queue_offset)]
    ]


@pytest.mark.proves("broker.topics.query-by-unique-key", "apache.mqadmin.query-msg-by-unique-key")
def test_query_by_unique_key_shows_the_message(mqadmin: MqAdmin, traffic: Traffic) -> None:
    sent = traffic.sent[7]
    printed = mqadmin.run("queryMsgByUniqueKey", "-t", traffic.topic, "-i", sent.unique_key)
    _assert_shows(printed, sent, traffic.topic)


@pytest.mark.proves("apache.mqadmin.query-msg-by-offset")
def test_query_by_offset_shows_the_message(mqadmin: MqAdmin, traffic: Traffic) -> None:
    sent = traffic.sent[-1]
    place = ("-i", str(sent.queue_id), "-o", str(sent.queue_offset))
    words = ("-t", traffic.topic, "-b", sent.broker_name, *place)
    printed = mqadmin.run("queryMsgByOffset", *words)
    _assert_shows(printed, sent, traffic.topic)
    assert _properties(printed)["OffsetID"] == sent.message_id


@pytest.mark.proves("apache.mqadmin.print-msg")
def test_print_msg_prints_every_body_once(mqadmin: MqAdmin, traffic: Traffic) -> None:
    printed = mqadmin.run("printMsg", "-t", traffic.topic, "-d", "true")
    bodies = Counter(re.findall(r"BODY: (.*)$", printed, re.MULTILINE))
    assert bodies == Counter(f"body-{one.key}" for one in traffic.sent)


@pytest.mark.proves("apache.mqadmin.send-message")
def test_send_message_stores_a_message_that_can_be_read(mqadmin: MqAdmin) -> None:
    topic = new_topic(mqadmin, "ByHand")
    words = ("-p", "by hand", "-k", "hand", "-c", "TagB", "-b", "broker-b", "-i", "2")
    (row,) = mqadmin.rows("sendMessage", "-t", topic, *words)
    assert row[:3] == ["broker-b", "2", "SEND_OK"]
    printed = mqadmin.run("queryMsgByOffset", "-t", topic, "-b", "broker-b", "-i", "2", "-o", "0")
    shown = _properties(printed)
    assert (shown["Tags"], shown["Keys"]) == ("[TagB]", "[hand]")
    assert f"UNIQ_KEY={row[3]}" in shown["Properties"]


@pytest.mark.proves("apache.mqadmin.consume-message")
def test_consume_message_reads_a_queue_from_an_offset(mqadmin: MqAdmin, traffic: Traffic) -> None:
    (broker_name, queue_id), count = traffic.queue_counts().most_common(1)[0]
    place = ("-b", broker_name, "-i", str(queue_id), "-o", "0", "-c", str(count))
    printed = mqadmin.run("consumeMessage", "-t", traffic.topic, "-g", "Onlookers", *place)
    bodies = re.findall(r"BODY: (.*)$", printed, re.MULTILINE)
    there = [
        one for one in traffic.sent if (one.broker_name, one.queue_id) == (broker_name, queue_id)
    ]
    assert bodies == [f"body-{one.key}" for one in sorted(there, key=lambda one: one.queue_offset)]


@pytest.mark.proves("apache.mqadmin.reset-offset-by-time")
def test_reset_offset_by_time_moves_a_group_to_the_end(
    cluster: Cluster, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", "Skippers")
    new_topic(mqadmin, "%RETRY%Skippers")  # consumerProgress finds the brokers of a group by it.
    words = ("-g", "Skippers", "-t", traffic.topic, "-s", "-1")
    rows = [row for row in mqadmin.rows("resetOffsetByTime", *words) if len(row) == 3]
    counts = traffic.queue_counts()
    assert {(row[0], int(row[1])): int(row[2]) for row in rows} == {
        (broker.name, queue_id): counts[broker.name, queue_id]
        for broker in cluster.brokers
        for queue_id in range(QUEUE_COUNT)
    }
    assert "Consume Diff Total: 0" in mqadmin.run("consumerProgress", "-g", "Skippers")


def test_reset_offset_of_an_unknown_group_says_so(mqadmin: MqAdmin, traffic: Traffic) -> None:
    printed = mqadmin.run("resetOffsetByTime", "-g", "Nobodys", "-t", traffic.topic, "-s", "0")
    assert "CODE: 26" in printed


@pytest.mark.proves("apache.mqadmin.stats-all")
def test_stats_all_shows_the_group_and_its_accumulation(mqadmin: MqAdmin, traffic: Traffic) -> None:
    def nothing_is_left() -> bool:
        mqadmin.commit_offsets()
        rows = mqadmin.rows("statsAll", "-t", traffic.topic)
        left = {row[1]: row[2] for row in rows if row[0] == traffic.topic}
        return left.get(traffic.consumer_group) == "0"

    eventually(nothing_is_left)


@pytest.mark.proves("nameserver.routes.write-permission", "apache.mqadmin.wipe-write-perm")
def test_wipe_write_perm_makes_a_broker_read_only_until_it_is_added_again(
    cluster: Cluster, mqadmin: MqAdmin
) -> None:
    topic = new_topic(mqadmin, "Wiped")
    wiped = mqadmin.run("wipeWritePerm", "-b", "broker-a")
    assert re.search(rf"broker\[broker-a\] in name server\[{cluster.namesrv}\] OK, \d+", wiped)
    assert {row[1]: row[5] for row in route_rows(mqadmin, topic)} == {
        "broker-a": "4",
        "broker-b": "6",
    }
    added = mqadmin.run("addWritePerm", "-b", "broker-a")
    assert re.search(r"add write perm of broker\[broker-a\].* OK, \d+", added)
    assert {row[5] for row in route_rows(mqadmin, topic)} == {"6"}

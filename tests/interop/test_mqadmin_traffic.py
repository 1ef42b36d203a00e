"""Apache's ``mqadmin`` looks at traffic: traces, queues, progress, clients, and test sends."""

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
    Traffic,
    new_topic,
    send_traffic,
)
from tests.interop.target import Broker, Cluster, open_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    traced = {"traceTopicEnable": "true"}
    with open_cluster(tmp_path_factory.mktemp("cluster"), properties=traced) as running:
        yield running


@pytest.fixture(scope="module")
def mqadmin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with MqAdmin(cluster.namesrv, tmp_path_factory.mktemp("mqadmin")) as admin:
        yield admin


@pytest.fixture(scope="module")
def traffic(mqadmin: MqAdmin) -> Traffic:
    """All of it consumed, and the brokers know."""
    sent = send_traffic(mqadmin)

    def all_consumed() -> bool:
        mqadmin.commit_offsets()
        return "Consume Diff Total: 0" in mqadmin.run(
            "consumerProgress", "-g", sent.consumer_group
        ) and len(_progress(mqadmin, sent.consumer_group, sent.topic)) == len(sent.queue_counts())

    eventually(all_consumed)
    return sent


@pytest.fixture
def broker(cluster: Cluster) -> Broker:
    return cluster.brokers[0]


def _progress(mqadmin: MqAdmin, group: str, topic: str) -> dict[tuple[str, int], int]:
    """A group's offset in each queue that it has read."""
    rows = [row for row in mqadmin.rows("consumerProgress", "-g", group) if row[0] == topic]
    return {(row[1], int(row[2])): int(row[4]) for row in rows if int(row[4])}


def test_query_trace_shows_producers_and_consumers(mqadmin: MqAdmin) -> None:
    topic = new_topic(mqadmin, "Followed")
    message_id = mqadmin.traced("Followers", topic, "followed-1")
    kinds: list[list[str]] = []

    def found() -> bool:
        kinds[:] = [
            row[:2] + row[-1:] for row in mqadmin.rows("queryMsgTraceById", "-i", message_id)
        ]
        return len(kinds) == 2

    eventually(found)
    assert sorted(kinds) == [["Pub", "Followers", "success"], ["Sub", "Followers", "success"]]


def test_print_by_queue_prints_the_messages_of_one_queue(
    mqadmin: MqAdmin, traffic: Traffic
) -> None:
    (broker_name, queue_id), count = traffic.queue_counts().most_common(1)[0]
    words = ("-t", traffic.topic, "-a", broker_name, "-i", str(queue_id))
    printed = mqadmin.run("printMsgByQueue", *words, "-p", "true", "-d", "true", "-f", "true")
    place = (broker_name, queue_id)
    there = [one for one in traffic.sent if (one.broker_name, one.queue_id) == place]
    in_order = sorted(there, key=lambda one: one.queue_offset)
    assert re.findall(r"BODY: (.*)$", printed, re.MULTILINE) == [f"body-{o.key}" for o in in_order]
    assert re.search(rf"Tag: TagA +Count: {count}\b", printed)


def test_query_cq_shows_the_rows_and_the_filter_of_a_group(
    cluster: Cluster, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    (broker_name, queue_id), count = traffic.queue_counts().most_common(1)[0]
    (address,) = [one.address for one in cluster.brokers if one.name == broker_name]
    words = ("-t", traffic.topic, "-q", str(queue_id), "-i", "0", "-b", address)
    printed = mqadmin.run("queryCq", *words, "-g", traffic.consumer_group)
    assert f"max: {count}, min: 0" in printed
    assert len(re.findall(r"^idx: \d+$", printed, re.MULTILINE)) == count
    assert '"subString":"*"' in printed
    places = re.findall(r"physicOffset=(\d+)", printed)
    assert len(set(places)) == count


def test_send_msg_status_sends_to_the_topic_of_a_broker(mqadmin: MqAdmin) -> None:
    printed = mqadmin.run("sendMsgStatus", "-b", "broker-b", "-c", "3", "-s", "64")
    sent = re.findall(r"sendStatus=(\w+).*brokerName=([\w-]+), queueId=0\], queueOffset=", printed)
    assert sent == [("SEND_OK", "broker-b")] * 3
    (row,) = [row for row in mqadmin.rows("topicStatus", "-t", "broker-b") if len(row) == 6]
    assert int(row[3]) >= 4  # It sends one more to begin with.


def test_check_msg_send_rt_sends_to_every_queue(mqadmin: MqAdmin) -> None:
    topic = new_topic(mqadmin, "Timed")
    rows = mqadmin.rows("checkMsgSendRT", "-t", topic, "-a", "16", "-s", "32")
    sends = [row for row in rows if len(row) == 4]
    assert [row[2] for row in sends] == ["true"] * 16
    assert Counter((row[0], row[1]) for row in sends) == {
        (name, str(queue_id)): 2
        for name in ("broker-a", "broker-b")
        for queue_id in range(QUEUE_COUNT)
    }
    assert rows[-1][:2] == ["Avg", "RT:"]


def test_cluster_rt_sends_to_every_broker(cluster: Cluster, mqadmin: MqAdmin) -> None:
    printed = mqadmin.run_until(3, "clusterRT", "-c", CLUSTER_NAME, "-a", "4", "-i", "600")
    rows = [line.split() for line in printed.splitlines() if line.startswith(CLUSTER_NAME)]
    assert sorted((row[1], row[3], row[4]) for row in rows) == [
        (broker.name, "4", "0") for broker in cluster.brokers
    ]


def test_broker_consume_stats_lists_the_progress_of_every_group(
    broker: Broker, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    rows = mqadmin.rows("brokerConsumeStats", "-b", broker.address)
    shown = {
        (row[2], int(row[3])): (int(row[4]), int(row[5]), int(row[6]))
        for row in rows
        if row[:2] == [traffic.topic, traffic.consumer_group]
    }
    assert shown == {
        queue: (count, count, 0)
        for queue, count in traffic.queue_counts().items()
        if queue[0] == broker.name
    }


def test_consumer_status_shows_the_running_client(mqadmin: MqAdmin, traffic: Traffic) -> None:
    printed = mqadmin.run("consumerStatus", "-g", traffic.consumer_group)
    (row,) = [line.split() for line in printed.splitlines() if traffic.client_id in line]
    assert "Same subscription in the same group of consumer" in printed
    assert "Rebalance OK" in printed
    told = (mqadmin.folder / row[3]).read_text()
    assert traffic.topic in told
    assert "#Consumer Subscription#" in told


def test_consumer_status_of_one_client_has_its_threads(mqadmin: MqAdmin, traffic: Traffic) -> None:
    words = ("-g", traffic.consumer_group, "-i", traffic.client_id, "-s")
    printed = mqadmin.run("consumerStatus", *words)
    assert "#Consumer MQ Detail#" in printed
    assert "ConsumeMessageThread" in printed


def test_consumer_status_of_an_absent_client_says_so(mqadmin: MqAdmin, traffic: Traffic) -> None:
    words = ("-g", traffic.consumer_group, "-i", "nobody@1")
    assert "'nobody@1'" in mqadmin.run("consumerStatus", *words)


def test_clone_group_offset_copies_where_a_group_is(mqadmin: MqAdmin, traffic: Traffic) -> None:
    mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", "Twins")
    new_topic(mqadmin, "%RETRY%Twins")  # consumerProgress finds the brokers of a group by it.
    words = ("-s", traffic.consumer_group, "-d", "Twins", "-t", traffic.topic)
    assert "clone group offset success." in mqadmin.run("cloneGroupOffset", *words)
    assert _progress(mqadmin, "Twins", traffic.topic) == traffic.queue_counts()


def test_producer_lists_every_producer_of_a_broker(
    broker: Broker, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    printed = mqadmin.run("producer", "-b", broker.address)
    pattern = rf"^producer group \({traffic.producer_group}\) instance : clientId=(\S+?),"
    (client_id,) = re.findall(pattern, printed, re.MULTILINE)
    assert client_id.endswith(f"@{traffic.producer_group}")


def test_skip_accumulated_moves_a_group_to_the_end(
    cluster: Cluster, mqadmin: MqAdmin, traffic: Traffic
) -> None:
    mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", "Jumpers")
    new_topic(mqadmin, "%RETRY%Jumpers")
    rows = mqadmin.rows("skipAccumulatedMessage", "-g", "Jumpers", "-t", traffic.topic)
    counts = traffic.queue_counts()
    assert {(row[0], int(row[1])): int(row[2]) for row in rows} == {
        (broker.name, queue_id): counts[broker.name, queue_id]
        for broker in cluster.brokers
        for queue_id in range(QUEUE_COUNT)
    }
    assert _progress(mqadmin, "Jumpers", traffic.topic) == counts


def test_allocate_mq_shares_every_queue_once(mqadmin: MqAdmin, traffic: Traffic) -> None:
    words = ("-t", traffic.topic, "-i", "10.0.0.1,10.0.0.2")
    shared: Any = fastjson.loads(mqadmin.run("allocateMQ", *words))
    by_client = {
        client: {(queue["brokerName"], queue["queueId"]) for queue in queues}
        for client, queues in shared["result"].items()
    }
    assert {client: len(queues) for client, queues in by_client.items()} == {
        "10.0.0.1": QUEUE_COUNT,
        "10.0.0.2": QUEUE_COUNT,
    }
    assert len(set.union(*by_client.values())) == 2 * QUEUE_COUNT


def test_start_monitoring_subscribes_and_reports_every_group(
    mqadmin: MqAdmin, traffic: Traffic
) -> None:
    assert mqadmin.run("startMonitoring").strip() == ""

    def subscribed() -> bool:
        printed = mqadmin.run("consumerConnection", "-g", "__MONITOR_CONSUMER")
        return re.search(r"^OFFSET_MOVED_EVENT +\*", printed, re.MULTILINE) is not None

    eventually(subscribed)
    reported = mqadmin.monitor_once()
    assert ["undone", traffic.consumer_group, traffic.topic, "0"] in reported
    (running,) = [row for row in reported if row[:2] == ["running", traffic.client_id]]
    assert int(running[2]) >= 2 * QUEUE_COUNT

"""The metrics of a broker and a NameServer, after real traffic."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.samples import Sample

from contrail import Admin, Message, Producer, __version__
from contrail.broker.app import Broker
from contrail.broker.state.metric_table import METRICS, QUEUE_LAG
from contrail.broker.state.replication_metrics import REPLICATION_METRICS
from contrail.clock import SystemClock
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.message import MessageDraft
from contrail.model.topic import TopicConfig
from contrail.nameserver.app import NameServer
from contrail.nameserver.config import NameServerConfig
from contrail.nameserver.metrics import METRICS as NAMESERVER_METRICS
from contrail.protocol.codes import RequestCode
from contrail.protocol.prometheus_text import MetricKind
from contrail.testing import LocalCluster, eventually
from contrail.wire.process_metrics import METRICS as PROCESS_METRICS
from tests.e2e.metrics_scene import (
    GROUP,
    LATER,
    PLAIN,
    PLAIN_COUNT,
    TRANSACTED,
    samples,
    scrape,
    traffic,
    value,
)

ON = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "contrail.json"
# Rows that a scene of a minute cannot fill, each with its reason.
UNSEEN: dict[str, str] = {
    "contrail_pop_redeliveries_total": "counted in test_pop, where time is moved",
}


def port_of(cluster: LocalCluster) -> int:
    app = cluster.brokers[0].app
    assert app is not None
    assert app.metrics is not None
    return app.metrics.port


@pytest.fixture(scope="module")
def texts() -> Iterator[tuple[str, str]]:
    """One scrape of a broker with all kinds of traffic, and one of its NameServer."""
    properties = ON | {"metricsLabel": "zone:a", "contrailQueueLagMetrics": "true"}
    with LocalCluster(properties=properties) as cluster:
        port = port_of(cluster)
        with traffic(cluster.namesrv):
            eventually(lambda: is_settled(samples(scrape(port))), "the traffic is all counted")
            yield scrape(port), asyncio.run(nameserver_text())


def is_settled(found: list[Sample]) -> bool:
    """Whether all is delivered, by its level or by its time, given up, ended and read."""
    names = {sample.name for sample in found}
    wanted = {"rocketmq_timer_dequeue_total", "rocketmq_send_to_dlq_messages_total"}
    counts = (
        total(found, "rocketmq_messages_in_total", topic=LATER, message_type="delay"),
        total(found, "rocketmq_delay_message_latency_seconds_count", topic=LATER),
        total(found, "rocketmq_commit_messages_total", topic=TRANSACTED),
        total(found, "rocketmq_rollback_messages_total", topic=TRANSACTED),
        total(found, "rocketmq_consumer_lag_messages", topic=PLAIN),
    )
    return wanted <= names and counts == (2, 2, 1, 1, 0)


def total(found: list[Sample], name: str, **labels: str) -> float:
    wanted = labels.items()
    return sum(one.value for one in found if one.name == name and wanted <= one.labels.items())


async def nameserver_text() -> str:
    """Of a NameServer that was asked something, with a port of its own."""
    folder = Path("/nonexistent")
    config = NameServerConfig(
        listen_port=0,
        metrics_port=0,
        kv_config_path=folder / "kv.json",
        config_store_path=folder / "namesrv.properties",
    )
    server = NameServer(config, clock=SystemClock())
    await server.start()
    try:
        assert server.metrics is not None
        await asyncio.to_thread(ask_for_no_route, server.address)
        return await asyncio.to_thread(scrape, server.metrics.port)
    finally:
        await server.stop()


def ask_for_no_route(address: str) -> None:
    from contrail.testing.caller import BlockingCaller

    caller = BlockingCaller()
    try:
        caller.call(address, 105, {"topic": "NoSuchTopic"})
        caller.call(address, 999_999, {})
    finally:
        caller.close()


@pytest.fixture(scope="module")
def broker(texts: tuple[str, str]) -> list[Sample]:
    return samples(texts[0])


def test_every_metric_of_the_table_is_in_a_scrape_with_its_type_and_labels(
    texts: tuple[str, str], broker: list[Sample]
) -> None:
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", texts[0], re.MULTILINE))
    expected = (*METRICS, *PROCESS_METRICS)
    assert {m.name: m.kind.value for m in expected if m.name not in UNSEEN} == types
    for metric in expected:
        name = f"{metric.name}_count" if metric.kind is MetricKind.HISTOGRAM else metric.name
        shown = [one.labels for one in broker if one.name == name]
        own = {"cluster", "node_type", "node_id", "zone", *metric.labels}
        assert all(set(labels) == own for labels in shown), metric.name
        assert shown or metric.name in UNSEEN, metric.name


def test_metrics_show_the_messages_that_were_sent(broker: list[Sample]) -> None:
    plain = {"topic": PLAIN, "message_type": "normal"}
    assert value(broker, "rocketmq_messages_in_total", **plain) == PLAIN_COUNT
    assert value(broker, "rocketmq_message_size_count", **plain) == PLAIN_COUNT
    assert value(broker, "rocketmq_message_size_bucket", le="1024.0", **plain) == PLAIN_COUNT - 1
    assert value(broker, "rocketmq_message_size_bucket", le="4096.0", **plain) == PLAIN_COUNT
    byte_count = value(broker, "rocketmq_throughput_in_total", **plain)
    assert byte_count == value(broker, "rocketmq_message_size_sum", **plain)
    assert byte_count > (PLAIN_COUNT - 1) * 100 + 3000
    sends = {"request_code": "send_message_v2", "response_code": "success", "result": "success"}
    # Six plain ones, three delayed ones, three half messages.
    assert value(broker, "rocketmq_rpc_latency_milliseconds_count", **sends) == PLAIN_COUNT + 6


@pytest.mark.proves("cli.administration.queue-lag")
def test_metrics_show_the_messages_that_were_read(broker: list[Sample]) -> None:
    read = {"topic": PLAIN, "consumer_group": GROUP}
    assert value(broker, "rocketmq_messages_out_total", **read) == PLAIN_COUNT
    assert value(broker, "rocketmq_consumer_lag_messages", **read) == 0
    assert value(broker, "rocketmq_consumer_lag_latency_milliseconds", **read) == 0
    assert value(broker, "rocketmq_consumer_ready_messages", **read) == 0
    assert value(broker, "rocketmq_send_to_dlq_messages_total", **read) == 1
    assert value(broker, QUEUE_LAG.name, queue_id="0", broker="broker-a", **read) == 0
    connection = {"consumer_group": GROUP, "language": "python", "consume_mode": "push"}
    assert value(broker, "rocketmq_consumer_connections", **connection) == 1
    assert value(broker, "rocketmq_producer_connections", language="python") >= 1


def test_kinds_of_messages_are_told_apart(broker: list[Sample]) -> None:
    delayed = {"topic": LATER, "message_type": "delay"}
    eventually_delivered = value(broker, "rocketmq_messages_in_total", **delayed)
    assert eventually_delivered == 2
    assert value(broker, "rocketmq_timing_messages", topic=LATER) == 1
    assert value(broker, "rocketmq_timer_enqueue_total", topic=LATER) == 2
    assert value(broker, "rocketmq_timer_dequeue_total", topic=LATER) == 1
    assert value(broker, "rocketmq_delay_message_latency_seconds_count", topic=LATER) == 2
    assert value(broker, "rocketmq_timer_message_snapshot", timer_bound_s="900") == 1
    assert value(broker, "rocketmq_commit_messages_total", topic=TRANSACTED) == 1
    assert value(broker, "rocketmq_rollback_messages_total", topic=TRANSACTED) == 1
    assert value(broker, "rocketmq_half_messages", topic=TRANSACTED) == 1
    committed = {"topic": TRANSACTED, "message_type": "transaction"}
    assert value(broker, "rocketmq_messages_in_total", **committed) == 1


def test_the_broker_shows_its_own_state(broker: list[Sample]) -> None:
    assert value(broker, "rocketmq_broker_permission") == 6
    assert value(broker, "rocketmq_topic_number") > 3
    made = {"invocation_status": "success", "is_system": "false"}
    topics_made = "rocketmq_topic_create_execution_time_milliseconds_count"
    assert value(broker, topics_made, **made) == 3
    assert value(broker, "rocketmq_storage_size_bytes") > 0
    assert value(broker, "rocketmq_storage_message_reserve_time_milliseconds") >= 0


def test_the_nameserver_shows_its_own_metrics(texts: tuple[str, str]) -> None:
    found = samples(texts[1])
    names = {one.name.removesuffix("_count") for one in found}
    # Nothing was held back, closed or registered in so short a life.
    seen = {m.name for m in NAMESERVER_METRICS} - {
        "contrail_nameserver_brokers",
        "contrail_nameserver_connections_closed_total",
    }
    assert seen <= names
    latency = "contrail_nameserver_request_latency_milliseconds_count"
    route = {"request_code": "get_routeinfo_by_topic", "response_code": "topic_not_exist"}
    assert value(found, latency, **route) == 1
    refused = "contrail_nameserver_requests_refused_total"
    assert value(found, refused, response_code="request_code_not_supported") == 1
    assert value(found, "contrail_nameserver_connections_opened_total") == 1


@pytest.mark.proves("cli.small-rules.server-start")
@pytest.mark.parametrize("number", [0, 1])
def test_both_servers_tell_of_their_process(texts: tuple[str, str], number: int) -> None:
    found = samples(texts[number])
    assert {one.name for one in PROCESS_METRICS} <= {one.name for one in found}
    assert value(found, "process_cpu_seconds_total") > 0
    started_s = value(found, "process_start_time_seconds")
    assert time.time() - 86_400 < started_s < time.time() + 1
    resident = value(found, "process_resident_memory_bytes")
    assert 1 << 20 < resident <= value(found, "process_virtual_memory_bytes")
    assert 3 < value(found, "process_open_fds") <= value(found, "process_max_fds")
    (build,) = [one for one in found if one.name == "contrail_build_info"]
    assert build.labels["version"] == __version__
    assert build.labels["kernels"] in ("compiled", "interpreted")


def test_the_dashboard_asks_only_for_metrics_that_are_there(texts: tuple[str, str]) -> None:
    shown = {sample.name for text in texts for sample in samples(text)}
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = set(re.findall(r"\b(?:rocketmq|contrail)_\w+", json.dumps(board["panels"])))
    others = (*NAMESERVER_METRICS, *REPLICATION_METRICS)
    declared = {f"{m.name}{suffix}" for m in others for suffix in ("", "_count")}
    assert len(asked) > 20
    assert asked - shown - declared == set()


def test_a_group_that_went_away_keeps_its_lag() -> None:
    with LocalCluster(properties=ON) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("away", queues=1)
            admin.create_group("sleepers")
        with Producer("writers", cluster.namesrv) as producer:
            for _ in range(4):
                producer.send(Message("away", b"x"))
        fields = {"consumerGroup": "sleepers", "topic": "away", "queueId": "0", "commitOffset": "1"}
        cluster.caller.call(cluster.brokers[0].address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        found = samples(scrape(port_of(cluster)))
        lag = {"consumer_group": "sleepers", "topic": "away"}
        assert value(found, "rocketmq_consumer_lag_messages", **lag) == 3
        assert value(found, "rocketmq_consumer_lag_latency_milliseconds", **lag) >= 0
        assert [one for one in found if one.name == QUEUE_LAG.name] == []


def test_a_port_that_is_taken_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        properties = ON | {"metricsPromExporterPort": str(port)}
        with LocalCluster(properties=properties) as cluster:
            assert cluster.brokers[0].app is not None
            assert cluster.brokers[0].app.metrics is None
            with Producer("writers", cluster.namesrv) as producer:
                producer.send(Message("orders", b"x"))
    assert f"127.0.0.1:{port} cannot be listened on" in caplog.text
    assert "metricsPromExporterPort" in caplog.text


def test_metrics_can_be_off() -> None:
    with LocalCluster() as cluster:
        assert cluster.brokers[0].app is not None
        assert cluster.brokers[0].app.metrics is None


@pytest.mark.proves("cli.administration.queue-lag")
def test_a_scrape_of_ten_thousand_topics_does_not_keep_the_loop_from_others(
    tmp_path: Path,
) -> None:
    text = tmp_path / "metrics.txt"
    with LocalCluster(properties=ON) as cluster:
        app = cluster.brokers[0].app
        assert app is not None
        cluster.run(_fill(app, 10_000))
        # A broker's own process keeps the collector from looking at everything again and again.
        gc.disable()
        try:
            turns_ms = cluster.run(_turns_while_scraping(port_of(cluster), text))
        finally:
            gc.enable()
    found = text.read_text(encoding="utf-8")
    assert found.count("rocketmq_messages_in_total{") >= 10_000
    assert found.count("rocketmq_consumer_lag_messages{") >= 10_000
    # It is done in many small pieces: others had their turn in between.
    assert len(turns_ms) > 100
    assert max(turns_ms) < sum(turns_ms) / 4


async def _fill(app: Broker, topic_count: int) -> None:
    """Topics that were written to and read, by a group that lags in each of them."""
    tables = app.tables
    tables.groups.update([SubscriptionGroupConfig("readers")], 0)
    for number in range(topic_count):
        name = f"topic-{number}"
        tables.topics.table.put(TopicConfig(name, 4, 4, 6), 0)
        tables.consumer_offsets.commit("readers", name, 0, 0)
        app.stats.stored([MessageDraft(name.encode(), 0, b"x")], [0], 300)
        app.stats.pulled((name, "readers"), 1, 300)


async def _turns_while_scraping(port: int, text: Path) -> list[float]:
    """How much the loop's turns took while another process scraped.

    By the thread's own time: what a busy machine takes away is not the scrape's fault.
    """
    url = f"http://127.0.0.1:{port}/metrics"
    program = "import sys; from urllib.request import urlretrieve; urlretrieve(*sys.argv[1:])"
    scraper = await asyncio.create_subprocess_exec(sys.executable, "-c", program, url, str(text))
    scraping = asyncio.create_task(scraper.wait())
    turns_ms, last_s = [], time.thread_time()
    while not scraping.done():
        await asyncio.sleep(0)
        now_s = time.thread_time()
        turns_ms.append((now_s - last_s) * 1000)
        last_s = now_s
    assert await scraping == 0
    # Turns in which nothing happened say nothing.
    return [turn_ms for turn_ms in turns_ms if turn_ms > 0.1]

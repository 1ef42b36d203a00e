"""Apache's broker and ours show the same metrics under the same labels after the same traffic."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from contrail.broker.state.metric_table import METRICS
from contrail.testing import LocalCluster, eventually
from contrail.testing.cluster import free_port
from tests.e2e.metrics_scene import (
    LATER,
    PLAIN,
    PLAIN_COUNT,
    TRANSACTED,
    label_keys,
    samples,
    scrape,
    traffic,
    value,
)
from tests.interop.apache_cluster import ApacheCluster

# Metrics of parts this broker lacks; and OpenTelemetry's own about its library.
OUT_OF_SCOPE = re.compile(r"rocketmq_(pop|rocksdb|tiered_store)_|target_info|otel_scope_info")
OPEN_TELEMETRY = {"otel_scope_name", "otel_scope_version"}
# Names that Contrail has beside Apache's: its own, and those that all programs use.
OURS = re.compile(r"contrail_|process_")


def properties(port: int) -> dict[str, str]:
    return {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": "127.0.0.1",
        "metricsPromExporterPort": str(port),
        "metricsLabel": "zone:a,rack:7",
    }


def text_after_traffic(namesrv: str, port: int) -> str:
    with traffic(namesrv):
        eventually(lambda: _is_settled(scrape(port)), "the traffic is all counted")
        return scrape(port)


def _is_settled(text: str) -> bool:
    # Metrics counted after the answer, or without one: a timed message on its way out, a half
    # message being counted, the ends of the others.
    later = ("timer_dequeue_total", "half_messages", "commit_messages_total")
    return all(f"rocketmq_{name}{{" in text for name in (*later, "rollback_messages_total"))


@pytest.fixture(scope="module")
def texts() -> Iterator[tuple[str, str]]:
    """Apache's, and ours."""
    port = free_port()
    with ApacheCluster(brokers=1, properties=properties(port)) as apache:
        theirs = text_after_traffic(apache.namesrv, port)
    port = free_port()
    with LocalCluster(properties=properties(port)) as contrail:
        yield theirs, text_after_traffic(contrail.namesrv, port)


@pytest.mark.proves("cli.administration.metrics")
def test_names_and_labels_are_the_same(texts: tuple[str, str]) -> None:
    theirs, ours = (label_keys(samples(text)) for text in texts)
    in_scope = {
        name: keys - OPEN_TELEMETRY for name, keys in theirs.items() if not OUT_OF_SCOPE.match(name)
    }
    assert len(in_scope) > 40
    assert {name: keys for name, keys in ours.items() if not OURS.match(name)} == in_scope


def test_types_are_the_same(texts: tuple[str, str]) -> None:
    theirs, ours = (dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)) for text in texts)
    own = {metric.name for metric in METRICS if not OURS.match(metric.name)}
    assert {name: theirs[name] for name in own} == {name: ours[name] for name in own}


def test_bounds_of_histograms_are_the_same(texts: tuple[str, str]) -> None:
    theirs, ours = (_bounds(text) for text in texts)
    assert {name: bounds for name, bounds in theirs.items() if not OUT_OF_SCOPE.match(name)} == ours


def _bounds(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for sample in samples(text):
        if "le" in sample.labels:
            found.setdefault(sample.name, set()).add(sample.labels["le"])
    return found


@pytest.mark.proves("cli.administration.metrics")
@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("rocketmq_messages_in_total", {"topic": PLAIN, "message_type": "normal"}, PLAIN_COUNT),
        ("rocketmq_messages_out_total", {"topic": PLAIN}, PLAIN_COUNT),
        ("rocketmq_send_to_dlq_messages_total", {"topic": PLAIN}, 1),
        ("rocketmq_commit_messages_total", {"topic": TRANSACTED}, 1),
        ("rocketmq_rollback_messages_total", {"topic": TRANSACTED}, 1),
        ("rocketmq_timing_messages", {"topic": LATER}, 1),
        ("rocketmq_timer_enqueue_total", {"topic": LATER}, 2),
        ("rocketmq_timer_dequeue_total", {"topic": LATER}, 1),
        ("rocketmq_broker_permission", {}, 6),
        (
            "rocketmq_topic_create_execution_time_milliseconds_count",
            {"invocation_status": "success"},
            3,
        ),
    ],
)
def test_the_same_traffic_gives_the_same_numbers(
    texts: tuple[str, str], name: str, labels: dict[str, str], expected: int
) -> None:
    theirs, ours = (samples(text) for text in texts)
    assert value(theirs, name, **labels) == value(ours, name, **labels) == expected


@pytest.mark.parametrize("name", ["rocketmq_throughput_in_total", "rocketmq_message_size_sum"])
def test_bytes_are_counted_alike(texts: tuple[str, str], name: str) -> None:
    theirs, ours = (samples(text) for text in texts)
    labels = {"topic": PLAIN, "message_type": "normal"}
    assert value(theirs, name, **labels) == value(ours, name, **labels)

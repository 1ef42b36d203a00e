"""docs/reference/metrics.md lists every metric with its type and labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contrail.broker.state.metric_table import METRICS
from contrail.broker.state.replication_metrics import REPLICATION_METRICS
from contrail.nameserver.metrics import METRICS as NAMESERVER_METRICS
from contrail.pipeline.stream_figures import METRICS as SPARK_METRICS
from contrail.protocol.prometheus_text import Metric
from contrail.wire.process_metrics import METRICS as PROCESS_METRICS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `([a-z_]+)` \| (\w+) \| (.*?) \| (.+) \|$", re.MULTILINE)


def rows(heading: str) -> list[tuple[str, str, str, str]]:
    text = PAGE.read_text(encoding="utf-8")
    return ROW.findall(text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0])


@pytest.mark.proves("cli.administration.metrics")
@pytest.mark.parametrize(
    ("heading", "metrics"),
    [
        ("Broker", METRICS),
        ("Replication", REPLICATION_METRICS),
        ("NameServer", NAMESERVER_METRICS),
        ("Process", PROCESS_METRICS),
        ("Spark streams", SPARK_METRICS),
    ],
)
def test_every_metric_is_documented_with_its_type_and_labels(
    heading: str, metrics: tuple[Metric, ...]
) -> None:
    documented = [(name, kind, labels) for name, kind, labels, _ in rows(heading)]
    in_code = [
        (m.name, m.kind.value, ", ".join(f"`{label}`" for label in m.labels) or "none")
        for m in metrics
    ]
    assert documented == in_code


def test_the_bounds_of_histograms_are_documented_in_numbers() -> None:
    meanings = {
        name: meaning
        for heading in ("Broker", "NameServer")
        for name, _, _, meaning in rows(heading)
    }
    for metric in (*METRICS, *NAMESERVER_METRICS):
        numbers = {
            int(text.replace(",", "")) for text in re.findall(r"[\d,]*\d", meanings[metric.name])
        }
        if metric.bounds and metric.name.endswith(("seconds", "milliseconds")):
            is_counted = "execution_time" in metric.name or set(metric.bounds) <= numbers
            assert is_counted, metric.name

"""A NameServer's metrics as Prometheus reads them. Apache's NameServer has no metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator

from contrail.nameserver.state.routes import RouteTables
from contrail.protocol.prometheus_text import (
    Labels,
    Metric,
    MetricKind,
    head_lines,
    histogram_lines,
    parse_labels,
    sample_line,
)
from contrail.runtime.slices import Slices
from contrail.wire.process_metrics import process_lines
from contrail.wire.request_times import BOUNDS_MS, RequestTimes, request_name, response_name
from contrail.wire.server import Server

_GAUGE, _COUNTER, _HISTOGRAM = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM

BROKERS = Metric("contrail_nameserver_brokers", _GAUGE, "Brokers that are registered", ("cluster",))
TOPICS = Metric("contrail_nameserver_topics", _GAUGE, "Topics that have a route")
CONNECTIONS = Metric("contrail_nameserver_connections", _GAUGE, "Open connections")
OPENED = Metric(
    "contrail_nameserver_connections_opened_total", _COUNTER, "Connections that were opened"
)
CLOSED = Metric(
    "contrail_nameserver_connections_closed_total",
    _COUNTER,
    "Connections that were closed: the reasons name bounds that were hit, too",
    ("reason",),
)
HELD_BACK = Metric(
    "contrail_nameserver_held_back_total",
    _COUNTER,
    "How often reading was held back because too much was pending",
)
REFUSED = Metric(
    "contrail_nameserver_requests_refused_total", _COUNTER, "Requests refused", ("response_code",)
)
REQUESTS = Metric(
    "contrail_nameserver_request_latency_milliseconds",
    _HISTOGRAM,
    "How long requests took",
    ("request_code", "response_code"),
    BOUNDS_MS,
)
METRICS: tuple[Metric, ...] = (
    BROKERS, TOPICS, CONNECTIONS, OPENED, CLOSED, HELD_BACK, REFUSED, REQUESTS,
)  # fmt: skip

_CLOSED, _REJECTED = "closed_", "rejected_"


class NameServerMetrics:
    """Writes the text of one scrape after another."""

    def __init__(
        self,
        tables: RouteTables,
        server: Server,
        times: RequestTimes,
        refusals: Counter[str],
        *,
        node_id: str,
        labels: str,
    ) -> None:
        own = {"node_type": "nameserver", "node_id": node_id}
        self._labels = Labels(own | parse_labels("metricsLabel", labels))
        self._tables = tables
        self._server = server
        self._times = times
        self._refusals = refusals

    async def pieces(self) -> AsyncIterator[str]:
        """The text, in pieces; the event loop gets a turn between two pieces."""
        slices = Slices()
        for line in self._lines():
            yield line
            await slices.breathe()
        yield await process_lines(self._labels)

    def _lines(self) -> Iterator[str]:
        counts = self._server.counts
        yield self._family(BROKERS, self._brokers())
        yield self._family(TOPICS, {(): len(self._tables.topics)})
        yield self._family(CONNECTIONS, {(): len(self._server.connections)})
        yield self._family(OPENED, {(): counts["opened"]})
        yield self._family(CLOSED, _by_suffix(counts, _CLOSED))
        yield self._family(HELD_BACK, {(): counts["held_back"]})
        refused = _by_suffix(self._refusals, _REJECTED).items()
        yield self._family(
            REFUSED, {(response_name(int(code)),): count for (code, *_), count in refused}
        )
        yield from self._requests()

    def _brokers(self) -> dict[tuple[str, ...], int]:
        return {(cluster,): count for cluster, count in self._tables.broker_counts().items()}

    def _family(self, metric: Metric, samples: dict[tuple[str, ...], int]) -> str:
        """The text of one metric; empty if it has no samples."""
        lines = [
            sample_line(metric.name, self._labels.text(metric.labels, values), value)
            for values, value in samples.items()
        ]
        return head_lines(metric) + "".join(lines) if lines else ""

    def _requests(self) -> Iterator[str]:
        rows = self._times.rows()
        if rows:
            yield head_lines(REQUESTS)
        for kind, counts, total_ms in rows:
            values = (request_name(kind.code), response_name(kind.response_code))
            labels = self._labels.text(REQUESTS.labels, values)
            yield histogram_lines(REQUESTS, labels, counts, round(total_ms, 3))


def _by_suffix(counts: Counter[str], prefix: str) -> dict[tuple[str, ...], int]:
    found = [(name, count) for name, count in counts.items() if name.startswith(prefix)]
    return {(name.removeprefix(prefix),): count for name, count in found}

"""A broker's metrics as Prometheus reads them. Everything is read when it is asked for.

The hot path counts for the statistics anyway; here those numbers become text, in
slices of two milliseconds so that sends and pulls go on in between. Lists are copied before they
are walked: they may change while a scrape gives way.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from contrail.broker.services.creation_times import CreationTimes
from contrail.broker.services.lag_metrics import Attempt, GroupLag, LagLooks
from contrail.broker.services.timers import Timers
from contrail.broker.state import metric_table as table
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.replication_metrics import replication_samples
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    KIND_NAMES,
    SNDBCK2DLQ_TIMES,
    BrokerStats,
)
from contrail.broker.state.transactions import OpenTransactions
from contrail.broker.state.ways import Ways
from contrail.clock import Clock
from contrail.errors import RecordDamaged
from contrail.model.topic import TIMER_TOPIC
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.protocol.bodies.heartbeat import ConsumeType
from contrail.protocol.client_versions import client_version_name
from contrail.protocol.prometheus_text import (
    Labels,
    Metric,
    head_lines,
    histogram_lines,
    parse_labels,
    sample_line,
)
from contrail.runtime.slices import Slices
from contrail.store import MessageStore, NotInMemory
from contrail.wire.process_metrics import process_lines
from contrail.wire.request_times import RequestTimes, request_name, response_name

_PROTOCOL = "remoting"
_SYSTEM_GROUP_PREFIX = "cid_rmq_sys_"
_MODES = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}
_TIMER_TOPIC = TIMER_TOPIC.encode()

Values = tuple[str, ...]
Samples = Iterable[tuple[Values, float]]
Rows = Iterable[tuple[Values, list[int], float]]


class PopFigures(Protocol):
    """Counts of the deliveries of popped messages."""

    lost_count: int

    @property
    def redelivered_counts(self) -> Mapping[tuple[str, str], int]:
        """By topic and group: deliveries since the start."""

    def overdue_ms(self, now_ms: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSources:
    """Where the figures of a broker are."""

    settings: RuntimeSettings
    stats: BrokerStats
    store: MessageStore
    store_root: Path
    producers: ProducerTable
    consumers: ConsumerTable
    timers: Timers
    timers_enabled: bool
    transactions: OpenTransactions
    creations: CreationTimes
    ways: Ways
    times: RequestTimes
    pops: PopFigures
    lags: LagLooks
    attempt: Attempt
    clock: Clock
    topic_count: Callable[[], int]
    group_count: Callable[[], int]
    is_system_topic: Callable[[str], bool]
    # How many requests wait, by the reason for waiting.
    work_sizes: Callable[[], Mapping[str, int]]
    # None of a broker that takes part in no replication.
    replication: Callable[[], HaStatus | None]


class BrokerMetrics:
    """Writes the text of one scrape after another."""

    def __init__(self, sources: MetricSources) -> None:
        config = sources.settings.config
        self._from = sources
        self._labels = Labels(
            {
                "cluster": config.cluster_name,
                "node_type": "broker",
                "node_id": config.broker_name,
                **parse_labels("metricsLabel", config.metrics_labels),
            }
        )

    async def pieces(self) -> AsyncIterator[str]:
        """The text, in pieces; between two of them the event loop has had its turn."""
        slices, lines = Slices(), []
        for line in self._lines():
            lines.append(line)
            if slices.is_over:
                yield "".join(lines)
                lines.clear()
                await slices.give_way()
        lags = [lag async for lag in self._from.lags.look(slices)]
        for line in self._lag_lines(lags):
            lines.append(line)
            if slices.is_over:
                yield "".join(lines)
                lines.clear()
                await slices.give_way()
        yield "".join(lines)
        yield await process_lines(self._labels)

    def _lines(self) -> Iterator[str]:
        yield from self._broker_lines()
        yield from self._message_lines()
        yield from self._client_lines()
        yield from self._transaction_lines()
        yield from self._request_lines()
        yield from self._store_lines()
        if self._from.timers_enabled:
            yield from self._timer_lines()
        yield from self._pop_lines()
        yield from self._replication_lines()

    def _gauges(self, metric: Metric, samples: Samples) -> Iterator[str]:
        """A family; without samples it is left out, as the original does."""
        labels, name, is_first = self._labels, metric.name, True
        for values, value in samples:
            if is_first:
                is_first = False
                yield head_lines(metric)
            yield sample_line(name, labels.text(metric.labels, values), value)

    def _histograms(self, metric: Metric, rows: Rows) -> Iterator[str]:
        labels, is_first = self._labels, True
        for values, counts, total in rows:
            if is_first:
                is_first = False
                yield head_lines(metric)
            yield histogram_lines(metric, labels.text(metric.labels, values), counts, total)

    # The broker.

    def _broker_lines(self) -> Iterator[str]:
        from_ = self._from
        sizes = from_.work_sizes().items()
        yield from self._gauges(table.WATERMARK, [((name,), size) for name, size in sizes])
        yield from self._gauges(table.PERMISSION, [((), from_.settings.config.permission)])
        yield from self._gauges(table.TOPICS, [((), from_.topic_count())])
        yield from self._gauges(table.GROUPS, [((), from_.group_count())])
        creations = from_.creations
        topics = (
            ((status, _flag(system)), row[:-1], row[-1])
            for (status, system), row in creations.topic_rows()
        )
        yield from self._histograms(table.TOPIC_CREATION, topics)
        groups = (((status,), row[:-1], row[-1]) for status, row in creations.group_rows())
        yield from self._histograms(table.GROUP_CREATION, groups)

    def _message_lines(self) -> Iterator[str]:
        rows = self._stored_rows
        yield from self._gauges(table.MESSAGES_IN, ((values, row[0]) for values, row in rows()))
        yield from self._gauges(table.BYTES_IN, ((values, row[1]) for values, row in rows()))
        sizes = ((values, row[2:], row[1]) for values, row in rows())
        yield from self._histograms(table.SIZES, sizes)
        yield from self._gauges(table.MESSAGES_OUT, self._read_samples(GROUP_GET_NUMS))
        yield from self._gauges(table.BYTES_OUT, self._read_samples(GROUP_GET_SIZE))
        dead = (
            ((group, topic, system), value)
            for (topic, group, system), value in self._read_samples(SNDBCK2DLQ_TIMES)
        )
        yield from self._gauges(table.DEAD_LETTERS, dead)

    def _stored_rows(self) -> Iterator[tuple[Values, list[int]]]:
        for (topic, kind), row in self._from.stats.stored_rows():
            yield (topic, KIND_NAMES[kind], _flag(self._from.is_system_topic(topic))), row

    def _read_samples(self, stat: str) -> Iterator[tuple[tuple[str, str, str], float]]:
        for key, item in self._from.stats.items(stat):
            topic, _, group = key.partition("@")
            yield (topic, group, _flag(self._is_system(topic, group))), item.value

    def _is_system(self, topic: str, group: str) -> bool:
        return self._from.is_system_topic(topic) or _is_system_group(group)

    # Clients.

    def _client_lines(self) -> Iterator[str]:
        """Empty lines are chances to give way while there is only counting to do."""
        producers: Counter[Values] = Counter()
        for channels in list(self._from.producers.groups.values()):
            producers.update((*_client(channel), _PROTOCOL) for channel in channels.values())
            yield ""
        yield from self._gauges(table.PRODUCERS, producers.items())
        consumers: Counter[Values] = Counter()
        for name, group in list(self._from.consumers.groups.items()):
            rest = (_MODES[group.consume_type], _PROTOCOL, _flag(_is_system_group(name)))
            consumers.update((name, *_client(one), *rest) for one in group.channels.values())
            yield ""
        yield from self._gauges(table.CONSUMERS, consumers.items())

    # Transactions and requests.

    def _transaction_lines(self) -> Iterator[str]:
        transactions = self._from.transactions
        ends = transactions.ends
        yield from self._gauges(table.COMMITS, _by_topic(ends.committed))
        yield from self._gauges(table.ROLLBACKS, _by_topic(ends.rolled_back))
        times = [((topic,), row[:-1], row[-1]) for topic, row in ends.commit_times.items()]
        yield from self._histograms(table.FINISH_LATENCY, times)
        open_counts: Counter[str] = Counter()
        for half in list(transactions):
            open_counts[half.topic] += 1
            yield ""
        yield from self._gauges(table.HALF_MESSAGES, _by_topic(open_counts))

    def _request_lines(self) -> Iterator[str]:
        rows = (
            (
                (
                    _PROTOCOL,
                    request_name(kind.code),
                    response_name(kind.response_code),
                    _flag(kind.is_held),
                    "oneway" if kind.is_one_way else "success",
                ),
                counts,
                round(total_ms, 3),
            )
            for kind, counts, total_ms in self._from.times.rows()
        )
        yield from self._histograms(table.REQUESTS, rows)
        ways = (((kind, way), count) for kind, way, count in self._from.ways.rows())
        yield from self._gauges(table.WAYS, ways)

    # The store and the timers.

    def _store_lines(self) -> Iterator[str]:
        store = self._from.store
        usage = shutil.disk_usage(self._from.store_root)
        yield from self._of_store(table.STORAGE_SIZE, usage.total - usage.free)
        yield from self._of_store(table.FLUSH_BEHIND, store.physical_end - store.flushed_end)
        yield from self._of_store(table.DISPATCH_BEHIND, store.physical_end - store.dispatched_end)
        damaged, scrubbed = store.damage.records, store.scrubber.counters
        yield from self._gauges(table.DAMAGED_RECORDS, [((), damaged.found_count)])
        yield from self._gauges(table.DAMAGED_SKIPS, [((), damaged.passed_over_count)])
        yield from self._gauges(table.SCRUBBED_BYTES, [((), scrubbed.bytes_checked)])
        yield from self._gauges(table.REPAIRED_ROWS, [((), scrubbed.repaired_rows)])
        if store.physical_end > store.physical_min:
            yield from self._of_store(table.RESERVE_TIME, self._age_ms(store.physical_min))

    def _of_store(self, metric: Metric, value: float | None) -> Iterator[str]:
        samples = [] if value is None else [((*table.STORE_LABELS.values(),), value)]
        return self._gauges(metric, samples)

    def _age_ms(self, physical_offset: int) -> int | None:
        """How long ago a message was stored; None if it would have to be read from the disk.

        Then it is being brought in for the next scrape.
        """
        try:
            record = self._from.attempt(lambda: self._from.store.record(physical_offset))
        except (NotInMemory, RecordDamaged):
            return None
        return max(0, self._from.clock.now_ms() - record.store_timestamp_ms)

    def _timer_lines(self) -> Iterator[str]:
        timers, labels = self._from.timers, (*table.STORE_LABELS.values(),)
        yield from self._of_store(table.TIMER_ENQUEUE_LAG, timers.behind_count)
        yield from self._of_store(table.TIMER_ENQUEUE_LATENCY, self._timer_behind_ms())
        yield from self._of_store(table.TIMER_DEQUEUE_LAG, timers.near_count)
        yield from self._of_store(table.TIMER_DEQUEUE_LATENCY, timers.read_behind_ms)
        waiting = timers.pending_by_topic().items()
        yield from self._gauges(table.TIMING, [((*labels, topic), n) for topic, n in waiting])
        totals = timers.totals
        for metric, counts in (
            (table.TIMER_ENQUEUED, totals.enqueued),
            (table.TIMER_DEQUEUED, totals.dequeued),
        ):
            samples = [
                ((*labels, topic.decode("utf-8", "replace")), n) for topic, n in counts.items()
            ]
            yield from self._gauges(metric, samples)
        horizons = timers.pending_by_horizon().items()
        bounds = [((*labels, str(bound_s)), count) for bound_s, count in horizons]
        yield from self._gauges(table.TIMER_SNAPSHOT, bounds)
        delays = [
            ((*labels, topic.decode("utf-8", "replace")), row[:-1], row[-1])
            for topic, row in totals.delays.items()
        ]
        yield from self._histograms(table.DELAYS, delays)

    def _timer_behind_ms(self) -> int | None:
        timers, store = self._from.timers, self._from.store
        if not timers.behind_count:
            return 0
        try:
            rows = self._from.attempt(lambda: store.rows(_TIMER_TOPIC, 0, timers.next_place, 1))
        except NotInMemory:
            return None
        return self._age_ms(rows[0].physical_offset) if rows else 0

    def _pop_lines(self) -> Iterator[str]:
        revive, now_ms = self._from.pops, self._from.clock.now_ms()
        rows = revive.redelivered_counts.items()
        yield from self._gauges(table.POP_REDELIVERIES, [(key, count) for key, count in rows])
        yield from self._gauges(table.POP_OVERDUE, [((), revive.overdue_ms(now_ms))])
        yield from self._gauges(table.POP_LOST, [((), revive.lost_count)])

    def _replication_lines(self) -> Iterator[str]:
        status = self._from.replication()
        if status is not None:
            broker_id = self._from.settings.config.broker_id
            for metric, samples in replication_samples(status, broker_id):
                yield from self._gauges(metric, samples)

    # Lags.

    def _lag_lines(self, lags: list[GroupLag]) -> Iterator[str]:
        now_ms, rows = self._from.clock.now_ms(), []
        for lag in lags:
            rows.append((self._lag_values(lag), lag))
            yield ""
        counts: tuple[tuple[Metric, Callable[[GroupLag], int]], ...] = (
            (table.LAG, lambda lag: lag.lag_count),
            (table.IN_FLIGHT, lambda lag: lag.in_flight_count),
            (table.READY, lambda lag: lag.ready_count),
        )
        for metric, count in counts:
            yield from self._gauges(metric, ((values, count(lag)) for values, lag in rows))
        since: tuple[tuple[Metric, Callable[[GroupLag], int | None]], ...] = (
            (table.LAG_LATENCY, lambda lag: lag.unconsumed_since_ms),
            (table.QUEUEING_LATENCY, lambda lag: lag.unpulled_since_ms),
        )
        for metric, since_ms in since:
            ages = ((values, _age(since_ms(lag), now_ms)) for values, lag in rows)
            yield from self._gauges(
                metric, ((values, age) for values, age in ages if age is not None)
            )
        if self._from.settings.config.queue_lag_metrics:
            yield from self._gauges(table.QUEUE_LAG, self._queue_samples(rows))

    def _queue_samples(self, rows: list[tuple[Values, GroupLag]]) -> Samples:
        broker = self._from.settings.config.broker_name
        for values, lag in rows:
            for queue_id, count in enumerate(lag.by_queue):
                yield (*values, str(queue_id), broker), count

    def _lag_values(self, lag: GroupLag) -> Values:
        return lag.group, lag.topic, "false", _flag(self._is_system(lag.topic, lag.group))


def _client(channel: ClientChannel) -> tuple[str, str]:
    name = client_version_name(channel.version)
    # Releases before 4.0.0 share a label: there are none but by accident, and each would be a row.
    return channel.language.lower(), "v3" if name.startswith("V3") else name.lower()


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _age(since_ms: int | None, now_ms: int) -> int | None:
    return since_ms if not since_ms else max(0, now_ms - since_ms)


def _is_system_group(group: str) -> bool:
    return group.lower().startswith(_SYSTEM_GROUP_PREFIX)


def _by_topic(counts: Mapping[str, int]) -> list[tuple[Values, float]]:
    return [((topic,), count) for topic, count in counts.items()]

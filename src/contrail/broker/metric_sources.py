"""The parts of a broker that its metrics are read from, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contrail.broker.message_kinds import MessageKinds
from contrail.broker.services.creation_times import CreationTimes
from contrail.broker.services.far_reads import FarReads
from contrail.broker.services.lag_metrics import LagLooks
from contrail.broker.services.metrics import BrokerMetrics, MetricSources
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.broker.tables import Tables
from contrail.clock import Clock
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.store import MessageStore, StoreConfig
from contrail.wire.request_times import RequestTimes


def broker_metrics(
    *,
    tables: Tables,
    store: MessageStore,
    store_config: StoreConfig,
    stats: BrokerStats,
    kinds: MessageKinds,
    far_reads: FarReads,
    ways: Ways,
    creations: CreationTimes,
    times: RequestTimes,
    clock: Clock,
    work_sizes: Callable[[], Mapping[str, int]],
    replication: Callable[[], HaStatus | None],
) -> BrokerMetrics:
    """The metrics of a broker with these parts."""
    lags = LagLooks(
        store,
        tables.consumer_offsets,
        tables.consumers,
        groups=lambda: list(tables.groups.table.groups),
        topic=tables.topics.table.get,
        attempt=far_reads.attempt,
        popped=kinds.pop.pops.table.in_flight,
    )
    return BrokerMetrics(
        MetricSources(
            settings=tables.settings,
            stats=stats,
            store=store,
            store_root=store_config.root,
            producers=tables.producers,
            consumers=tables.consumers,
            timers=kinds.timers,
            timers_enabled=store_config.timer_enabled,
            transactions=kinds.open_transactions,
            creations=creations,
            ways=ways,
            times=times,
            lags=lags,
            pops=kinds.pop.revive,
            attempt=far_reads.attempt,
            clock=clock,
            topic_count=lambda: len(tables.topics.table.topics),
            group_count=lambda: len(tables.groups.table.groups),
            is_system_topic=tables.topics.is_system,
            work_sizes=work_sizes,
            replication=replication,
        )
    )

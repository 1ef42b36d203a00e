"""The metrics of brokers that take part in replication, and their samples.

``docs/reference/metrics.md`` lists the same; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from contrail.protocol.bodies.ha_status import (
    ACTS_AS_MASTER,
    GROUP_ROLES,
    UNKNOWN_MS,
    HaStatus,
    SlaveLink,
)
from contrail.protocol.prometheus_text import Metric, MetricKind

Samples = list[tuple[tuple[str, ...], float]]

_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER
# The phase of a slave that has diverged, and the state of one that its master sends the log to.
_DIVERGED, _RECEIVING = "DIVERGED", "receiving"

ROLE = Metric(
    "contrail_replication_role", _GAUGE, "1 for the role of this broker", ("role", "broker_id")
)
LOG_END = Metric("contrail_replication_log_end_bytes", _GAUGE, "Where the log of this broker ends")
ACKNOWLEDGED = Metric(
    "contrail_replication_acknowledged_end_bytes",
    _GAUGE,
    "Up to here a master acknowledged sends, and a slave told its master that it has the log",
)
SLAVES = Metric("contrail_replication_slaves", _GAUGE, "Slaves that receive the log of this master")
IN_SYNC = Metric(
    "contrail_replication_in_sync_replicas", _GAUGE, "Brokers in sync, this master among them"
)
REQUIRED = Metric(
    "contrail_replication_required_replicas",
    _GAUGE,
    "Brokers that must have a message before it is acknowledged, this master among them",
)
SLAVE_ACKNOWLEDGED = Metric(
    "contrail_replication_slave_acknowledged_end_bytes",
    _GAUGE,
    "Up to here a slave has the log of this master",
    ("slave",),
)
SLAVE_LAG_BYTES = Metric(
    "contrail_replication_slave_lag_bytes", _GAUGE, "Bytes of the log a slave lacks", ("slave",)
)
SLAVE_LAG_MS = Metric(
    "contrail_replication_slave_lag_milliseconds",
    _GAUGE,
    "How long a slave has lacked the first of them",
    ("slave",),
)
REFUSALS = Metric(
    "contrail_replication_refusals_total",
    _COUNTER,
    "Links of slaves that this master ended",
    ("reason",),
)
CONNECTED = Metric(
    "contrail_replication_connected", _GAUGE, "1 while this slave receives its master's log"
)
DIVERGED = Metric(
    "contrail_replication_diverged",
    _GAUGE,
    "1 when this slave's log is not a part of its master's: it writes nothing more",
)
ACTING = Metric(
    "contrail_replication_acting",
    _GAUGE,
    "1 while this slave does the work of its master, which is away",
)
TERM = Metric(
    "contrail_replication_term",
    _GAUGE,
    "The term of this member of a failover group: it rises with each election",
)
CLOCK_SKEW = Metric(
    "contrail_replication_clock_skew_milliseconds",
    _GAUGE,
    "How far the clock of another member of the failover group is ahead of this broker's",
    ("member",),
)

REPLICATION_METRICS = (
    ROLE,
    LOG_END,
    ACKNOWLEDGED,
    SLAVES,
    IN_SYNC,
    REQUIRED,
    SLAVE_ACKNOWLEDGED,
    SLAVE_LAG_BYTES,
    SLAVE_LAG_MS,
    REFUSALS,
    CONNECTED,
    DIVERGED,
    ACTING,
    TERM,
    CLOCK_SKEW,
)


def replication_samples(status: HaStatus, broker_id: int) -> Iterator[tuple[Metric, Samples]]:
    """Every metric of a broker that takes part in replication, with its samples."""
    yield ROLE, [((status.role, str(broker_id)), 1)]
    yield LOG_END, [((), status.physical_end)]
    yield ACKNOWLEDGED, [((), status.acknowledged_end)]
    yield from _of_master(status) if status.is_master else _of_slave(status)
    if status.role in GROUP_ROLES:
        yield TERM, [((), status.term)]
        skews = sorted(status.clock_skews_ms.items())
        yield CLOCK_SKEW, [((member,), skew_ms) for member, skew_ms in skews]


def _of_master(status: HaStatus) -> Iterator[tuple[Metric, Samples]]:
    # A slave that has only connected yet has no place in the log.
    slaves = [one for one in status.slaves if one.state == _RECEIVING]
    yield SLAVES, [((), len(slaves))]
    yield IN_SYNC, [((), 1 + status.in_sync_slaves)]
    yield REQUIRED, [((), status.required_replicas)]
    named = {_name(one): one for one in slaves}
    yield (
        SLAVE_ACKNOWLEDGED,
        [((name,), one.acknowledged_end) for name, one in named.items()],
    )
    yield SLAVE_LAG_BYTES, [((name,), one.lag_bytes) for name, one in named.items()]
    times: Samples = [
        ((name,), one.lag_ms) for name, one in named.items() if one.lag_ms != UNKNOWN_MS
    ]
    yield SLAVE_LAG_MS, times
    refusals = sorted(status.refusals.items())
    yield REFUSALS, [((reason,), count) for reason, count in refusals]


def _of_slave(status: HaStatus) -> Iterator[tuple[Metric, Samples]]:
    yield CONNECTED, [((), int(status.master.is_active))]
    if status.role not in GROUP_ROLES:
        yield DIVERGED, [((), int(status.master.state == _DIVERGED))]
        yield ACTING, [((), int(status.acting == ACTS_AS_MASTER))]


def _name(slave: SlaveLink) -> str:
    """Its broker id; slaves of Apache do not tell theirs."""
    return slave.address if slave.broker_id is None else str(slave.broker_id)

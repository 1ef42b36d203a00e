"""A look at all topics and groups of a cluster: the figures of each broker, by one request or few.

Brokers that know no ``LIST_FIGURES`` are asked for their tables of topics (21) and groups (201) and
for the progress of all groups (317). They tell neither members nor, of queues that no group has
consumed, the ends: what is not told is unknown, never 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from contrail.client.admin import Admin
from contrail.client.admin_values import BrokerAddress, GroupLag
from contrail.errors import ClientError, SomeFailed
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.figures import Figures

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The figures of the masters of a cluster, by broker name.

    ``failed`` has the error of each broker that did not answer; of the brokers in ``tables_only``
    members, timers and half messages are unknown.
    """

    figures: Mapping[str, Figures]
    failed: Mapping[str, ClientError] = field(default_factory=dict)
    tables_only: frozenset[str] = frozenset()

    def require_one(self) -> None:
        """Raises ``ClientError`` when no broker answered: the only error, or all by their names."""
        if self.figures or not self.failed:
            return
        first = next(iter(self.failed.values()))
        if len(set(map(str, self.failed.values()))) == 1:
            raise first
        told = "; ".join(f"{name}: {error}" for name, error in self.failed.items())
        raise SomeFailed(
            f"no broker answered: {told}", failures=dict(self.failed), partial=self.figures
        )

    @property
    def knows_members(self) -> bool:
        return not self.tables_only


async def look(admin: Admin, *, cluster: str | None = None) -> ClusterLook:
    """Look at every master.

    Raises:
        NameServerUnreachable: no NameServer tells the brokers.
        BrokerUnknown: there is no such cluster.
    """
    brokers = [one for one in await admin.brokers(cluster=cluster) if one.is_master]
    found, failed = await _figures(admin, cluster, brokers)
    figures = {name: told for name, told in found.items() if told is not None}
    others = [one for one in brokers if one.broker_name in found.keys() - figures.keys()]
    tables = await asyncio.gather(*(_from_tables(admin, one) for one in others))
    for broker, told in zip(others, tables, strict=True):
        if isinstance(told, Figures):
            figures[broker.broker_name] = told
        else:
            failed[broker.broker_name] = told
    # In the order of the brokers, whatever they answer.
    names = [one.broker_name for one in brokers if one.broker_name in figures]
    return ClusterLook(
        {name: figures[name] for name in names},
        failed,
        frozenset(one.broker_name for one in others) - failed.keys(),
    )


async def _figures(
    admin: Admin, cluster: str | None, brokers: list[BrokerAddress]
) -> tuple[dict[str, Figures | None], dict[str, ClientError]]:
    try:
        return await admin.figures(cluster=cluster), {}
    except SomeFailed as error:
        partial: dict[str, Figures | None] = error.partial  # type: ignore[assignment]
        return partial, dict(error.failures)
    except ClientError as error:
        # All of them, for the same reason.
        return {}, {one.broker_name: error for one in brokers}


async def _from_tables(admin: Admin, broker: BrokerAddress) -> Figures | ClientError:
    """The figures that a broker without ``LIST_FIGURES`` tells, or the error."""
    try:
        configs, groups, lags = await asyncio.gather(
            admin.topic_configs(broker.address),
            admin.group_configs(broker=broker.address),
            admin.lags(broker=broker.address),
        )
    except ClientError as error:
        return error
    (of_broker,) = groups.values()
    return figures_of_tables(broker.broker_name, configs, of_broker, lags)


def figures_of_tables(
    broker_name: str,
    configs: Mapping[str, TopicConfig],
    groups: Mapping[str, SubscriptionGroupConfig],
    lags: Mapping[str, GroupLag],
) -> Figures:
    """A broker's tables and progress as columns; ends of queues nobody consumed are unknown."""
    names = [*groups, *(name for name in lags if name not in groups)]
    topics = list(configs.values())
    figures = Figures(
        broker_name=broker_name,
        settings_count=len(groups),
        timers=UNKNOWN,
        halves=UNKNOWN,
        topics=[one.topic for one in topics],
        read_queues=[one.read_queue_count for one in topics],
        write_queues=[one.write_queue_count for one in topics],
        perms=[int(one.perm) for one in topics],
        put_rates=[float(UNKNOWN)] * len(topics),
        groups=names,
        consume_types=[UNKNOWN] * len(names),
        message_models=[UNKNOWN] * len(names),
        member_counts=[0] * len(names),
    )
    counts = figures.queue_counts
    figures.queue_mins = [UNKNOWN] * sum(counts)
    figures.queue_maxs = [UNKNOWN] * sum(counts)
    places = {one.topic: place for place, one in enumerate(topics)}
    for place, name in enumerate(names):
        if name in lags:
            _add_lag(figures, place, lags[name], places)
    return figures


def _add_lag(figures: Figures, group: int, lag: GroupLag, places: Mapping[str, int]) -> None:
    counts, spans = figures.queue_counts, figures.queue_spans()
    by_topic: dict[int, list[int]] = {}
    for one in lag.queues:
        topic = places.get(one.queue.topic)
        if topic is None or one.queue.queue_id >= counts[topic]:
            # The topic was made or changed between the answers.
            continue
        offsets = by_topic.setdefault(topic, [UNKNOWN] * counts[topic])
        offsets[one.queue.queue_id] = one.consumer_offset
        figures.queue_maxs[spans[topic][0] + one.queue.queue_id] = one.broker_offset
    for topic, offsets in by_topic.items():
        figures.pair_groups.append(group)
        figures.pair_topics.append(topic)
        figures.pair_wanted.append(1)
        # The broker tells one rate for all topics of a group.
        first = topic == next(iter(by_topic))
        figures.pair_rates.append(lag.consumed_per_second if first else 0.0)
        figures.offsets += offsets

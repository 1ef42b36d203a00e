"""Facts of a cluster, a topic and a group, from which findings are made.

None, or an empty table, where no server could be asked: an unknown fact is never a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from contrail.client.admin_values import (
    BrokerAddress,
    BrokerRuntime,
    ClientConnection,
    GroupConnections,
    GroupLag,
    OpenTransaction,
    QueueStats,
    TopicStats,
)
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import RETRY_PREFIX, Perm, TopicConfig
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.protocol.bodies.heartbeat import ConsumeType, MessageModel
from contrail.protocol.bodies.in_flight import InFlight
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.bodies.running_info import ConsumerRunningInfo
from contrail.protocol.json_style import MessageQueue


class Reach(Enum):
    """How a connection to an address ended."""

    OPEN = "open"
    # The host answers, and nothing listens at that port.
    REFUSED = "refused"
    # No answer at all: no such host, no route to it, or a firewall in between.
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A broker as a NameServer names it, and as this machine finds it."""

    broker: BrokerAddress
    reach: Reach
    # The error of connecting, or of the first request.
    error: str = ""
    runtime: BrokerRuntime | None = None
    # Between the question and the answer, by the clock of this machine.
    asked_at_ms: int = 0
    # The permission of the same topic by the NameServer, and by the broker itself.
    routed_perm: int | None = None
    own_perm: int | None = None
    # The broker's setting brokerPermission, which narrows all of its topics.
    broker_permission: int | None = None
    transactions: tuple[OpenTransaction, ...] = ()
    # None of a broker that takes part in no replication.
    replication: HaStatus | None = None
    # Whether it answered a question that nobody signed, over an open wire.
    takes_unsigned: bool = False


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """All servers. ``known_by`` has each NameServer's own list of brokers, None for one away."""

    namesrv: tuple[str, ...]
    brokers: tuple[BrokerFacts, ...] = ()
    known_by: Mapping[str, frozenset[str] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic. ``route`` is None when no broker has it."""

    topic: str
    route: TopicRouteData | None
    # The masters of the clusters in which it is.
    masters: tuple[BrokerAddress, ...] = ()
    configs: Mapping[str, TopicConfig] = field(default_factory=dict)
    stats: TopicStats | None = None
    # The tags of the newest messages, and how many there are of each; "" for none.
    tags: Mapping[str, int] = field(default_factory=dict)

    def perm(self, broker_name: str) -> int:
        """The topic's settings on the broker, else its route."""
        if broker_name in self.configs:
            return int(self.configs[broker_name].perm)
        queues = () if self.route is None else self.route.queues
        return next((one.perm for one in queues if one.broker_name == broker_name), 0)

    def readable_queues(self) -> list[MessageQueue]:
        """The queues that a group's members share among themselves."""
        queues = () if self.route is None else self.route.queues
        return [
            MessageQueue(self.topic, one.broker_name, queue_id)
            for one in queues
            if one.perm & Perm.READ
            for queue_id in range(one.read_queue_count)
        ]

    def reach_of(self, queue: MessageQueue) -> QueueStats | None:
        entries = () if self.stats is None else self.stats.queues
        return next((one for one in entries if one.queue == queue), None)


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A member of a group, and its running info at two moments; None where it sent none."""

    connection: ClientConnection
    before: ConsumerRunningInfo | None = None
    after: ConsumerRunningInfo | None = None

    @property
    def client_id(self) -> str:
        return self.connection.client_id

    @property
    def message_model(self) -> str | None:
        return self._property("messageModel", "message_model")

    @property
    def is_orderly(self) -> bool:
        return self._property("PROP_CONSUMEORDERLY") == "true"

    def _property(self, *names: str) -> str | None:
        known = {} if self.after is None else self.after.properties
        return next((known[name] for name in names if name in known), None)


@dataclass(frozen=True, slots=True)
class RetriedMessage:
    """A message of a group's retry topic: where it comes from and how often it failed."""

    topic: str
    message_id: str
    reconsume_times: int
    stored_ms: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group, looked at twice, ``watched_ms`` apart."""

    group: str
    # Whether the command line names this group.
    is_named: bool
    now_ms: int
    watched_ms: int
    configs: Mapping[str, SubscriptionGroupConfig]
    connections: GroupConnections
    before: GroupLag
    after: GroupLag
    members: tuple[MemberFacts, ...] = ()
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    # The lag on topics where the group has offsets and to which no member subscribes.
    unwanted: Mapping[str, int] = field(default_factory=dict)
    dead_letters: TopicStats | None = None
    retried: tuple[RetriedMessage, ...] = ()
    # Popped messages that come again first, of each broker.
    in_flight: tuple[InFlight, ...] = ()

    @property
    def is_broadcasting(self) -> bool:
        """Whether members keep their offsets locally: brokers cannot know the lag."""
        return self.connections.message_model == MessageModel.BROADCASTING.value

    @property
    def is_push(self) -> bool:
        """Whether members share queues among themselves; others choose their own, or pop."""
        return self.connections.consume_type == ConsumeType.CONSUME_PASSIVELY.value

    @property
    def everybody_told(self) -> bool:
        return bool(self.members) and all(one.after is not None for one in self.members)

    def lag_by_topic(self) -> dict[str, int]:
        """The lag of the topics it consumes; retries have findings of their own."""
        return {
            topic: lag
            for topic, lag in self.after.by_topic.items()
            if not topic.startswith(RETRY_PREFIX)
        }

    def lag_of(self, queue: MessageQueue) -> int:
        return next((one.lag for one in self.after.queues if one.queue == queue), 0)

    def owner_of(self, queue: MessageQueue) -> MemberFacts | None:
        return next(
            (one for one in self.members if one.after is not None and queue in one.after.queues),
            None,
        )

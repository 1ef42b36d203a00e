"""``Admin`` without ``await``. Made by scripts/make_blocking_twins.py, not by hand."""

from __future__ import annotations

from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Literal

from contrail.client.admin import Admin as _Twin
from contrail.client.admin_in_flight import InFlightPage
from contrail.client.admin_many_topics import (
    QueueAnswers,
    Range,
)
from contrail.client.admin_messages import (
    _LONG_MAX,
    KEY_COUNT_MAX,
    TimerCounts,
)
from contrail.client.admin_values import (
    BrokerAddress,
    BrokerRuntime,
    GroupConnections,
    GroupLag,
    Moment,
    ProducerGroup,
    TopicStats,
    TransactionPage,
)
from contrail.client.blocking.client import BlockingClient
from contrail.client.message import ReceivedMessage
from contrail.client.pulling import PullResult
from contrail.client.subscriptions import Sql92
from contrail.errors import (
    BrokerRefused,
)
from contrail.model.group import (
    SubscriptionGroupConfig,
)
from contrail.model.subscription import ALL_TAGS, SubscriptionData
from contrail.model.topic import (
    Perm,
    TopicConfig,
)
from contrail.protocol.bodies.consume_stats import (
    QueueTimeSpan,
)
from contrail.protocol.bodies.figures import Figures
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.protocol.bodies.routes import ClusterInfo, TopicRouteData
from contrail.protocol.bodies.running_info import (
    ConsumedDirectly,
    ConsumerRunningInfo,
)
from contrail.protocol.bodies.stats import StatItem
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import MessageQueue


class AdminCalls(BlockingClient[_Twin]):
    """Every coroutine of ``contrail.client.admin.Admin`` as a call that waits."""

    def in_flight(
        self, group: str, topic: str | None = None, *, count_max: int = 100
    ) -> list[InFlightPage]:
        """A group's messages in flight, broker by broker; only Contrail's brokers list them.

        Raises:
            ClientError: no broker of the cluster lists them.
        """
        return self._run(self._twin.in_flight, group, topic, count_max=count_max)

    def ack_in_flight(self, group: str, handle: str) -> None:
        """Acknowledge a message for its consumer: it does not come again.

        Raises:
            ClientError: the handle is none.
            BrokerRefused: it names no message in flight.
        """
        return self._run(self._twin.ack_in_flight, group, handle)

    def return_in_flight(self, group: str, handle: str) -> None:
        """Let the group's other members have a message now; raises like ``ack_in_flight``."""
        return self._run(self._twin.return_in_flight, group, handle)

    def brokers(self, *, cluster: str | None = None) -> list[BrokerAddress]:
        """Every broker, replicas too, by cluster and name."""
        return self._run(self._twin.brokers, cluster=cluster)

    def broker_runtime(self, broker: str) -> BrokerRuntime:
        """A broker's runtime info; ``broker`` is its name or address here and below."""
        return self._run(self._twin.broker_runtime, broker)

    def broker_runtimes(
        self, *, cluster: str | None = None, allow_partial: bool = False
    ) -> dict[str, BrokerRuntime]:
        """The runtime info of all masters by name, and of replicas by address."""
        return self._run(self._twin.broker_runtimes, cluster=cluster, allow_partial=allow_partial)

    def figures(
        self, *, cluster: str | None = None, allow_partial: bool = False
    ) -> dict[str, Figures | None]:
        """The figures of all topics and groups with one request to each broker, by broker name.

        None for a broker that does not tell them: Apache's, and Contrail's of older releases.
        """
        return self._run(self._twin.figures, cluster=cluster, allow_partial=allow_partial)

    def replication_status(self, broker: str) -> HaStatus:
        """How replication stands, as a master or one of its slaves tells it."""
        return self._run(self._twin.replication_status, broker)

    def broker_stats(self, broker: str, stat: str, key: str) -> StatItem:
        """A stat item, such as ``TOPIC_PUT_NUMS`` of a topic; refused until there was traffic."""
        return self._run(self._twin.broker_stats, broker, stat, key)

    def broker_config(self, broker: str) -> dict[str, str]:
        """A broker's settings under RocketMQ's names."""
        return self._run(self._twin.broker_config, broker)

    def update_broker_config(
        self, settings: Mapping[str, str], *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Change settings of one broker or of all masters of a cluster; returns their names.

        Raises:
            ConfigError: neither a broker nor a cluster is named.
            SomeFailed: not every broker took them.
        """
        return self._run(self._twin.update_broker_config, settings, broker=broker, cluster=cluster)

    def wipe_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take a broker's write permission from its routes; returns topics changed, by NameServer.

        Producers then send to other brokers, until this broker registers its topics with other
        settings.

        Raises:
            SomeFailed: some NameServers failed.
        """
        return self._run(self._twin.wipe_write_perm, broker_name)

    def add_write_perm(self, broker_name: str) -> dict[str, int]:
        """Take ``wipe_write_perm`` back.

        Raises:
            SomeFailed: some NameServers failed.
        """
        return self._run(self._twin.add_write_perm, broker_name)

    def producers(
        self, *, cluster: str | None = None, allow_partial: bool = False
    ) -> list[ProducerGroup]:
        """Every producer group with the clients that produce for it now."""
        return self._run(self._twin.producers, cluster=cluster, allow_partial=allow_partial)

    def producer_connections(
        self, group: str, topic: str, *, allow_partial: bool = False
    ) -> ProducerGroup:
        """The producers of a group that are connected to the brokers of a topic; may be empty."""
        return self._run(self._twin.producer_connections, group, topic, allow_partial=allow_partial)

    def clean_expired_queues(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have index files removed whose messages are gone; returns the brokers' names."""
        return self._run(self._twin.clean_expired_queues, cluster=cluster, broker=broker)

    def clean_unused_topics(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have the data of topics removed that have no settings any more."""
        return self._run(self._twin.clean_unused_topics, cluster=cluster, broker=broker)

    def delete_expired_segments(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Have expired messages removed now, not only at ``deleteWhen``."""
        return self._run(self._twin.delete_expired_segments, cluster=cluster, broker=broker)

    def namesrv_config(self) -> dict[str, dict[str, str]]:
        """Every NameServer's settings, by address."""
        return self._run(
            self._twin.namesrv_config,
        )

    def update_namesrv_config(self, settings: Mapping[str, str]) -> None:
        """Change settings of every NameServer.

        Raises:
            SomeFailed: some NameServers did not take them.
        """
        return self._run(self._twin.update_namesrv_config, settings)

    def kv_get(self, namespace: str, key: str) -> str | None:
        """A value of the NameServers' table."""
        return self._run(self._twin.kv_get, namespace, key)

    def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace of the NameServers' table."""
        return self._run(self._twin.kv_list, namespace)

    def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Set a value on every NameServer; raises ``SomeFailed`` when one did not take it."""
        return self._run(self._twin.kv_put, namespace, key, value)

    def kv_delete(self, namespace: str, key: str) -> None:
        """Remove a value from every NameServer; one that is not there is no error."""
        return self._run(self._twin.kv_delete, namespace, key)

    def message(self, topic: str, message_id: str) -> ReceivedMessage | None:
        """The message with an id of either kind: the producer's, or the broker's offset id.

        None when no broker of the topic has it.
        """
        return self._run(self._twin.message, topic, message_id)

    def message_by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """The message at the physical offset that an offset id names.

        Raises:
            MessageIllegal: it is no offset id.
            MessageDamaged: the message there is damaged.
            BrokerRefused: no message is there.
        """
        return self._run(self._twin.message_by_offset_id, offset_message_id)

    def messages_by_unique_key(
        self,
        topic: str,
        message_id: str,
        *,
        begin: Moment = 0,
        end: Moment = _LONG_MAX,
        allow_partial: bool = False,
    ) -> list[ReceivedMessage]:
        """The messages that carry a producer's id, oldest first; a retried send may be there twice.

        Raises:
            MessageDamaged: some are damaged; it has the sound ones. With ``allow_partial`` only
                if none is sound.
            SomeFailed: not every broker answered.
        """
        return self._run(
            self._twin.messages_by_unique_key,
            topic,
            message_id,
            begin=begin,
            end=end,
            allow_partial=allow_partial,
        )

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = KEY_COUNT_MAX,
        begin: Moment = 0,
        end: Moment = _LONG_MAX,
        allow_partial: bool = False,
    ) -> list[ReceivedMessage]:
        """The newest messages of a topic with a key, stored within a time, oldest first.

        Brokers return 64 at most for one key; narrow the time to see others.

        Raises:
            MessageDamaged: some are damaged; it has the sound ones. With ``allow_partial`` only
                if none is sound.
            SomeFailed: not every broker answered.
        """
        return self._run(
            self._twin.messages_by_key,
            topic,
            key,
            count_max=count_max,
            begin=begin,
            end=end,
            allow_partial=allow_partial,
        )

    def message_at(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage:
        """The message at a queue offset.

        Raises:
            MessageDamaged: the message there is damaged.
            OffsetIllegal: no message is there.
        """
        return self._run(self._twin.message_at, queue, queue_offset)

    def messages_from(
        self, queue: MessageQueue, queue_offset: int, count_max: int = 32
    ) -> list[ReceivedMessage]:
        """Messages of a queue from a queue offset on: as many as one answer holds.

        At most ``count_max``; empty at the end of the queue, and where the messages are deleted.
        """
        return self._run(self._twin.messages_from, queue, queue_offset, count_max)

    def browse(
        self,
        queue: MessageQueue,
        *,
        start: int | None = None,
        end: int | None = None,
        batch: int = 32,
    ) -> Iterator[ReceivedMessage]:
        """The messages of a queue from ``start`` to before ``end``, without any group noticing.

        By default from the oldest message to the end of the queue at the start of browsing.

        Raises:
            ClientError: the broker does not get past an offset before the end, such as that of a
                damaged record.
        """
        return self._iterate(self._twin.browse(queue, start=start, end=end, batch=batch))

    def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        count_max: int = 32,
        expression: str | Sql92 = ALL_TAGS,
        *,
        wait_ms: int = 0,
    ) -> PullResult:
        """Ask once for messages that pass a filter, without any group noticing.

        With ``wait_ms`` the broker waits that long for a message. See ``check_expression`` for
        SQL92.

        Raises:
            BrokerRefused: the broker does not filter, or not by this expression.
        """
        return self._run(
            self._twin.pull, queue, queue_offset, count_max, expression, wait_ms=wait_ms
        )

    def check_expression(self, topic: str, expression: str | Sql92) -> None:
        """Have a topic's brokers check a filter: Apache's ignore an invalid SQL92 in a pull.

        Raises:
            BrokerRefused: a broker refuses the filter; the message says why.
            RouteMissing: no broker has the topic.
        """
        return self._run(self._twin.check_expression, topic, expression)

    def send_back(self, group: str, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Have a group consume a message again, through its retry topic.

        ``delay_level`` 0 lets the broker choose by the retry count, -1 makes the message a dead
        letter.
        """
        return self._run(self._twin.send_back, group, message, delay_level=delay_level)

    def consume_directly(
        self, group: str, client_id: str, message: ReceivedMessage
    ) -> ConsumedDirectly:
        """Have one member consume a message now, outside of its queue, and return the result."""
        return self._run(self._twin.consume_directly, group, client_id, message)

    def timer_counts(
        self, *, cluster: str | None = None, allow_partial: bool = False
    ) -> dict[str, TimerCounts]:
        """How many timed messages wait, by broker name; delay levels are not counted by brokers.

        Raises:
            SomeFailed: not every broker answered.
        """
        return self._run(self._twin.timer_counts, cluster=cluster, allow_partial=allow_partial)

    def recall_timer(self, recall_handle: str) -> bool:
        """Have a broker drop a message that waits for its time, by its recall handle.

        A producer needs the handle that the broker gave it; operators may build one. False where
        the broker, as Apache's, recalls by ``Producer.recall`` only.

        Raises:
            MessageIllegal: the handle is invalid.
            BrokerRefused: too late, or the broker does not recall; the message says which.
        """
        return self._run(self._twin.recall_timer, recall_handle)

    def resume_check_half(self, topic: str, offset_message_id: str) -> None:
        """Have a half message checked again that the broker gave up after too many checks.

        Raises:
            MessageIllegal: the id is no offset id.
            BrokerRefused: no half message is there.
        """
        return self._run(self._twin.resume_check_half, topic, offset_message_id)

    def transactions(self, broker: str, *, first: int = 0, count_max: int = 100) -> TransactionPage:
        """Open transactions of a Contrail broker, oldest first; Apache's brokers list none."""
        return self._run(self._twin.transactions, broker, first=first, count_max=count_max)

    def commit_transaction(self, broker: str, transaction_id: str) -> None:
        """Decide an open transaction of a Contrail broker: its message becomes visible."""
        return self._run(self._twin.commit_transaction, broker, transaction_id)

    def roll_back_transaction(self, broker: str, transaction_id: str) -> None:
        """Decide an open transaction of a Contrail broker: its message is dropped."""
        return self._run(self._twin.roll_back_transaction, broker, transaction_id)

    def queues_of_topics(self, topics: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """``queues`` of each topic; topics without a route are left out.

        Raises:
            NameServerUnreachable: no NameServer answered.
        """
        return self._run(self._twin.queues_of_topics, topics)

    def queue_ranges(self, queues: Iterable[MessageQueue]) -> QueueAnswers[Range]:
        """The smallest and the next offset of each queue.

        Queues of topics that a broker no longer has are left out.

        Raises:
            NameServerUnreachable: no NameServer answered.
        """
        return self._run(self._twin.queue_ranges, queues)

    def search_offsets_of(
        self,
        queues: Iterable[MessageQueue],
        moment: Moment,
        *,
        boundary: Literal["lower", "upper"] = "lower",
    ) -> QueueAnswers[int]:
        """``search_offset`` of each queue."""
        return self._run(self._twin.search_offsets_of, queues, moment, boundary=boundary)

    def committed_of(self, group: str, queues: Iterable[MessageQueue]) -> QueueAnswers[int | None]:
        """``committed`` of each queue."""
        return self._run(self._twin.committed_of, group, queues)

    def commit_offsets_of(
        self, group: str, consumer_offsets: Mapping[MessageQueue, int]
    ) -> QueueAnswers[BrokerRefused | None]:
        """``commit_offset`` of each queue; the refusal of each queue that a broker refuses."""
        return self._run(self._twin.commit_offsets_of, group, consumer_offsets)

    def lag(
        self,
        group: str,
        topic: str | None = None,
        *,
        cluster: str | None = None,
        allow_partial: bool = False,
    ) -> GroupLag:
        """How far a group is behind on each queue of a topic, or of all topics it consumes.

        A queue without a committed offset counts from its beginning. Empty for a group that never
        committed an offset.

        Raises:
            ClientError: no broker knows the group.
            SomeFailed: not every broker answered.
        """
        return self._run(self._twin.lag, group, topic, cluster=cluster, allow_partial=allow_partial)

    def lags(
        self, *, cluster: str | None = None, broker: str | None = None, allow_partial: bool = False
    ) -> dict[str, GroupLag]:
        """The lag of every group, with one request to each broker, or on one ``broker``."""
        return self._run(
            self._twin.lags, cluster=cluster, broker=broker, allow_partial=allow_partial
        )

    def group_topics(
        self, group: str, *, cluster: str | None = None, allow_partial: bool = False
    ) -> list[str]:
        """The topics on which a group has offsets, its retry topic included."""
        return self._run(
            self._twin.group_topics, group, cluster=cluster, allow_partial=allow_partial
        )

    def consume_time_spans(
        self, group: str, topic: str, *, allow_partial: bool = False
    ) -> list[QueueTimeSpan]:
        """The oldest and newest store time of each queue, and that of the last consumed message."""
        return self._run(self._twin.consume_time_spans, group, topic, allow_partial=allow_partial)

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """A group's offset on a queue; None where it has none."""
        return self._run(self._twin.committed, group, queue)

    def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """``committed`` for all queues of a topic."""
        return self._run(self._twin.committed_offsets, group, topic)

    def commit_offset(self, group: str, queue: MessageQueue, consumer_offset: int) -> None:
        """Write a group's offset as a member would; members that are online overwrite it."""
        return self._run(self._twin.commit_offset, group, queue, consumer_offset)

    def reset_to_time(
        self, group: str, topic: str, moment: Moment, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Move a group to the first message stored at or after a time, on all queues of a topic.

        Without ``force`` a queue whose group is already before that time stays where it is, on
        brokers that leave the decision to clients. Works for groups on line and off line.

        Raises:
            SomeFailed: not every broker did it.
        """
        return self._run(self._twin.reset_to_time, group, topic, moment, force=force)

    def reset_to_begin(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Have a group consume all stored messages again."""
        return self._run(self._twin.reset_to_begin, group, topic)

    def skip_to_end(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Have a group skip all messages stored until now."""
        return self._run(self._twin.skip_to_end, group, topic)

    def reset_to_offset(
        self, group: str, queue: MessageQueue, queue_offset: int
    ) -> dict[MessageQueue, int]:
        """Move a group to a queue offset of one queue.

        Raises:
            OffsetIllegal: the queue has no such offset.
            ClientError: the broker cannot do it while the group has members; the message says so.
        """
        return self._run(self._twin.reset_to_offset, group, queue, queue_offset)

    def clone_offsets(
        self, source: str, destination: str, topic: str, *, offline: bool = True
    ) -> dict[MessageQueue, int | None]:
        """Copy a group's progress on a topic to another group; returns the other group's offsets.

        Without ``offline`` only topics that ``source`` subscribes to at the moment are copied.

        Raises:
            SomeFailed: not every broker did it.
        """
        return self._run(self._twin.clone_offsets, source, destination, topic, offline=offline)

    def groups(
        self, *, cluster: str | None = None, internal: bool = False, allow_partial: bool = False
    ) -> list[str]:
        """The names of the consumer groups; with ``internal`` also the system's own."""
        return self._run(
            self._twin.groups, cluster=cluster, internal=internal, allow_partial=allow_partial
        )

    def group_configs(
        self, *, cluster: str | None = None, broker: str | None = None, allow_partial: bool = False
    ) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """The settings of all groups by broker name, then by group."""
        return self._run(
            self._twin.group_configs, cluster=cluster, broker=broker, allow_partial=allow_partial
        )

    def group_config(
        self, group: str, *, cluster: str | None = None, allow_partial: bool = False
    ) -> dict[str, SubscriptionGroupConfig]:
        """A group's settings, by the names of the brokers that have the group.

        Raises:
            ClientError: no broker has the group.
        """
        return self._run(
            self._twin.group_config, group, cluster=cluster, allow_partial=allow_partial
        )

    def create_group(
        self, group: str, *, cluster: str | None = None, broker: str | None = None, **settings: Any
    ) -> list[str]:
        """Create a group, or set all of its settings, on every master, a cluster's or one broker.

        ``settings`` are fields of ``SubscriptionGroupConfig``, such as ``retry_count_max=3`` or
        ``consume_enable=False``. Returns the brokers' names.

        Raises:
            ConfigError: the name or a setting is not allowed.
            SomeFailed: not every broker took it.
        """
        return self._run(self._twin.create_group, group, cluster=cluster, broker=broker, **settings)

    def update_group(
        self, group: str, *, cluster: str | None = None, broker: str | None = None, **settings: Any
    ) -> list[str]:
        """Change the given settings, and keep the others, on the brokers that have the group.

        Raises:
            ClientError: no broker has the group.
            SomeFailed: not every broker took it.
        """
        return self._run(self._twin.update_group, group, cluster=cluster, broker=broker, **settings)

    def delete_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        remove_offsets: bool = False,
        remove_topics: bool = False,
    ) -> None:
        """Delete a group's settings; if asked also its offsets, its retry and dead-letter topics.

        Raises:
            SomeFailed: not every broker did it.
        """
        return self._run(
            self._twin.delete_group,
            group,
            cluster=cluster,
            broker=broker,
            remove_offsets=remove_offsets,
            remove_topics=remove_topics,
        )

    def group_connections(
        self, group: str, *, cluster: str | None = None, allow_partial: bool = False
    ) -> GroupConnections:
        """The connected consumers of a group and their subscriptions; may be empty."""
        return self._run(
            self._twin.group_connections, group, cluster=cluster, allow_partial=allow_partial
        )

    def group_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The group's current subscription to a topic; None when no member subscribes to it."""
        return self._run(self._twin.group_subscription, group, topic)

    def running_info(
        self, group: str, client_id: str, *, jstack: bool = False
    ) -> ConsumerRunningInfo:
        """A member's own view: its settings, queues and rates; with ``jstack`` also its threads.

        Raises:
            ClientError: no broker knows that client in the group.
        """
        return self._run(self._twin.running_info, group, client_id, jstack=jstack)

    def consumer_status(
        self, group: str, topic: str, *, client_id: str = "", allow_partial: bool = False
    ) -> dict[str, dict[MessageQueue, int]]:
        """The consumer offsets that the group's members have in memory, by client id and queue."""
        return self._run(
            self._twin.consumer_status,
            group,
            topic,
            client_id=client_id,
            allow_partial=allow_partial,
        )

    def dead_letter_topic(self, group: str) -> str | None:
        """The topic of a group's dead letters, if it ever had any."""
        return self._run(self._twin.dead_letter_topic, group)

    def closed_dead_letters(self, group: str) -> list[str]:
        """The brokers whose dead-letter topic of a group is not readable, by the topic's perm."""
        return self._run(self._twin.closed_dead_letters, group)

    def topics(self, *, cluster: str | None = None, internal: bool = True) -> list[str]:
        """The names of all topics, or of one cluster's topics.

        Without ``internal`` topics of the system, of retries and of dead letters are left out.
        """
        return self._run(self._twin.topics, cluster=cluster, internal=internal)

    def topic_clusters(self, topic: str) -> list[str]:
        """The clusters that have a topic."""
        return self._run(self._twin.topic_clusters, topic)

    def topic_config(self, topic: str, *, allow_partial: bool = False) -> dict[str, TopicConfig]:
        """A topic's settings by broker name."""
        return self._run(self._twin.topic_config, topic, allow_partial=allow_partial)

    def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        """All topics of one broker."""
        return self._run(self._twin.topic_configs, broker)

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = Perm.READ | Perm.WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Create a topic, or set all of its settings, on every master, one cluster's or one broker.

        Returns the brokers' names once every NameServer routes to them.

        Raises:
            ConfigError: the name or a setting is not allowed.
            SomeFailed: not every broker took it.
        """
        return self._run(
            self._twin.create_topic,
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=perm,
            order=order,
            attributes=attributes,
            cluster=cluster,
            broker=broker,
        )

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Change the given settings and keep the others; an attribute that is None is removed.

        To shrink without losing messages, first lower ``write_queues``, and ``read_queues`` when
        the last queues are consumed.

        Raises:
            RouteMissing: the topic does not exist.
            SomeFailed: not every broker took it.
        """
        return self._run(
            self._twin.update_topic,
            topic,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            perm=perm,
            order=order,
            attributes=attributes,
            cluster=cluster,
            broker=broker,
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages from every broker, then from every NameServer.

        Raises:
            SomeFailed: a server did not do it; the others did.
        """
        return self._run(self._twin.delete_topic, topic, cluster=cluster)

    def order_config(self, topic: str) -> dict[str, int]:
        """How many queues each broker has for ordered sends; empty for a topic without order."""
        return self._run(self._twin.order_config, topic)

    def set_order_config(self, topic: str, queues: Mapping[str, int] | None) -> None:
        """Fix how many queues each broker has for ordered sends, on all NameServers; None ends it.

        Raises:
            SomeFailed: not every NameServer took it.
        """
        return self._run(self._twin.set_order_config, topic, queues)

    def topic_stats(self, topic: str, *, allow_partial: bool = False) -> TopicStats:
        """How far each queue of a topic reaches, and when its last message was stored."""
        return self._run(self._twin.topic_stats, topic, allow_partial=allow_partial)

    def topic_consumers(self, topic: str, *, allow_partial: bool = False) -> list[str]:
        """The groups that consume a topic, or have offsets on it."""
        return self._run(self._twin.topic_consumers, topic, allow_partial=allow_partial)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that consumers read."""
        return self._run(self._twin.queues, topic)

    def queue_offset_min(self, queue: MessageQueue) -> int:
        """The offset of the oldest message that is still there."""
        return self._run(self._twin.queue_offset_min, queue)

    def queue_offset_max(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._run(self._twin.queue_offset_max, queue)

    def search_offset(
        self, queue: MessageQueue, moment: Moment, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The first message of a queue that was stored at or after a time.

        Of several stored in the same millisecond, ``upper`` is the last one; brokers before 5.0
        know only ``lower``. A time after all messages leads to the end of the queue.
        """
        return self._run(self._twin.search_offset, queue, moment, boundary=boundary)

    def search_offsets(self, topic: str, moment: Moment) -> dict[MessageQueue, int]:
        """``search_offset`` for all queues of a topic."""
        return self._run(self._twin.search_offsets, topic, moment)

    def earliest_store_time_ms(self, queue: MessageQueue) -> int:
        """When the oldest message of a queue was stored; -1 for an empty queue."""
        return self._run(self._twin.earliest_store_time_ms, queue)

    def cluster_info(self) -> ClusterInfo:
        """Every broker by name, and the names of each cluster, as a NameServer knows them."""
        return self._run(
            self._twin.cluster_info,
        )

    def topic_route(self, topic: str) -> TopicRouteData:
        """A topic's route, as a NameServer knows it now.

        Raises:
            RouteMissing: no broker has the topic.
        """
        return self._run(self._twin.topic_route, topic)

    def ask_broker(
        self, broker: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> ReceivedResponse:
        """Send any request code to a broker by name or address; the raw answer, if a success.

        Raises:
            BrokerRefused: the broker answered with an error.
        """
        return self._run(self._twin.ask_broker, broker, code, fields, body)

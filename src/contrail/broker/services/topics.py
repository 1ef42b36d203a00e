"""The rules of topics: creations, changes and deletions, and the topics that every broker has."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from contrail.broker.config import BrokerConfig
from contrail.broker.services.auto_creation import AutoCreation, Kind
from contrail.broker.state.attributes import (
    MIXED,
    TOPIC_ATTRIBUTES,
    alter_attributes,
)
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.system_names import SystemNames
from contrail.broker.state.topics import TopicTable
from contrail.errors import EntryIllegal, MessageIllegal, RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.stored_entries import check_entry_name, check_topic_entry
from contrail.model.topic import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    MESSAGE_TYPE_ATTRIBUTE,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    QUEUE_COUNT_MAX,
    QUEUE_TYPE_ATTRIBUTE,
    RESERVE_TIME_ATTRIBUTE,
    RETRY_PREFIX,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SINK_TOPIC,
    SYNC_BROKER_MEMBER_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    TRANSACTION_EXHAUSTED_TOPIC,
    Perm,
    QueueType,
    TopicConfig,
    check_not_system_topic,
    check_topic_folder,
    check_topic_name,
    dlq_topic,
    is_system_topic,
    retry_topic,
)
from contrail.protocol.codes import ResponseCode
from contrail.runtime.durable_changes import Done, DurableChanges, ignore
from contrail.wire.router import is_within, parse_networks

_log = logging.getLogger(__name__)

PERM_MAX = 7
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
REVIVE_QUEUE_COUNT = 8
SCHEDULE_QUEUE_COUNT = 18
BENCHMARK_QUEUE_COUNT = 1024
_READ_WRITE = int(Perm.READ | Perm.WRITE)
# How many queues clients ask for when a topic is made for their first message.
_CLIENT_QUEUE_COUNT = 4


TopicChanges = DurableChanges[str, TopicConfig]
"""Topics' settings by name."""


class Topics:
    """Creates, changes and deletes topics.

    ``before_delete`` is called before topics are removed from the table.
    ``on_change`` is called with each topic that was created or changed, ``on_delete`` with the
    name of each that went: to register the broker anew, to write the table, to tell the store.
    """

    def __init__(
        self,
        table: TopicTable,
        settings: RuntimeSettings,
        *,
        add_batch_topic: Callable[[bytes], None] = lambda topic: None,
        check_batch_topic: Callable[[bytes], None] = lambda topic: None,
        mixed_message_type: bool = False,
    ) -> None:
        """``check_batch_topic`` raises for a topic that ``add_batch_topic`` would refuse."""
        self.table = table
        # Operators' changes that the table's file does not have yet.
        self.changes: TopicChanges = DurableChanges()
        self.on_change: list[Callable[[TopicConfig], None]] = []
        self.before_delete: list[Callable[[], None]] = []
        self.on_delete: list[Callable[[str], None]] = []
        self._settings = settings
        self._add_batch_topic = add_batch_topic
        self._check_batch_topic = check_batch_topic
        self._mixed_message_type = mixed_message_type
        self._auto = AutoCreation(
            Kind(
                "topics",
                "contrailAutoTopicsMax",
                "contrailAutoTopicsPerSecond",
                lambda: settings.config.auto_topic_count_max,
                lambda: settings.config.auto_topics_per_second_max,
            ),
            settings,
            table.creators,
            lambda: len(table.auto_created),
        )
        self._system_topics = set(SYSTEM_TOPICS)
        for config in _topics_of_every_broker(settings.config):
            self._system_topics.add(config.topic)
            table.seed(config)
        self.names = _system_names(settings.config)
        for config in table.topics.values():
            self._note_queue_type(config)

    @property
    def system_topics(self) -> frozenset[str]:
        return frozenset(self._system_topics)

    def is_system(self, topic: str) -> bool:
        return topic in self._system_topics or is_system_topic(topic)

    def ensure_for_send(
        self,
        topic: str,
        *,
        default_topic: str,
        queue_count: int,
        client: str,
        now_ms: int,
        sys_flag: int = 0,
    ) -> TopicConfig:
        """The topic a message is sent to, created after its template if it must be.

        Raises:
            RequestRejected: INVALID_PARAMETER for a bad name, TOPIC_NOT_EXIST for a topic that may
                not be created, SYSTEM_BUSY for a client that creates too many in one second.
        """
        found = self.table.get(topic)
        if found is not None:
            return found
        check_name(topic)
        config = self._after_template(topic, default_topic, queue_count, sys_flag)
        if config is None and topic.startswith(RETRY_PREFIX):
            config = TopicConfig(topic, 1, 1, _READ_WRITE, sys_flag=sys_flag)
        if config is None:
            raise _no_such_topic(topic)
        self._admit_creation(topic, client, now_ms)
        self._put(config, now_ms, auto_created=True)
        _log.info("created topic %r after template %r for %s", topic, default_topic, client)
        return config

    def _after_template(
        self, topic: str, default_topic: str, queue_count: int, sys_flag: int
    ) -> TopicConfig | None:
        template = self.table.get(default_topic)
        if template is None or not template.perm & Perm.INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self._settings.config.auto_create_topic:
            return None
        count = min(queue_count, template.write_queue_count)
        if count <= 0:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic!r} would be made with no queue: defaultTopicQueueNums is "
                f"{queue_count}, template {default_topic!r} has {template.write_queue_count}; "
                "ask for at least 1",
            )
        return TopicConfig(
            topic=topic,
            read_queue_count=count,
            write_queue_count=count,
            perm=template.perm & ~int(Perm.INHERIT),
            filter_type=template.filter_type,
            sys_flag=sys_flag,
        )

    def _admit_creation(self, topic: str, client: str, now_ms: int) -> None:
        refusal = self._auto.admit(topic, client, now_ms)
        if refusal is None:
            return
        raise RequestRejected(
            ResponseCode.SYSTEM_BUSY if refusal.is_momentary else ResponseCode.TOPIC_NOT_EXIST,
            f"topic {topic!r} does not exist and is not created: {refusal.reason}; "
            f"{'try again, or ' if refusal.is_momentary else ''}create it with updateTopic",
        )

    def ensure_retry_topic(
        self,
        group: str,
        now_ms: int,
        *,
        queue_count: int = 1,
        order: bool = False,
        sys_flag: int = 0,
    ) -> TopicConfig:
        """The topic of messages a group shall get again; its order flag follows the group's."""
        return self._ensure(
            retry_topic(group),
            queue_count,
            now_ms,
            order=order,
            sys_flag=sys_flag,
            # One heartbeat may make hundreds of topics, and logs them in one line.
            level=logging.DEBUG,
        )

    def ensure_pop_retry_topic(self, topic: str, now_ms: int) -> TopicConfig:
        """The topic of messages that a group popped from one topic and did not acknowledge.

        Its newer spelling has a character that no other name may have.
        """
        known = self.table.get(topic)
        if known is not None:
            return known
        config = TopicConfig(topic, 1, 1, _READ_WRITE)
        self._put(config, now_ms)
        return config

    def ensure_dlq_topic(self, group: str, now_ms: int) -> TopicConfig:
        """The topic of messages a group has given up on.

        Its permissions bind clients: the broker itself stores dead letters under any permission.
        """
        topic = dlq_topic(group)
        return self._ensure(topic, 1, now_ms, perm=self._perm_of_new(topic))

    def ensure_transaction_exhausted_topic(self, now_ms: int) -> TopicConfig:
        """The topic of half messages whose producer never decided."""
        return self._ensure(TRANSACTION_EXHAUSTED_TOPIC, 1, now_ms)

    def ensure_sink_topic(self, now_ms: int) -> TopicConfig:
        """The topic of sinks' decisions; a broker without sinks has none."""
        return self._ensure(SINK_TOPIC, 1, now_ms)

    def restore(self, queues: Iterable[tuple[bytes, int]], now_ms: int) -> None:
        """Make again the topics that have queues but no settings; before serving.

        A message may be durable, and answered, before the settings of the topic that was made for
        it are: a crash in between must not leave it where nobody can read it. A topic whose entry
        is quarantined is made again too, with messages or without: the next send would open it.
        """
        self._close_quarantined_system_topics(now_ms)
        counts = dict.fromkeys(filter(self._may_restore, self.table.quarantined), 0)
        for name, queue_id in queues:
            topic = name.decode("utf-8", "replace")
            if self.table.get(topic) is None:
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        for topic, count in counts.items():
            if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                # Others of its queues may have been empty.
                count = max(count, min(_CLIENT_QUEUE_COUNT, self._default_queue_count()))
            perm = self._restored_perm(topic)
            if topic not in self.table.quarantined:
                _log.warning("topic %r has messages but no settings: it is made again", topic)
            self.table.put(TopicConfig(topic, max(count, 1), max(count, 1), perm), now_ms)

    def _restored_perm(self, topic: str) -> int:
        if topic in self.table.quarantined:
            return self._quarantined_perm(topic)
        return self._perm_of_new(topic)

    def _perm_of_new(self, topic: str) -> int:
        """The permission of a topic that the broker makes; a setting has that of dead letters."""
        is_dead = topic.startswith(DLQ_PREFIX)
        return self._settings.config.dead_letter_perm if is_dead else _READ_WRITE

    def _quarantined_perm(self, topic: str) -> int:
        """The permission that the quarantined entry gives, else none at all."""
        perm = self.table.quarantined[topic]
        if perm is not None:
            _log.error(
                "topic %r is made again with perm %d of its quarantined entry; its other settings "
                "are the defaults: set them with updateTopic",
                topic,
                perm,
            )
            return perm
        _log.error(
            "topic %r is made again closed (perm 0): its quarantined entry does not tell its "
            "permission; open it with updateTopic -t %s -p 6",
            topic,
            topic,
        )
        return 0

    def _may_restore(self, topic: str) -> bool:
        if self.table.get(topic) is not None:
            return False
        try:
            check_topic_entry(topic, TopicConfig(topic))
        except EntryIllegal:
            return False
        return True

    def _close_quarantined_system_topics(self, now_ms: int) -> None:
        """Every broker has these: they are there already, as open as on a new broker."""
        for topic, perm in self.table.quarantined.items():
            seeded = self.table.get(topic)
            if seeded is not None and perm is not None and perm != seeded.perm:
                perm = self._quarantined_perm(topic)
                self.table.put(dataclasses.replace(seeded, perm=perm), now_ms)

    def _default_queue_count(self) -> int:
        return self._settings.config.default_topic_queue_count

    def _ensure(
        self,
        topic: str,
        queue_count: int,
        now_ms: int,
        *,
        perm: int = _READ_WRITE,
        order: bool = False,
        sys_flag: int = 0,
        level: int = logging.INFO,
    ) -> TopicConfig:
        config = self.table.get(topic)
        if config is not None and config.order == order:
            return config
        if config is None:
            check_name(topic)
            # A group without retries has a retry topic all the same, for its consumers' routes.
            queue_count = max(queue_count, 1)
            config = TopicConfig(topic, queue_count, queue_count, perm, sys_flag=sys_flag)
        config = dataclasses.replace(config, order=order)
        if self._settings.config.role.leads:
            self._put(config, now_ms, level=level)
        return config

    def update(self, requested: Iterable[TopicConfig], now_ms: int, done: Done = ignore) -> None:
        """Have topics created or changed: all of them or, if one is refused, none.

        They are there once the table's file has them; then ``done`` is called, and if that fails.
        The attributes of ``requested`` are changes: their keys carry a ``+`` or ``-``.

        Raises:
            RequestRejected: INVALID_PARAMETER for a bad name, a system topic, a permission or
                queue count out of range, SYSTEM_ERROR for bad attributes.
        """
        planned = [self._plan_update(config) for config in requested]
        changed: dict[str, TopicConfig | None] = {
            config.topic: config for config in planned if config != self._newest(config.topic)
        }

        def believe() -> None:
            for config in planned:
                if config.topic in changed:
                    self._put(config, now_ms)

        self.changes.submit(changed, now_ms, believe, done)

    def _newest(self, topic: str) -> TopicConfig | None:
        """A topic's settings as they will be once all planned changes are durable."""
        return self.changes.newest(topic, self.table.get(topic))

    def _plan_update(self, requested: TopicConfig) -> TopicConfig:
        self.check_changeable(requested.topic)
        current = self._newest(requested.topic)
        _check_settings(requested, is_new=current is None)
        self._check_message_type(requested)
        attributes = alter_attributes(
            None if current is None else current.attributes, requested.attributes, TOPIC_ATTRIBUTES
        )
        if f"+{RESERVE_TIME_ATTRIBUTE}" in requested.attributes:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"attribute {RESERVE_TIME_ATTRIBUTE!r} needs tiered storage, which is not here",
            )
        unknown = {} if current is None else current.unknown
        planned = dataclasses.replace(requested, attributes=attributes, unknown=unknown)
        check_topic_entry(planned.topic, planned)
        if keeps_batches(planned):
            self._check_batch_topic(planned.topic.encode())
        return planned

    def check_changeable(self, topic: str) -> None:
        """Refuse topics that administrators may not create or change."""
        check_name(topic)
        self._check_not_system(topic)

    def check_deletable(self, topic: str) -> None:
        """Refuse topics that administrators may not delete; odd names of the broker may go."""
        if not topic.strip():
            check_name(topic)
        check_entry_name("topic", topic)
        with _refused_names():
            check_topic_folder(topic)
        self._check_not_system(topic)

    def _check_not_system(self, topic: str) -> None:
        with _refused_names():
            check_not_system_topic(topic, self._system_topics)

    def _check_message_type(self, requested: TopicConfig) -> None:
        wanted = requested.attributes.get(f"+{MESSAGE_TYPE_ATTRIBUTE}")
        if wanted == MIXED and not self._mixed_message_type:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"message type {MIXED} is not enabled; set enableMixedMessageType to allow it",
            )

    def follow(self, topics: Mapping[str, TopicConfig], data_version: DataVersion) -> list[str]:
        """Have the topics of another broker, and no others but those that every broker has.

        For a slave; returns the topics that went.

        Raises:
            EntryIllegal: the file's reader would refuse one of them; nothing is changed.
            StoreLayoutError: a topic has queues of another type here; nothing is changed.
        """
        before = dict(self.table.topics)
        own = {name: config for name, config in before.items() if name in self._system_topics}
        topics = {**own, **topics}
        changed = [config for name, config in topics.items() if before.get(name) != config]
        for config in changed:
            if keeps_batches(config):
                self._check_batch_topic(config.topic.encode())
        self.table.replace(topics, data_version)
        for config in changed:
            self._note_queue_type(config)
            for listener in self.on_change:
                listener(config)
        gone = [name for name in before if name not in topics]
        for name in gone:
            for told in self.on_delete:
                told(name)
        return gone

    def mark_ordered(self, topics: Iterable[str], now_ms: int) -> None:
        """Set the order flag of those that the NameServers' order configuration names."""
        for topic in topics if self._settings.config.role.leads else ():
            config = self.table.get(topic)
            if config is not None and not config.order:
                self._put(dataclasses.replace(config, order=True), now_ms)

    def delete(
        self,
        topics: Iterable[str],
        now_ms: int,
        *,
        on_deleted: Callable[[str, bool], None] = lambda topic, existed: None,
        done: Done = ignore,
    ) -> None:
        """Have topics' settings removed, which is done once the table's file is without them.

        Then ``on_deleted`` is called for each, with whether there was one: its data is the
        caller's. ``done`` comes after that, or if the file could not be written.
        """
        names = list(topics)

        def believe() -> None:
            # Sends that were admitted before the deletion are stored before it.
            for prepare in self.before_delete:
                prepare()
            for topic in names:
                on_deleted(topic, self.withdraw(topic, now_ms))

        self.changes.submit(dict.fromkeys(names), now_ms, believe, done)

    def withdraw(self, topic: str, now_ms: int) -> bool:
        """Have a topic's settings gone now; False if there are none."""
        if not self.table.delete(topic, now_ms):
            return False
        _log.info("deleted topic %r", topic)
        for listener in self.on_delete:
            listener(topic)
        return True

    def _put(
        self,
        config: TopicConfig,
        now_ms: int,
        *,
        auto_created: bool = False,
        level: int = logging.INFO,
    ) -> None:
        existed = config.topic in self.table.topics
        # First of all, since the store refuses it for a topic that has queues of the other type.
        self._note_queue_type(config)
        self.table.put(config, now_ms, auto_created=auto_created)
        if not auto_created:
            _log.log(level, "%s topic: %s", "changed" if existed else "created", config)
        for listener in self.on_change:
            listener(config)

    def _note_queue_type(self, config: TopicConfig) -> None:
        if keeps_batches(config):
            self._add_batch_topic(config.topic.encode())


def batch_topics(topics: Mapping[str, TopicConfig]) -> frozenset[bytes]:
    """The topics whose batches the store keeps whole: it must know them when it is opened."""
    return frozenset(name.encode() for name, config in topics.items() if keeps_batches(config))


def keeps_batches(config: TopicConfig) -> bool:
    """Whether a topic's queues are of RocketMQ's type BatchCQ."""
    return config.attributes.get(QUEUE_TYPE_ATTRIBUTE) == QueueType.BATCH.value


def check_name(topic: str) -> None:
    """Refuse a name that no topic may have, with INVALID_PARAMETER."""
    with _refused_names():
        check_topic_name(topic)


@contextmanager
def _refused_names() -> Iterator[None]:
    try:
        yield
    except MessageIllegal as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error


def _no_such_topic(topic: str) -> RequestRejected:
    return RequestRejected(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic {topic!r} does not exist and is not created by sending; create it first",
    )


def _check_settings(config: TopicConfig, *, is_new: bool) -> None:
    problem = _settings_problem(config, is_new)
    if problem is not None:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, f"topic {config.topic!r}: {problem}")


def _settings_problem(config: TopicConfig, is_new: bool) -> str | None:
    if not 0 <= config.perm <= PERM_MAX:
        return f"perm {config.perm} must be from 0 to {PERM_MAX}"
    counts: Mapping[str, int] = {
        "readQueueNums": config.read_queue_count,
        "writeQueueNums": config.write_queue_count,
    }
    # Nobody could write to a new topic without queues, or read it. The write queues of one that
    # exists may go down to 0: producers stop, consumers read what is left.
    lowest = {"readQueueNums": 1, "writeQueueNums": 1 if is_new else 0}
    for name, count in counts.items():
        if not lowest[name] <= count <= QUEUE_COUNT_MAX:
            return f"{name} {count} must be from {lowest[name]} to {QUEUE_COUNT_MAX}"
    if config.filter_type not in FILTER_TYPES:
        return f"topicFilterType {config.filter_type!r} must be {' or '.join(FILTER_TYPES)}"
    return None


def _topics_of_every_broker(config: BrokerConfig) -> Iterator[TopicConfig]:
    """The topics that RocketMQ creates at start, with its queue counts and permissions."""
    inherited = int(Perm.INHERIT)
    template = inherited | _READ_WRITE
    yield _fixed(SELF_TEST_TOPIC, 1)
    if config.auto_create_topic:
        yield _fixed(AUTO_CREATE_TOPIC, config.default_topic_queue_count, template)
    yield _fixed(BENCHMARK_TOPIC, BENCHMARK_QUEUE_COUNT)
    yield _fixed(config.cluster_name, 16, template if config.cluster_topic_enabled else inherited)
    yield _fixed(config.broker_name, 1, template if config.broker_topic_enabled else inherited)
    yield _fixed(OFFSET_MOVED_TOPIC, 1)
    yield _fixed(SCHEDULE_TOPIC, SCHEDULE_QUEUE_COUNT)
    if config.trace_topic_enabled or config.broker_trace_enabled:
        yield _fixed(config.trace_topic, 1)
    yield _fixed(_reply_topic(config), 1)
    yield _fixed(REVIVE_TOPIC_PREFIX + config.cluster_name, REVIVE_QUEUE_COUNT)
    yield _fixed(SYNC_BROKER_MEMBER_PREFIX + config.broker_name, 1, inherited)
    yield _fixed(HALF_TOPIC, 1)
    yield _fixed(OP_HALF_TOPIC, 1)
    yield _fixed(TIMER_TOPIC, 1)


def _reply_topic(config: BrokerConfig) -> str:
    return f"{config.cluster_name}_REPLY_TOPIC"


def _system_names(config: BrokerConfig) -> SystemNames:
    networks = parse_networks(config.cluster_allow_list)
    return SystemNames(
        open_topics=frozenset({config.trace_topic, _reply_topic(config)}),
        write_only=frozenset({config.cluster_name, config.broker_name}),
        is_of_the_cluster=lambda address: is_within(networks, address),
    )


def _fixed(topic: str, queue_count: int, perm: int = _READ_WRITE) -> TopicConfig:
    return TopicConfig(topic, queue_count, queue_count, perm)

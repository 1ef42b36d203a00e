"""The parts behind pop, put together: table, records, deliveries, waiting pops, handlers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contrail.broker.handlers.pop import PopHandlers
from contrail.broker.handlers.pop_acks import PopAckHandlers
from contrail.broker.handlers.pop_looks import PopLookHandlers
from contrail.broker.handlers.pop_operators import PopOperatorHandlers
from contrail.broker.kinds_need import KindsNeed
from contrail.broker.services.ordered_pops import OrderedPops
from contrail.broker.services.pop_admission import PopAdmission
from contrail.broker.services.pop_memory import PopMemory
from contrail.broker.services.pop_reads import PopReads
from contrail.broker.services.pop_revive import PopRevive
from contrail.broker.services.pop_waits import MayStay, PopWaits, Serve
from contrail.broker.services.pops import Pops
from contrail.broker.services.topics import Topics
from contrail.broker.state.parked_pulls import ParkedPulls
from contrail.broker.state.pop_offsets import PopOffsets
from contrail.broker.state.pop_table import PopTable, Queue
from contrail.broker.state.pull_plan import PullPlan
from contrail.model.topic import REVIVE_TOPIC_PREFIX, TopicConfig
from contrail.protocol.command import Request
from contrail.runtime.schedule import Schedule
from contrail.runtime.turns import LaterCalls
from contrail.store import Arrival, GetResult
from contrail.wire.peer import Handler, Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class PopBegins:
    """The parts that are there only once pulls are served."""

    read: Callable[[PullPlan], GetResult]
    watched: ParkedPulls
    loop: LaterCalls


class PopSide:
    """Everything about pop of one broker."""

    def __init__(self, need: KindsNeed) -> None:
        self._need = need
        tables = need.tables
        config = tables.settings.config
        self.revive_topic = REVIVE_TOPIC_PREFIX + config.cluster_name
        self._next_offsets = PopOffsets()
        self.pops = Pops(
            PopTable(config.pop_grace_ms),
            self._next_offsets,
            tables.consumer_offsets,
            need.deliveries,
            need.clock,
            broker_name=config.broker_name,
            revive_topic=self.revive_topic,
            store_host=need.store_host,
            timers=need.timer_rules,
        )
        self.revive = PopRevive(
            self.pops,
            need.store,
            need.deliveries,
            tables.consumer_offsets,
            _Topics(tables.topics),
            tables.groups.table.get,
            need.clock,
            revive_topic=self.revive_topic,
            broker_name=config.broker_name,
            store_host=need.store_host,
            uses_v2=lambda: tables.settings.config.pop_retry_v2,
            gives_up=lambda: tables.settings.config.pop_dead_letters,
            attempt=need.far_reads.attempt,
        )
        self.ordered = OrderedPops(
            self.pops,
            tables.consumer_offsets,
            need.clock,
            broker_name=config.broker_name,
            files=need.files,
            root=need.store_config.root,
            persistence=tables.persistence,
            interval_ms=config.flush_consumer_offset_ms,
        )
        self.pops.on_reset = lambda queue: self.ordered.forget(queue.__eq__)
        self.memory = PopMemory(
            self.pops,
            self.revive,
            self._next_offsets,
            tables.consumer_offsets,
            tables.offset_file,
            need.deliveries,
            need.store,
            revive_topic=self.revive_topic,
        )
        tables.topics.on_delete.append(self._topic_deleted)
        tables.groups.on_set.append(self._group_set)

    def _topic_deleted(self, topic: str) -> None:
        self.pops.forget_topic(topic)
        self.ordered.forget(lambda queue: queue[1] == topic)

    def _group_set(self, group: str) -> None:
        if self._need.tables.groups.table.get(group) is None:
            self.pops.forget_group(group)
            self.ordered.forget(lambda queue: queue[0] == group)

    def begin(self, begins: PopBegins) -> None:
        """Make the handlers."""
        need, tables = self._need, self._need.tables
        waiting = (tables.settings, need.store, begins.watched, need.clock, begins.loop)
        self.waits = PopWaits(*waiting)
        self.notifications = PopWaits(*waiting, newest_first=True)
        self.ordered.begin(begins.loop)
        self.ordered.on_free = self._queue_is_free
        reads = PopReads(
            tables.settings,
            tables.topics,
            tables.consumer_offsets,
            self._next_offsets,
            need.store,
            read=begins.read,
            is_blocked=self.ordered.is_blocked,
        )
        admission = PopAdmission(
            tables.settings,
            tables.topics,
            tables.groups,
            tables.consumers,
            tables.consumer_offsets,
            tables.expressions,
            need.clock,
            timers_enabled=need.timer_rules.enabled,
        )
        self._handlers = PopHandlers(
            tables.settings,
            admission,
            reads,
            self.pops,
            self.ordered,
            self.waits,
            need.answers,
            need.stats,
            need.clock,
        )
        self._acks = PopAckHandlers(
            self.pops, self.ordered, tables.topics, need.store, need.answers, need.clock
        )
        self._operators = PopOperatorHandlers(
            self.pops,
            self.ordered,
            tables.consumers,
            need.store,
            need.answers,
            broker_name=tables.settings.config.broker_name,
        )
        self._looks = PopLookHandlers(
            admission,
            reads,
            self.ordered,
            self.waits,
            self.notifications,
            need.store,
            need.clock,
            read=begins.read,
        )

    def _queue_is_free(self, queue: Queue) -> None:
        group, topic, queue_id = queue
        for waits in (self.waits, self.notifications):
            waits.wake_queue(topic, group, queue_id)

    def serve_by(self, serve: Serve) -> None:
        """``serve`` carries out again the requests that waited."""

        def served(request: Request, peer: Peer) -> None:
            serve(request, peer)
            # Nothing else may announce the tick that writes what the pop took.
            self._need.wake()

        self.waits.serve = self.notifications.serve = served

    def count_given(self, given: Callable[[Request, Peer, int, int], None]) -> None:
        """Have ``given`` told how many messages and bytes each pop gets."""
        self._handlers.on_given = given

    def table(self) -> dict[int, Handler]:
        families = (self._handlers, self._acks, self._looks, self._operators)
        return {code: handler for family in families for code, handler in family.table().items()}

    def register(self, schedule: Schedule) -> None:
        schedule.every(lambda: self.revive.interval_ms, self._run, name="pop")
        for waits, name in ((self.waits, "pops"), (self.notifications, "notifications")):
            schedule.when_over(waits.end_in_ms, _expiring(waits), name=f"{name} that end")
        schedule.when_over(self.ordered.end_in_ms, self.ordered.run, name="queues popped in order")

    def _run(self, now_ms: int) -> None:
        self.pops.commit_durable()
        self.revive.run(now_ms)

    def arrived(self, arrivals: list[Arrival]) -> None:
        """Messages became visible."""
        self.waits.arrived(arrivals)
        self.notifications.arrived(arrivals)

    def check_waiting(self, may_stay: MayStay) -> None:
        """Users or rights have changed: serve what may wait no longer."""
        self.waits.check_waiting(may_stay)
        self.notifications.check_waiting(may_stay)

    def wake_topic(self, topic: str) -> None:
        """A topic was changed, reset or deleted: look again at what waits for it."""
        self.waits.wake_topic(topic)
        self.notifications.wake_topic(topic)

    def stop(self) -> None:
        """Answer everything that waits: the broker stops."""
        self._handlers.stop()
        self._looks.stop()

    def close_files(self) -> None:
        """Note how far everything is, once the log is durable."""
        self.pops.commit_durable()
        self.revive.keep_cursors()
        self.memory.close()


def _expiring(waits: PopWaits) -> Callable[[int], None]:
    return lambda now_ms: waits.expire()


class _Topics:
    """The topics there are, and the making of retry topics."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def find(self, topic: str) -> TopicConfig | None:
        return self._topics.table.get(topic)

    def ensure(self, topic: str, now_ms: int) -> None:
        self._topics.ensure_pop_retry_topic(topic, now_ms)

    def ensure_dead_letters(self, group: str, now_ms: int) -> None:
        self._topics.ensure_dlq_topic(group, now_ms)

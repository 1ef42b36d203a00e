"""The driver's view of a cluster: which queues there are, how far they reach, who is away."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

from contrail.client.blocking.admin import Admin
from contrail.client.raw_pulls import BUSY_CODES
from contrail.client.settings import ClientSettings
from contrail.clock import monotonic_ms
from contrail.errors import (
    BrokerRefused,
    ClientError,
    NameServerUnreachable,
    OptionInvalid,
    RouteMissing,
    SomeFailed,
)
from contrail.model.topic import is_closed_topic
from contrail.pipeline.offsets import QueueKey, Range
from contrail.pipeline.options import ClusterSettings, SourceSettings
from contrail.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

T = TypeVar("T")


@lru_cache(maxsize=16)
def client_settings(cluster: ClusterSettings) -> ClientSettings:
    """A cluster as clients take it; the same object for the same settings, TLS context and all.

    Raises:
        ConfigError: an address is none.
        OptionInvalid: the TLS files cannot be used.
    """
    try:
        tls = cluster.tls()
    except OSError as error:
        raise OptionInvalid(
            f"tls.client.trustCertPath, certPath or keyPath cannot be used: {error}"
        ) from error
    return ClientSettings.of(cluster.namesrv_addr, tls=tls)


class _Reaches(NamedTuple):
    """What brokers said of a topic's queues, and when."""

    asked_ms: int
    reaches: Mapping[QueueKey, Range]


class ClusterView:
    """Asks a cluster for what planning needs. Opened when it is needed; ``close`` when done.

    Keeps nothing but caches. What is transient is tried again as ``fetchOffset.*`` say.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._admin: Admin | None = None
        self._process_id = os.getpid()
        self._reaches: dict[str, _Reaches] = {}
        self._seen: set[str] = set()
        # Brokers whose queues were asked for and that did not answer the last time.
        self.away: frozenset[str] = frozenset()

    # Which queues.

    def queues(
        self,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        assigned: Mapping[str, Sequence[tuple[str, int]]] | None = None,
    ) -> list[QueueKey]:
        """The queues of topics, of those a pattern matches whole, or the ones that are named.

        Without an argument those of the settings. A topic that was there and whose brokers are
        all away is left out.

        Raises:
            RouteMissing: a topic that was asked for by name does not exist.
            OptionInvalid: a queue that was asked for by name does not exist.
            ClientError: nobody could be asked.
        """
        if topics is None and pattern is None and assigned is None:
            chosen = self._settings
            topics, pattern, assigned = chosen.topics, chosen.topic_pattern, chosen.assigned
        if assigned:
            return self._assigned(assigned)
        if pattern is not None:
            return self._matching(pattern)
        return [queue for topic in topics or () for queue in self._queues_of(topic)]

    def _assigned(self, assigned: Mapping[str, Sequence[tuple[str, int]]]) -> list[QueueKey]:
        wanted = [QueueKey(topic, *queue) for topic in assigned for queue in assigned[topic]]
        known = {queue for topic in assigned for queue in self._queues_of(topic)}
        brokers = {(queue.topic, queue.broker_name) for queue in known}
        for queue in wanted:
            # A broker that is not routed may be away; one that is has this queue or never had it.
            if queue not in known and (queue.topic, queue.broker_name) in brokers:
                raise OptionInvalid(
                    f"assign: topic {queue.topic!r} has no queue "
                    f"'{queue.broker_name}:{queue.queue_id}' to read: name one that it has"
                )
        return [queue for queue in wanted if queue in known]

    def _matching(self, pattern: str) -> list[QueueKey]:
        internal = self._settings.internal_topics
        topics = self._retried(lambda admin: admin.topics(internal=internal))
        # Brokers let no client pull these; whoever wants them names them, or reads a store folder.
        closed = self._named_like_servers() if internal else frozenset()
        matching = [
            topic
            for topic in topics
            if re.fullmatch(pattern, topic) and topic not in closed and not is_closed_topic(topic)
        ]
        found: list[QueueKey] = []
        for topic in matching:
            try:
                found += self._found_queues(topic, missing_at_once=True)
            except RouteMissing:
                # Deleted since it was listed, or its brokers are away.
                _log.info("topic %s matches the pattern, but nobody has it now", topic)
        return found

    def _named_like_servers(self) -> frozenset[str]:
        info = self._retried(lambda admin: admin.cluster_info())
        return frozenset({*info.clusters, *info.brokers})

    def _queues_of(self, topic: str) -> list[QueueKey]:
        if topic not in self._seen:
            return self._found_queues(topic, missing_at_once=False)
        try:
            return self._found_queues(topic, missing_at_once=True)
        except RouteMissing:
            _log.warning("topic %s has no broker now; its queues wait", topic)
            return []

    def _found_queues(self, topic: str, *, missing_at_once: bool) -> list[QueueKey]:
        """There is no patience for a topic that was there, or that nobody named."""
        queues = self._retried(lambda admin: admin.queues(topic), missing_at_once=missing_at_once)
        self._seen.add(topic)
        return queues

    # How far they reach.

    def ranges(self, keys: Iterable[QueueKey], *, age_ms_max: int = 0) -> dict[QueueKey, Range]:
        """How far queues reach, with one question to each broker of a topic.

        Answers up to ``age_ms_max`` old are good enough. Queues of a broker that does not answer
        are left out, and the broker is in ``away`` then.

        Raises:
            ClientError: nobody could be asked.
        """
        wanted = list(keys)
        found: dict[QueueKey, Range] = {}
        for topic in dict.fromkeys(key.topic for key in wanted):
            found |= self._reaches_of(topic, age_ms_max)
        self.away = frozenset(key.broker_name for key in wanted if key not in found)
        if self.away:
            _log.warning("no answer from %s: their queues wait", ", ".join(sorted(self.away)))
        return {key: found[key] for key in wanted if key in found}

    def _reaches_of(self, topic: str, age_ms_max: int) -> Mapping[QueueKey, Range]:
        now_ms = monotonic_ms()
        known = self._reaches.get(topic)
        if known is None or now_ms - known.asked_ms > age_ms_max:
            known = _Reaches(now_ms, self._asked_reaches(topic))
            self._reaches[topic] = known
        return known.reaches

    def _asked_reaches(self, topic: str) -> dict[QueueKey, Range]:
        try:
            stats = self._retried(
                lambda admin: admin.topic_stats(topic, allow_partial=True), missing_at_once=True
            )
        except ClientError as error:
            if isinstance(error, NameServerUnreachable) or not _may_pass(error):
                raise
            _log.warning("topic %s: %s", topic, error)
            return {}
        return {
            one.queue: (max(0, one.queue_offset_min), max(0, one.queue_offset_max))
            for one in stats.queues
        }

    def offsets_at(
        self,
        keys: Iterable[QueueKey],
        timestamp_ms: int,
        boundary: Literal["lower", "upper"] = "lower",
    ) -> dict[QueueKey, int]:
        """For each queue the offset of the first message stored at or after a time.

        A time after all messages leads to the end of the queue. Queues of a broker that does not
        answer are left out, and the broker is in ``away`` then.
        """
        found: dict[QueueKey, int] = {}
        away: set[str] = set()
        for key in keys:
            if key.broker_name in away:
                continue
            try:
                found[key] = self._offset_at(key, timestamp_ms, boundary)
            except ClientError as error:
                _log.warning("%s is away: %s", key.broker_name, error)
                away.add(key.broker_name)
        self.away = frozenset(away)
        return found

    def _offset_at(
        self, key: QueueKey, timestamp_ms: int, boundary: Literal["lower", "upper"]
    ) -> int:
        return max(
            0,
            self._retried(lambda admin: admin.search_offset(key, timestamp_ms, boundary=boundary)),
        )

    # Telling.

    def publish(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Write consumer offsets, for those who watch lag; what fails is logged, and no more.

        A group that a broker does not know is made there.
        """
        failed: defaultdict[str, list[str]] = defaultdict(list)
        for key, consumer_offset in offsets.items():
            try:
                self._publish_one(group, key, consumer_offset)
            except ClientError as error:
                failed[str(error)].append(f"{key.topic} {key.broker_name}:{key.queue_id}")
        for error_text, queues in failed.items():
            _log.warning("the progress on %s is not published: %s", ", ".join(queues), error_text)

    def _publish_one(self, group: str, key: QueueKey, consumer_offset: int) -> None:
        admin = self._opened()
        try:
            admin.commit_offset(group, key, consumer_offset)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            admin.create_group(group, broker=key.broker_name)
            admin.commit_offset(group, key, consumer_offset)

    # Life.

    def _opened(self) -> Admin:
        if self._process_id != os.getpid():
            # A parent's connections are of no use here.
            self._admin, self._process_id = None, os.getpid()
        if self._admin is None:
            settings = client_settings(self._settings.cluster)
            self._admin = Admin(list(settings.namesrv), tls=settings.tls)
            self._admin.start()
        return self._admin

    def _retried(self, ask: Callable[[Admin], T], *, missing_at_once: bool = False) -> T:
        """Ask again while what went wrong may pass."""
        for _ in range(self._settings.fetch_retry_count):
            try:
                return ask(self._opened())
            except ClientError as error:
                if not _may_pass(error) or (missing_at_once and isinstance(error, RouteMissing)):
                    raise
                _log.info("the cluster is asked again: %s", error)
            _pause(self._settings.fetch_retry_interval_ms)
        return ask(self._opened())

    def close(self) -> None:
        """Leave the cluster; the next question opens it again."""
        admin, self._admin = self._admin, None
        if admin is not None and self._process_id == os.getpid():
            admin.close()


def _may_pass(error: ClientError) -> bool:
    if isinstance(error, SomeFailed):
        return any(_may_pass(one) for one in error.failures.values())
    return not isinstance(error, BrokerRefused) or error.code in BUSY_CODES


def _pause(interval_ms: int) -> None:
    threading.Event().wait(interval_ms / 1000)

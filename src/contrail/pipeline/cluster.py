"""The driver's view of a cluster: its queues, their offset ranges, and brokers that are away."""

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
    """A cluster's settings for clients; the same object, with its TLS context, for equal settings.

    Raises:
        ConfigError: an address is invalid.
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
    """The offset ranges of a topic's queues as brokers answered, and when."""

    asked_ms: int
    reaches: Mapping[QueueKey, Range]


class ClusterView:
    """Asks a cluster for the facts of planning. Connects on the first call; ``close`` when done.

    Keeps only caches. Transient failures are retried as the ``fetchOffset.*`` options say.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._admin: Admin | None = None
        self._process_id = os.getpid()
        self._reaches: dict[str, _Reaches] = {}
        self._seen: set[str] = set()
        # Brokers that did not answer the last request for their queues.
        self.away: frozenset[str] = frozenset()

    # Queues.

    def queues(
        self,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        assigned: Mapping[str, Sequence[tuple[str, int]]] | None = None,
    ) -> list[QueueKey]:
        """The queues of topics, of topics that match a pattern as a whole, or the named queues.

        Without an argument, the queues of the settings. A topic that existed before and whose
        brokers are all away is left out.

        Raises:
            RouteMissing: a named topic does not exist.
            OptionInvalid: a named queue does not exist.
            ClientError: no NameServer or broker answered.
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
            # A broker without a route may be away; a routed broker has this queue or never had it.
            if queue not in known and (queue.topic, queue.broker_name) in brokers:
                raise OptionInvalid(
                    f"assign: topic {queue.topic!r} has no queue "
                    f"'{queue.broker_name}:{queue.queue_id}' to read: name one that it has"
                )
        return [queue for queue in wanted if queue in known]

    def _matching(self, pattern: str) -> list[QueueKey]:
        internal = self._settings.internal_topics
        topics = self._retried(lambda admin: admin.topics(internal=internal))
        # Clients may not pull system topics; a read of these names them, or reads a store folder.
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
                # The topic was deleted since it was listed, or its brokers are away.
                _log.info("topic %s matches the pattern, but no broker has it now", topic)
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
        """With ``missing_at_once`` a missing route is not asked for again."""
        queues = self._retried(lambda admin: admin.queues(topic), missing_at_once=missing_at_once)
        self._seen.add(topic)
        return queues

    # Offset ranges.

    def ranges(self, keys: Iterable[QueueKey], *, age_ms_max: int = 0) -> dict[QueueKey, Range]:
        """The offset ranges of queues, with one request to each broker of a topic.

        Answers up to ``age_ms_max`` old are used again. Queues of a broker that does not answer
        are left out, and the broker is in ``away`` then.

        Raises:
            ClientError: no broker answered.
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
        """The queue offset of the first message stored at or after a time, for each queue.

        A time after all messages gives the end of the queue. Queues of a broker that does not
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

    # Publishing.

    def publish(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Commit consumer offsets for monitors of lag; a failure is only logged.

        A group that a broker does not know is created there.
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
            # Connections of the parent process cannot be used here.
            self._admin, self._process_id = None, os.getpid()
        if self._admin is None:
            settings = client_settings(self._settings.cluster)
            self._admin = Admin(list(settings.namesrv), tls=settings.tls)
            self._admin.start()
        return self._admin

    def _retried(self, ask: Callable[[Admin], T], *, missing_at_once: bool = False) -> T:
        """Repeat a request after transient failures."""
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
        """Close the connections; the next request opens new ones."""
        admin, self._admin = self._admin, None
        if admin is not None and self._process_id == os.getpid():
            admin.close()


def _may_pass(error: ClientError) -> bool:
    if isinstance(error, SomeFailed):
        return any(_may_pass(one) for one in error.failures.values())
    return not isinstance(error, BrokerRefused) or error.code in BUSY_CODES


def _pause(interval_ms: int) -> None:
    threading.Event().wait(interval_ms / 1000)

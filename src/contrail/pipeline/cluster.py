"""The driver's view of a cluster: its queues, their offset ranges, and brokers that are away."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Generic, Literal, TypeVar

from contrail.client.admin_many_topics import QueueAnswers
from contrail.client.blocking.admin import Admin
from contrail.client.raw_pulls import BUSY_CODES
from contrail.client.settings import ClientSettings
from contrail.clock import monotonic_ms
from contrail.errors import (
    BrokerRefused,
    ClientError,
    OptionInvalid,
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
    return ClientSettings.of(cluster.namesrv_addr, tls=tls, credentials=cluster.credentials)


class _Remembered(Generic[T]):
    """An answer of the cluster, and when it was complete after how long."""

    def __init__(self, value: T, began_ms: int | None = None) -> None:
        self.value = value
        self._at_ms = monotonic_ms()
        self._took_ms = None if began_ms is None else self._at_ms - began_ms

    def is_fresh(self, age_ms_max: int) -> bool:
        """Whether the answer is at most as old as this, or as the time it took to get it.

        Otherwise the queues of many topics would be asked for all the time.
        """
        if self._took_ms is None or not age_ms_max:
            return False
        return monotonic_ms() - self._at_ms <= max(age_ms_max, self._took_ms)


class ClusterView:
    """Asks a cluster for the facts of planning. Connects on the first call; ``close`` when done.

    Keeps only caches. Transient failures are retried as the ``fetchOffset.*`` options say.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._admin: Admin | None = None
        self._process_id = os.getpid()
        # The queues of the settings, and the ranges of queues, as they were asked for last.
        self._queues = _Remembered[list[QueueKey]]([])
        self._ranges = _Remembered[dict[QueueKey, Range]]({})
        self._asked_keys: frozenset[QueueKey] = frozenset()
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
        return self._queues_of(topics or ())

    def recent_queues(self, *, age_ms_max: int) -> list[QueueKey]:
        """``queues`` of the settings; a list up to ``age_ms_max`` old is used again."""
        if not self._queues.is_fresh(age_ms_max):
            began_ms = monotonic_ms()
            self._queues = _Remembered(self.queues(), began_ms)
        return self._queues.value

    def _assigned(self, assigned: Mapping[str, Sequence[tuple[str, int]]]) -> list[QueueKey]:
        wanted = [QueueKey(topic, *queue) for topic in assigned for queue in assigned[topic]]
        known = set(self._queues_of(list(assigned)))
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
        found = self._retried(lambda admin: admin.queues_of_topics(matching))
        self._seen.update(found)
        for topic in matching:
            if topic not in found:
                # The topic was deleted since it was listed, or its brokers are away.
                _log.info("topic %s matches the pattern, but no broker has it now", topic)
        return [queue for topic in matching for queue in found.get(topic, ())]

    def _named_like_servers(self) -> frozenset[str]:
        info = self._retried(lambda admin: admin.cluster_info())
        return frozenset({*info.clusters, *info.brokers})

    def _queues_of(self, topics: Sequence[str]) -> list[QueueKey]:
        """The queues of these topics; a new topic without a route is asked for again."""
        found = self._retried(lambda admin: admin.queues_of_topics(topics))
        self._seen.update(found)
        for topic in topics:
            if topic in found:
                continue
            if topic in self._seen:
                _log.warning("topic %s has no broker now; its queues wait", topic)
            else:
                found[topic] = self._retried(partial(_queues_of_one, topic))
                self._seen.add(topic)
        return [queue for topic in topics for queue in found.get(topic, ())]

    # Offset ranges.

    def ranges(self, keys: Iterable[QueueKey], *, age_ms_max: int = 0) -> dict[QueueKey, Range]:
        """The offset ranges of queues.

        Answers up to ``age_ms_max`` old are used again. Queues of a broker that does not answer
        are left out, and the broker is in ``away`` then.

        Raises:
            ClientError: no NameServer answered, or a broker refused.
        """
        wanted = list(keys)
        if not (self._ranges.is_fresh(age_ms_max) and self._asked_keys.issuperset(wanted)):
            began_ms = monotonic_ms()
            found = self._of_queues(
                wanted, lambda admin, keys: admin.queue_ranges(keys), each_broker=False
            )
            self._ranges = _Remembered(found, began_ms)
            self._asked_keys = frozenset(wanted)
        known = self._ranges.value
        found = {key: known[key] for key in wanted if key in known}
        self.away = frozenset(key.broker_name for key in wanted if key not in found)
        if self.away:
            _log.warning("no answer from %s: their queues wait", ", ".join(sorted(self.away)))
        return found

    def gone(self, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """The queues whose broker answers, and says that it has no such topic."""
        wanted = list(keys)
        if not wanted:
            return set()
        answers = self._retried(lambda admin: admin.queue_ranges(wanted))
        return {
            key
            for key in wanted
            if key not in answers.values and key.broker_name not in answers.failures
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
        wanted = list(keys)
        found = self._of_queues(
            wanted,
            lambda admin, keys: admin.search_offsets_of(keys, timestamp_ms, boundary=boundary),
        )
        self.away = frozenset(key.broker_name for key in wanted if key not in found)
        return {key: max(0, place) for key, place in found.items()}

    def committed(self, group: str, keys: Iterable[QueueKey]) -> dict[QueueKey, int | None]:
        """A group's offset on each queue, None where it has none.

        Queues of a broker that does not answer are left out.
        """
        return self._of_queues(list(keys), lambda admin, keys: admin.committed_of(group, keys))

    def _of_queues(
        self,
        wanted: Sequence[QueueKey],
        ask: Callable[[Admin, Sequence[QueueKey]], QueueAnswers[T]],
        *,
        each_broker: bool = True,
    ) -> dict[QueueKey, T]:
        """Answers about queues; brokers that do not answer are asked again, then left out.

        Without ``each_broker`` they are asked again only if no broker answered: a stream goes on
        with the others.
        """
        found: dict[QueueKey, T] = {}
        missing = list(wanted)
        for attempt in range(self._settings.fetch_retry_count + 1):
            answers = self._retried(partial(_asked, ask, missing))
            found |= answers.values
            refusals = [one for one in answers.failures.values() if not _may_pass(one)]
            if refusals:
                raise refusals[0]
            missing = [key for key in missing if key.broker_name in answers.failures]
            if not missing or (answers.values and not each_broker):
                break
            for name, error in answers.failures.items():
                _log.info("%s did not tell about its queues: %s", name, error)
            if attempt < self._settings.fetch_retry_count:
                _pause(self._settings.fetch_retry_interval_ms)
        return found

    # Publishing.

    def publish(self, group: str, offsets: Mapping[QueueKey, int]) -> set[QueueKey]:
        """Commit consumer offsets of a group; returns the queues that have theirs.

        A group that a broker does not know is created there. Other failures are only logged.
        """
        written = self._commit(group, offsets)
        unknown = {
            key.broker_name
            for key, refusal in written.items()
            if refusal and refusal.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        }
        if unknown:
            for broker in sorted(unknown):
                self._opened().create_group(group, broker=broker)
            written |= self._commit(
                group, {key: offsets[key] for key in offsets if key.broker_name in unknown}
            )
        refused = {key: refusal for key, refusal in written.items() if refusal is not None}
        for text in sorted({str(refusal) for refusal in refused.values()}):
            _log.warning("progress is not published: %s", text)
        return set(written) - set(refused)

    def _commit(
        self, group: str, offsets: Mapping[QueueKey, int]
    ) -> dict[QueueKey, BrokerRefused | None]:
        answers = self._opened().commit_offsets_of(group, offsets)
        for name, error in answers.failures.items():
            _log.warning("progress is not published at %s: %s", name, error)
        return dict(answers.values)

    # Life.

    def _opened(self) -> Admin:
        if self._process_id != os.getpid():
            # Connections of the parent process cannot be used here.
            self._admin, self._process_id = None, os.getpid()
        if self._admin is None:
            settings = client_settings(self._settings.cluster)
            self._admin = Admin(
                list(settings.namesrv), tls=settings.tls, credentials=settings.credentials
            )
            self._admin.start()
        return self._admin

    def _retried(self, ask: Callable[[Admin], T]) -> T:
        """Repeat a request after transient failures."""
        for _ in range(self._settings.fetch_retry_count):
            try:
                return ask(self._opened())
            except ClientError as error:
                if not _may_pass(error):
                    raise
                _log.info("the cluster is asked again: %s", error)
            _pause(self._settings.fetch_retry_interval_ms)
        return ask(self._opened())

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        admin, self._admin = self._admin, None
        if admin is not None and self._process_id == os.getpid():
            admin.close()


def _queues_of_one(topic: str, admin: Admin) -> list[QueueKey]:
    return admin.queues(topic)


def _asked(
    ask: Callable[[Admin, Sequence[QueueKey]], QueueAnswers[T]],
    keys: Sequence[QueueKey],
    admin: Admin,
) -> QueueAnswers[T]:
    return ask(admin, keys)


def _may_pass(error: ClientError) -> bool:
    if isinstance(error, SomeFailed):
        return any(_may_pass(one) for one in error.failures.values())
    return not isinstance(error, BrokerRefused) or error.code in BUSY_CODES


def _pause(interval_ms: int) -> None:
    threading.Event().wait(interval_ms / 1000)

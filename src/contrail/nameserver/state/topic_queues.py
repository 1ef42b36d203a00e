"""The topic-queue table: the brokers with queues of each topic.

Methods that walk the whole table are generators that yield after each row: the NameServer serves
requests between two slices. A walk sees each row as it is when it reaches it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import replace

from contrail.model.topic import Perm
from contrail.protocol.bodies.routes import QueueData


class TopicQueues:
    """``QueueData`` by topic and broker name; a topic without any broker is removed."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}

    def __len__(self) -> int:
        """How many topics there are."""
        return len(self._topics)

    def put(self, topic: str, queues: QueueData) -> None:
        self._topics.setdefault(topic, {})[queues.broker_name] = queues

    def has(self, topic: str, broker_name: str) -> bool:
        return broker_name in self._topics.get(topic, ())

    def of_topic(self, topic: str) -> tuple[QueueData, ...]:
        """A topic's queues, sorted by broker name."""
        return tuple(queues for _, queues in sorted(self._topics.get(topic, {}).items()))

    def topics(self) -> frozenset[str]:
        """A copy of the names, for a table that is known to be small."""
        return frozenset(self._topics)

    def listing(
        self, holds: Callable[[Mapping[str, QueueData]], bool]
    ) -> Generator[None, None, list[str]]:
        """The sorted names of the topics whose queues by broker name pass; a row a step."""
        names: list[str] = []
        for topic in list(self._topics):
            brokers = self._topics.get(topic)
            if brokers is not None and holds(brokers):
                insort(names, topic)
            yield
        return names

    def delete(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def delete_on(self, topic: str, broker_names: Collection[str]) -> None:
        """Remove a topic from these brokers only."""
        brokers = self._topics.get(topic)
        if brokers is None:
            return
        for name in broker_names:
            brokers.pop(name, None)
        if not brokers:
            del self._topics[topic]

    def removing_broker(self, broker_name: str) -> Generator[None, None, None]:
        """Remove all topics of a broker; a row a step."""
        for topic in list(self._topics):
            self.delete_on(topic, (broker_name,))
            yield

    def removing_others(
        self, broker_name: str, kept: Collection[str]
    ) -> Generator[None, None, None]:
        """Remove all topics of a broker except these; a row a step."""
        for topic in list(self._topics):
            if topic not in kept:
                self.delete_on(topic, (broker_name,))
            yield

    def wiping_write(self, broker_name: str) -> Generator[None, None, int]:
        """Make a broker's queues unwritable; returns in how many topics. A row a step."""
        return self._setting_perms(broker_name, lambda perm: perm & ~int(Perm.WRITE))

    def adding_write(self, broker_name: str) -> Generator[None, None, int]:
        """Make a broker's queues readable and writable, whatever they were before. A row a step."""
        return self._setting_perms(broker_name, lambda _: int(Perm.READ | Perm.WRITE))

    def _setting_perms(
        self, broker_name: str, change: Callable[[int], int]
    ) -> Generator[None, None, int]:
        count = 0
        for topic in list(self._topics):
            brokers = self._topics.get(topic, {})
            queues = brokers.get(broker_name)
            if queues is not None:
                brokers[broker_name] = replace(queues, perm=change(queues.perm))
                count += 1
            yield
        return count

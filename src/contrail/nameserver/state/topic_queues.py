"""Which brokers have queues of which topic: the topic-queue table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from contrail.model.topic import Perm
from contrail.protocol.bodies.routes import QueueData


class TopicQueues:
    """``QueueData`` by topic and broker name; a topic without any broker is gone."""

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
        """By broker name."""
        return tuple(queues for _, queues in sorted(self._topics.get(topic, {}).items()))

    def topics(self) -> frozenset[str]:
        return frozenset(self._topics)

    def topics_of(self, broker_names: Collection[str]) -> frozenset[str]:
        """The topics that at least one of these brokers has."""
        return frozenset(
            topic
            for topic, brokers in self._topics.items()
            if any(name in brokers for name in broker_names)
        )

    def topics_where(self, holds: Callable[[int], bool]) -> frozenset[str]:
        """The topics whose system flag passes; brokers do not differ in it, so one is asked."""
        return frozenset(
            topic
            for topic, brokers in self._topics.items()
            if holds(next(iter(brokers.values())).sys_flag)
        )

    def delete(self, topic: str) -> None:
        self._topics.pop(topic, None)

    def delete_on(self, topic: str, broker_names: Collection[str]) -> None:
        """Take a topic from these brokers only."""
        brokers = self._topics.get(topic)
        if brokers is None:
            return
        for name in broker_names:
            brokers.pop(name, None)
        if not brokers:
            del self._topics[topic]

    def remove_broker(self, broker_name: str) -> None:
        for topic in self.topics_of((broker_name,)):
            self.delete_on(topic, (broker_name,))

    def wipe_write(self, broker_name: str) -> int:
        """Make a broker's queues unwritable; returns in how many topics."""
        return self._set_perms(broker_name, lambda perm: perm & ~int(Perm.WRITE))

    def add_write(self, broker_name: str) -> int:
        """Make a broker's queues readable and writable, whatever they were before."""
        return self._set_perms(broker_name, lambda _: int(Perm.READ | Perm.WRITE))

    def _set_perms(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for brokers in self._having(broker_name):
            queues = brokers[broker_name]
            brokers[broker_name] = replace(queues, perm=change(queues.perm))
            count += 1
        return count

    def _having(self, broker_name: str) -> Iterator[dict[str, QueueData]]:
        return (brokers for brokers in self._topics.values() if broker_name in brokers)

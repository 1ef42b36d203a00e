"""Chooses the queue of a row.

The choice depends only on the row, the layout of its batch, the partition and the row's number in
it: a task that runs again sends each row to the same queue. In this order:

1. ``queueId``: that queue, of the broker in ``brokerName`` or, without it, of the first broker by
   name that has a queue of that id;
2. ``shardingKey``: the queue that RocketMQ's clients choose by its hash;
3. the key of the row, if repeats are found by keys: they must reach the same broker again;
4. else the queues in turn, beginning at the number of the partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from contrail.client.message import MessageQueue
from contrail.client.selectors import java_hash_of
from contrail.errors import SinkRefused
from contrail.protocol.bodies.sinks import Queues

# Broker name and queue id of each queue that rows of a topic are spread over, by topic.
Topics = Mapping[str, Queues]
Indexes = np.ndarray[Any, np.dtype[np.int64]]


class BatchPlan(NamedTuple):
    """The queues of a batch as far as they are known, and its coordinator."""

    coordinator: str
    topics: Topics

    def brokers(self, *, with_coordinator: bool) -> list[str]:
        """The brokers that must hold the plan before a row is sent, in the order of requests."""
        named = {name for queues in self.topics.values() for name, _ in queues}
        return sorted(named | {self.coordinator} if with_coordinator else named)

    def part_of(self, broker_name: str) -> dict[str, Queues]:
        """The topics in a broker's plan: those it has queues of; for the coordinator all."""
        return {
            topic: queues
            for topic, queues in self.topics.items()
            if broker_name == self.coordinator or any(name == broker_name for name, _ in queues)
        }


class RowWish(NamedTuple):
    """The columns of one row that choose its queue."""

    queue_id: int | None = None
    broker_name: str | None = None
    sharding_key: str | None = None
    key: str | None = None


class QueueTable:
    """The queues of one topic in one layout, in the clients' order."""

    def __init__(self, topic: str, queues: Queues) -> None:
        if not queues:
            raise SinkRefused(f"topic {topic!r} has no queue that may be written: create its route")
        self.topic = topic
        self.queues = tuple(MessageQueue(topic, name, number) for name, number in queues)
        self._by_place = {(one.broker_name, one.queue_id): n for n, one in enumerate(self.queues)}
        self._first_by_id: dict[int, int] = {}
        for number in sorted(range(len(queues)), key=lambda n: self.queues[n].broker_name):
            self._first_by_id.setdefault(self.queues[number].queue_id, number)

    def choose(self, wish: RowWish, partition: int, row_number: int) -> int:
        """The index in ``queues`` of the queue for a row.

        Raises:
            SinkRefused: the row names a queue or a broker that the topic does not have.
        """
        if wish.queue_id is not None:
            return self._named(wish.queue_id, wish.broker_name, partition, row_number)
        if wish.sharding_key is not None:
            return self._hashed(wish.sharding_key)
        if wish.key is not None:
            return self._hashed(wish.key)
        return (partition + row_number) % len(self.queues)

    def _hashed(self, key: str) -> int:
        return abs(java_hash_of(key)) % len(self.queues)

    def _named(self, queue_id: int, broker_name: str | None, partition: int, row: int) -> int:
        found = (
            self._first_by_id.get(queue_id)
            if broker_name is None
            else self._by_place.get((broker_name, queue_id))
        )
        if found is None:
            where = "" if broker_name is None else f" on broker {broker_name!r}"
            known = ", ".join(f"{one.broker_name}:{one.queue_id}" for one in self.queues[:16])
            raise SinkRefused(
                f"row {row} of partition {partition}, column queueId: topic {self.topic!r} has no "
                f"queue {queue_id}{where}: it has {known}"
            )
        return found

    def choose_many(
        self,
        wishes: RowWishes,
        rows: Indexes,
        partition: int,
        first_row: int,
    ) -> Indexes:
        """The result of ``choose`` for each of ``rows``, numbers within one Arrow batch."""
        chosen: Indexes = (partition + first_row + rows) % len(self.queues)
        for keys in (wishes.keys, wishes.sharding_keys):
            if keys is not None:
                chosen = self._override_hashed(chosen, keys, rows)
        if wishes.queue_ids is not None:
            self._override_named(chosen, wishes, rows, partition, first_row)
        return chosen

    def _override_hashed(self, chosen: Indexes, keys: CodedTexts, rows: Indexes) -> Indexes:
        codes = keys.codes[rows]
        # The last entry is for rows without a key: their code is -1.
        places = np.array([*(self._hashed(key) for key in keys.texts), 0], np.int64)
        return np.where(codes < 0, chosen, places[codes])

    def _override_named(
        self, chosen: Indexes, wishes: RowWishes, rows: Indexes, partition: int, first_row: int
    ) -> None:
        queue_ids, names = wishes.queue_ids, wishes.broker_names
        assert queue_ids is not None
        found: dict[tuple[int, str | None], int] = {}
        for place, row in enumerate(rows.tolist()):
            queue_id = queue_ids[row]
            if queue_id is None:
                continue
            wished = (queue_id, names[row] if names is not None else None)
            number = found.get(wished)
            if number is None:
                number = found[wished] = self._named(*wished, partition, first_row + row)
            chosen[place] = number


class CodedTexts(NamedTuple):
    """A column of texts as the distinct texts and a code for each row, -1 for null."""

    texts: Sequence[str]
    codes: Indexes


class RowWishes(NamedTuple):
    """The columns of an Arrow batch that choose queues; None for an absent column."""

    queue_ids: Sequence[int | None] | None = None
    broker_names: Sequence[str | None] | None = None
    sharding_keys: CodedTexts | None = None
    keys: CodedTexts | None = None


def layout_of(queues: Sequence[MessageQueue]) -> Queues:
    """A topic's queues in the form of a layout."""
    return tuple((one.broker_name, one.queue_id) for one in queues)

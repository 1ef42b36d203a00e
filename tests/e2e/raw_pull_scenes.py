"""Tests of the raw reader of queues that hold on every cluster, ours and Apache's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from contrail.client.blocking.admin import Admin
from contrail.client.blocking.producer import Producer
from contrail.client.decoding import received_messages
from contrail.client.message import Message, MessageQueue, ReceivedMessage
from contrail.errors import BrokerRefused, DataLost, OptionInvalid, RouteMissing
from contrail.pipeline.cluster import ClusterView
from contrail.pipeline.options import SourceSettings
from contrail.pipeline.partitions import QueueSlice
from contrail.pipeline.pulls import Chunk, read_slice
from contrail.testing import eventually

BATCH_BYTES = 1 << 20
# Different tags of the same hash.
COLLIDING = ("Aa", "BB")

_names = itertools.count(1)


@dataclass(slots=True)
class Queue:
    """The only queue of a topic of a scene's own."""

    namesrv: str
    topic: str
    broker_name: str = "broker-a"

    def options(self, **given: str) -> dict[str, str]:
        names = {"fail": "failOnDataLoss", "timeout_ms": "pullTimeoutMs", "sql": "sqlFilter"}
        chosen = {names.get(name, name): value for name, value in given.items()}
        return {"namesrvAddr": self.namesrv, "subscribe": self.topic, **chosen}

    def settings(self, **given: str) -> SourceSettings:
        return SourceSettings.of(self.options(**given), streaming=False)

    def chunks(self, start: int, end: int, **given: str) -> Iterator[Chunk]:
        piece = QueueSlice(self.topic, self.broker_name, 0, start, end)
        return read_slice(self.settings(**given), piece)

    def read(self, start: int, end: int, **given: str) -> list[ReceivedMessage]:
        return [message for chunk in self.chunks(start, end, **given) for message in of(chunk)]

    def send(self, messages: Sequence[Message]) -> None:
        """In order, in as few batches as there may be."""
        with Producer(f"senders-of-{self.topic}", self.namesrv, max_message_size=4 << 20) as one:
            for batch in _batches(messages):
                one.send_batch(batch)

    def fill(self, count: int, *, body_bytes: int = 100) -> None:
        self.send([self.message(number, body_bytes) for number in range(count)])

    def message(self, number: int, body_bytes: int = 100) -> Message:
        tag = COLLIDING[number % 2] if number % 5 else "other"
        return Message(
            self.topic, body_of(number, body_bytes), tags=tag, properties={"number": str(number)}
        )


def body_of(number: int, body_bytes: int = 100) -> bytes:
    return f"{number:010}".encode().ljust(body_bytes, b".")


def _batches(messages: Sequence[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        if batch and size + len(message.body) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.body)
    yield batch


def of(chunk: Chunk) -> list[ReceivedMessage]:
    """The messages of a chunk; each position is one record."""
    buffer, positions = chunk
    found = []
    for position in positions:
        size = int.from_bytes(buffer[position : position + 4], "big")
        found += received_messages(bytes(buffer[position : position + size]), "broker-a")
    return found


def offsets(messages: Sequence[ReceivedMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


def make_queue(
    namesrv: str, name: str, *, broker: str = "broker-a", attributes: dict[str, str] | None = None
) -> Queue:
    topic = f"{name}-{next(_names)}"
    with Admin(namesrv) as admin:
        admin.create_topic(topic, queues=1, broker=broker, attributes=attributes)
    return Queue(namesrv, topic, broker)


# Scenes.


def exactly_what_was_asked_for_comes(namesrv: str) -> None:
    queue = make_queue(namesrv, "dense")
    queue.fill(1_000)
    for start, end in [(0, 1_000), (7, 993), (500, 501), (31, 65), (999, 1_000), (4, 4)]:
        found = queue.read(start, end)
        assert offsets(found) == list(range(start, end))
        assert [message.body for message in found] == [body_of(n) for n in range(start, end)]


def large_messages_come_in_short_answers(namesrv: str) -> None:
    queue = make_queue(namesrv, "large")
    sizes = [16_000] * 300 + [1 << 20] * 6 + [100] * 200 + [16_000, 100] * 40
    queue.send([queue.message(number, size) for number, size in enumerate(sizes)])
    found = queue.read(0, len(sizes))
    assert offsets(found) == list(range(len(sizes)))
    assert [len(message.body) for message in found] == sizes


def tags_of_the_same_hash_are_told_apart(namesrv: str) -> None:
    queue = make_queue(namesrv, "tags")
    queue.fill(3_000)
    wanted = [n for n in range(100, 2_900) if n % 5 and COLLIDING[n % 2] == "Aa"]
    assert offsets(queue.read(100, 2_900, tags="Aa")) == wanted
    both = [n for n in range(3_000) if n % 5]
    assert offsets(queue.read(0, 3_000, tags="Aa || BB")) == both
    assert queue.read(0, 3_000, tags="nobody") == []


def an_sql_expression_chooses(namesrv: str) -> None:
    queue = make_queue(namesrv, "sql")
    queue.fill(2_000)
    found = queue.read(0, 2_000, sql="number BETWEEN 700 AND 705 OR number = 1999")
    assert offsets(found) == [*range(700, 706), 1_999]


def a_filter_that_is_wrong_is_refused(namesrv: str) -> None:
    queue = make_queue(namesrv, "wrong")
    queue.fill(3)
    with pytest.raises(BrokerRefused, match="refused the expression 'number BETWEEN'"):
        queue.read(0, 3, sql="number BETWEEN")


def batches_in_one_record_come_as_their_messages(namesrv: str) -> None:
    queue = make_queue(namesrv, "whole", attributes={"queue.type": "BatchCQ"})
    for first in range(0, 500, 10):
        queue.send([queue.message(number) for number in range(first, first + 10)])
    for start, end in [(0, 500), (13, 487), (25, 26)]:
        found = queue.read(start, end)
        assert offsets(found) == list(range(start, end))
        assert [message.body for message in found] == [body_of(n) for n in range(start, end)]


def a_topic_made_anew_is_data_lost(namesrv: str) -> None:
    queue = make_queue(namesrv, "anew")
    queue.fill(200)
    with Admin(namesrv) as admin:
        admin.delete_topic(queue.topic)
        admin.create_topic(queue.topic, queues=1, broker=queue.broker_name)
    queue.fill(5)
    with pytest.raises(DataLost, match="messages 100 to 199 of queue 0"):
        queue.read(100, 200)
    assert offsets(queue.read(3, 200, fail="false")) == [3, 4]
    with pytest.raises(DataLost, match="the queue ends at 5"):
        queue.read(3, 200, tags="other")


def the_driver_sees_queues_and_how_far_they_reach(namesrv: str) -> None:
    queue = make_queue(namesrv, "seen")
    queue.fill(10)
    key = MessageQueue(queue.topic, queue.broker_name, 0)
    view = ClusterView(queue.settings())
    try:
        assert view.queues() == [key]
        assert view.queues(pattern="seen-[0-9]+") == [key]
        assert view.queues(assigned={queue.topic: [(queue.broker_name, 0)]}) == [key]
        with pytest.raises(OptionInvalid, match=f"no queue '{queue.broker_name}:7'"):
            view.queues(assigned={queue.topic: [(queue.broker_name, 7)]})
        assert view.ranges([key]) == {key: (0, 10)}
        assert view.away == frozenset()
        stored_ms = queue.read(4, 5)[0].store_timestamp_ms
        found = view.offsets_at([key], stored_ms)
        assert queue.read(found[key], found[key] + 1)[0].store_timestamp_ms >= stored_ms
        assert view.offsets_at([key], 0) == {key: 0}
        assert view.offsets_at([key], stored_ms + 3_600_000) == {key: 10}
        view.publish("watchers", {key: 7})
        with Admin(namesrv) as admin:
            eventually(lambda: admin.committed("watchers", key) == 7, "the offset")
    finally:
        view.close()


def a_topic_that_is_not_there_is_named(namesrv: str) -> None:
    options = {"namesrvAddr": namesrv, "subscribe": "nowhere", "fetchOffset.retryIntervalMs": "1"}
    view = ClusterView(SourceSettings.of(options, streaming=False))
    try:
        with pytest.raises(RouteMissing, match="nowhere"):
            view.queues()
    finally:
        view.close()


Scene = Callable[[str], None]
SCENES: list[Scene] = [
    exactly_what_was_asked_for_comes,
    large_messages_come_in_short_answers,
    tags_of_the_same_hash_are_told_apart,
    an_sql_expression_chooses,
    a_filter_that_is_wrong_is_refused,
    batches_in_one_record_come_as_their_messages,
    a_topic_made_anew_is_data_lost,
    the_driver_sees_queues_and_how_far_they_reach,
    a_topic_that_is_not_there_is_named,
]

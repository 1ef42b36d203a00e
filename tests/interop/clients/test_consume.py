"""Official consumers receive every message of their subscription, and no other."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.interop.clients.driver import Driver, Event
from tests.interop.clients.registry import clients_of
from tests.interop.clients.target import Cluster
from tests.interop.clients.traffic import (
    CONSUME_TIMEOUT_S,
    Queue,
    check_bodies,
    check_places,
    consume,
    consumer,
    keys,
    numbered,
    queue_of,
    received_count,
    received_keys,
    send,
)

# One broker of the cluster takes the fast path, the other one the general way.
pytestmark = pytest.mark.proves("broker.fast.both-ways-interop")

COUNT = 24
# A queue is received again from its oldest message in a handler; there are 8 queues.
REPEATED_MAX = 8
COLOURS = ("red", "green", "blue")


@pytest.mark.proves("apache.clients.push")
@pytest.mark.proves("broker.running.clients-spread", case="java5")
@pytest.mark.parametrize("client", clients_of("push concurrently"), indirect=True)
def test_push_concurrently(client: Driver, cluster: Cluster, topic: str) -> None:
    sent = send(client, cluster, topic, count=COUNT, tag="red")
    with consumer(client, cluster, topic) as running:
        running.wait_for(received_count(COUNT), CONSUME_TIMEOUT_S)
        # These meet pulls that wait at the broker.
        sent += send(client, cluster, topic, count=COUNT, start=1 + COUNT, tag="red")
        running.wait_for(received_count(2 * COUNT), CONSUME_TIMEOUT_S)
    received = running.of("received")
    assert keys(received) == numbered(1, 2 * COUNT)
    check_places(sent, received)
    check_bodies(received)
    assert {event["tag"] for event in received} == {"red"}
    # The group's progress was kept: a new process goes on where the old one stopped.
    send(client, cluster, topic, count=COUNT, start=1 + 2 * COUNT)
    fresh = numbered(1 + 2 * COUNT, COUNT)
    with consumer(client, cluster, topic) as running:
        running.wait_for(received_keys(fresh), CONSUME_TIMEOUT_S)
    received = running.of("received")
    # Messages in a handler when the first process ended may come once more.
    again = [key for key in keys(received) if key not in fresh]
    assert set(again) <= set(numbered(1 + COUNT, COUNT))
    assert len(again) <= REPEATED_MAX
    assert len(received) == len(again) + COUNT


@pytest.mark.proves("apache.clients.push")
@pytest.mark.parametrize("client", clients_of("push orderly"), indirect=True)
def test_push_orderly(client: Driver, cluster: Cluster, topic: str) -> None:
    sent = send(client, cluster, topic, count=3 * COUNT)
    received = consume(client, cluster, topic, count=3 * COUNT, orderly=True)
    assert keys(received) == numbered(1, 3 * COUNT)
    check_places(sent, received)
    by_queue: dict[Queue, list[int]] = defaultdict(list)
    for event in received:
        by_queue[queue_of(event)].append(event["queue_offset"])
    assert len(by_queue) > 1
    for queue_offsets in by_queue.values():
        assert queue_offsets == list(range(len(queue_offsets)))


@pytest.mark.proves("apache.clients.push")
@pytest.mark.parametrize("client", clients_of("broadcasting"), indirect=True)
def test_broadcasting(client: Driver, cluster: Cluster, topic: str) -> None:
    send(client, cluster, topic, count=COUNT)
    one = consumer(client, cluster, topic, broadcasting=True, instance="one")
    other = consumer(client, cluster, topic, broadcasting=True, instance="other")
    with one, other:
        for running in (one, other):
            running.wait_for(received_count(COUNT), CONSUME_TIMEOUT_S)
        send(client, cluster, topic, count=COUNT, start=1 + COUNT)
        for running in (one, other):
            running.wait_for(received_count(2 * COUNT), CONSUME_TIMEOUT_S)
    for running in (one, other):
        assert keys(running.of("received")) == numbered(1, 2 * COUNT)


@pytest.mark.proves("apache.clients.pull")
@pytest.mark.parametrize("client", clients_of("lite pull"), indirect=True)
def test_lite_pull(client: Driver, cluster: Cluster, topic: str) -> None:
    sent = send(client, cluster, topic, count=COUNT)
    received = consume(client, cluster, topic, command="litepull", count=COUNT)
    assert keys(received) == numbered(1, COUNT)
    check_places(sent, received)
    check_bodies(received)


@pytest.mark.parametrize("client", ["java5", "java4"], indirect=True)
def test_lite_pull_of_assigned_queues(client: Driver, cluster: Cluster, topic: str) -> None:
    wanted = beyond_first(send(client, cluster, topic, count=COUNT), queue_id=1)
    received = consume(
        client,
        cluster,
        topic,
        command="litepull",
        count=len(wanted),
        assign=True,
        queue_id=1,
        queue_offset=1,
    )
    assert keys(received) == keys(wanted)


@pytest.mark.proves("apache.clients.pull")
@pytest.mark.parametrize("client", clients_of("pull"), indirect=True)
def test_pull(client: Driver, cluster: Cluster, topic: str) -> None:
    sent = send(client, cluster, topic, count=COUNT)
    received = consume(client, cluster, topic, command="pull", count=COUNT)
    assert keys(received) == numbered(1, COUNT)
    check_places(sent, received)
    wanted = beyond_first(received, queue_id=1)
    received = consume(
        client, cluster, topic, command="pull", count=len(wanted), queue_id=1, queue_offset=1
    )
    assert keys(received) == keys(wanted)


@pytest.mark.proves("apache.clients.filters")
@pytest.mark.proves("broker.pull.tag-filter", case="java5")
@pytest.mark.parametrize("client", clients_of("tags"), indirect=True)
def test_tags(client: Driver, cluster: Cluster, topic: str) -> None:
    send(client, cluster, topic, count=COUNT, tags=COLOURS)
    received = consume(client, cluster, topic, count=COUNT * 2 // 3, expression="red || blue")
    by_tag = {tag: keys(event for event in received if event["tag"] == tag) for tag in COLOURS}
    assert by_tag["green"] == []
    assert len(by_tag["red"]) == len(by_tag["blue"]) == COUNT // 3
    assert sorted(by_tag["red"] + by_tag["blue"]) == sorted({event["key"] for event in received})


@pytest.mark.proves("apache.clients.filters")
@pytest.mark.proves("broker.pull.sql92", case="java5")
@pytest.mark.parametrize("client", clients_of("SQL92"), indirect=True)
def test_sql92(client: Driver, cluster: Cluster, topic: str) -> None:
    send(client, cluster, topic, count=COUNT, tags=COLOURS, properties={"size": "3"})
    send(client, cluster, topic, count=COUNT, start=1 + COUNT, tags=COLOURS, properties={"size": 7})
    received = consume(
        client,
        cluster,
        topic,
        count=COUNT * 2 // 3,
        expression="size BETWEEN 5 AND 9 AND TAGS IN ('red', 'blue')",
        expression_type="SQL92",
    )
    assert len(set(keys(received))) == len(received) == COUNT * 2 // 3
    assert {event["tag"] for event in received} == {"red", "blue"}
    assert set(keys(received)) < set(numbered(1 + COUNT, COUNT))


def beyond_first(events: list[Event], *, queue_id: int) -> list[Event]:
    """The messages of that queue of either broker, without the first of each."""
    return [
        event for event in events if event["queue_id"] == queue_id and event["queue_offset"] > 0
    ]

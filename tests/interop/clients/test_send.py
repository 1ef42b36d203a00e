"""Messages of official clients are stored whole, at the places of their receipts."""

from __future__ import annotations

import pytest

from tests.interop.clients.driver import RUN_TIMEOUT_S, Driver
from tests.interop.clients.registry import clients_of
from tests.interop.clients.stored import read_back
from tests.interop.clients.target import Cluster
from tests.interop.clients.topics import create_topic
from tests.interop.clients.traffic import (
    check_bodies,
    check_places,
    keys,
    numbered,
    queue_of,
    send,
    sender,
)

# One broker of the cluster takes the fast path, the other one the general way.
pytestmark = pytest.mark.proves("broker.fast.both-ways-interop")

COUNT = 24
BODY_BYTES = 20_000


@pytest.mark.proves("apache.clients.send")
@pytest.mark.proves("wire.frames.old-java", case="java4")
@pytest.mark.parametrize("client", clients_of("sync send"), indirect=True)
def test_sync_send(client: Driver, cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    sent = send(client, cluster, topic, mode="sync", count=COUNT, tag="red")
    found = read_back(cluster, topic, COUNT)
    assert keys(sent) == keys(found) == numbered(1, COUNT)
    assert {event["status"] for event in sent} == {"SEND_OK"}
    assert {event["tag"] for event in found} == {"red"}
    assert {event["broker"] for event in found} == {broker.name for broker in cluster.brokers}
    check_places(sent, found)
    check_bodies(found)


@pytest.mark.proves("apache.clients.send")
@pytest.mark.parametrize("client", clients_of("async send"), indirect=True)
def test_async_send(client: Driver, cluster: Cluster, topic: str) -> None:
    sent = send(client, cluster, topic, mode="async", count=COUNT)
    found = read_back(cluster, topic, COUNT)
    assert keys(sent) == keys(found) == numbered(1, COUNT)
    assert {event["status"] for event in sent} == {"SEND_OK"}
    check_places(sent, found)
    check_bodies(found)


@pytest.mark.proves("apache.clients.send")
@pytest.mark.parametrize("client", clients_of("one-way send"), indirect=True)
def test_one_way_send(client: Driver, cluster: Cluster, topic: str) -> None:
    # One-way sends have no answer: some clients would leave before the brokers have read all, so
    # they stay until the test ends them.
    with sender(client, cluster, topic, mode="oneway", count=COUNT) as running:
        running.wait_for(lambda events: len(events) >= COUNT, RUN_TIMEOUT_S)
        found = read_back(cluster, topic, COUNT)
    assert keys(running.of("sent")) == numbered(1, COUNT)
    assert running.events[-1]["event"] == "done"
    assert keys(found) == numbered(1, COUNT)
    check_bodies(found)


@pytest.mark.proves("apache.clients.send")
@pytest.mark.parametrize("client", clients_of("batch send"), indirect=True)
def test_batch_send(client: Driver, cluster: Cluster, topic: str) -> None:
    sent = send(client, cluster, topic, mode="batch", count=COUNT)
    found = read_back(cluster, topic, COUNT)
    assert len({queue_of(event) for event in found}) == 1
    # One request: the messages lie behind each other, in the order of the batch.
    assert [event["key"] for event in found] == numbered(1, COUNT)
    assert [event["queue_offset"] for event in found] == list(range(COUNT))
    check_places(sent, found)
    check_bodies(found)


@pytest.mark.proves("apache.clients.send")
@pytest.mark.proves("broker.send.compression-flags", case="java5")
@pytest.mark.parametrize("client", clients_of("compressed send"), indirect=True)
def test_compressed_send(client: Driver, cluster: Cluster, topic: str) -> None:
    sent = send(client, cluster, topic, mode="compressed", count=COUNT, body_bytes=BODY_BYTES)
    found = read_back(cluster, topic, COUNT)
    assert keys(sent) == keys(found) == numbered(1, COUNT)
    assert all(event["compressed"] for event in found)
    assert max(event["body_bytes_stored"] for event in found) < BODY_BYTES // 10
    check_bodies(found, BODY_BYTES)


@pytest.mark.proves("apache.clients.queue-selector")
@pytest.mark.parametrize("client", clients_of("queue selector"), indirect=True)
def test_queue_selector(client: Driver, cluster: Cluster, topic: str) -> None:
    # A route that grows while the client sends changes the queues of its selector.
    create_topic(cluster, topic)
    sent = send(client, cluster, topic, mode="sync", count=COUNT, queue_selector=2)
    found = read_back(cluster, topic, COUNT)
    assert len({queue_of(event) for event in found}) == 1
    assert {event["queue_id"] for event in found} == {2}
    assert [event["key"] for event in found] == numbered(1, COUNT)
    check_places(sent, found)

"""Official clients find a single message by its ids and by its key."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.interop.clients.driver import Driver, Event
from tests.interop.clients.registry import clients_of
from tests.interop.clients.target import Cluster
from tests.interop.clients.traffic import aim, check_bodies, check_places, send

COUNT = 8
INDEX_TIMEOUT_S = 90.0


@pytest.mark.proves("apache.clients.query")
@pytest.mark.proves("broker.topics.query-by-id", case="java5")
@pytest.mark.parametrize("client", clients_of("query by id"), indirect=True)
def test_query_by_id(client: Driver, cluster: Cluster, topic: str) -> None:
    wanted = send(client, cluster, topic, count=COUNT)[3]
    found = query(client, cluster, topic, by="id", value=wanted["offset_message_id"])
    check_found(found, wanted)


@pytest.mark.proves("apache.clients.query")
@pytest.mark.proves("broker.topics.query-by-key", case="java5")
@pytest.mark.parametrize("client", clients_of("query by key"), indirect=True)
def test_query_by_key(client: Driver, cluster: Cluster, topic: str) -> None:
    wanted = send(client, cluster, topic, count=COUNT)[3]
    check_found(query_until_found(client, cluster, topic, by="key", value=wanted["key"]), wanted)
    assert query(client, cluster, topic, by="key", value="no such key") == []


@pytest.mark.proves("broker.topics.query-by-unique-key", case="java5")
@pytest.mark.parametrize("client", ["java5", "java4"], indirect=True)
def test_query_by_unique_key(client: Driver, cluster: Cluster, topic: str) -> None:
    wanted = send(client, cluster, topic, count=COUNT)[3]
    # The index is filled behind the log; once the key is there, the id of the same message is too.
    query_until_found(client, cluster, topic, by="key", value=wanted["key"])
    found = query(client, cluster, topic, by="unique_key", value=wanted["message_id"])
    check_found(found, wanted)


def query(client: Driver, cluster: Cluster, topic: str, **arguments: Any) -> list[Event]:
    events = client.run("query", aim(cluster, topic, arguments))
    assert events[-1]["event"] == "done", events
    return [event for event in events if event["event"] == "found"]


def query_until_found(
    client: Driver, cluster: Cluster, topic: str, **arguments: Any
) -> list[Event]:
    deadline = time.monotonic() + INDEX_TIMEOUT_S
    while not (found := query(client, cluster, topic, **arguments)):
        assert time.monotonic() < deadline, f"nothing found for {arguments}"
    return found


def check_found(found: list[Event], wanted: Event) -> None:
    """Exactly the message that was sent; an answer does not say which broker gave it."""
    assert [event["key"] for event in found] == [wanted["key"]]
    check_places([wanted | {"broker": None}], found)
    check_bodies(found)

"""Commands of the tests to a client, and checks of its answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.interop.clients.driver import Driver, Event, RunningDriver
from tests.interop.clients.target import Cluster

# Some clients look for new routes every 30 s only, and share queues 10 s or 20 s later.
CONSUME_TIMEOUT_S = 120
# A consumer without a count lives until it is closed.
_LIFE_TIMEOUT_S = 280
# Fields of a receipt's place; some clients do not have all of them.
_PLACE = ("message_id", "broker", "queue_id", "queue_offset")

Queue = tuple[str, int]


def aim(cluster: Cluster, topic: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments every command needs, and those given."""
    where = {"namesrv": cluster.namesrv, "group": f"group_{topic}", "topic": topic}
    # Some clients learn only the address of the broker that a message came from.
    brokers = {broker.address: broker.name for broker in cluster.brokers}
    return where | {"brokers": brokers} | dict(arguments)


def send(client: Driver, cluster: Cluster, topic: str, **arguments: Any) -> list[Event]:
    """Send messages and return the client's event for each of them."""
    events = client.run("send", _sending(cluster, topic, arguments))
    assert events[-1]["event"] == "done", events
    errors = [event for event in events if event["event"] == "error"]
    assert errors == [], errors
    sent = [event for event in events if event["event"] == "sent"]
    assert len(sent) == arguments["count"], f"{len(sent)} of {arguments['count']} were sent"
    return sent


def sender(client: Driver, cluster: Cluster, topic: str, **arguments: Any) -> RunningDriver:
    """Start a sender; the caller closes it."""
    return client.start("send", _sending(cluster, topic, arguments))


def _sending(cluster: Cluster, topic: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {"mode": "sync", "start": 1, "group": f"senders_{topic}"}
    return aim(cluster, topic, wanted | dict(arguments))


def consumer(
    client: Driver, cluster: Cluster, topic: str, *, command: str = "push", **arguments: Any
) -> RunningDriver:
    """Start a consumer from the first message; the caller closes it."""
    wanted = {"from": "first", "timeout_s": _LIFE_TIMEOUT_S, "rebalance_ms": 1000} | arguments
    return client.start(command, aim(cluster, topic, wanted))


def consume(
    client: Driver, cluster: Cluster, topic: str, *, count: int, **arguments: Any
) -> list[Event]:
    """Receive until ``count`` messages came, and return them."""
    wanted: dict[str, Any] = {"count": count, "timeout_s": CONSUME_TIMEOUT_S, **arguments}
    with consumer(client, cluster, topic, **wanted) as running:
        events = running.finish(CONSUME_TIMEOUT_S + 60)
    return [event for event in events if event["event"] == "received"]


def received_count(count: int) -> Callable[[list[Event]], bool]:
    """Whether that many different messages were received."""

    def enough(events: list[Event]) -> bool:
        return len({event["key"] for event in events if event["event"] == "received"}) >= count

    return enough


def received_keys(wanted: Iterable[str]) -> Callable[[list[Event]], bool]:
    """Whether the messages with these keys were received."""
    missing = frozenset(wanted)

    def enough(events: list[Event]) -> bool:
        return missing <= {event["key"] for event in events if event["event"] == "received"}

    return enough


def keys(events: Iterable[Event]) -> list[str]:
    """The keys in the order of their numbers; a message received twice is there twice."""
    found = [event["key"] for event in events]
    return sorted(found, key=lambda key: int(key.removeprefix("k-")))


def numbered(first: int, count: int) -> list[str]:
    return [f"k-{number}" for number in range(first, first + count)]


def queue_of(event: Event) -> Queue:
    return event["broker"], event["queue_id"]


def check_places(sent: Iterable[Event], found: Iterable[Event]) -> None:
    """Each message lies at the place of its receipt, under the receipt's id."""
    by_key = {event["key"]: event for event in found}
    for event in sent:
        told = {name: event[name] for name in _PLACE if event.get(name) is not None}
        assert told, f"the sender was told nothing: {event}"
        assert told == {name: by_key[event["key"]][name] for name in told}


def check_bodies(found: Iterable[Event], body_bytes: int = 0) -> None:
    for event in found:
        number = re.sub("^k-", "", event["key"])
        assert event["body"] == f"body-{number}".ljust(body_bytes, ".")

"""Topics and messages for the tests of commands that work on messages."""

from __future__ import annotations

import itertools

from contrail import Admin, Message, Producer
from contrail.client.message import ReceivedMessage, SendReceipt
from contrail.errors import RouteMissing
from contrail.testing import LocalCluster, eventually

_TIMEOUT_MS = 30_000
_names = itertools.count(1)


def fresh(kind: str) -> str:
    """A name that no other test uses."""
    return f"{kind}-{next(_names)}"


def make_topic(cluster: LocalCluster, queue_count: int = 2) -> str:
    """A topic of its own on every broker, which the NameServer knows."""
    topic = fresh("topic")
    with Admin(cluster.namesrv, timeout_ms=_TIMEOUT_MS) as admin:
        admin.create_topic(topic, queues=queue_count)
        count = queue_count * len(cluster.brokers)
        eventually(lambda: _queue_count(admin, topic) == count, f"the route of {topic}")
    return topic


def make_group(cluster: LocalCluster) -> str:
    group = fresh("group")
    with Admin(cluster.namesrv) as admin:
        admin.create_group(group)
    return group


def _queue_count(admin: Admin, topic: str) -> int:
    try:
        return len(admin.queues(topic))
    except RouteMissing:
        return 0


def put(cluster: LocalCluster, *messages: Message) -> list[SendReceipt]:
    with Producer("tests", cluster.namesrv, send_timeout_ms=_TIMEOUT_MS) as producer:
        return [producer.send(message) for message in messages]


def stored(cluster: LocalCluster, topic: str) -> list[ReceivedMessage]:
    """All messages of a topic, in each broker's order."""
    with Admin(cluster.namesrv) as admin:
        found = [one for queue in admin.queues(topic) for one in admin.browse(queue)]
    return sorted(found, key=lambda one: (one.queue.broker_name, one.physical_offset))


def bury(cluster: LocalCluster, group: str, topic: str) -> None:
    """Make dead letters of a group of all messages of a topic."""
    with Admin(cluster.namesrv) as admin:
        for message in stored(cluster, topic):
            admin.send_back(group, message, delay_level=-1)
        letters = f"%DLQ%{group}"
        eventually(lambda: _queue_count(admin, letters) > 0, "the dead letter topic's route")

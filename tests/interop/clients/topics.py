"""Topics made on both brokers before the first send.

A topic that is made by sending appears broker by broker: a client that asks for the route in
between uses one broker only. Tests that need both ask for the topic first.
"""

from __future__ import annotations

import json
import time

from contrail.model import fastjson
from tests.interop.clients.target import Cluster
from tests.interop.clients.traffic import Queue
from tests.interop.differential.raw import RawConnection

QUEUE_COUNT = 4

_UPDATE_AND_CREATE_TOPIC = 17
_UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200
_GET_ROUTE_INFO_BY_TOPIC = 105
_ROUTE_TIMEOUT_S = 60.0
_POLL_S = 0.1


def create_topic(
    cluster: Cluster,
    topic: str,
    *,
    queue_count: int = QUEUE_COUNT,
    broker_count: int | None = None,
) -> set[Queue]:
    """Make the topic, wait until it is routed to, and return its queues.

    It is made on every broker, unless only on the first ``broker_count``.
    """
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    brokers = cluster.brokers[:broker_count]
    for broker in brokers:
        with RawConnection(broker.address) as connection:
            answer = connection.ask(_UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == 0, f"{broker.name} does not make {topic}: {answer.remark}"
    names = {broker.name for broker in brokers}
    _wait_for_route(cluster, topic, names)
    return {(name, queue_id) for name in names for queue_id in range(queue_count)}


def create_group(cluster: Cluster, group: str, *, retry_max_times: int = 16) -> None:
    """Make the group on every broker, and its retry topic.

    A consumer's first heartbeat would make the topic, but some clients look for new routes only
    every 30 s.
    """
    settings = {"groupName": group, "retryMaxTimes": retry_max_times, "retryQueueNums": 1}
    for broker in cluster.brokers:
        with RawConnection(broker.address) as connection:
            body = json.dumps(settings).encode()
            answer = connection.ask(_UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=body)
        assert answer.code == 0, f"{broker.name} does not make {group}: {answer.remark}"
    create_topic(cluster, f"%RETRY%{group}", queue_count=1)


def _wait_for_route(cluster: Cluster, topic: str, names: set[str]) -> None:
    deadline = time.monotonic() + _ROUTE_TIMEOUT_S
    while (routed := _routed(cluster.namesrv.split(";")[0], topic)) != names:
        assert time.monotonic() < deadline, f"{topic} is routed to {routed}, not to {names}"
        time.sleep(_POLL_S)


def _routed(nameserver: str, topic: str) -> set[str]:
    """The brokers that the NameServer names for the topic; none while it does not know it."""
    with RawConnection(nameserver) as connection:
        answer = connection.ask(_GET_ROUTE_INFO_BY_TOPIC, {"topic": topic})
    if answer.code != 0:
        return set()
    route = fastjson.loads(answer.body)
    assert isinstance(route, dict)
    queues = route["queueDatas"]
    assert isinstance(queues, list)
    return {str(queue["brokerName"]) for queue in queues if isinstance(queue, dict)}

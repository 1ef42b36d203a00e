"""Topics made on both brokers before anybody sends.

A topic that is made by sending appears broker by broker: a client that asks for the route in
between uses one broker only. Tests that need both ask for the topic first.
"""

from __future__ import annotations

import time

from contrail.model import fastjson
from tests.interop.clients.target import Cluster
from tests.interop.clients.traffic import Queue
from tests.interop.differential.raw import RawConnection

QUEUE_COUNT = 4

_UPDATE_AND_CREATE_TOPIC = 17
_GET_ROUTE_INFO_BY_TOPIC = 105
_ROUTE_TIMEOUT_S = 60.0
_POLL_S = 0.1


def create_topic(cluster: Cluster, topic: str) -> set[Queue]:
    """Make the topic on every broker, wait until it is routed to, and return its queues."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUE_COUNT),
        "writeQueueNums": str(QUEUE_COUNT),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    for broker in cluster.brokers:
        with RawConnection(broker.address) as connection:
            answer = connection.ask(_UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == 0, f"{broker.name} does not make {topic}: {answer.remark}"
    names = {broker.name for broker in cluster.brokers}
    _wait_for_route(cluster, topic, names)
    return {(name, queue_id) for name in names for queue_id in range(QUEUE_COUNT)}


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

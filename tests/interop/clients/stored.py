"""The messages that brokers hold, read queue by queue with single pull requests.

The judge of clients' sends: no client library stands in between, and compression shows.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator

from contrail.model.message import StoredMessage
from contrail.model.record import SYS_FLAG_COMPRESSED, split_record_run
from tests.interop.clients.driver import Event
from tests.interop.clients.target import Broker, Cluster
from tests.interop.differential.raw import RawConnection

_PULL_MESSAGE = 11
_LIST_SYSTEM_MESSAGES = 90004
_SUCCESS = 0
_SUBSCRIPTION_GIVEN = 4
# A topic made by sending gets 4 queues per broker, or as many as its client requests, never more
# than 8.
_QUEUE_COUNT_MAX = 8
_READ_TIMEOUT_S = 90.0
_POLL_S = 0.1


def read_back(cluster: Cluster, topic: str, count: int) -> list[Event]:
    """Every message of the topic by queue, once there are ``count`` of them."""
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while len(found := read_all(cluster, topic)) < count and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def read_all(cluster: Cluster, topic: str) -> list[Event]:
    """Every message of the topic by queue, as it is now."""
    return [
        _event(message, broker.name)
        for broker in cluster.brokers
        for message in _read_broker(broker, topic)
    ]


def _read_broker(broker: Broker, topic: str) -> Iterator[StoredMessage]:
    with RawConnection(broker.address) as connection:
        for queue_id in range(_QUEUE_COUNT_MAX):
            yield from _read_queue(connection, topic, queue_id)


def _read_queue(connection: RawConnection, topic: str, queue_id: int) -> Iterator[StoredMessage]:
    queue_offset = 0
    asked = connection.ask(_LIST_SYSTEM_MESSAGES, _pull(topic, queue_id, queue_offset))
    # Contrail's brokers list topics of their own, which Apache's let every client pull.
    code = _LIST_SYSTEM_MESSAGES if asked.code == _SUCCESS else _PULL_MESSAGE
    # Any other code: no more messages, no such queue, or the topic does not exist yet.
    while (
        answer := connection.ask(code, _pull(topic, queue_id, queue_offset))
    ).code == _SUCCESS and answer.body:
        yield from split_record_run(answer.body)
        queue_offset = int(answer.fields["nextBeginOffset"])


def _pull(topic: str, queue_id: int, queue_offset: int) -> dict[str, str]:
    fields = {
        "consumerGroup": f"judge_{topic}",
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": queue_offset,
        "maxMsgNums": 32,
        "sysFlag": _SUBSCRIPTION_GIVEN,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
    return {name: str(value) for name, value in fields.items()}


def _event(message: StoredMessage, broker: str) -> Event:
    """The message as a consumer would print it, and how it is stored."""
    compressed = bool(message.sys_flag & SYS_FLAG_COMPRESSED)
    body = zlib.decompress(message.body) if compressed else message.body
    return {
        "event": "stored",
        "key": message.properties.get("KEYS"),
        "tag": message.properties.get("TAGS"),
        "body": body.decode(),
        "broker": broker,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.properties.get("UNIQ_KEY"),
        "compressed": compressed,
        "body_bytes_stored": len(message.body),
        "store_ms": message.store_timestamp_ms,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
    }

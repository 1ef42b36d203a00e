"""A cluster's topics, messages and groups as text for a failed test; bounded in size and time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from contrail.client.blocking.admin import Admin
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.errors import ContrailError
from contrail.testing.cluster import LocalCluster

_TOPICS_MAX = 20
_MESSAGES_PER_QUEUE_MAX = 5
_LINES_MAX = 200
_BODY_BYTES_MAX = 64
_GROUPS_MAX = 50
_TIMEOUT_MS = 3_000
_SYSTEM_GROUPS = "CID_RMQ_SYS_"


def dump(cluster: LocalCluster) -> str:
    """Brokers, topics with their last messages, groups with their lag. Faults are ended first."""
    lines = [*_brokers(cluster)]
    try:
        with Admin(cluster.namesrv, timeout_ms=_TIMEOUT_MS, instance_name="contrail-dump") as admin:
            lines += islice(_topics(admin), _LINES_MAX)
            lines += islice(_groups(admin), _GROUPS_MAX)
    except ContrailError as error:
        lines.append(f"the rest cannot be told: {error}")
    return "\n".join(lines)


def _brokers(cluster: LocalCluster) -> Iterator[str]:
    yield f"NameServers {cluster.namesrv}, clock at {cluster.clock.now_ms()} ms"
    for broker in cluster.brokers:
        if broker.app is not None:
            broker.clear_faults()
        state = "runs" if broker.app is not None or cluster.in_children else "does not run"
        yield f"{broker.name} {broker.address} {state}"


def _topics(admin: Admin) -> Iterator[str]:
    names = sorted(admin.topics())
    shown = 0
    for topic in names:
        lines = list(_topic(admin, topic))
        if not lines:
            continue
        if shown == _TOPICS_MAX:
            yield "more topics have messages"
            return
        shown += 1
        yield f"topic {topic}"
        yield from lines


def _topic(admin: Admin, topic: str) -> Iterator[str]:
    """No lines for a topic without messages."""
    try:
        for queue in admin.queues(topic):
            yield from _queue(admin, queue)
    except ContrailError as error:
        yield f"  cannot be read: {error}"


def _queue(admin: Admin, queue: MessageQueue) -> Iterator[str]:
    low, high = admin.queue_offset_min(queue), admin.queue_offset_max(queue)
    if high <= 0:
        return
    yield f"  {queue.broker_name} queue {queue.queue_id}: {low} to {high - 1}"
    start = max(low, high - _MESSAGES_PER_QUEUE_MAX)
    for message in admin.browse(queue, start=start, end=high):
        yield f"    {_message(message)}"


def _message(message: ReceivedMessage) -> str:
    body = message.body[:_BODY_BYTES_MAX]
    more = f" … {len(message.body)} bytes" if len(message.body) > _BODY_BYTES_MAX else ""
    keys = f" keys={','.join(message.keys)}" if message.keys else ""
    tags = f" tags={message.tags}" if message.tags else ""
    return f"@{message.queue_offset}{keys}{tags} {body!r}{more}"


def _groups(admin: Admin) -> Iterator[str]:
    for name, lag in sorted(admin.lags().items()):
        if name.startswith(_SYSTEM_GROUPS):
            continue
        for one in lag.queues:
            queue = one.queue
            yield (
                f"group {name}: {queue.topic} {queue.broker_name} queue {queue.queue_id} "
                f"at {one.consumer_offset}, lag {one.lag}"
            )

"""The stored messages of a topic, for tests of writes."""

from __future__ import annotations

from contrail import Admin, ReceivedMessage
from contrail.testing import LocalCluster


def stored(cluster: LocalCluster, topic: str) -> list[ReceivedMessage]:
    """Every message of a topic, queue by queue."""
    found: list[ReceivedMessage] = []
    with Admin(cluster.namesrv) as admin:
        for queue in sorted(admin.queues(topic)):
            queue_offset = admin.queue_offset_min(queue)
            while queue_offset < admin.queue_offset_max(queue):
                found += admin.messages_from(queue, queue_offset, 1_000)
                queue_offset = found[-1].queue_offset + 1
    return found

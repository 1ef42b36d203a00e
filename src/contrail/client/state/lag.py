"""A group's lag, from each broker's answer about its own queues."""

from __future__ import annotations

from collections.abc import Iterable

from contrail.client.admin_values import GroupLag, QueueLag
from contrail.protocol.bodies.consume_stats import ConsumeStats, QueueProgress
from contrail.protocol.json_style import MessageQueue


def group_lag(group: str, answers: Iterable[ConsumeStats]) -> GroupLag:
    """The brokers' answers as one; queues in the order of topic, broker and id."""
    progress: dict[MessageQueue, QueueProgress] = {}
    per_second = 0.0
    for stats in answers:
        progress.update(stats.progress)
        per_second += stats.tps
    queues = tuple(_queue_lag(queue, progress[queue]) for queue in sorted(progress))
    return GroupLag(group, queues, sum(entry.lag for entry in queues), per_second)


def _queue_lag(queue: MessageQueue, entry: QueueProgress) -> QueueLag:
    return QueueLag(
        queue=queue,
        broker_offset=entry.queue_offset_max,
        consumer_offset=entry.consumer_offset,
        # A recreated topic may be shorter than its groups' offsets.
        lag=max(0, entry.queue_offset_max - entry.consumer_offset),
        last_timestamp_ms=entry.last_ms,
        # Brokers that do not report pulled offsets answer 0.
        in_flight=max(0, entry.pulled_offset - entry.consumer_offset),
    )

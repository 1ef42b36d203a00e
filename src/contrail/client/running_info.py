"""A consumer's running info, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from contrail.client.consumer_settings import ConsumerSettings
from contrail.client.message import MessageQueue
from contrail.client.queue_reader import QueueReader
from contrail.client.state.consume_figures import TopicFigures
from contrail.model.subscription import SubscriptionData


def running_info(
    settings: ConsumerSettings,
    *,
    subscriptions: tuple[SubscriptionData, ...],
    readers: Mapping[MessageQueue, QueueReader],
    figures: Mapping[str, TopicFigures],
    started_ms: int,
    now_ms: int,
    monotonic_now_ms: int,
) -> dict[str, object]:
    """The body of GET_CONSUMER_RUNNING_INFO, without the parts that the client instance adds."""
    return {
        "jstack": "",
        "mqPopTable": {},
        "mqTable": {
            queue: _queue_info(reader, now_ms - monotonic_now_ms)
            for queue, reader in readers.items()
        },
        "properties": _properties(settings, started_ms),
        "statusTable": {topic: figures[topic].report(now_ms) for topic in figures},
        "subscriptionSet": [entry.to_fields() for entry in subscriptions],
        "userConsumerInfo": {},
    }


def _properties(settings: ConsumerSettings, started_ms: int) -> dict[str, str]:
    given = {field.name: str(getattr(settings, field.name)) for field in fields(settings)}
    return {
        **given,
        "PROP_CONSUMEORDERLY": str(settings.orderly).lower(),
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        "PROP_THREADPOOL_CORE_SIZE": str(settings.consume_thread_max),
    }


def _queue_info(reader: QueueReader, wall_minus_monotonic_ms: int) -> dict[str, object]:
    held = reader.process_queue
    lowest = held.lowest

    def wall(moment_ms: int) -> int:
        return moment_ms + wall_minus_monotonic_ms if moment_ms else 0

    return {
        "cachedMsgCount": len(held),
        "cachedMsgMaxOffset": held.queue_offset_top if lowest is not None else 0,
        "cachedMsgMinOffset": lowest.queue_offset if lowest is not None else 0,
        "cachedMsgSizeInMiB": held.cached_bytes >> 20,
        "commitOffset": held.consumer_offset or 0,
        "droped": held.is_dropped,
        "lastConsumeTimestamp": wall(held.last_consume_ms),
        "lastLockTimestamp": wall(held.locked_ms),
        "lastPullTimestamp": wall(held.last_pull_ms),
        "locked": held.is_locked,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": held.unlock_try_count,
    }

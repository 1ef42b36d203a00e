"""Bodies that say how far groups have come: consume stats, time spans, correction offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from contrail.model.subscription import SubscriptionData
from contrail.protocol.json_style import MessageQueue, encode_body


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group on one queue; ``last_ms`` is when the message it consumed last was stored."""

    queue_offset_max: int
    consumer_offset: int
    pulled_offset: int = 0
    last_ms: int = 0

    def to_fields(self) -> dict[str, object]:
        return {
            "brokerOffset": self.queue_offset_max,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_ms,
            "pullOffset": self.pulled_offset,
        }


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """A group's progress on some queues, and how many messages a second it gets from them."""

    progress: Mapping[MessageQueue, QueueProgress] = field(default_factory=dict)
    tps: float = 0.0

    @property
    def behind_count(self) -> int:
        """How many messages the group has not consumed yet."""
        return sum(
            entry.queue_offset_max - entry.consumer_offset for entry in self.progress.values()
        )

    @property
    def in_flight_count(self) -> int:
        """How many messages the group has pulled and not consumed yet."""
        return sum(entry.pulled_offset - entry.consumer_offset for entry in self.progress.values())

    def to_fields(self) -> dict[str, object]:
        table = {queue: entry.to_fields() for queue, entry in self.progress.items()}
        return {"consumeTps": self.tps, "offsetTable": table}


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """When the messages of a queue were stored: the oldest, the newest, the one consumed last."""

    queue: MessageQueue
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int

    def to_fields(self) -> dict[str, object]:
        return {
            "consumeTimeStamp": self.consumed_ms,
            "consumeTimeStampStr": _date_text(self.consumed_ms),
            "delayTime": self.delay_ms,
            "maxTimeStamp": self.max_ms,
            "maxTimeStampStr": _date_text(self.max_ms),
            "messageQueue": self.queue,
            "minTimeStamp": self.min_ms,
            "minTimeStampStr": _date_text(self.min_ms),
        }


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    return encode_body(stats.to_fields())


def encode_consume_stats_list(
    broker_address: str, by_group: Mapping[str, Iterable[ConsumeStats]]
) -> bytes:
    """All groups of a broker, with one entry for each of a group's topics."""
    lists = {group: list(entries) for group, entries in by_group.items()}
    every = [stats for entries in lists.values() for stats in entries]
    return encode_body(
        {
            "brokerAddr": broker_address,
            "consumeStatsList": [
                {group: [stats.to_fields() for stats in entries]}
                for group, entries in lists.items()
            ],
            "totalDiff": sum(stats.behind_count for stats in every),
            "totalInflightDiff": sum(stats.in_flight_count for stats in every),
        }
    )


def encode_time_spans(spans: Iterable[QueueTimeSpan]) -> bytes:
    return encode_body({"consumeTimeSpanSet": [span.to_fields() for span in spans]})


def encode_correction_offsets(offsets: Mapping[int, int]) -> bytes:
    return encode_body({"correctionOffsets": offsets})


def encode_group_list(groups: Iterable[str]) -> bytes:
    return encode_body({"groupList": sorted(groups)})


def encode_group_subscription(
    group: str, topic: str | None, subscription: SubscriptionData | None
) -> bytes:
    return encode_body(
        {
            "group": group,
            "subscriptionData": None if subscription is None else subscription.to_fields(),
            "topic": topic,
        }
    )


def _date_text(timestamp_ms: int) -> str:
    """In the shape Java prints; no client reads it back, so it need not be in local time."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""  # Outside the calendar; the number beside it says it all.
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{timestamp_ms % 1000:03d}"

"""Bodies about the progress of groups: consume stats, time spans, correction offsets."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from contrail.model.fastjson import Fields
from contrail.model.subscription import SubscriptionData
from contrail.protocol.json_style import (
    MessageQueue,
    Rendered,
    body_errors,
    decode_body,
    decode_message_queue,
    encode_body,
    rendered,
    rendered_array,
    rendered_object,
)


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress on one queue; ``last_ms``: store time of the last consumed message."""

    queue_offset_max: int
    consumer_offset: int
    pulled_offset: int = 0
    last_ms: int = 0

    @classmethod
    def from_fields(cls, fields: Fields) -> QueueProgress:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        return cls(
            queue_offset_max=fields.integer("brokerOffset", 0),
            consumer_offset=fields.integer("consumerOffset", 0),
            pulled_offset=fields.integer("pullOffset", 0),
            last_ms=fields.integer("lastTimestamp", 0),
        )

    def to_fields(self) -> dict[str, object]:
        return {
            "brokerOffset": self.queue_offset_max,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_ms,
            "pullOffset": self.pulled_offset,
        }


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """A group's progress on some queues, and how many messages a second it consumes."""

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

    @classmethod
    def from_fields(cls, fields: Fields) -> ConsumeStats:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        table = fields.children("offsetTable")
        return cls(
            progress={
                decode_message_queue(key): QueueProgress.from_fields(entry)
                for key, entry in table.items()
            },
            tps=fields.rate("consumeTps"),
        )

    def to_fields(self) -> dict[str, object]:
        table = {queue: entry.to_fields() for queue, entry in self.progress.items()}
        return {"consumeTps": self.tps, "offsetTable": table}


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """Store times of a queue's oldest, newest and last consumed message."""

    queue: MessageQueue
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int

    @classmethod
    def from_fields(cls, fields: Fields) -> QueueTimeSpan:
        """Read RocketMQ's field names; raises ``FastJsonError`` for a field of another type."""
        queue = fields.child("messageQueue") or Fields({}, "messageQueue")
        return cls(
            queue=MessageQueue.from_fields(queue),
            min_ms=fields.integer("minTimeStamp", 0),
            max_ms=fields.integer("maxTimeStamp", 0),
            consumed_ms=fields.integer("consumeTimeStamp", 0),
            delay_ms=fields.integer("delayTime", 0),
        )

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


def decode_consume_stats(body: bytes) -> ConsumeStats:
    """The answer to GET_CONSUME_STATS.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "a group's consume stats"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        return ConsumeStats.from_fields(fields)


def decode_consume_stats_list(body: bytes) -> dict[str, list[ConsumeStats]]:
    """The answer to GET_BROKER_CONSUME_STATS, by group.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "the consume stats of a broker"
    fields = decode_body(body, what, is_table=True)
    by_group: dict[str, list[ConsumeStats]] = {}
    with body_errors(what):
        for entry in fields.array("consumeStatsList"):
            one = Fields(entry, "an entry of consumeStatsList")
            for group in one.unknown(frozenset()):
                by_group[group] = [
                    ConsumeStats.from_fields(Fields(stats, group)) for stats in one.array(group)
                ]
    return by_group


def consume_stats_steps(stats: ConsumeStats) -> Generator[None, None, bytes]:
    """As ``encode_consume_stats``, with a step for each queue."""
    return encode_body((yield from _stats_steps(stats)))


def _stats_steps(stats: ConsumeStats) -> Generator[None, None, Rendered]:
    table = yield from rendered_object(stats.progress, QueueProgress.to_fields)
    return rendered({"consumeTps": stats.tps, "offsetTable": table})


class ConsumeStatsList:
    """All groups of a broker, with one entry for each of a group's topics."""

    def __init__(self, broker_address: str) -> None:
        self._broker_address = broker_address
        self._groups: list[Rendered] = []
        self._behind_count = self._in_flight_count = 0

    def add(self, group: str, entries: Iterable[ConsumeStats]) -> Generator[None, None, None]:
        """Add a group, with a step for each of its queues."""
        shown = []
        for stats in entries:
            shown.append((yield from _stats_steps(stats)))
            self._behind_count += stats.behind_count
            self._in_flight_count += stats.in_flight_count
            yield
        self._groups.append(rendered({group: shown}))

    def encode(self) -> bytes:
        return encode_body(
            {
                "brokerAddr": self._broker_address,
                "consumeStatsList": self._groups,
                "totalDiff": self._behind_count,
                "totalInflightDiff": self._in_flight_count,
            }
        )


def encode_consume_stats_list(
    broker_address: str, by_group: Mapping[str, Iterable[ConsumeStats]]
) -> bytes:
    """The whole list in one go."""
    answer = ConsumeStatsList(broker_address)
    for group, entries in by_group.items():
        for _ in answer.add(group, entries):
            pass
    return answer.encode()


def time_span_steps(spans: Iterable[QueueTimeSpan]) -> Generator[None, None, bytes]:
    """The answer to QUERY_CONSUME_TIME_SPAN, with a step for each queue."""
    shown = yield from rendered_array(spans, QueueTimeSpan.to_fields)
    return encode_body({"consumeTimeSpanSet": shown})


def decode_time_spans(body: bytes) -> list[QueueTimeSpan]:
    """The answer to QUERY_CONSUME_TIME_SPAN.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "a list of time spans"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        return [
            QueueTimeSpan.from_fields(Fields(entry, "a time span"))
            for entry in fields.array("consumeTimeSpanSet")
        ]


def encode_correction_offsets(offsets: Mapping[int, int]) -> bytes:
    return encode_body({"correctionOffsets": offsets})


def encode_group_list(groups: Iterable[str]) -> bytes:
    return encode_body({"groupList": sorted(groups)})


def decode_group_offsets(body: bytes, group: str) -> dict[str, dict[int, int]]:
    """One group's offsets in the answer to GET_ALL_CONSUMER_OFFSET, by topic and queue id.

    Raises:
        RequestRejected: the body is no such table.
    """
    what = "a table of consumer offsets"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        owned = {
            key.rpartition("@")[0]: queues.unknown(frozenset())
            for key, queues in fields.children("offsetTable").items()
            if key.rpartition("@")[2] == group
        }
        return {
            topic: {int(queue_id): at for queue_id, at in queues.items() if isinstance(at, int)}
            for topic, queues in owned.items()
        }


def decode_group_names(body: bytes) -> list[str]:
    """The answer to QUERY_TOPIC_CONSUME_BY_WHO.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "a list of groups"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        return sorted(str(group) for group in fields.array("groupList"))


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


def decode_group_subscription(body: bytes) -> SubscriptionData | None:
    """The answer to QUERY_SUBSCRIPTION_BY_CONSUMER; None for a topic not subscribed to.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "a group's subscription"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        found = fields.child("subscriptionData")
        return None if found is None else SubscriptionData.from_fields(found)


def _date_text(timestamp_ms: int) -> str:
    """The time as Java prints it; no client reads it back, so it need not be local time."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""  # Outside the calendar; the body has the number too.
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{timestamp_ms % 1000:03d}"

"""Answers of a consumer: its running info, and the result of a direct consumption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from contrail.model.fastjson import Fields
from contrail.model.subscription import SubscriptionData
from contrail.protocol.json_style import (
    MessageQueue,
    body_errors,
    decode_body,
    decode_message_queue,
)


@dataclass(frozen=True, slots=True)
class ProcessQueue:
    """One queue as the client that owns it reports it; ``lock`` times only if it is ordered."""

    consumer_offset: int = 0
    cached_count: int = 0
    cached_mib: int = 0
    cached_offset_min: int = 0
    cached_offset_max: int = 0
    is_locked: bool = False
    is_dropped: bool = False
    last_lock_ms: int = 0
    last_pull_ms: int = 0
    last_consume_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeRates:
    """Consumption of one topic: round trips in ms, rates a second, failures of the last hour."""

    pull_ms: float = 0.0
    pull_per_second: float = 0.0
    consume_ms: float = 0.0
    ok_per_second: float = 0.0
    failed_per_second: float = 0.0
    failed_count: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo:
    """A consumer's settings, subscriptions, queues and rates; ``jstack`` only from Java."""

    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionData, ...] = ()
    queues: Mapping[MessageQueue, ProcessQueue] = field(default_factory=dict)
    rates: Mapping[str, ConsumeRates] = field(default_factory=dict)
    jstack: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumedDirectly:
    """Outcome of one message: ``result`` is CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, …"""

    result: str
    remark: str | None = None
    spent_ms: int = 0
    order: bool = False
    auto_commit: bool = True


def decode_running_info(body: bytes) -> ConsumerRunningInfo:
    """The answer to GET_CONSUMER_RUNNING_INFO.

    Raises:
        RequestRejected: the body is absent or malformed.
    """
    what = "a consumer's running info"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        return ConsumerRunningInfo(
            properties=fields.texts("properties"),
            subscriptions=tuple(
                SubscriptionData.from_fields(Fields(entry, "a subscription"))
                for entry in fields.array("subscriptionSet")
            ),
            queues={
                decode_message_queue(key): _process_queue(entry)
                for key, entry in fields.children("mqTable").items()
            },
            rates={topic: _rates(entry) for topic, entry in fields.children("statusTable").items()},
            jstack=fields.text("jstack", "") or None,
        )


def decode_consumed_directly(body: bytes) -> ConsumedDirectly:
    """The answer to CONSUME_MESSAGE_DIRECTLY.

    Raises:
        RequestRejected: the body is absent or malformed.
    """
    what = "the result of a direct consumption"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        return ConsumedDirectly(
            result=fields.text("consumeResult", ""),
            remark=fields.text("remark", "") or None,
            spent_ms=fields.integer("spentTimeMills", 0),
            order=fields.boolean("order", False),
            auto_commit=fields.boolean("autoCommit", True),
        )


def _process_queue(fields: Fields) -> ProcessQueue:
    return ProcessQueue(
        consumer_offset=fields.integer("commitOffset", 0),
        cached_count=fields.integer("cachedMsgCount", 0),
        cached_mib=fields.integer("cachedMsgSizeInMiB", 0),
        cached_offset_min=fields.integer("cachedMsgMinOffset", 0),
        cached_offset_max=fields.integer("cachedMsgMaxOffset", 0),
        is_locked=fields.boolean("locked", False),
        # RocketMQ spells "dropped" with one p.
        is_dropped=fields.boolean("droped", False),
        last_lock_ms=fields.integer("lastLockTimestamp", 0),
        last_pull_ms=fields.integer("lastPullTimestamp", 0),
        last_consume_ms=fields.integer("lastConsumeTimestamp", 0),
    )


def _rates(fields: Fields) -> ConsumeRates:
    return ConsumeRates(
        pull_ms=fields.rate("pullRT"),
        pull_per_second=fields.rate("pullTPS"),
        consume_ms=fields.rate("consumeRT"),
        ok_per_second=fields.rate("consumeOKTPS"),
        failed_per_second=fields.rate("consumeFailedTPS"),
        failed_count=fields.integer("consumeFailedMsgs", 0),
    )

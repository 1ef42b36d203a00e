"""A consumer's running info as Apache's tool writes it, and the problems of its queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contrail.cli.mqadmin.java_text import compact_time, truth
from contrail.client.state.allocation import queue_text
from contrail.protocol.bodies.running_info import ConsumerRunningInfo, ProcessQueue

_PUSH_TYPE = "CONSUME_PASSIVELY"
# How long a queue with messages in memory may stand still.
_STILL_MS = 60_000
_QUEUE_LINE = "{:<64}  {:<32}  {:<4}  {:<20}"
_RATE_HEADS = (
    *("#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS"),
    *("#ConsumeFailed TPS", "#ConsumeFailedMsgsInHour"),
)


# Contrail's brokers have no pops, so no member has queues to show below this heading.
_POP_HEAD = "{:<32}  {:<32}  {:<4}  {:<20}".format(
    "#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo"
)


def is_push(info: ConsumerRunningInfo) -> bool:
    return info.properties.get("PROP_CONSUME_TYPE") == _PUSH_TYPE


def running_text(info: ConsumerRunningInfo) -> str:
    """All sections, each with its heading."""
    sections: list[tuple[str, Iterable[str]]] = [
        ("Consumer Properties", _properties(info)),
        ("Consumer Subscription", _subscriptions(info)),
        ("Consumer Offset", _offsets(info)),
        ("Consumer MQ Detail", _queues(info)),
        ("Consumer Pop Detail", [_POP_HEAD]),
        ("Consumer RT&TPS", _rates(info)),
    ]
    text = "\n\n".join(
        f"#{name}#\n" + "".join(f"{one}\n" for one in lines) for name, lines in sections
    )
    return text if info.jstack is None else f"{text}\n\n#Consumer jstack#\n{info.jstack}"


def _properties(info: ConsumerRunningInfo) -> Iterator[str]:
    for name, value in info.properties.items():
        yield f"{name:<40}: {value}"


def _subscriptions(info: ConsumerRunningInfo) -> Iterator[str]:
    for index, one in enumerate(sorted(info.subscriptions, key=lambda one: one.topic), 1):
        yield (
            f"{index:03d} Topic: {one.topic:<40} ClassFilter: {truth(one.class_filter_mode):<8} "
            f"SubExpression: {one.sub_string}"
        )


def _offsets(info: ConsumerRunningInfo) -> Iterator[str]:
    yield _QUEUE_LINE.format("#Topic", "#Broker Name", "#QID", "#Consumer Offset")
    for queue, one in sorted(info.queues.items()):
        yield _QUEUE_LINE.format(*queue, one.consumer_offset)


def _queues(info: ConsumerRunningInfo) -> Iterator[str]:
    yield _QUEUE_LINE.format("#Topic", "#Broker Name", "#QID", "#ProcessQueueInfo")
    for queue, one in sorted(info.queues.items()):
        yield _QUEUE_LINE.format(*queue, _queue_facts(one))


def _queue_facts(one: ProcessQueue) -> str:
    return (
        f"ProcessQueueInfo [commitOffset={one.consumer_offset}, "
        f"cachedMsgMinOffset={one.cached_offset_min}, cachedMsgMaxOffset={one.cached_offset_max}, "
        f"cachedMsgCount={one.cached_count}, cachedMsgSizeInMiB={one.cached_mib}, "
        f"locked={truth(one.is_locked)}, lastLockTimestamp={compact_time(one.last_lock_ms)}, "
        f"droped={truth(one.is_dropped)}, lastPullTimestamp={compact_time(one.last_pull_ms)}, "
        f"lastConsumeTimestamp={compact_time(one.last_consume_ms)}]"
    )


def _rates(info: ConsumerRunningInfo) -> Iterator[str]:
    yield "{:<64}  {:>14} {:>14} {:>14} {:>14} {:>18} {:>25}".format(*_RATE_HEADS)
    for topic, one in sorted(info.rates.items()):
        yield (
            f"{topic:<64}  {one.pull_ms:>14.2f} {one.pull_per_second:>14.2f} "
            f"{one.consume_ms:>14.2f} {one.ok_per_second:>14.2f} {one.failed_per_second:>18.2f} "
            f"{one.failed_count:>25}"
        )


def stuck_lines(client_id: str, info: ConsumerRunningInfo, now_ms: int) -> Iterator[str]:
    """The queues on which a push consumer seems to be stuck."""
    if not is_push(info):
        return
    in_order = info.properties.get("PROP_CONSUMEORDERLY", "").lower() == "true"
    for queue, one in sorted(info.queues.items()):
        who = f"{client_id} {queue_text(queue)}"
        if in_order and not one.is_locked:
            yield f"{who} can't lock for a while, {now_ms - one.last_lock_ms}ms"
        still_ms = now_ms - one.last_consume_ms
        if not in_order and still_ms > _STILL_MS and one.cached_count > 0:
            yield f"{who} can't consume for a while, maybe blocked, {still_ms}ms"

"""Where a message goes before it goes to its topic: delay levels and timers.

The rules of RocketMQ's put hook. A delay level wins over timer properties; a time that has come
already needs no waiting; a message that carries ``TIMER_OUT_MS`` has waited.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from contrail.errors import RequestRejected
from contrail.model.delay_levels import TIMER_DELAY_S_MAX
from contrail.model.message import MessageDraft
from contrail.model.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
)
from contrail.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC
from contrail.protocol.codes import ResponseCode

_TIMER_NAMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_I32_END = 1 << 31
_I64_MAX = (1 << 63) - 1
_I64_MIN = -(1 << 63)


class TimerRules(NamedTuple):
    """The bounds of timers."""

    enabled: bool = True
    precision_ms: int = 1000
    delay_s_max: int = TIMER_DELAY_S_MAX

    @property
    def delay_ms_max(self) -> int:
        return self.delay_s_max * 1000

    @property
    def delay_limit(self) -> str:
        """The longest delay and its setting, for remarks."""
        return f"{self.delay_s_max} s (timerMaxDelaySec)"


def delay_level(properties: dict[str, str]) -> int:
    """The level a message asks for; 0 for none.

    Raises:
        RequestRejected: its time is no number; to deliver it now would be wrong.
    """
    text = properties.get(DELAY)
    if text is None:
        return 0
    level = int(text) if _WHOLE_NUMBER.fullmatch(text) else _I32_END
    if not -_I32_END <= level < _I32_END:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"{DELAY}={text[:40]!r} is no whole number of 32 bits"
        )
    return level


def wants_delay(properties: dict[str, str]) -> bool:
    """Whether a message is to wait before it is delivered."""
    if delay_level(properties) > 0:
        return True
    # Name by name: half messages are looked at while their producers wait.
    return TIMER_OUT_MS not in properties and (
        TIMER_DELAY_SEC in properties
        or TIMER_DELAY_MS in properties
        or TIMER_DELIVER_MS in properties
    )


def place(
    draft: MessageDraft,
    properties: dict[str, str],
    *,
    level_max: int,
    timers: TimerRules,
    now_ms: int,
) -> MessageDraft:
    """The draft with the topic and queue it waits in; ``properties`` remember the real ones.

    Raises:
        RequestRejected: the time it asks for cannot be kept.
    """
    level = delay_level(properties)
    if level > 0:
        for name in _TIMER_NAMES:
            properties.pop(name, None)
        level = min(level, level_max)
        properties[DELAY] = str(level)
        return _moved(draft, properties, SCHEDULE_TOPIC, level - 1)
    if draft.topic == TIMER_TOPIC.encode() or not wants_delay(properties):
        return draft
    if not timers.enabled:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            "this broker keeps no timers (timerWheelEnable=false); use a delay level",
        )
    deliver_ms = _deliver_ms(properties, now_ms)
    if deliver_ms <= now_ms:
        if TIMER_DEL_UNIQKEY in properties:
            raise _illegal("the message to be cancelled was due already")
        return draft
    if deliver_ms - now_ms > timers.delay_ms_max:
        raise _illegal(
            f"a delay of {deliver_ms - now_ms} ms is above the limit of {timers.delay_limit}"
        )
    properties[TIMER_OUT_MS] = str(slot_time_ms(deliver_ms, timers.precision_ms))
    return _moved(draft, properties, TIMER_TOPIC, 0)


def slot_time_ms(deliver_ms: int, precision_ms: int) -> int:
    """The start of the slot that is over when ``deliver_ms`` has come, and not before."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def _deliver_ms(properties: dict[str, str], now_ms: int) -> int:
    if TIMER_DELAY_SEC in properties:
        return now_ms + _number(properties, TIMER_DELAY_SEC) * 1000
    if TIMER_DELAY_MS in properties:
        return now_ms + _number(properties, TIMER_DELAY_MS)
    return _number(properties, TIMER_DELIVER_MS)


def _number(properties: dict[str, str], name: str) -> int:
    text = properties[name]
    value = int(text) if _WHOLE_NUMBER.fullmatch(text) else _I64_MAX + 1
    if not _I64_MIN <= value <= _I64_MAX:
        raise _illegal(f"{name}={text[:40]!r} is no whole number of 64 bits")
    return value


def _moved(
    draft: MessageDraft, properties: dict[str, str], topic: str, queue_id: int
) -> MessageDraft:
    properties[REAL_TOPIC] = draft.topic.decode("utf-8", "replace")
    properties[REAL_QID] = str(draft.queue_id)
    return draft._replace(topic=topic.encode(), queue_id=queue_id)


def _illegal(reason: str) -> RequestRejected:
    return RequestRejected(ResponseCode.MESSAGE_ILLEGAL, f"timer message refused: {reason}")

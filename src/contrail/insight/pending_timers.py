"""Messages that wait for their time, as far as brokers let them be read.

Timed messages are in the timer topic, from which no message is removed: those whose time has not
come wait. Messages with a delay level are in a queue for each level, in the order of their time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from contrail.client.admin import Admin
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.errors import RouteMissing
from contrail.model.properties import (
    REAL_TOPIC,
    RECALL_NONCE,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
)
from contrail.model.recall_handle import RecallHandle
from contrail.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC

_LEVELS_SETTING = "messageDelayLevel"
# Slots are a second long unless timerPrecisionMs says otherwise.
_SLOT_MS_MAX = 60_000
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that waits; ``delay_level`` is 0 for one with a time of its own."""

    message: ReceivedMessage
    due_timestamp_ms: int
    delay_level: int = 0
    # For a message with a delivery time: its timer slot, which recall handles name.
    slot_ms: int = 0

    @property
    def topic(self) -> str:
        return self.message.properties.get(REAL_TOPIC, "")

    @property
    def recall_handle(self) -> str | None:
        """The message's recall handle; messages with a delay level have none."""
        if self.delay_level:
            return None
        broker_name, key = self.message.queue.broker_name, self.message.message_id
        # As brokers make it: one more than the start of the message's slot.
        return RecallHandle(self.topic, broker_name, self.slot_ms + 1, key).encode()

    def fields(self) -> dict[str, object]:
        return {
            "due_timestamp_ms": self.due_timestamp_ms,
            "topic": self.topic,
            "message_id": self.message.message_id,
            "broker_name": self.message.queue.broker_name,
            "delay_level": self.delay_level or None,
            "tags": self.message.tags,
            "keys": self.message.keys,
            "stored_timestamp_ms": self.message.store_timestamp_ms,
            "recall_handle": self.recall_handle,
        }


async def pending_messages(admin: Admin, now_ms: int, *, scan_max: int) -> list[PendingMessage]:
    """Waiting messages, the first due in front; of the timer topics the newest are read."""
    found = [one async for one in _timed(admin, now_ms, scan_max)]
    found += [one async for one in _leveled(admin, now_ms)]
    return sorted(found, key=lambda one: one.due_timestamp_ms)


# With a time of their own.


async def _timed(admin: Admin, now_ms: int, scan_max: int) -> AsyncIterator[PendingMessage]:
    for queue in await _queues(admin, TIMER_TOPIC):
        # By id and nonce, which tells messages of one id apart; a recall may name the id alone.
        waiting: dict[tuple[str, str], PendingMessage] = {}
        recalled: set[tuple[str, str]] = set()
        async for message in _newest(admin, queue, scan_max):
            nonce = message.properties.get(RECALL_NONCE, "")
            deletion = message.properties.get(TIMER_DEL_UNIQKEY)
            slot_ms = _whole(message.properties.get(TIMER_OUT_MS))
            due_ms = due_in_slot_ms(message.properties, message.store_timestamp_ms, slot_ms)
            if deletion is not None:
                # With the topic in front, or without it, by a setting of the broker.
                recalled.add((deletion.rpartition("+")[2], nonce))
            elif due_ms > now_ms:
                # A message that waits for long is stored again under its id.
                known_by = (message.message_id, nonce)
                waiting[known_by] = PendingMessage(message, due_ms, slot_ms=slot_ms)
        for (message_id, nonce), one in waiting.items():
            if not {(message_id, nonce), (message_id, "")} & recalled:
                yield one


def due_in_slot_ms(asked: Mapping[str, str], store_timestamp_ms: int, slot_ms: int) -> int:
    """The millisecond for which the producer asked, within the slot that begins at ``slot_ms``."""
    # A message that waits for long is stored again, with another store time and this property.
    due_ms = _whole(asked.get(TIMER_DELIVER_MS))
    if TIMER_ROLL_TIMES not in asked and TIMER_DELAY_SEC in asked:
        due_ms = store_timestamp_ms + _whole(asked[TIMER_DELAY_SEC]) * 1000
    elif TIMER_ROLL_TIMES not in asked and TIMER_DELAY_MS in asked:
        due_ms = store_timestamp_ms + _whole(asked[TIMER_DELAY_MS])
    return due_ms if slot_ms < due_ms <= slot_ms + _SLOT_MS_MAX else slot_ms + 1


async def _newest(
    admin: Admin, queue: MessageQueue, count_max: int
) -> AsyncIterator[ReceivedMessage]:
    end = await admin.queue_offset_max(queue)
    start = max(await admin.queue_offset_min(queue), end - count_max)
    async for message in admin.browse(queue, start=start, end=end):
        yield message


# With a delay level.


async def _leveled(admin: Admin, now_ms: int) -> AsyncIterator[PendingMessage]:
    delays: dict[str, Mapping[int, int]] = {}
    for queue in await _queues(admin, SCHEDULE_TOPIC):
        if queue.broker_name not in delays:
            config = await admin.broker_config(queue.broker_name)
            delays[queue.broker_name] = delays_by_level(config.get(_LEVELS_SETTING, ""))
        level = queue.queue_id + 1
        delay_ms = delays[queue.broker_name].get(level)
        if delay_ms is None or not await admin.queue_offset_max(queue):
            continue
        start = await admin.search_offset(queue, now_ms - delay_ms)
        async for message in admin.browse(queue, start=start):
            due_ms = message.store_timestamp_ms + delay_ms
            if due_ms > now_ms:
                yield PendingMessage(message, due_ms, level)


def delays_by_level(setting: str) -> dict[int, int]:
    """Milliseconds by level of ``1s 5s 10s ...``; a text that is no delay has no level."""
    found = {}
    for level, text in enumerate(setting.split(), 1):
        number, unit = text[:-1], _UNITS_MS.get(text[-1:].lower())
        if unit is not None and number.isdecimal():
            found[level] = int(number) * unit
    return found


async def _queues(admin: Admin, topic: str) -> list[MessageQueue]:
    try:
        return await admin.queues(topic)
    except RouteMissing:
        # Brokers make these topics when they are first needed, or never.
        return []


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0

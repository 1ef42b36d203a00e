"""Decides what a read of a queue may see, before and after the rows are looked at."""

from __future__ import annotations

from enum import Enum


class GetStatus(Enum):
    """How a read ended: RocketMQ's outcomes, and three for damage RocketMQ does not look for."""

    FOUND = "FOUND"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    QUEUE_ENTRY_DAMAGED = "QUEUE_ENTRY_DAMAGED"
    MESSAGE_DAMAGED = "MESSAGE_DAMAGED"
    MESSAGE_REPLACED = "MESSAGE_REPLACED"


def place_of(queue_offset: int, *, minimum: int, maximum: int) -> tuple[GetStatus, int] | None:
    """Outcome and next offset for a read outside the queue; None: the rows decide."""
    if maximum == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if queue_offset < minimum:
        return GetStatus.OFFSET_TOO_SMALL, minimum
    if queue_offset == maximum:
        return GetStatus.OFFSET_OVERFLOW_ONE, queue_offset
    if queue_offset > maximum:
        return GetStatus.OFFSET_OVERFLOW_BADLY, maximum
    return None

"""Clocks set back while messages wait: the time that those messages wait from then on.

A message whose store time lies in the future waited already when the clock was set back. By its
store time it could wait for years, and how long it has waited is not known. Such a message waits
its whole delay once more, from the moment the step is noticed, unless its time comes first.
"""

from __future__ import annotations

from typing import NamedTuple


class _Step(NamedTuple):
    noticed_ms: int
    # The messages before it were stored before the step was noticed.
    queue_offset_end: int


class ClockSteps:
    """By delay level: the last step back of the clock, and the messages that waited then."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}

    def concern(self, level: int, queue_offset: int) -> bool:
        """Whether the message may have been stored before a step that was noticed."""
        step = self._steps.get(level)
        return step is not None and queue_offset < step.queue_offset_end

    def is_news(self, level: int, queue_offset: int, *, stored_ms: int, now_ms: int) -> bool:
        """Whether a message that was stored at ``stored_ms`` tells of a step not noticed yet."""
        known = self.concern(level, queue_offset) and self._steps[level].noticed_ms <= now_ms
        return stored_ms > now_ms and not known

    def notice(self, level: int, noticed_ms: int, queue_offset_end: int) -> None:
        self._steps[level] = _Step(noticed_ms, queue_offset_end)

    def due_ms(self, level: int, queue_offset: int, *, stored_ms: int, deliver_ms: int) -> int:
        """When a message is due that would be at ``deliver_ms`` by the clock that stored it."""
        if not self.concern(level, queue_offset):
            return deliver_ms
        delay_ms = max(deliver_ms - stored_ms, 0)
        return min(deliver_ms, self._steps[level].noticed_ms + delay_ms)

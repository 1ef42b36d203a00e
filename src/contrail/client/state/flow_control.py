"""When a consumer stops pulling because it holds enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contrail.client.state.process_queue import ProcessQueue


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """How much a consumer holds of one queue before it stops pulling it."""

    message_count_max: int = 1_000
    bytes_max: int = 100 << 20
    # The widest span of offsets held; an ordered queue has no gaps, so its span is not bounded.
    span_max: int | None = 2_000

    def scaled(self, part: float) -> FlowLimits:
        """These bounds times ``part``."""
        return FlowLimits(
            int(self.message_count_max * part),
            int(self.bytes_max * part),
            None if self.span_max is None else int(self.span_max * part),
        )


def hold_reason(queue: ProcessQueue[Any], limits: FlowLimits) -> str | None:
    """Why this queue is not to be pulled now, or None."""
    if len(queue) > limits.message_count_max:
        return f"{len(queue)} messages are held, more than {limits.message_count_max}"
    if queue.cached_bytes > limits.bytes_max:
        return f"{queue.cached_bytes} bytes are held, more than {limits.bytes_max}"
    if limits.span_max is not None and queue.span > limits.span_max:
        return f"the held messages span {queue.span} places, more than {limits.span_max}"
    return None

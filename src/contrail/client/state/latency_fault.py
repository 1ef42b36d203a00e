"""Brokers to avoid for a while, because they were slow or failed.

RocketMQ's rules (``sendLatencyFaultEnable``): a send's duration decides how long its broker is
avoided; a failed send counts as ten seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from contrail.client.state.queue_picking import QueuePicker
from contrail.protocol.json_style import MessageQueue

# A send that took at least the first -> its broker is avoided for the second.
AVOIDED_MS_BY_LATENCY_MS = (
    (15_000, 30_000),
    (5_000, 10_000),
    (3_000, 6_000),
    (1_800, 5_000),
    (550, 2_000),
    (100, 0),
    (50, 0),
)
FAILED_LATENCY_MS = 10_000


@dataclass(slots=True)
class _Standing:
    latency_ms: int = 0
    avoided_until_ms: int = 0
    is_reachable: bool = True


def avoided_ms(latency_ms: int) -> int:
    """How long a broker is avoided after a send of this duration."""
    for least_ms, duration_ms in AVOIDED_MS_BY_LATENCY_MS:
        if latency_ms >= least_ms:
            return duration_ms
    return 0


class LatencyFaults:
    """The latency and the avoided time of each broker."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Standing] = {}

    def note(
        self, broker_name: str, *, latency_ms: int, failed: bool, reachable: bool, now_ms: int
    ) -> None:
        """A send to a broker ended."""
        standing = self._brokers.setdefault(broker_name, _Standing())
        standing.latency_ms = latency_ms
        standing.is_reachable = reachable
        duration_ms = avoided_ms(FAILED_LATENCY_MS if failed else latency_ms)
        # A quick answer does not end an avoided time that has begun.
        if duration_ms and now_ms + duration_ms > standing.avoided_until_ms:
            standing.avoided_until_ms = now_ms + duration_ms

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        standing = self._brokers.get(broker_name)
        return standing is None or now_ms >= standing.avoided_until_ms

    def is_reachable(self, broker_name: str) -> bool:
        standing = self._brokers.get(broker_name)
        return standing is None or standing.is_reachable

    def forget_all_but(self, broker_names: Collection[str]) -> None:
        """Forget brokers that no route names any more."""
        for name in [name for name in self._brokers if name not in broker_names]:
            del self._brokers[name]

    def pick(self, picker: QueuePicker, failed_broker: str | None, now_ms: int) -> MessageQueue:
        """An available broker's queue, else a reachable one's, else any; not the failed one's."""
        found = picker.next_where(
            lambda queue: (
                queue.broker_name != failed_broker and self.is_available(queue.broker_name, now_ms)
            )
        )
        if found is None:
            found = picker.next_where(
                lambda queue: (
                    queue.broker_name != failed_broker and self.is_reachable(queue.broker_name)
                )
            )
        return found or picker.next()

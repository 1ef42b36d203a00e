"""Finds the stored messages that the broker traces, because their producers send no traces.

A client that traces says so by the group that it sends its traces under, up to five seconds after
its first message. The messages of a producer that is new here are held a little longer than that;
later ones are traced as they come. A producer is a group on one host.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

HOLD_MS = 6_000
# A producer that has been quiet for this time, in messages or in traces, is looked at afresh.
FORGET_MS = 600_000
WAITING_MAX = 20_000
PRODUCERS_MAX = 10_000
# The group that clients send their traces under; those of old end without a number.
_TRACE_GROUP = re.compile(rb"_INNER_TRACE_PRODUCER-(.+)-PRODUCER(-\d+)?")
TRACE_GROUP_START = b"_INNER_TRACE_PRODUCER"


class StoredSend(NamedTuple):
    """The fields that a trace is made of."""

    group: bytes
    topic: bytes
    properties: bytes
    body_bytes: int
    born_host: bytes
    physical_offset: int
    stored_ms: int

    @property
    def producer(self) -> tuple[bytes, bytes]:
        # Without the port: a client's traces come over another connection.
        return (self.group, self.born_host[:-4])


@dataclass(slots=True)
class _Producer:
    first_ms: int
    sent_ms: int
    traced_ms: int | None = None

    def is_tracing(self, now_ms: int) -> bool:
        return self.traced_ms is not None and now_ms - self.traced_ms <= FORGET_MS


class SilentProducers:
    """Takes every stored message and returns those that nobody else traces, in their order."""

    def __init__(
        self, *, waiting_max: int = WAITING_MAX, producers_max: int = PRODUCERS_MAX
    ) -> None:
        self.dropped_count = 0
        self._waiting_max = waiting_max
        self._producers_max = producers_max
        self._waiting: deque[StoredSend] = deque()
        self._producers: dict[tuple[bytes, bytes], _Producer] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def stored(self, send: StoredSend) -> None:
        """A message was stored; without room for it its trace is dropped and counted."""
        producer = self._known(send.producer, send.stored_ms)
        if producer is None or len(self._waiting) >= self._waiting_max:
            self.dropped_count += 1
            return
        producer.sent_ms = send.stored_ms
        if not producer.is_tracing(send.stored_ms):
            self._waiting.append(send)

    def traces_arrived(self, trace_group: bytes, born_host: bytes, now_ms: int) -> None:
        """A message came under a group that begins like one for traces."""
        found = _TRACE_GROUP.fullmatch(trace_group)
        producer = found and self._known((found[1], born_host[:-4]), now_ms)
        if producer:
            producer.sent_ms = producer.traced_ms = now_ms

    def take(self, now_ms: int, count_max: int, *, is_last: bool = False) -> list[StoredSend]:
        """At most ``count_max`` messages to be traced now; at the end no message is held."""
        taken: list[StoredSend] = []
        for _ in range(min(count_max, len(self._waiting))):
            producer = self._producers.get(self._waiting[0].producer)
            if producer is not None:
                if not is_last and now_ms < producer.first_ms + HOLD_MS:
                    break
                if producer.is_tracing(now_ms):
                    self._waiting.popleft()
                    continue
            taken.append(self._waiting.popleft())
        return taken

    def expire(self, now_ms: int) -> None:
        """Forget producers that are quiet."""
        quiet = [
            key for key, known in self._producers.items() if now_ms - known.sent_ms > FORGET_MS
        ]
        for key in quiet:
            del self._producers[key]

    def _known(self, key: tuple[bytes, bytes], now_ms: int) -> _Producer | None:
        producer = self._producers.get(key)
        if producer is None and len(self._producers) < self._producers_max:
            producer = self._producers[key] = _Producer(now_ms, now_ms)
        return producer

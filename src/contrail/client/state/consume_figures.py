"""How fast a consumer is, by topic, over the last minute."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_WINDOW_MS = 60_000


@dataclass(slots=True)
class Counts:
    """Counters of a topic's messages since the start."""

    ok_count: int = 0
    failed_count: int = 0
    handling_ms: int = 0
    pulled_count: int = 0
    pull_count: int = 0
    pulling_ms: int = 0

    def copy(self) -> Counts:
        return Counts(*(getattr(self, name) for name in self.__slots__))


@dataclass(slots=True)
class TopicFigures:
    """Counters, and their values at some moments of the last minute."""

    counts: Counts = field(default_factory=Counts)
    _moments: deque[tuple[int, Counts]] = field(default_factory=deque)

    def remember(self, now_ms: int) -> None:
        """Called every few seconds."""
        self._moments.append((now_ms, self.counts.copy()))
        while len(self._moments) > 1 and self._moments[1][0] < now_ms - _WINDOW_MS:
            self._moments.popleft()

    def report(self, now_ms: int) -> dict[str, float | int]:
        """One value of ``statusTable``."""
        then_ms, then = self._moments[0] if self._moments else (now_ms, Counts())
        now, seconds = self.counts, max((now_ms - then_ms) / 1000, 1.0)
        handled_count = now.ok_count + now.failed_count - then.ok_count - then.failed_count
        return {
            "consumeFailedMsgs": now.failed_count,
            "consumeFailedTPS": (now.failed_count - then.failed_count) / seconds,
            "consumeOKTPS": (now.ok_count - then.ok_count) / seconds,
            "consumeRT": _mean(now.handling_ms - then.handling_ms, handled_count),
            "pullRT": _mean(now.pulling_ms - then.pulling_ms, now.pull_count - then.pull_count),
            "pullTPS": (now.pulled_count - then.pulled_count) / seconds,
        }


def _mean(total: int, count: int) -> float:
    return total / count if count else 0.0

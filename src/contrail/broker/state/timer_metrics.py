"""How many timed messages wait, by the topic they are for: RocketMQ's ``timermetrics``."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from contrail.broker.state.metric_table import DELAY_BOUNDS_S
from contrail.model.data_version import DataVersion
from contrail.protocol.json_style import encode_body


class TimerTotals:
    """Timers' events since the start, by topic; none of them is written down."""

    def __init__(self) -> None:
        self.enqueued: Counter[bytes] = Counter()
        self.dequeued: Counter[bytes] = Counter()
        # How many asked for each class of delays, and the sum of all, in seconds.
        self.delays: dict[bytes, list[int]] = {}

    def took_in(self, topic: bytes, delay_ms: int | None) -> None:
        """A message came; it asked for ``delay_ms``, None when it was rolled on."""
        self.enqueued[topic] += 1
        if delay_ms is None:
            return
        delay_s = max(0, delay_ms) // 1000
        row = self.delays.get(topic)
        if row is None:
            row = self.delays[topic] = [0] * (len(DELAY_BOUNDS_S) + 2)
        row[bisect_left(DELAY_BOUNDS_S, delay_s)] += 1
        row[-1] += delay_s


class TimerMetrics:
    """Counts by topic. A deletion takes one off when it is stored, not when it takes effect."""

    def __init__(self) -> None:
        self._counts: dict[bytes, tuple[int, int]] = {}
        self._data_version = DataVersion()

    @property
    def data_version(self) -> DataVersion:
        return self._data_version

    def add(self, topic: bytes, change: int, now_ms: int) -> None:
        count, _ = self._counts.get(topic, (0, 0))
        self._counts[topic] = (count + change, now_ms)
        self._data_version = self._data_version.bump(now_ms)

    def counts(self) -> dict[str, int]:
        return {
            topic.decode("utf-8", "replace"): count for topic, (count, _) in self._counts.items()
        }

    def snapshot(self) -> tuple[dict[bytes, tuple[int, int]], DataVersion]:
        return dict(self._counts), self._data_version


def encode_metrics(counts: dict[bytes, tuple[int, int]], version: DataVersion) -> bytes:
    """The file's content, which is also the body of GET_TIMER_METRICS."""
    return encode_body(
        {
            "dataVersion": version.to_fields(),
            "timingCount": {
                topic.decode("utf-8", "replace"): {"count": count, "timeStamp": time_ms}
                for topic, (count, time_ms) in counts.items()
            },
        },
        strict=True,
    )

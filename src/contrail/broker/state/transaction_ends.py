"""How transactions ended since the start, by topic, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from contrail.broker.state.metric_table import FINISH_BOUNDS_S
from contrail.broker.state.transaction_records import Fate, Half


class TransactionEnds:
    """Counts commits and rollbacks."""

    def __init__(self) -> None:
        self.committed: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        # How many commits took each class of times, and the sum of all, in seconds.
        self.commit_times: dict[str, list[int]] = {}

    def note(self, half: Half, fate: Fate, now_ms: int) -> None:
        """A transaction got its fate."""
        if fate is Fate.ROLLED_BACK:
            self.rolled_back[half.topic] += 1
        if fate is not Fate.COMMITTED:
            return
        self.committed[half.topic] += 1
        took_s = max(0, now_ms - half.born_ms) // 1000
        row = self.commit_times.get(half.topic)
        if row is None:
            row = self.commit_times[half.topic] = [0] * (len(FINISH_BOUNDS_S) + 2)
        row[bisect_left(FINISH_BOUNDS_S, took_s)] += 1
        row[-1] += took_s

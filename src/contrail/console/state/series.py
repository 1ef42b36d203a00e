"""History: numbers every 10 s for 30 minutes and every minute for a day, in rings of floats.

A series takes 6.5 KB. A sample that is not known is not a number in the ring and None outside.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

SHORT_STEP_MS = 10_000
SHORT_COUNT = 180
LONG_STEP_MS = 60_000
LONG_COUNT = 1_440
SERIES_MAX = 10_000


class Ring:
    """Values at equal steps of time; a step holds the last value noted in it."""

    def __init__(self, step_ms: int, count: int) -> None:
        self._step_ms = step_ms
        self._values = array("f", [math.nan]) * count
        self._last = -1

    def note(self, value: float, now_ms: int) -> None:
        step = now_ms // self._step_ms
        count = len(self._values)
        if step < self._last:
            return  # The clock went back: the ring goes on when it has come to its place again.
        if self._last >= 0:
            for passed in range(max(self._last + 1, step - count + 1), step):
                self._values[passed % count] = math.nan
        self._values[step % count] = value
        self._last = step

    def told(self, now_ms: int) -> tuple[int, list[float | None]]:
        """The end of the last step, and the values up to it, the oldest first."""
        count, now = len(self._values), now_ms // self._step_ms
        found: list[float | None] = []
        for step in range(now - count + 1, now + 1):
            is_kept = self._last - count < step <= self._last
            value = self._values[step % count] if is_kept else math.nan
            found.append(None if math.isnan(value) else round(value, 3))
        return (now + 1) * self._step_ms, found


@dataclass(frozen=True, slots=True)
class History:
    """A piece of a series; ``end_ms`` is the end of its last step."""

    step_ms: int
    end_ms: int
    values: list[float | None]


class _Series:
    def __init__(self) -> None:
        self.short = Ring(SHORT_STEP_MS, SHORT_COUNT)
        self.long = Ring(LONG_STEP_MS, LONG_COUNT)


class SeriesTable:
    """All series by name; a new one takes the place of the one that was noted longest ago."""

    def __init__(self, *, series_max: int = SERIES_MAX) -> None:
        self._series_max = series_max
        self._series: dict[str, _Series] = {}

    def __len__(self) -> int:
        return len(self._series)

    def note(self, values: Mapping[str, float | None], now_ms: int) -> None:
        """Note one sample of many series; None is not known."""
        for name, value in values.items():
            series = self._series.pop(name, None)
            if series is None:
                if len(self._series) >= self._series_max:
                    del self._series[next(iter(self._series))]
                series = _Series()
            self._series[name] = series
            known = math.nan if value is None else value
            series.short.note(known, now_ms)
            series.long.note(known, now_ms)

    def told(self, name: str, now_ms: int, *, is_long: bool) -> History | None:
        series = self._series.get(name)
        if series is None:
            return None
        ring, step_ms = (series.long, LONG_STEP_MS) if is_long else (series.short, SHORT_STEP_MS)
        end_ms, values = ring.told(now_ms)
        return History(step_ms, end_ms, values)

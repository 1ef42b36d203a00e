"""Latencies in a fixed amount of memory, exact to about one part in sixty-four."""

from __future__ import annotations

from array import array

# Each power of two of microseconds is cut into this many steps.
_STEPS_BITS = 6
_STEPS = 1 << _STEPS_BITS
# Up to 2**40 microseconds, which is twelve days; longer latencies count as that.
_POWERS = 40
_SLOTS = (_POWERS - _STEPS_BITS + 1) * _STEPS

PERCENTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}


class LatencyHistogram:
    """Counts latencies by size. Takes microseconds, tells milliseconds."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * _SLOTS))
        self.count = 0
        self._sum_us = 0
        self._max_us = 0

    def record(self, latency_us: int) -> None:
        """Count one; a clock that went back counts as no time at all."""
        latency_us = max(0, latency_us)
        self._slots[_slot(latency_us)] += 1
        self.count += 1
        self._sum_us += latency_us
        self._max_us = max(self._max_us, latency_us)

    def add(self, other: LatencyHistogram) -> None:
        """Count all that ``other`` counted."""
        for slot, count in enumerate(other._slots):
            self._slots[slot] += count
        self.count += other.count
        self._sum_us += other._sum_us
        self._max_us = max(self._max_us, other._max_us)

    @property
    def mean_ms(self) -> float:
        return self._sum_us / self.count / 1000 if self.count else 0.0

    @property
    def max_ms(self) -> float:
        return self._max_us / 1000

    def percentile_ms(self, share: float) -> float:
        """The latency that this share of all messages did not exceed; 0 without messages."""
        wanted, seen = share * self.count, 0
        for slot, count in enumerate(self._slots):
            seen += count
            if count and seen >= wanted:
                return min(_upper_us(slot), self._max_us) / 1000
        return 0.0

    def figures(self) -> dict[str, float]:
        """Mean, percentiles and maximum, in milliseconds."""
        told = {name: self.percentile_ms(share) for name, share in PERCENTILES.items()}
        figures = {"mean_ms": self.mean_ms, **told, "max_ms": self.max_ms}
        return {name: round(value, 3) for name, value in figures.items()}


def _slot(latency_us: int) -> int:
    """Small ones exactly; above, by the highest bit and the steps below it."""
    if latency_us < _STEPS:
        return latency_us
    shift = latency_us.bit_length() - 1 - _STEPS_BITS
    return min(_SLOTS - 1, (shift << _STEPS_BITS) + (latency_us >> shift))


def _upper_us(slot: int) -> int:
    """The largest latency of a slot."""
    if slot < 2 * _STEPS:
        return slot
    shift = (slot >> _STEPS_BITS) - 1
    return ((slot - (shift << _STEPS_BITS) + 1) << shift) - 1

"""A monotonic clock that goes on by a microsecond with each look; import it before the product.

Under callgrind everything takes fifty times as long. The broker's decisions about requests that
waited too long would then depend on the machine and its neighbours. ``bench.steady_loop`` has the
event loop's timers go by the same clock.
"""

from __future__ import annotations

import itertools
import time

_STEP_NS = 1_000
_looks = itertools.count(10**12, _STEP_NS)


def _monotonic_ns() -> int:
    return next(_looks)


def _monotonic() -> float:
    return next(_looks) / 1e9


def set_forward(seconds: float) -> None:
    """Let so much time pass."""
    global _looks
    _looks = itertools.count(next(_looks) + round(seconds * 1e9), _STEP_NS)


def make_steady() -> None:
    """From now on ``time.monotonic`` is this clock, for modules that are imported later too."""
    time.monotonic_ns = _monotonic_ns
    time.monotonic = _monotonic


make_steady()

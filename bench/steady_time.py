"""A monotonic clock that goes on by a microsecond with each look; import it before the product.

Under callgrind everything takes fifty times as long. What the broker decides by how long requests
have waited would then depend on the machine and its neighbours.
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


def make_steady() -> None:
    """From now on ``time.monotonic`` is this clock, for modules that are imported later too."""
    time.monotonic_ns = _monotonic_ns
    time.monotonic = _monotonic


make_steady()

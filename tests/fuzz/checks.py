"""The rules for every input: only documented exceptions, under a second, bounded memory.

Time is the processor's, so that a busy machine gives no other findings than an idle one.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable

from tests.fuzz.targets import Target

SECONDS_MAX = 1.0
MEMORY_FACTOR = 2
MEMORY_SLACK_BYTES = 8 << 20
# Watching memory makes decoders several times slower: a slow one is timed again without that.
_TRIES = 3


class Finding(Exception):
    """An input that breaks a rule."""


class Checker:
    """Runs inputs of one target; use as a context manager."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.inputs = 0
        self.accepted = 0
        self.seconds_max = 0.0
        self.memory_max = 0

    def __enter__(self) -> Checker:
        tracemalloc.start(1)
        return self

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()

    def run_all(self, inputs: Iterable[bytes]) -> None:
        for data in inputs:
            self.run(data)

    def run(self, data: bytes) -> None:
        """Raises ``Finding`` when a rule is broken; anything undocumented passes through."""
        self.inputs += 1
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        seconds = self._timed(data)
        used = tracemalloc.get_traced_memory()[1] - before
        if seconds > SECONDS_MAX:
            seconds = self._timed_alone(data)
        if seconds > SECONDS_MAX:
            raise Finding(f"{self._target.name}: {len(data)} bytes took {seconds:.1f} s")
        if used > MEMORY_FACTOR * len(data) + MEMORY_SLACK_BYTES:
            raise Finding(f"{self._target.name}: {len(data)} bytes took {used} bytes of memory")
        self.seconds_max = max(self.seconds_max, seconds)
        self.memory_max = max(self.memory_max, used)

    def _timed_alone(self, data: bytes) -> float:
        tracemalloc.stop()
        seconds = min(self._timed(data) for _ in range(_TRIES))
        tracemalloc.start(1)
        return seconds

    def _timed(self, data: bytes) -> float:
        started = time.thread_time()
        try:
            self._target.decode(data)
            self.accepted += 1
        except self._target.raises:
            pass  # Refused as documented.
        return time.thread_time() - started

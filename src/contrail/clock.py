"""The only module that reads the time."""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Protocol

# For callers that cannot afford a Python function around it.
monotonic_ns = time.monotonic_ns


def monotonic_ms() -> int:
    """For measuring durations; only differences have a meaning."""
    return monotonic_ns() // 1_000_000


class Clock(Protocol):
    """Wall time in epoch milliseconds; a test passes a clock that it can move.

    ``elapsed_ms`` is for waits: it grows steadily, and no step of the wall clock changes it.
    """

    def now_ms(self) -> int: ...
    def elapsed_ms(self) -> int: ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        return monotonic_ms()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_760_000_000_000) -> None:
        self._now_ms = self._elapsed_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def elapsed_ms(self) -> int:
        return self._elapsed_ms

    def advance(self, *, ms: int = 0, hours: float = 0) -> None:
        """Let time pass; negative values set the wall clock back, as operators do."""
        passed_ms = ms + int(hours * 3_600_000)
        self._now_ms += passed_ms
        self._elapsed_ms += max(0, passed_ms)

    def step(self, ms: int) -> None:
        """Set the wall clock forward or back without letting time pass."""
        self._now_ms += ms


_SHIFT, _STEP = Struct("<q"), Struct("<q")
# Names the file of a ``SharedClock`` to a server that a test starts as a child.
CLOCK_FILE_VARIABLE = "CONTRAIL_CLOCK_FILE"


class SharedClock:
    """The machine's clock, moved by the shift in a small file.

    Processes that open the same file share the time, so that a test can move the clock of servers
    that run in children. The file holds two signed integers of milliseconds: the shift, which
    counts as time that has passed, and the step of the wall clock alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(_SHIFT.pack(0) + _STEP.pack(0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SHIFT.size + _STEP.size)
        self._passed_ms = 0

    def now_ms(self) -> int:
        moved_ms = _SHIFT.unpack_from(self._map)[0] + _STEP.unpack_from(self._map, _SHIFT.size)[0]
        return time.time_ns() // 1_000_000 + int(moved_ms)

    def step(self, ms: int) -> None:
        """Set the wall clock this far from the machine's, without letting time pass."""
        _STEP.pack_into(self._map, _SHIFT.size, ms)

    def elapsed_ms(self) -> int:
        # A shift forward counts as time that has passed.
        self._passed_ms = max(self._passed_ms, int(_SHIFT.unpack_from(self._map)[0]))
        return monotonic_ms() + self._passed_ms

    def advance(self, *, ms: int = 0, hours: float = 0) -> None:
        """Move the clock of all processes that share it; negative values move it back."""
        shift_ms = int(_SHIFT.unpack_from(self._map)[0]) + ms + int(hours * 3_600_000)
        _SHIFT.pack_into(self._map, 0, shift_ms)


def clock_for(environment: Mapping[str, str]) -> Clock:
    """The clock of a server process: the machine's, unless a test shares one."""
    path = environment.get(CLOCK_FILE_VARIABLE)
    return SharedClock(Path(path)) if path else SystemClock()

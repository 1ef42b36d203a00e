"""The only place that asks what time it is."""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Protocol

# For who cannot afford a function of ours around it.
monotonic_ns = time.monotonic_ns


def monotonic_ms() -> int:
    """For measuring how long something took; means nothing by itself."""
    return monotonic_ns() // 1_000_000


class Clock(Protocol):
    """Wall time in epoch milliseconds; a test hands in one it can move.

    ``elapsed_ms`` is for waits: it passes with the time, and no one sets it forward or back.
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
        """Set the wall clock forward or back while no time passes."""
        self._now_ms += ms


_SHIFT = Struct("<q")
# Names the file of a ``SharedClock`` to a server that a test starts as a child.
CLOCK_FILE_VARIABLE = "CONTRAIL_CLOCK_FILE"


class SharedClock:
    """The machine's clock, moved by what a small file says.

    Processes that open the same file share the time, so that a test can move the clock of servers
    that run in children. The file holds the shift in milliseconds, as one signed integer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(_SHIFT.pack(0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SHIFT.size)
        self._passed_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(_SHIFT.unpack_from(self._map)[0])

    def elapsed_ms(self) -> int:
        # What the clock was moved forward counts as time that has passed.
        self._passed_ms = max(self._passed_ms, int(_SHIFT.unpack_from(self._map)[0]))
        return monotonic_ms() + self._passed_ms

    def advance(self, *, ms: int = 0, hours: float = 0) -> None:
        """Move the clock of everybody who shares it; negative values move it back."""
        shift_ms = int(_SHIFT.unpack_from(self._map)[0]) + ms + int(hours * 3_600_000)
        _SHIFT.pack_into(self._map, 0, shift_ms)


def clock_for(environment: Mapping[str, str]) -> Clock:
    """The clock of a server process: the machine's, unless a test shares one."""
    path = environment.get(CLOCK_FILE_VARIABLE)
    return SharedClock(Path(path)) if path else SystemClock()

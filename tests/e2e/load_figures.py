"""The resources of a process, sampled from /proc, and whether they grow.

Growth is the slope of a straight line through the samples of the second half, times the length of
that half, relative to their mean: what the half added, if it added evenly. It must stay below 1 %,
or below a floor for figures so small that 1 % of them is noise.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

GROWTH_MAX = 0.01
MIB = 1 << 20

# The resources that must not grow, and the growth that is noise. A burst leaves holes in the heap,
# so that a server of 25 MiB cannot be held to 1 % by pages alone; segments of 16 MiB are mapped and
# let go; a connection that is coming or going is a file; a registration under way is a task.
FLOORS: Mapping[str, float] = {
    "private_bytes": MIB,
    "mapped_bytes": 32 * MIB,
    "files": 3,
    # Two pools for reads of old messages have three threads each, begun when they are first needed.
    "threads": 6,
    "tasks": 2,
}


class Sample(NamedTuple):
    """One look at one process."""

    at_s: float
    figures: Mapping[str, float]


class Growth(NamedTuple):
    """How one figure moved in the second half."""

    name: str
    mean: float
    added: float

    @property
    def share(self) -> float:
        return self.added / self.mean if self.mean else 0.0

    @property
    def is_growing(self) -> bool:
        """Figures without a floor are told, not judged."""
        return self.grows_above(1)

    def grows_above(self, floors: float) -> bool:
        """Like ``is_growing``, with floors so many times as high: short runs are noisier."""
        floor = FLOORS.get(self.name.rpartition(" ")[2])
        return floor is not None and self.share >= GROWTH_MAX and self.added >= floor * floors

    def __str__(self) -> str:
        scale, unit = (MIB, " MiB") if self.name.endswith("bytes") else (1, "")
        mean, added = self.mean / scale, self.added / scale
        return f"{self.name}: mean {mean:,.2f}{unit}, added {added:+,.3f}{unit} ({self.share:+.2%})"


def process_figures(pid: int) -> dict[str, float]:
    """Memory, open files and threads of a process.

    ``private_bytes`` are its anonymous pages. The kernel also counts pages of mapped files as
    private while nobody else maps them; those are the log in the page cache, they come and go with
    segments, and stand apart as ``mapped_bytes``.
    """
    folder = Path(f"/proc/{pid}")
    lines = (folder / "smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    own = min(private, kilobytes["Anonymous"])
    return {
        "private_bytes": own * 1024,
        "mapped_bytes": (private - own) * 1024,
        "files": len(os.listdir(folder / "fd")),
        "threads": len(os.listdir(folder / "task")),
    }


def sample_for(
    seconds: float, pause_s: float, look: Callable[[], Mapping[str, float]]
) -> list[Sample]:
    """Look again and again for so long."""
    began_s = time.monotonic()
    samples = []
    while (at_s := time.monotonic() - began_s) < seconds:
        samples.append(Sample(at_s, look()))
        threading.Event().wait(pause_s)
    return samples


def growths(samples: list[Sample]) -> list[Growth]:
    """Each figure's growth in the second half of the samples' time."""
    middle_s = (samples[0].at_s + samples[-1].at_s) / 2
    half = [sample for sample in samples if sample.at_s >= middle_s]
    times = [sample.at_s for sample in half]
    return [
        _growth(name, times, [sample.figures[name] for sample in half]) for name in half[0].figures
    ]


def _growth(name: str, times: list[float], values: list[float]) -> Growth:
    slope, _ = statistics.linear_regression(times, values)
    return Growth(name, statistics.fmean(values), slope * (times[-1] - times[0]))

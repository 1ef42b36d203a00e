"""Figures of the operating system about this process: time, memory, descriptors.

Linux has them in ``/proc``; elsewhere a figure that the system does not offer is None.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
# Fields behind the name, which is in parentheses and may hold spaces: virtual bytes, resident
# pages, and the start of the process, in ticks since the machine's start.
_STARTED, _VIRTUAL, _RESIDENT = 19, 20, 21


class ProcessFigures(NamedTuple):
    """The figures of one moment."""

    cpu_seconds: float
    started_s: float | None
    virtual_bytes: int | None
    resident_bytes: int | None
    open_fds: int | None
    max_fds: int | None


def process_figures(proc: Path = _PROC) -> ProcessFigures:
    """Read the figures of this process; with many descriptors that takes some milliseconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    fields = _stat_fields(proc)
    return ProcessFigures(
        cpu_seconds=used.ru_utime + used.ru_stime,
        started_s=_started_s(proc, fields),
        virtual_bytes=int(fields[_VIRTUAL]) if fields else None,
        resident_bytes=int(fields[_RESIDENT]) * resource.getpagesize() if fields else None,
        open_fds=_open_fds(proc),
        max_fds=_max_fds(),
    )


def _stat_fields(proc: Path) -> list[str]:
    try:
        text = (proc / "self" / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _started_s(proc: Path, fields: list[str]) -> float | None:
    if not fields:
        return None
    try:
        lines = (proc / "stat").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    booted = [int(line.split()[1]) for line in lines if line.startswith("btime ")]
    if not booted:
        return None
    return booted[0] + int(fields[_STARTED]) / float(os.sysconf("SC_CLK_TCK"))


def _open_fds(proc: Path) -> int | None:
    folder = proc / "self" / "fd"
    try:
        # Since Linux 6.2 the folder's size is the count; older kernels say 0 and are counted.
        return folder.stat().st_size or len(os.listdir(folder))
    except OSError:
        return None


def _max_fds() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft

"""How much memory this process may use: the machine's, or the limit of its control groups."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def memory_bytes(*, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """The smallest of the machine's memory and the limits of this process's control groups."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_limits(proc, cgroups)])


def _limits(proc: Path, cgroups: Path) -> list[int]:
    """Limits of both versions of control groups; a container may see its group as the root."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            found += _of_groups(cgroups, group, "memory.max")
        elif "memory" in controllers.split(","):
            found += _of_groups(cgroups / "memory", group, "memory.limit_in_bytes")
    return found


def _of_groups(root: Path, group: str, name: str) -> list[int]:
    """The limits of a group and of all its parents."""
    path = PurePosixPath(group.lstrip("/"))
    return [
        limit
        for place in (path, *path.parents)
        if (limit := _read(root / place / name)) is not None
    ]


def _read(path: Path) -> int | None:
    """A limit in bytes; None if it is missing or ``max``."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) > 0 else None

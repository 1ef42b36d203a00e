"""The memory that a process may use, by the limits of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contrail.runtime.memory import memory_bytes
from contrail.wire import limits
from contrail.wire.limits import Limits

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
SMALL = 64 << 20


def _found(root: Path, told: str, files: dict[str, str]) -> int:
    proc = root / "cgroup"
    proc.write_text(told)
    for name, text in files.items():
        (root / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "groups" / name).write_text(text)
    return memory_bytes(proc=proc, cgroups=root / "groups")


@pytest.mark.parametrize(
    ("told", "files", "wanted"),
    [
        ("0::/a/b\n", {"a/b/memory.max": f"{SMALL}\n"}, SMALL),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{SMALL}\n"}, SMALL),
        ("0::/a\n", {"a/memory.max": str(2 * SMALL), "memory.max": str(SMALL)}, SMALL),
        # A container sees its own group as the root.
        ("0::/elsewhere\n", {"memory.max": f"{SMALL}\n"}, SMALL),
        ("4:cpu,memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": str(SMALL)}, SMALL),
        ("4:memory:/x\n", {"memory/memory.limit_in_bytes": str(SMALL)}, SMALL),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str((1 << 63) - 4096)}, PHYSICAL),
        ("0::/\n", {"memory.max": "max"}, PHYSICAL),
        ("0::/\n", {"memory.max": "no number"}, PHYSICAL),
        ("no such line\n", {}, PHYSICAL),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, told: str, files: dict[str, str], wanted: int
) -> None:
    assert _found(tmp_path, told, files) == wanted


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    assert memory_bytes(proc=tmp_path / "none", cgroups=tmp_path) == PHYSICAL


@pytest.mark.proves("broker.edges.unknown-clients")
@pytest.mark.parametrize(
    ("memory", "share"), [(1 << 30, 128 << 20), (16 << 30, 1 << 30), (4 << 30, 512 << 20)]
)
def test_unfinished_frames_get_an_eighth_of_it_and_a_gigabyte_at_most(
    monkeypatch: pytest.MonkeyPatch, memory: int, share: int
) -> None:
    monkeypatch.setattr(limits, "memory_bytes", lambda: memory)
    assert Limits().pending_bytes_max == share

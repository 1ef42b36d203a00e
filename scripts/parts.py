"""tests/plan.toml: the parts that the test files are divided into, and the steps of `make test`."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLAN = ROOT / "tests" / "plan.toml"
REACH_NO_KERNEL = ROOT / "tests" / "reach_no_kernel.txt"

# The marks that each target selects by.
QUICK = "not torture and not matrix"
WHOLE = "not torture"
TORTURE = "torture"

KERNELS_VARIABLE = "CONTRAIL_KERNELS"


@dataclass(frozen=True, slots=True)
class Run:
    """One call of pytest: which files, how many workers, what is set for it in the environment."""

    name: str
    files: list[str]
    marks: str
    workers: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        spread = ["-n", str(self.workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        return ["-m", self.marks, *(spread if self.workers else []), *self.files]


class Plan:
    """The parts by name and the steps in order."""

    def __init__(self, text: str, root: Path = ROOT) -> None:
        read: dict[str, Any] = tomllib.loads(text)
        self._root = root
        self._parts: dict[str, dict[str, Any]] = read["parts"]
        self._steps: list[dict[str, Any]] = read["steps"]

    @property
    def part_names(self) -> list[str]:
        return sorted(self._parts)

    @property
    def own_parts(self) -> list[str]:
        """The parts that divide the files; the others run some of them again, otherwise."""
        return [part for part in self.part_names if not self._parts[part].get("again")]

    def files(self, part: str) -> list[str]:
        """The test files of a part that are in no part before it."""
        own = self._named_by(part)
        if not self._parts[part].get("again"):
            for earlier in self._parts:
                if earlier == part:
                    break
                if not self._parts[earlier].get("again"):
                    own -= self._named_by(earlier)
        return sorted(own)

    def whole(self, part: str) -> Run:
        """The run of `make test-all` for a part."""
        settings = self._parts[part]
        environment = settings.get("whole_environment", {}) | self._environment(part)
        return Run(part, self.files(part), WHOLE, settings.get("workers", 0), environment)

    def only_whole(self, part: str) -> bool:
        """Whether the part repeats for `make test-all` what `make test` runs otherwise."""
        return bool(self._parts[part].get("only_whole"))

    def steps(self) -> Iterator[Run]:
        """The runs of `make test`, step by step."""
        return (self._run_of(step) for step in self._steps)

    def stages(self) -> Iterator[list[list[Run]]]:
        """The steps of `make test` as they are run: tracks beside each other, or a step alone."""
        by_stage = groupby(self._steps, lambda step: "track" in step)
        for has_tracks, steps in by_stage:
            if not has_tracks:
                yield from ([[self._run_of(step)]] for step in steps)
                continue
            tracks: dict[str, list[Run]] = {}
            for step in steps:
                tracks.setdefault(step["track"], []).append(self._run_of(step))
            yield list(tracks.values())

    def _run_of(self, step: dict[str, Any]) -> Run:
        files = sorted(file for part in step["parts"] for file in self._quick_files(part))
        environment, *others = [self._environment(part) for part in step["parts"]]
        assert all(other == environment for other in others), f"{step['parts']} want different ones"
        return Run(" ".join(step["parts"]), files, QUICK, step.get("workers", 0), environment)

    def _environment(self, part: str) -> dict[str, str]:
        kernels = self._parts[part].get("kernels")
        return {KERNELS_VARIABLE: kernels} if kernels else {}

    def _quick_files(self, part: str) -> list[str]:
        files = self.files(part)
        if self._parts[part].get("kernels") != "pure":
            return files
        left_out = set(reaching_no_kernel())
        return [file for file in files if file not in left_out]

    def _named_by(self, part: str) -> set[str]:
        return {
            path.relative_to(self._root).as_posix()
            for pattern in self._parts[part]["files"]
            for place in self._root.glob(pattern)
            for path in ([place] if place.is_file() else place.rglob("test_*.py"))
        }


def reaching_no_kernel() -> list[str]:
    """The files that `make test` does not run again on interpreted kernels."""
    lines = REACH_NO_KERNEL.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def read_plan() -> Plan:
    return Plan(PLAN.read_text(encoding="utf-8"))


def all_test_files(root: Path = ROOT) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("test_*.py"))


def is_selected(marks: Collection[str], expression: str) -> bool:
    """Whether a test with these marks is run under an expression of `[not] mark and …`."""
    for term in expression.split(" and "):
        word, _, name = term.rpartition(" ")
        assert word in ("", "not"), f"not a simple expression: {expression}"
        if (name in marks) != (word == ""):
            return False
    return True

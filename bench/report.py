"""The report of a run: a table for people, JSON for machines, and where it was measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import REPOSITORY, BenchError, Limit, Row, Samples
from bench.plots import INSTALL_COMMAND, can_plot

PUBLISHED = REPOSITORY / "docs" / "benchmarks"
UNKNOWN = "unknown"
_GIT_TIMEOUT_S = 30
_COLUMNS = ("what", "unit", "ours", "reference", "ratio", "by medians", "target", "result", "guide")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One suite, run once on one machine."""

    suite: str
    size: str
    machine: dict[str, object]
    kernels: dict[str, str]
    rows: tuple[Row, ...]
    elapsed_s: float
    command: str = ""
    commit: str = UNKNOWN
    # Whether files that git knows were changed since; None where nothing is known of it.
    is_dirty: bool | None = None
    # By row: why it misses its target, as far as was found out, and what would close it.
    causes: Mapping[str, str] = field(default_factory=dict)

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.passed is False]

    def as_json(self) -> dict[str, object]:
        return {
            "suite": self.suite,
            "size": self.size,
            "command": self.command,
            "commit": self.commit,
            "dirty": self.is_dirty,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "elapsed_s": round(self.elapsed_s, 1),
            "machine": self.machine,
            "kernels": self.kernels,
            "rows": [_row_as_json(row) for row in self.rows],
        }

    @property
    def where(self) -> str:
        """The suite and the machine in one line: every picture shows it."""
        machine = self.machine
        return f"{self.command} on {machine['cpu']}, {machine['cores']} cores, {machine['system']}"

    def as_text(self) -> str:
        """Machine, kernels, the table and each row's details; also good Markdown."""
        parts = [*_preamble(self), "", _table(self.rows), "", *_missed(self), *_details(self.rows)]
        return "\n".join([*parts, ""])


Draw = Callable[[Result, Path], list[Path]]
"""A suite's function that draws its result: writes pictures into a folder and names them."""


def require_publishable(size: str, kernels: dict[str, str]) -> None:
    """Refuse what would mislead: a small run, or one with interpreted kernels."""
    interpreted = [name for name, state in kernels.items() if state != "compiled"]
    if interpreted:
        raise BenchError(
            f"not published: kernels {', '.join(interpreted)} are interpreted; build them with "
            f"CONTRAIL_KERNELS=required make setup"
        )
    if size != "full":
        raise BenchError(f"not published: a {size} run says too little; run without --quick")


def publish(result: Result, draw: Draw | None = None) -> list[Path]:
    """Write the result into ``docs/benchmarks``, misses included."""
    require_publishable(result.size, result.kernels)
    if draw is not None and not can_plot():
        raise BenchError(f"not published: its plots need matplotlib: {INSTALL_COMMAND}")
    PUBLISHED.mkdir(parents=True, exist_ok=True)
    as_json, as_text = PUBLISHED / f"{result.suite}.json", PUBLISHED / f"{result.suite}.md"
    pictures = draw(result, PUBLISHED) if draw is not None else []
    write_json(result, as_json)
    as_text.write_text(_page(result, pictures), encoding="utf-8")
    return [as_json, as_text, *pictures]


def write_page_again(suite: str, causes: Mapping[str, str], draw: Draw | None) -> list[Path]:
    """The page and the pictures of the published run once more, from its data."""
    as_json, as_text = PUBLISHED / f"{suite}.json", PUBLISHED / f"{suite}.md"
    if not as_json.exists():
        raise BenchError(f"suite {suite} was never published: run it with --publish")
    result = _read(json.loads(as_json.read_text(encoding="utf-8")), causes)
    pictures = draw(result, PUBLISHED) if draw is not None else []
    as_text.write_text(_page(result, pictures), encoding="utf-8")
    return [as_text, *pictures]


def _read(data: dict[str, Any], causes: Mapping[str, str]) -> Result:
    """The inverse of ``Result.as_json``."""
    return Result(
        suite=data["suite"],
        size=data["size"],
        machine=data["machine"],
        kernels=data["kernels"],
        rows=tuple(_row_of_json(row) for row in data["rows"]),
        elapsed_s=data["elapsed_s"],
        command=data["command"],
        # Data of earlier runs has neither.
        commit=data.get("commit", UNKNOWN),
        is_dirty=data.get("dirty"),
        causes=causes,
    )


def _row_of_json(data: dict[str, Any]) -> Row:
    limit = None
    if data["target"]:
        sign, bound = data["target"].split(" ")
        limit = Limit(sign, float(bound.rstrip("x")), data["target_on"])
    return Row(
        name=data["name"],
        unit=data["unit"],
        ours=_samples_of_json(data["ours"]),
        reference=_samples_of_json(data["reference"]) if data["reference"] else None,
        reference_name=data["reference_name"] or "",
        limit=limit,
        guide=data["guide"] or "",
        details=data["details"],
    )


def _samples_of_json(data: dict[str, Any]) -> Samples:
    values = tuple(data["values"])
    return Samples(values, higher_is_better=data["best"] != min(values))


def _page(result: Result, pictures: Sequence[Path]) -> str:
    shown = "".join(f"\n![{_title(picture)}]({picture.name})\n" for picture in pictures)
    return f"# Benchmark: {result.suite}\n\n{result.as_text()}{shown}"


def _title(picture: Path) -> str:
    return picture.stem.replace("-", " ")


def write_json(result: Result, path: Path) -> None:
    path.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")


def describe_machine(folder: Path) -> dict[str, object]:
    """The facts that the figures depend on, without the name of the host."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory_bytes / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "filesystem": filesystem_of(folder),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


class Commit(NamedTuple):
    """The measured tree: a commit, and whether files that git knows differ from it."""

    name: str = UNKNOWN
    is_dirty: bool | None = None


def describe_commit() -> Commit:
    """Of the tree that holds this file; unknown without git or outside a repository."""
    name = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    if not name or changed is None:
        return Commit()
    return Commit(name, changed != "")


def _git(*words: str) -> str | None:
    """The output of git; None where it is missing or fails."""
    try:
        done = subprocess.run(
            ["git", *words],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def filesystem_of(folder: Path) -> str:
    """The type of the file system that holds ``folder``, as the kernel names it."""
    best, found = "", "unknown"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount_point, kind, *_ = line.split(" ")
        inside = folder.resolve().is_relative_to(mount_point)
        if inside and len(mount_point) >= len(best):
            best, found = mount_point, kind
    return found


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _row_as_json(row: Row) -> dict[str, object]:
    return {
        "name": row.name,
        "unit": row.unit,
        "ours": _samples_as_json(row.ours),
        "reference": _samples_as_json(row.reference) if row.reference else None,
        "reference_name": row.reference_name or None,
        "ratio": row.ratio,
        "ratio_of_medians": row.ratio_of_medians,
        "target": str(row.limit) if row.limit else None,
        "target_on": row.limit.on if row.limit else None,
        "passed": row.passed,
        "guide": row.guide or None,
        "details": dict(row.details),
    }


def _samples_as_json(samples: Samples) -> dict[str, object]:
    return {"best": samples.best, "median": samples.median, "values": list(samples.values)}


def _preamble(result: Result) -> list[str]:
    machine = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    kernels = ", ".join(f"{name} {state}" for name, state in result.kernels.items())
    return [
        f"Suite {result.suite}, {result.size} run of {result.elapsed_s:.0f} s: `{result.command}`.",
        f"Commit: {result.commit}{', with changes' if result.is_dirty else ''}.",
        f"Machine: {machine}.",
        f"Kernels: {kernels}.",
        "Figures are the best of the rounds; a ratio is ours / reference of the same rounds.",
    ]


def _table(rows: Sequence[Row]) -> str:
    cells = [list(_COLUMNS), *([*_cells(row)] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    lines = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.unit,
        _number(row.ours.best),
        f"{_number(row.reference.best)} ({row.reference_name})" if row.reference else "",
        f"{row.ratio:.2f}x" if row.ratio is not None else "",
        f"{row.ratio_of_medians:.2f}x" if row.ratio_of_medians is not None else "",
        str(row.limit) if row.limit else "for information",
        {True: "pass", False: "MISS", None: ""}[row.passed],
        row.guide,
    )


def row_in_words(row: Row) -> str:
    """One row in one line, printed as soon as it is measured, also if the run ends early."""
    return ", ".join(cell for cell in _cells(row) if cell)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _missed(result: Result) -> list[str]:
    """Why targets were missed, for readers of the table."""
    if not result.missed:
        return []
    lines = ["Missed targets, with the cause that was found and what would close it:", ""]
    for row in result.missed:
        lines.append(f"- **{row.name}**: {result.causes.get(row.name, 'not looked into yet')}")
    return [*lines, "", "Details:", ""]


def _details(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        if row.details:
            words = ", ".join(f"{name} {value}" for name, value in row.details.items())
            lines.append(f"- {row.name}: {words}")
    return lines

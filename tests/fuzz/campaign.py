"""Runs the coverage-guided fuzzer on a target and replays its corpus on the compiled kernels.

    python -m tests.fuzz.campaign [--seconds N] [--jobs N]

fuzzes every target and writes the table of ``docs/design/hostile-input.md``.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from contrail.kernels import compiled_kernels
from tests.fuzz.checks import Checker
from tests.fuzz.targets import TARGETS, Target
from tests.unit.kernels.frame_material import BORN_HOST, SUFFIX, frame
from tests.unit.kernels.material import outcome, twins

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "design" / "hostile-input.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
COMMAND = "python -m tests.fuzz.campaign"
_TRIED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_REACHED = re.compile(r"cov: (\d+) ft: (\d+)")


@dataclass
class Figures:
    """The figures of one target's campaign."""

    target: str
    tried: int
    kept: int
    reached: int
    seconds_max: float
    memory_max: int
    findings: list[str]


def has_fuzzer() -> bool:
    return find_spec("atheris") is not None


def fuzz(target: Target, folder: Path, *, seconds: int, seed: int = 1) -> Figures:
    """Fuzz the interpreted decoder, then replay the corpus on the compiled kernels."""
    corpus = folder / target.name
    corpus.mkdir(parents=True)
    for number, data in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(data)
    command = [sys.executable, "-m", "tests.fuzz.child", target.name, str(corpus)]
    done = subprocess.run(
        [*command, str(seconds), str(seed)],
        cwd=REPOSITORY,
        env={**os.environ, "CONTRAIL_KERNELS": "pure", "PYTHONPATH": "src"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    findings = [
        f"{path}: {done.stderr[-3000:]}" for path in folder.glob(f"{target.name}-finding-*")
    ]
    tried = _TRIED.search(done.stderr)
    if not findings and (done.returncode or tried is None):
        findings = [f"the fuzzer ended with {done.returncode}: {done.stderr[-3000:]}"]
    inputs = [path.read_bytes() for path in sorted(corpus.iterdir())]
    with Checker(target) as checker:
        checker.run_all(inputs)
    findings += twin_differences(inputs)
    reached = _REACHED.findall(done.stderr)
    return Figures(
        target.name,
        int(tried[1]) if tried else 0,
        len(inputs),
        int(reached[-1][1]) if reached else 0,
        checker.seconds_max,
        checker.memory_max,
        findings,
    )


def twin_differences(inputs: Iterable[bytes]) -> list[str]:
    """The inputs that the compiled frame kernel decodes differently from its pure twin."""
    kernel, pure = twins("frame_scan")
    different = []
    for data in inputs:
        for stream in (data, data[1:], frame(data, b"body")):
            arguments = (stream, 0, 16 << 20, 256 << 10, BORN_HOST, SUFFIX)
            if outcome(kernel.scan_frames, *arguments) != outcome(pure.scan_frames, *arguments):
                different.append(f"compiled and pure differ for {stream!r}")
        if outcome(kernel.look_over, data) != outcome(pure.look_over, data):
            different.append(f"compiled and pure differ for the properties {data!r}")
    return different


def table(rows: list[Figures], seconds: int) -> str:
    compiled = sum(compiled_kernels().values())
    lines = [
        f"`{COMMAND} --seconds {seconds}` on {platform.machine()}, "
        f"CPython {platform.python_version()}, replayed with {compiled} compiled kernels:",
        "",
        "| decoder | inputs tried | kept in the corpus | features reached | slowest of the corpus "
        "| most memory of the corpus | findings |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.target} | {row.tried:,} | {row.kept:,} | {row.reached:,} | "
        f"{row.seconds_max * 1000:.1f} ms | {row.memory_max / 1024:,.0f} KiB | "
        f"{len(row.findings)} |"
        for row in rows
    ]
    tried, found = sum(row.tried for row in rows), sum(len(row.findings) for row in rows)
    lines.append(f"| all | {tried:,} | {sum(r.kept for r in rows):,} | | | | {found} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="per decoder")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        rows = list(
            pool.map(
                lambda target: fuzz(target, Path(folder), seconds=options.seconds),
                TARGETS.values(),
            )
        )
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page = f"{before}{BEGIN}\n{table(rows, options.seconds)}\n{END}{after}"
    PAGE.write_text(page, encoding="utf-8")
    for row in rows:
        print(row.target, row.tried, *row.findings)
    return 1 if any(row.findings for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

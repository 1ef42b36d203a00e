"""Instructions for a message, counted by callgrind: the same on a quiet machine and on a busy one.

Two processes, one for each tree, feed their broker the same bytes (``bench.compare_feed``). The
remaining chance only ever adds instructions (a timer that fires once more), so the least of several
runs is taken.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.compare_trees import Tree
from bench.harness import REPOSITORY, BenchError

INSTALL_COMMAND = "apt-get install valgrind"
_MARKS = REPOSITORY / "bench" / "c" / "callgrind_marks.c"
_TIMEOUT_S = 3_000
_TRIGGER = re.compile(r"^desc: Trigger: Client Request: (.+)$", re.MULTILINE)
_TOTAL = re.compile(r"^totals: (\d+)$", re.MULTILINE)

Counts = dict[str, float]
"""By case: instructions for a message."""


def counted_instructions(
    trees: tuple[Tree, Tree],
    folder: Path,
    names: list[str],
    *,
    run_count: int,
    chunk_count: int,
) -> dict[str, Counts]:
    """Instructions of each case, by tree. Both trees run at once, which changes nothing."""
    if shutil.which("valgrind") is None:
        raise BenchError(f"instructions are counted by valgrind: {INSTALL_COMMAND}")
    library = _marks_library(folder)
    taken: dict[str, list[Counts]] = {tree.name: [] for tree in trees}
    for number in range(run_count):
        started = [
            (tree, _started(tree, folder / f"{tree.name}-{number}", library, chunk_count, names))
            for tree in trees
        ]
        for tree, (process, output) in started:
            taken[tree.name].append(_finished(process, output))
    return {name: _least(counts) for name, counts in taken.items()}


def _marks_library(folder: Path) -> Path:
    target = folder / "callgrind_marks.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(target), str(_MARKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(
            f"{_MARKS.name} does not compile (valgrind's headers come with {INSTALL_COMMAND}):\n"
            f"{done.stderr[-2000:]}"
        )
    return target


def _started(
    tree: Tree, folder: Path, library: Path, chunk_count: int, names: list[str]
) -> tuple[subprocess.Popen[str], Path]:
    folder.mkdir(parents=True)
    output = folder / "callgrind"
    counting = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}"]
    valgrind = ["valgrind", *counting]
    told = [str(folder / "stores"), str(library), str(chunk_count), *names]
    feed = ["-m", "bench.compare_feed", *told]
    with (folder / "errors").open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [*valgrind, sys.executable, *feed],
            cwd=folder,
            env=tree.environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    return process, output


def _finished(process: subprocess.Popen[str], output: Path) -> Counts:
    try:
        printed, _ = process.communicate(timeout=_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        errors = (output.parent / "errors").read_text(encoding="utf-8", errors="replace")
        raise BenchError(f"the feed of {output.parent.name} failed:\n{errors[-3000:]}")
    record_counts = json.loads(printed.strip().splitlines()[-1])
    totals = _totals(output)
    return {name: totals[name] / count for name, count in record_counts.items()}


def _totals(output: Path) -> dict[str, int]:
    """The instructions that callgrind wrote at each mark."""
    totals = {}
    for path in output.parent.glob(f"{output.name}.*"):
        text = path.read_text(encoding="utf-8", errors="replace")
        trigger, total = _TRIGGER.search(text), _TOTAL.search(text)
        if trigger and total:
            totals[trigger[1]] = int(total[1])
    return totals


def _least(runs: list[Counts]) -> Counts:
    return {name: min(run[name] for run in runs) for name in runs[0]}

"""Rounds, samples and rows: how every suite measures.

Ours and the reference take turns within each round, so that a busy neighbour slows both. Each
side runs in a process of its own, and CPU is that process's. The best of the rounds is judged:
noise only ever adds. Medians stand beside it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

REPOSITORY = Path(__file__).resolve().parent.parent
CHILD_TIMEOUT_S = 600

Figures = dict[str, Any]
"""The report of one measured run: at least ``cpu_s``, ``wall_s`` and ``record_count``."""


class BenchError(Exception):
    """A benchmark could not be run; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Samples:
    """One figure over the rounds."""

    values: tuple[float, ...]
    higher_is_better: bool = False

    @property
    def best(self) -> float:
        return max(self.values) if self.higher_is_better else min(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a row: a bound on its ratio to the reference, or on its own figure."""

    sign: Literal["<=", ">="]
    bound: float
    on: Literal["ratio", "figure"] = "ratio"

    def holds(self, value: float) -> bool:
        return value <= self.bound if self.sign == "<=" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{'x' if self.on == 'ratio' else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a result: Contrail's figure, its reference, and its target."""

    name: str
    unit: str
    ours: Samples
    reference: Samples | None = None
    reference_name: str = ""
    limit: Limit | None = None
    guide: str = ""
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.ours.best / self.reference.best if self.reference else None

    @property
    def ratio_of_medians(self) -> float | None:
        return self.ours.median / self.reference.median if self.reference else None

    @property
    def passed(self) -> bool | None:
        """Whether the limit holds; None for a row that only informs."""
        if self.limit is None:
            return None
        judged = self.ratio if self.limit.on == "ratio" else self.ours.best
        if judged is None:
            raise BenchError(f"{self.name} has a limit on its ratio but no reference")
        return self.limit.holds(judged)


def in_rounds(
    round_count: int,
    sides: Mapping[str, Callable[[], Figures]],
    *,
    warm_up: Iterable[Callable[[], Figures]] = (),
) -> dict[str, list[Figures]]:
    """Let each side run once a round, in turn; which side begins alternates.

    The work in ``warm_up`` runs once before the first round and is not counted: a Java machine
    interprets code that it has not run often enough to compile.
    """
    for run in warm_up:
        run()
    taken: dict[str, list[Figures]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(round_count):
        for name in names if number % 2 == 0 else reversed(names):
            taken[name].append(sides[name]())
    return taken


def cpu_us_per_record(taken: list[Figures]) -> Samples:
    return Samples(tuple(run["cpu_s"] / run["record_count"] * 1e6 for run in taken))


def records_per_second(taken: list[Figures]) -> Samples:
    rates = tuple(run["record_count"] / run["wall_s"] for run in taken)
    return Samples(rates, higher_is_better=True)


def figure(taken: list[Figures], name: str) -> Samples:
    return Samples(tuple(float(run[name]) for run in taken))


class Stopwatch:
    """Wall time, this process's CPU (all threads) and this thread's CPU over a ``with`` block."""

    def __enter__(self) -> Self:
        self._wall, self._cpu, self._thread = _clocks()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu, thread = _clocks()
        self.wall_s = wall - self._wall
        self.cpu_s = cpu - self._cpu
        self.thread_cpu_s = thread - self._thread

    def figures(self, record_count: int, **more: object) -> Figures:
        return {
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "thread_cpu_s": self.thread_cpu_s,
            "record_count": record_count,
            **more,
        }


def _clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.process_time(), time.thread_time()


def wait_until_idle(timeout_s: float = 30.0, busy_share_max: float = 0.02) -> None:
    """Return once this process's threads use next to no CPU: nothing is being prepared."""
    deadline = time.monotonic() + timeout_s
    quiet = threading.Event()  # Never set: its wait is a sleep that burns nothing.
    while time.monotonic() < deadline:
        before = time.process_time()
        quiet.wait(0.05)
        if time.process_time() - before < 0.05 * busy_share_max:
            return
    raise BenchError(f"background threads were still busy after {timeout_s:g} s")


def in_child(part: str, **arguments: object) -> Figures:
    """Call ``module:function`` in a fresh interpreter and return its report."""
    return _answer(part, _child(part, arguments))


def in_killed_child(part: str, **arguments: object) -> Figures:
    """The same for a part that ends itself by SIGKILL after reporting."""
    return _answer(part, _child(part, arguments), expected=-signal.SIGKILL)


def _child(part: str, arguments: Mapping[str, object]) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-c", "from bench.harness import _child_main; _child_main()"]
    return subprocess.run(
        [*call, part, json.dumps(arguments)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)},
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )


def in_program(*command: str) -> Figures:
    """Run a program that prints its figures as JSON."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=False
    )
    return _answer(Path(command[0]).name, done)


def _answer(name: str, done: subprocess.CompletedProcess[str], expected: int = 0) -> Figures:
    if done.returncode != expected or not done.stdout.strip():
        raise BenchError(f"{name} ended with {done.returncode}:\n{done.stderr.strip()[-4000:]}")
    answer: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _child_main() -> None:
    part, arguments = sys.argv[1:3]
    module, _, function = part.partition(":")
    answer = getattr(import_module(module), function)(**json.loads(arguments))
    print(json.dumps(answer))


def compiled(source_name: str, cache: Path) -> Path:
    """The C program of ``bench/c``, built with ``cc -O2`` unless the built one is newer."""
    source = REPOSITORY / "bench" / "c" / f"{source_name}.c"
    target = cache / source_name
    if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
        return target
    cache.mkdir(parents=True, exist_ok=True)
    command = [os.environ.get("CC", "cc"), "-O2", "-o", str(target), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BenchError(f"{command[0]} is missing: install a C compiler or set CC") from error
    except subprocess.CalledProcessError as error:
        raise BenchError(f"{source} does not compile:\n{error.stderr}") from error
    return target

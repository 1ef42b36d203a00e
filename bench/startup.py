"""Start-up times: the command line, ``contrail dev``, a test's broker.

Every child finds its modules compiled, as an installed package has them, in a folder of the run:
the first child of each kind compiles them and is not counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import CHILD_TIMEOUT_S, BenchError, Figures, Limit, Row, Samples, in_rounds

HELP_RATIO_MAX = 5
DEV_READY_MS_MAX = 500
FIXTURE_READY_MS_MAX = 300

_ROUNDS = {"full": 30, "quick": 5, "tiny": 2}
_CONTRAIL = str(Path(sys.executable).with_name("contrail"))


def groups() -> list[str]:
    return list(_GROUPS)


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    return _GROUPS[group](_ROUNDS[size], folder)


def _help(rounds: int, folder: Path) -> list[Row]:
    environment = _environment(folder)
    sides = {
        "ours": lambda: _timed([_CONTRAIL, "--help"], environment),
        "reference": lambda: _timed([sys.executable, "-c", "pass"], environment),
    }
    in_rounds(1, sides)
    taken = in_rounds(rounds, sides)
    return [
        Row(
            name="contrail --help",
            unit="ms",
            ours=_milliseconds(taken["ours"]),
            reference=_milliseconds(taken["reference"]),
            reference_name="python -c pass",
            limit=Limit("<=", HELP_RATIO_MAX),
            guide="150 ms",
        )
    ]


def _dev(rounds: int, folder: Path) -> list[Row]:
    environment = _environment(folder)
    _dev_ready(environment)
    taken = [_dev_ready(environment) for _ in range(rounds)]
    return [
        Row(
            name="contrail dev, from its start to ready",
            unit="ms",
            ours=_milliseconds(taken),
            limit=Limit("<=", DEV_READY_MS_MAX, on="figure"),
            details={"stopped_ms": round(min(run["stopped_s"] for run in taken) * 1000)},
        )
    ]


def _fixture(rounds: int, folder: Path) -> list[Row]:
    environment = _environment(folder)
    script = f"from bench.startup import report_clusters; report_clusters({rounds})"
    command = [sys.executable, "-c", script]
    _output(command, environment)
    lines = [float(line) for line in _output(command, environment).split()]
    return [
        Row(
            name="a cluster of one broker in the test's process",
            unit="ms",
            ours=Samples(tuple(lines[1:])),
            limit=Limit("<=", FIXTURE_READY_MS_MAX, on="figure"),
            details={"first_with_its_imports_ms": round(lines[0])},
        )
    ]


_GROUPS: dict[str, Callable[[int, Path], list[Row]]] = {
    "help": _help,
    "dev": _dev,
    "fixture": _fixture,
}


def report_clusters(rounds: int) -> None:
    """Start and stop clusters as the pytest fixture does, and print how long each start took."""
    for _ in range(rounds + 1):
        started_s = time.perf_counter()
        # The first one pays for this, as the first test of a run does.
        from contrail.testing.cluster import LocalCluster
        from contrail.testing.moved_clock import MovedClock

        with LocalCluster(clock=MovedClock()):
            print((time.perf_counter() - started_s) * 1000)


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(entry or "." for entry in sys.path)
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": path}


def _timed(command: list[str], environment: dict[str, str]) -> Figures:
    started_s = time.perf_counter()
    _output(command, environment)
    return {"wall_s": time.perf_counter() - started_s}


def _output(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=CHILD_TIMEOUT_S
    )
    if done.returncode != 0:
        raise BenchError(f"{command} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def _dev_ready(environment: dict[str, str]) -> Figures:
    started_s = time.perf_counter()
    with subprocess.Popen(
        [_CONTRAIL, "dev", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        ready_s = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        code = process.wait(CHILD_TIMEOUT_S)
        if not line or code != 0:
            told = process.stderr.read()[-4000:].decode()
            raise BenchError(f"contrail dev ended with {code}:\n{told}")
    return {"wall_s": ready_s - started_s, "stopped_s": time.perf_counter() - ready_s}


def _milliseconds(taken: list[Figures]) -> Samples:
    return Samples(tuple(run["wall_s"] * 1000 for run in taken))

"""Kills a working store at every named crash point and judges what the next start finds."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fault.campaigns.history import History, check_folder
from tests.fault.campaigns.workload import read_journal, small_config

REPOSITORY = Path(__file__).resolve().parents[3]
STEP_COUNT = 120
_SECOND_LIFE = 100_000
_CHECKER = 900_000


@dataclass(frozen=True)
class Case:
    """One death: where, at which passage, in which flush mode, in the first life or the second."""

    point: str
    hit: int
    flush: str
    second_life: bool


@dataclass
class CrashFigures:
    """What the campaign saw."""

    points: set[str] = field(default_factory=set)
    kills: int = 0
    survived: int = 0
    acknowledged: int = 0
    problems: list[str] = field(default_factory=list)


class CrashServer:
    """The forking process, as an object."""

    def __init__(self) -> None:
        paths = [str(REPOSITORY / "src"), str(REPOSITORY)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.campaigns.crash_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )

    def run(self, folder: Path, **order: Any) -> int:
        """Let a victim work in ``folder``; returns its exit code, negative for a signal."""
        filled = {
            "root": str(folder / "store"),
            "journal": str(folder / "journal"),
            "log": str(folder / "victim.log"),
            "crash_at": "",
            "trace": "",
            "steps": STEP_COUNT,
        } | order
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(filled), file=self._process.stdin, flush=True)
        return int(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def crash_server() -> Iterator[CrashServer]:
    server = CrashServer()
    try:
        yield server
    finally:
        server.close()


def discover(server: CrashServer, folder: Path, seed: int) -> dict[str, bool]:
    """Which points the workload passes; True for those only a start after a crash passes."""
    order = {"seed": seed, "flush": "sync", "trace": str(folder / "first.trace")}
    code = server.run(folder, sequence=0, **order)
    assert code == 0, (folder / "victim.log").read_text()
    first = set((folder / "first.trace").read_text().split())
    _die_first(server, folder / "again", seed, "sync")
    trace = folder / "second.trace"
    code = server.run(
        folder / "again", sequence=_SECOND_LIFE, **(order | {"trace": str(trace)})
    )
    assert code == 0, (folder / "again" / "victim.log").read_text()
    second = set(trace.read_text().split())
    return dict.fromkeys(sorted(first), False) | dict.fromkeys(sorted(second - first), True)


def _die_first(server: CrashServer, folder: Path, seed: int, flush: str) -> None:
    """A first life that ends in mid-work, with half a record at the end of the log."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    crash_at = f"append.after_write:{rng.randint(40, 70)}"
    code = server.run(folder, seed=seed, sequence=0, flush=flush, crash_at=crash_at)
    assert code == -signal.SIGKILL, (folder / "victim.log").read_text()
    _scribble_behind_the_end(folder)


def _scribble_behind_the_end(folder: Path) -> None:
    """As a write cut short would leave it: a plausible header and then too little."""
    segments = sorted((folder / "store" / "commitlog").iterdir())
    for path in segments:
        data = path.read_bytes()
        end = len(data.rstrip(b"\0"))
        if end + 200 < len(data):
            with open(path, "r+b") as file:
                file.seek(end)
                file.write((500).to_bytes(4, "big") + bytes.fromhex("daa320a7") + b"\x55" * 100)
            return


def run_case(server: CrashServer, folder: Path, case: Case, seed: int) -> tuple[bool, History]:
    """Run one case up to its death; tells whether it died and what it had been promised."""
    if case.second_life:
        _die_first(server, folder, seed, case.flush)
    else:
        folder.mkdir(parents=True)
    code = server.run(
        folder,
        seed=seed,
        sequence=_SECOND_LIFE if case.second_life else 0,
        flush=case.flush,
        crash_at=f"{case.point}:{case.hit}",
    )
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"{case}: exit {code}\n" + (folder / "victim.log").read_text())
    return code != 0, History.from_events(seed, read_journal(folder / "journal"))


def run_campaign(
    folder: Path, *, seed: int, flushes: tuple[str, ...], hits: tuple[int, ...], both_lives: bool
) -> CrashFigures:
    """Every point, in every mode, at every hit count asked for."""
    figures = CrashFigures()
    with crash_server() as server:
        (folder / "discovery").mkdir()
        reached = discover(server, folder / "discovery", seed)
        for number, case in enumerate(_cases(reached, flushes, hits, both_lives)):
            _run_and_judge(server, folder / f"case{number}", case, seed + number, figures)
    return figures


def _cases(
    reached: dict[str, bool], flushes: tuple[str, ...], hits: tuple[int, ...], both_lives: bool
) -> Iterator[Case]:
    for number, (point, late) in enumerate(reached.items()):
        lives = (False, True) if both_lives and not late else (late,)
        # A quick run asks for one mode only: the points take turns.
        modes = flushes if both_lives else (flushes[number % len(flushes)],)
        for flush in modes:
            for life in lives:
                for hit in hits:
                    yield Case(point, hit, flush, life)


def _run_and_judge(
    server: CrashServer, folder: Path, case: Case, seed: int, figures: CrashFigures
) -> None:
    died, history = run_case(server, folder, case, seed)
    figures.kills += died
    figures.survived += not died
    if died:
        figures.points.add(case.point)
    verdict = check_folder(small_config(folder / "store", case.flush), history, _CHECKER)
    figures.acknowledged += verdict.checked_acks
    figures.problems += [f"{case} seed {seed}: {problem}" for problem in verdict.problems]

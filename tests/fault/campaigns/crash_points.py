"""Kills a working store at every named crash point and judges the store after the next start."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contrail.errors import StoreError
from tests.fault.campaigns.history import History, Verdict, check_folder
from tests.fault.campaigns.workload import read_journal, small_config

REPOSITORY = Path(__file__).resolve().parents[3]
STEP_COUNT = 120
LIVES = ("", "torn", "damaged")
_SECOND_LIFE = 100_000
_CHECKER = 900_000


@dataclass(frozen=True)
class Case:
    """One kill: its crash point, passage and flush mode, and the state of the folder before.

    ``after`` is empty for a new folder; after an earlier kill it is ``torn`` when that left half a
    record behind, ``damaged`` when derived files were damaged as well.
    """

    point: str
    hit: int
    flush: str
    after: str = ""


@dataclass
class CrashFigures:
    """The findings of the campaign."""

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


def discover(server: CrashServer, folder: Path, seed: int) -> dict[str, str]:
    """The points that the workload passes, and the step before each first pass; see ``Case``."""
    reached: dict[str, str] = {}
    for after in LIVES:
        place = folder / (after or "first")
        _prepare(server, place, seed, "sync", after)
        code = server.run(
            place, seed=seed, sequence=_sequence(after), flush="sync", trace=str(place / "trace")
        )
        assert code == 0, (place / "victim.log").read_text()
        for point in sorted((place / "trace").read_text().split()):
            reached.setdefault(point, after)
    return reached


def _sequence(after: str) -> int:
    return _SECOND_LIFE if after else 0


def _prepare(server: CrashServer, folder: Path, seed: int, flush: str, after: str) -> None:
    """A new folder, or one in which another process was killed in mid-work."""
    folder.mkdir(parents=True)
    if not after:
        return
    crash_at = f"append.after_write:{random.Random(seed).randint(40, 70)}"
    code = server.run(folder, seed=seed, sequence=0, flush=flush, crash_at=crash_at)
    assert code == -signal.SIGKILL, (folder / "victim.log").read_text()
    _scribble_behind_the_end(folder / "store")
    if after == "damaged":
        _damage_derived(folder / "store")


def _scribble_behind_the_end(root: Path) -> None:
    """Leave a half written record: a plausible header and too few bytes behind it."""
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        end = len(data.rstrip(b"\0"))
        if end + 200 < len(data):
            torn = (500).to_bytes(4, "big") + bytes.fromhex("daa320a7") + b"\x55" * 100
            _overwrite(path, end, torn)
            return


def _damage_derived(root: Path) -> None:
    """Add an unused segment, remove a queue, damage an index entry."""
    last = max((root / "commitlog").iterdir())
    segment_bytes = last.stat().st_size
    (last.parent / f"{int(last.name) + segment_bytes:020d}").write_bytes(bytes(segment_bytes))
    shutil.rmtree(root / "consumequeue" / "orders" / "0", ignore_errors=True)
    first_index = min((root / "index").iterdir())
    _overwrite(first_index, first_index.stat().st_size - 100, b"\1" * 20)


def _overwrite(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def run_case(server: CrashServer, folder: Path, case: Case, seed: int) -> tuple[bool, History]:
    """Run one case up to its kill; returns whether it was killed and the promises before."""
    _prepare(server, folder, seed, case.flush, case.after)
    code = server.run(
        folder,
        seed=seed,
        sequence=_sequence(case.after),
        flush=case.flush,
        crash_at=f"{case.point}:{case.hit}",
    )
    if code not in (0, -signal.SIGKILL):
        raise AssertionError(f"{case}: exit {code}\n" + (folder / "victim.log").read_text())
    return code != 0, History.from_events(seed, read_journal(folder / "journal"))


def run_campaign(
    folder: Path, *, seed: int, flushes: tuple[str, ...], hits: tuple[int, ...], every_life: bool
) -> CrashFigures:
    """Every point, in every mode, at every hit count asked for."""
    figures = CrashFigures()
    with crash_server() as server:
        (folder / "discovery").mkdir()
        reached = discover(server, folder / "discovery", seed)
        for number, case in enumerate(_cases(reached, flushes, hits, every_life)):
            _run_and_judge(server, folder / f"case{number}", case, seed + number, figures)
    return figures


def _cases(
    reached: dict[str, str], flushes: tuple[str, ...], hits: tuple[int, ...], every_life: bool
) -> Iterator[Case]:
    for number, (point, first) in enumerate(reached.items()):
        lives = LIVES[LIVES.index(first) :] if every_life else (first,)
        # A quick run asks for one mode only: the points take turns.
        modes = flushes if every_life else (flushes[number % len(flushes)],)
        for flush in modes:
            for after in lives:
                for hit in hits:
                    yield Case(point, hit, flush, after)


def _run_and_judge(
    server: CrashServer, folder: Path, case: Case, seed: int, figures: CrashFigures
) -> None:
    died, history = run_case(server, folder, case, seed)
    figures.kills += died
    figures.survived += not died
    if died:
        figures.points.add(case.point)
    try:
        verdict = check_folder(
            small_config(folder / "store", case.flush),
            history,
            _CHECKER,
            scrubbed=case.after == "damaged",
        )
    except StoreError as error:
        verdict = Verdict(problems=[f"did not start: {error!r}"])
    figures.acknowledged += verdict.checked_acks
    figures.problems += [f"{case} seed {seed}: {problem}" for problem in verdict.problems]
    if not verdict.problems:
        shutil.rmtree(folder)

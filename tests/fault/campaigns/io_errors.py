"""Failing writes and syncs: no append is acknowledged after the first; a restart has the others.

In one process the faults come from a failing file system; around a real process they come from a
shared library that stands before the C library.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from contrail.errors import StoreError, StorePoisoned
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.fakes.failing_files import FOREVER, FailingFileSystem, Fault
from tests.fault.campaigns.crash_points import REPOSITORY
from tests.fault.campaigns.history import History, check_folder
from tests.fault.campaigns.workload import (
    MemoryJournal,
    Workload,
    draft_of,
    read_journal,
    small_config,
)

SHIM_SOURCE = REPOSITORY / "tests" / "fault" / "shim" / "fault_shim.c"
_CHECKER = 900_000
_POISONED_EXIT = 70


@dataclass
class ErrorFigures:
    """The findings of the campaign."""

    cases: int = 0
    struck: int = 0
    acknowledged: int = 0
    acknowledged_after: int = 0
    problems: list[str] = field(default_factory=list)


def fault_config(root: Path, flush: str = "sync") -> StoreConfig:
    """No zeros are written ahead of need, so that every write to the log is one of records."""
    return small_config(root, flush, segments_prepared_ahead=False)


def run_inside(folder: Path, fault: Fault, *, seed: int, flush: str, figures: ErrorFigures) -> None:
    """One fault in this process: work until it strikes, require refusals, release, start again."""
    root = folder / "store"
    files, journal = FailingFileSystem(fault), MemoryJournal()
    where = f"{fault.operation} {fault.nth} short={fault.short_bytes} {flush} seed {seed}"
    figures.cases += 1
    workload = Workload(fault_config(root, flush), journal, seed=seed, files=files, retention=False)
    is_open = True
    try:
        workload.run(60)
        _await_async_error(workload.store)
    except StorePoisoned:
        pass
    except StoreError:
        # The fault struck a restart, which was refused: no store is left to acknowledge.
        is_open = False
    if fault.fired:
        figures.struck += 1
        if is_open:
            _require_silence(workload.store, seed, figures, where)
    workload.store.close()
    history = History.from_events(seed, journal.events)
    verdict = check_folder(small_config(root, flush), history, _CHECKER)
    figures.acknowledged += verdict.checked_acks
    figures.problems += [f"{where}: {problem}" for problem in verdict.problems]
    shutil.rmtree(folder)


def _await_async_error(store: MessageStore) -> None:
    """Under async flush the error comes up by itself, a little later; waiting provokes it now."""
    store.wait_flushed(store.physical_end)


def _require_silence(store: MessageStore, seed: int, figures: ErrorFigures, where: str) -> None:
    """A poisoned store takes no append, acknowledges none, and raises."""
    if store.poisoned is None:
        figures.problems.append(f"{where}: the store is not poisoned")
    for attempt in range(3):
        try:
            run = store.append_one(draft_of(seed, _CHECKER + 1 + attempt))
            store.wait_flushed(run.physical_end, 1000)
        except StoreError:
            continue
        figures.acknowledged_after += 1
        figures.problems.append(f"{where}: acknowledged after the error")


def inside_faults(rng: random.Random, count: int) -> list[Fault]:
    """Log writes that fail or stop short, log syncs that fail; once, or from then on."""
    faults = []
    for number in range(count):
        times = FOREVER if number % 2 else 1
        kind = number % 3
        if kind == 0:
            faults.append(Fault("pwrite", "commitlog", nth=rng.randint(1, 60), times=times))
        elif kind == 1:
            faults.append(Fault("fdatasync", "commitlog", nth=rng.randint(1, 40), times=times))
        else:
            short = rng.choice((0, 1, 7, 90, 150))
            faults.append(
                Fault("pwrite", "commitlog", nth=rng.randint(1, 60), times=times, short_bytes=short)
            )
    return faults


def run_campaign(folder: Path, *, seed: int, cases: int) -> ErrorFigures:
    """Faults inside this process, both flush modes in turn."""
    figures = ErrorFigures()
    rng = random.Random(seed)
    for number, fault in enumerate(inside_faults(rng, cases)):
        flush = "sync" if number % 4 < 3 else "async"
        run_inside(
            folder / f"case{number}", fault, seed=seed + number, flush=flush, figures=figures
        )
    return figures


def build_shim(folder: Path) -> Path:
    """Compile the shared library; needs ``cc``."""
    library = folder / "fault_shim.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def run_around(
    folder: Path, library: Path, *, operation: str, path: str, nth: int, mode: str, seed: int,
    figures: ErrorFigures,
) -> int:  # fmt: skip
    """One fault around a real process, which must end by itself and never confirm again."""
    folder.mkdir(parents=True)
    figures.cases += 1
    struck = folder / "struck"
    settings = {
        "LD_PRELOAD": str(library),
        "FAULT_OPERATION": operation,
        "FAULT_PATH": path,
        "FAULT_NTH": str(nth),
        "FAULT_MODE": mode,
        "FAULT_LOG": str(struck),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]),
    }
    code = subprocess.run(
        [sys.executable, "-m", "tests.fault.campaigns.io_errors", str(folder), str(seed)],
        cwd=REPOSITORY,
        env=os.environ | settings,
        timeout=120,
    ).returncode
    figures.struck += struck.exists()
    events = read_journal(folder / "journal")
    where = f"{operation} {nth} {mode} on {path!r}"
    late = [event for event in events[_error_at(events) :] if event[0] == "ack"]
    figures.acknowledged_after += len(late)
    figures.problems += [f"{where}: confirmed after the error: {event}" for event in late]
    verdict = check_folder(
        small_config(folder / "store"), History.from_events(seed, events), _CHECKER
    )
    figures.acknowledged += verdict.checked_acks
    figures.problems += [f"{where}: {problem}" for problem in verdict.problems]
    return code


def _error_at(events: list[list[object]]) -> int:
    return next(
        (place for place, event in enumerate(events) if event[0] == "poisoned"), len(events)
    )


def _work_until_poisoned(folder: Path, seed: int) -> int:
    """The real process: like a broker, it goes on trying until told that the store is poisoned."""
    from tests.fault.campaigns.workload import FileJournal

    journal = FileJournal(folder / "journal")
    workload = Workload(fault_config(folder / "store"), journal, seed=seed, retention=False)
    try:
        workload.run(60)
    except StorePoisoned:
        journal.note("poisoned")
        _keep_trying(workload, journal)
        workload.store.close()
        return _POISONED_EXIT
    workload.close()
    return 0


def _keep_trying(workload: Workload, journal: object) -> None:
    for _ in range(5):
        try:
            workload.run(1)
        except StoreError:
            continue


if __name__ == "__main__":
    sys.exit(_work_until_poisoned(Path(sys.argv[1]), int(sys.argv[2])))

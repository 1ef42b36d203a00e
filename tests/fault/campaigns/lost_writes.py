"""Power cuts: replays a recorded workload up to some operation, losing unsynced writes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contrail.clock import ManualClock
from contrail.errors import StoreError
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.fakes.recording_files import Created, Marked, RecordingFileSystem, Synced
from tests.fault.campaigns.crash_states import (
    Disk,
    Survival,
    everything_survives,
    materialise,
    nothing_survives,
    some_survive,
)
from tests.fault.campaigns.history import (
    CLOCK_MS,
    History,
    Verdict,
    check_config,
    check_history,
    check_index,
    check_writable,
    only_acknowledged,
    read_everything,
)
from tests.fault.campaigns.workload import BATCH_TOPICS, Event, Workload, small_config

_CHECKER = 900_000


class _TraceJournal:
    """Notes go into the trace itself, so that each state has the acknowledgements made by then."""

    def __init__(self, files: RecordingFileSystem) -> None:
        self._files = files

    def note(self, *event: object) -> None:
        self._files.mark(list(event))


@dataclass
class LostWriteFigures:
    """The findings of the campaign."""

    operations: int = 0
    states: int = 0
    nested_states: int = 0
    acknowledged: int = 0
    problems: list[str] = field(default_factory=list)


def record_run(root: Path, *, seed: int, steps: int) -> RecordingFileSystem:
    """A whole run under sync flush, recorded."""
    root.mkdir(parents=True)
    files = RecordingFileSystem(root)
    workload = Workload(small_config(root), _TraceJournal(files), seed=seed, files=files)
    workload.run(steps)
    workload.close()
    return files


def run_campaign(
    folder: Path, *, seed: int, steps: int, states: int, nested_every: int = 10
) -> LostWriteFigures:
    """Judge about ``states`` crash states, spread over the run.

    Each ``nested_every``th crashes again inside the recovery from the first crash.
    """
    files = record_run(folder / "recorded", seed=seed, steps=steps)
    figures = LostWriteFigures(operations=len(files.operations))
    rng = random.Random(seed)
    for place, disk, history in replayed(files, seed=seed, states=states):
        survival = _survival(figures.states, rng)
        found = disk.crash(survival)
        state = folder / "state"
        materialise(found, source=files.root, target=state)
        where = f"seed {seed}, crash after operation {place}"
        if figures.states % nested_every == nested_every - 1:
            _crash_again(state, history, rng, figures, where)
        else:
            _judge(state, history, figures, where)
        shutil.rmtree(state)
        figures.states += 1
    return figures


def _survival(number: int, rng: random.Random) -> Survival:
    """Both extremes now and then, and mostly something in between."""
    if number % 5 == 0:
        return nothing_survives
    return everything_survives if number % 5 == 1 else some_survive(rng)


def replayed(
    files: RecordingFileSystem, *, seed: int, states: int
) -> Iterator[tuple[int, Disk, History]]:
    """The disk and the acknowledgements at each chosen operation of the trace.

    An operation comes several times if more states are wanted than there are operations.
    """
    disk, history = Disk(files.baseline), History(seed)
    owed, count = 0.0, sum(not isinstance(step, Marked) for step in files.operations)
    for index, operation in enumerate(files.operations):
        disk.follow(index, operation)
        if isinstance(operation, Marked):
            history.take(_event(operation))
            continue
        owed += states / count
        while owed >= 1:
            owed -= 1
            yield index, disk, history


def _event(mark: Marked) -> Event:
    assert isinstance(mark.note, list)
    return mark.note


def _judge(state: Path, history: History, figures: LostWriteFigures, where: str) -> None:
    verdict = judge_state(small_config(state), history)
    figures.acknowledged += verdict.checked_acks
    figures.problems += [f"{where}: {problem}" for problem in verdict.problems]


def judge_state(config: StoreConfig, history: History) -> Verdict:
    """Open a crash state and compare it with the acknowledgements."""
    try:
        store = MessageStore.open(config, clock=ManualClock(CLOCK_MS), batch_topics=BATCH_TOPICS)
    except (StoreError, OSError) as error:
        return Verdict(problems=[f"refused to start: {error!r}"])
    try:
        verdict = check_history(store, history)
        content = only_acknowledged(read_everything(store, verdict), history)
        check_index(store, content, verdict, every=5)
        check_writable(store, history, _CHECKER, verdict)
    finally:
        store.close()
    check_config(config.root, history, verdict)
    return verdict


def _crash_again(
    state: Path,
    history: History,
    rng: random.Random,
    figures: LostWriteFigures,
    where: str,
) -> None:
    """Record the recovery itself, cut the power in the middle of it, and judge what that leaves."""
    files = RecordingFileSystem(state)
    try:
        store = MessageStore.open(
            small_config(state),
            clock=ManualClock(CLOCK_MS),
            files=files,
            batch_topics=BATCH_TOPICS,
        )
        recovered = len(files.operations)
        store.close()
    except (StoreError, OSError) as error:
        figures.problems.append(f"{where}: refused to start: {error!r}")
        return
    place = rng.randint(1, recovered)
    disk = Disk(files.baseline)
    for index, operation in enumerate(files.operations[:place]):
        disk.follow(index, operation)
    again = state.with_name("again")
    materialise(disk.crash(some_survive(rng)), source=state, target=again)
    _judge(
        again,
        history,
        figures,
        f"{where}, again after operation {place} of the recovery",
    )
    shutil.rmtree(again)
    figures.nested_states += 1


def forget_log_syncs(files: RecordingFileSystem) -> RecordingFileSystem:
    """The same trace as a disk that lies about syncing the log would have it."""
    log_inodes = {inode for path, inode in _created(files) if path.parent.name == "commitlog"}
    files.operations = [
        operation._replace(covers=0)
        if isinstance(operation, Synced) and operation.inode in log_inodes
        else operation
        for operation in files.operations
    ]
    return files


def _created(files: RecordingFileSystem) -> Iterator[tuple[Path, int]]:
    for operation in files.operations:
        if isinstance(operation, Created):
            yield operation.path, operation.inode

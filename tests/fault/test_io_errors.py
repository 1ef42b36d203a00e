"""EIO and short writes: no append is acknowledged after the first; a restart has the others."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.errors import DiskFull, StoreReadOnly
from contrail.store.log import MessageStore
from tests.fakes.failing_files import FOREVER, FailingFileSystem, Fault
from tests.fault.campaigns.history import CLOCK_MS, Verdict, read_everything
from tests.fault.campaigns.io_errors import ErrorFigures, build_shim, run_around, run_campaign
from tests.fault.campaigns.workload import draft_of, small_config
from tests.seeds import seed_asked_for

AROUND = [
    ("pwrite", "commitlog", "eio"),
    ("pwrite", "commitlog", "short"),
    ("pwrite", "commitlog", "enospc"),
    ("fdatasync", "commitlog", "eio"),
]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) to build the fault library with")
    return build_shim(tmp_path)


@pytest.mark.proves("store.files.poisoned", "store.crashes.failed-writes")
def test_nothing_is_acknowledged_after_a_failed_log_write_or_sync(memory_path: Path) -> None:
    figures = run_campaign(memory_path, seed=41, cases=12)
    assert figures.problems == []
    assert figures.acknowledged_after == 0
    assert figures.struck >= 8


@pytest.mark.proves("store.crashes.failed-writes")
@pytest.mark.parametrize(("operation", "path", "mode"), AROUND)
def test_a_real_process_stops_acknowledging_at_the_first_error(
    operation: str, path: str, mode: str, library: Path, memory_path: Path
) -> None:
    figures = ErrorFigures()
    code = run_around(
        memory_path / "case", library, operation=operation, path=path, nth=9, mode=mode,
        seed=42, figures=figures,
    )  # fmt: skip
    assert figures.problems == []
    assert figures.struck == 1
    assert code != 0


def test_no_room_for_the_next_segment_refuses_appends_and_heals_by_itself(
    memory_path: Path,
) -> None:
    fault = Fault("allocate", "commitlog", nth=2, times=FOREVER, error=errno.ENOSPC)
    files = FailingFileSystem(fault)
    with MessageStore.open(
        small_config(memory_path / "store"), clock=ManualClock(CLOCK_MS), files=files
    ) as store:
        kept = _append_until_full(store)
        assert fault.fired and store.poisoned is None
        verdict = Verdict()
        read_everything(store, verdict)
        assert verdict.problems == []
        files.faults.clear()
        run = store.append_one(draft_of(43, kept))
        assert store.wait_flushed(run.physical_end, 60_000)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("operation", ["open", "create"])
def test_too_few_descriptors_for_queues_and_index_refuse_appends_and_heal_by_themselves(
    number: int, operation: str, memory_path: Path
) -> None:
    fault = Fault(operation, "consumequeue", times=FOREVER, error=number)
    files, clock = FailingFileSystem(), ManualClock(CLOCK_MS)
    with MessageStore.open(
        small_config(memory_path / "store", open_files_max=8), clock=clock, files=files
    ) as store:
        if operation == "open":
            _append_and_write_rows(store, clock, range(12))
        files.faults.append(fault)
        _append_and_write_rows(store, clock, range(12, 24))
        assert fault.fired and store.poisoned is None
        with pytest.raises(StoreReadOnly, match=r"too many open files.*contrailOpenFilesMax"):
            store.append_one(draft_of(44, 24))
        files.faults.clear()
        clock.advance(ms=60_000)
        store.tick()
        _append_and_write_rows(store, clock, range(24, 25))
        verdict = Verdict()
        read_everything(store, verdict)
        assert verdict.problems == []


def _append_and_write_rows(store: MessageStore, clock: ManualClock, numbers: range) -> None:
    run = store.append([draft_of(44, number) for number in numbers])
    assert store.wait_flushed(run.physical_end, 60_000)
    store.dispatch()
    clock.advance(ms=60_000)
    store.tick()


def test_a_checkpoint_without_descriptors_is_written_later(memory_path: Path) -> None:
    fault = Fault("create", "contrail.", times=FOREVER, error=errno.EMFILE)
    files, clock = FailingFileSystem(fault), ManualClock(CLOCK_MS)
    config = small_config(memory_path / "store")
    with MessageStore.open(config, clock=clock, files=files) as store:
        store.append_one(draft_of(45, 0))
        with pytest.raises(OSError, match="Too many open files"):
            store.checkpoint()
        assert fault.fired and store.poisoned is None
        files.faults.clear()
        store.checkpoint()


def test_an_error_of_the_arrival_listener_is_no_failed_write(memory_path: Path) -> None:
    def listen(arrivals: object) -> None:
        raise OSError(errno.EIO, "a connection broke")

    config = small_config(memory_path / "store")
    with MessageStore.open(config, on_arrival=listen) as store:
        run = store.append_one(draft_of(46, 0))
        assert store.wait_flushed(run.physical_end, 60_000)
        with pytest.raises(OSError, match="a connection broke"):
            store.dispatch()
        assert store.poisoned is None
        assert store.dispatched_end == run.physical_end
        store.append_one(draft_of(46, 1))


def _append_until_full(store: MessageStore) -> int:
    for sequence in range(10_000):
        try:
            run = store.append_one(draft_of(43, sequence))
        except DiskFull:
            return sequence
        assert store.wait_flushed(run.physical_end, 60_000)
    raise AssertionError("the log never needed a second segment")


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_many_faults_inside_the_process_acknowledge_nothing_after_the_error(
    memory_path: Path,
) -> None:
    figures = run_campaign(memory_path, seed=seed_asked_for(4000), cases=200)
    assert figures.problems == []
    assert figures.acknowledged_after == 0


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("operation", "path", "mode"), AROUND)
def test_many_faults_around_a_real_process(
    operation: str, path: str, mode: str, library: Path, memory_path: Path
) -> None:
    figures = ErrorFigures()
    for nth in (1, 2, 3, 5, 8, 13, 21, 34):
        run_around(
            memory_path / f"case{nth}", library, operation=operation, path=path, nth=nth,
            mode=mode, seed=nth, figures=figures,
        )  # fmt: skip
    assert figures.problems == []

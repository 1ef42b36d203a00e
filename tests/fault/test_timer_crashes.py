"""Kills between timer log, wheel and check, and disks that fail under them."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from tests.fakes.failing_files import FOREVER, FailingFileSystem, Fault
from tests.fault.timer_setup import START_MS, TimerBroker, restarted

ROOT = Path(__file__).parents[2]
POINTS = (
    "timer_log.written",
    "timer_log.synced",
    "timer_wheel.written",
    "timer_wheel.synced",
    "timer_check.written",
    "timer_check.synced",
)


def run_child(root: Path, now_ms: int, crash_at: str) -> tuple[dict[str, int], int]:
    """The messages a child made durable before it died, and its clock then."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.timer_child", str(root), str(now_ms)],
        cwd=ROOT,
        env={**os.environ, "CONTRAIL_CRASH_AT": crash_at},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, (crash_at, done.stderr[-2000:])
    lines = [line.split() for line in done.stdout.splitlines()]
    sent = {key: int(number) for key, number in lines if key != "#"}
    times = [int(number) for key, number in lines if key == "#"]
    return sent, max([now_ms, *times])


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_the_files_loses_and_repeats_nothing(memory_path: Path, point: str) -> None:
    root = memory_path / "store"
    sent, now_ms = run_child(root, START_MS, f"{point}:3")
    # The second process is killed, too, at the same crash point.
    more, now_ms = run_child(root, now_ms + 1500, f"{point}:4")
    due = {**sent, **more}
    clock = ManualClock(now_ms + 1500)
    broker = TimerBroker(root, clock)
    broker.advance(3_600_000)
    keys = broker.keys()
    assert len(keys) == len(set(keys)), "each is delivered once"
    # The last message may be in the log although its producer got no answer.
    assert set(due) <= set(keys) and len(keys) <= len(due) + 2
    times = broker.times()
    assert all(times[key] >= deliver_ms for key, deliver_ms in due.items())
    broker.stop()


@pytest.mark.parametrize("name", ["timerlog", "timerwheel", "timercheck"])
def test_a_full_disk_only_delays_the_files(memory_path: Path, name: str) -> None:
    clock = ManualClock(START_MS)
    files = FailingFileSystem()
    broker = TimerBroker(memory_path / "store", clock, files=files)
    for number in range(10):
        broker.send(f"{number}", DELIVER_MS=START_MS + 20_000 + number)
    # Before the timers' job runs: once the log is on the disk, the job has the files written.
    files.faults.append(Fault("pwrite", name, times=4, error=errno.ENOSPC))
    broker.wait_filed()
    assert files.faults[0].fired == 4
    assert not broker.timers._filing._frozen
    broker = restarted(broker)
    assert broker.timers.pending_count == 10
    broker.advance(60_000)
    assert broker.keys() == [f"{number}" for number in range(10)]
    broker.stop()


@pytest.mark.parametrize("name", ["timerlog", "timerwheel", "timercheck"])
@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_failing_disk_leaves_the_files_alone_and_deliveries_go_on(
    memory_path: Path, operation: str, name: str
) -> None:
    clock = ManualClock(START_MS)
    files = FailingFileSystem()
    broker = TimerBroker(memory_path / "store", clock, files=files)
    for number in range(10):
        broker.send(f"{number}", DELIVER_MS=START_MS + 5000 + number * 1000)
    broker.run()
    broker.settle()
    files.faults.append(Fault(operation, name, times=FOREVER))
    for number in range(10, 20):
        broker.send(f"{number}", DELIVER_MS=START_MS + 5000 + number * 1000)
    broker.advance(12_000, step_ms=500)
    for _ in range(100):
        if broker.timers._filing._frozen:
            break
        if broker.timers._filing._running is not None:
            broker.timers._filing._running.exception()
        broker.flush_log()
        broker.advance(100)
    assert broker.timers._filing._frozen
    written = broker.timers._filing.check
    broker.advance(5000, step_ms=500)
    assert broker.timers._filing.check == written
    files.faults.clear()
    broker.flush_log()
    broker = restarted(broker)
    broker.advance(60_000)
    assert broker.keys() == [f"{number}" for number in range(20)]
    broker.stop()

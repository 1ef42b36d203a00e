"""Timer messages over a restart: clocks set back, long downtimes, odd properties, retention."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from tests.fault.timer_setup import START_MS, TimerBroker, restarted

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def broker(memory_path: Path, clock: ManualClock) -> TimerBroker:
    return TimerBroker(memory_path / "store", clock)


# The clock.


@pytest.mark.parametrize("hours", [1, 8 * 24, 400 * 24])
@pytest.mark.parametrize("ending", [TimerBroker.stop, TimerBroker.crash])
def test_timers_follow_a_clock_that_was_set_back_before_a_restart(
    broker: TimerBroker, hours: int, ending: Callable[[TimerBroker], None]
) -> None:
    broker.advance(hours=hours)
    broker.send("done", DELAY_MS=100)
    broker.advance(5000, step_ms=100)
    ahead_ms = broker.clock.now_ms()
    broker.send("later", DELIVER_MS=ahead_ms + 50_000)
    broker.settle()
    broker.clock.advance(hours=-hours)
    now_ms = broker.clock.now_ms()
    for key, delay_ms in (("brief", 10_000), ("a", 40_000), ("gone", 40_000), ("far", 5 * DAY_MS)):
        broker.send(key, DELIVER_MS=now_ms + delay_ms)
    broker.delete("gone", now_ms + 40_000)
    broker.settle()
    broker.advance(11_000, step_ms=100)
    broker.settle()
    for _ in range(2):
        broker = restarted(broker, ending)
        assert broker.timers._filing.check.read_ms <= broker.clock.now_ms(), (
            "the files follow the clock"
        )
    broker.advance(30_000, step_ms=100)
    broker.send("recalled", DELIVER_MS=broker.clock.now_ms() + 30_000)
    broker.delete("recalled", broker.clock.now_ms() + 30_000)
    broker.advance(40_000, step_ms=1000)
    assert broker.times() == {
        "done": broker.times()["done"],
        "brief": now_ms + 10_000,
        "a": now_ms + 40_000,
    }
    broker.advance(hours=hours + 6 * 24, step_ms=6 * 3_600_000)
    times = broker.times()
    assert sorted(broker.keys()) == ["a", "brief", "done", "far", "later"]
    assert times["far"] >= now_ms + 5 * DAY_MS and times["later"] >= ahead_ms + 50_000
    broker.stop()


def test_a_clock_that_is_set_back_in_use_keeps_recalls(broker: TimerBroker) -> None:
    broker.advance(60_000, step_ms=1000)
    broker.clock.advance(hours=-1)
    now_ms = broker.clock.now_ms()
    for key in ("a", "gone"):
        broker.send(key, DELIVER_MS=now_ms + 10_000)
    broker.delete("gone", now_ms + 10_000)
    broker.advance(12_000, step_ms=100)
    assert broker.times() == {"a": now_ms + 10_000}
    broker.stop()


# Recalls.


def work_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine: each call of the job gets one step done."""
    times_ms = itertools.count(step=3)
    monkeypatch.setattr(
        "contrail.broker.services.timers.monotonic_ms", lambda: next(times_ms), raising=True
    )


@pytest.mark.parametrize("wait_s", [600, 3600], ids=["near", "far, rolled on"])
@pytest.mark.parametrize("loses_files", [False, True], ids=["files", "no files"])
@pytest.mark.parametrize("count", [100, 600])
def test_a_slow_machine_delivers_no_recalled_timer_after_a_long_downtime(
    memory_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    wait_s: int,
    loses_files: bool,
    count: int,
) -> None:
    """All timers are overdue, and enqueueing and delivering them takes several calls."""
    broker = TimerBroker(memory_path / "store", clock, timer_roll_window_slots=1200)
    due_ms = START_MS + wait_s * 1000
    for number in range(count):
        broker.send(f"{number:03d}", DELIVER_MS=due_ms)
    for number in range(0, count, 2):
        broker.delete(f"{number:03d}", due_ms)
    broker.settle()
    broker.crash()
    if loses_files:
        (broker.config.root / "config" / "timercheck").unlink()
    clock.advance(hours=8 * 24)
    work_slowly(monkeypatch)
    broker = TimerBroker(broker.config.root, clock, **broker.changes)
    for _ in range(60):
        broker.timers.run(clock.now_ms())
        broker.dispatch()
        clock.advance(ms=300)
    assert sorted(broker.keys()) == [f"{number:03d}" for number in range(1, count, 2)]
    assert broker.timers._table.due.deletion_slot_ms_min is None, "nothing is left behind"
    broker.stop()


@pytest.mark.parametrize("run_count", range(1, 8))
@pytest.mark.parametrize("is_dispatched", [True, False])
def test_a_recall_outlives_crashes_while_its_timer_is_rolled_on(
    memory_path: Path, clock: ManualClock, run_count: int, is_dispatched: bool
) -> None:
    """Both are overdue, the timer has to be stored once more before it can be deleted."""
    broker = TimerBroker(memory_path / "store", clock, timer_roll_window_slots=1200)
    due_ms = START_MS + 1_300_000
    for key in ("a", "gone"):
        broker.send(key, DELIVER_MS=due_ms)
    broker.advance(200_000, step_ms=10_000)
    broker.delete("gone", due_ms)
    broker.settle()
    clock.advance(hours=1)
    broker = restarted(broker)
    for _ in range(run_count):
        broker.timers.run(clock.now_ms())
        if is_dispatched:
            broker.dispatch()
        broker.flush_log()
        clock.advance(ms=broker.config.timer_flush_interval_ms)
    broker = restarted(broker)
    broker.advance(5000, step_ms=100)
    assert broker.keys() == ["a"]
    broker.stop()


@pytest.mark.proves("kinds.recall.one-message")
@pytest.mark.parametrize("wait_s", [600, 3600], ids=["near", "rolled on"])
@pytest.mark.parametrize("restarts", [False, True], ids=["in one life", "over crashes"])
def test_a_recall_takes_one_of_several_messages_with_a_key(
    memory_path: Path, clock: ManualClock, wait_s: int, restarts: bool
) -> None:
    broker = TimerBroker(memory_path / "store", clock, timer_roll_window_slots=1200)
    due_ms = START_MS + wait_s * 1000
    for queue_id, nonce in enumerate(("theirs", "own", "")):
        broker.send("same", queue_id=queue_id, nonce=nonce, DELIVER_MS=due_ms)
    broker.delete("same", due_ms, nonce="own")
    for key in ("all", "all, old"):
        broker.send(key, nonce="n" if key == "all" else "", DELIVER_MS=due_ms)
        # As Apache's brokers and operators delete: by the key alone.
        broker.delete(key, due_ms)
    for _ in range(4):
        if restarts:
            broker.settle()
            broker = restarted(broker)
        broker.advance(wait_s * 250 + 1000, step_ms=10_000)
    found = [[m.properties for m in broker.delivered(queue_id=number)] for number in range(3)]
    assert [[one["UNIQ_KEY"] for one in queue] for queue in found] == [["same"], [], ["same"]]
    assert all("CONTRAIL_RECALL_NONCE" not in one for queue in found for one in queue)
    broker.stop()


def test_the_read_time_that_recalls_hold_back_goes_on_when_they_are_done(
    memory_path: Path, clock: ManualClock
) -> None:
    broker = TimerBroker(memory_path / "store", clock)
    for number in range(30):
        broker.send(f"{number}", DELIVER_MS=START_MS + 5000 + number * 1000)
        broker.delete(f"{number}", START_MS + 5000 + number * 1000)
        broker.advance(1000, step_ms=100)
        assert clock.now_ms() - broker.timers._table.read_ms <= 4000
    broker.advance(10_000, step_ms=100)
    assert clock.now_ms() - broker.timers._table.read_ms <= 1000
    assert broker.keys() == []
    broker.stop()


# Odd properties of clients.


@pytest.mark.parametrize("rolls", ["abc", "-1", "1" * 5000, "\u0661", "9" * 9])
def test_no_roll_count_of_a_client_keeps_the_broker_from_starting(
    broker: TimerBroker, rolls: str
) -> None:
    broker.send("plain", DELAY_SEC=60)
    broker.send("odd", DELAY_SEC=60, ROLL_TIMES=rolls)
    broker.run()
    broker.settle()
    broker.crash()
    (broker.config.root / "config" / "timercheck").unlink()
    broker = TimerBroker(broker.config.root, broker.clock)
    broker.advance(61_000, step_ms=1000)
    assert broker.keys() == ["plain", "odd"]
    broker.stop()


def test_messages_without_a_unique_key_are_not_taken_for_each_other(broker: TimerBroker) -> None:
    broker.send("", DELAY_SEC=60)
    broker.send("", DELAY_SEC=60, ROLL_TIMES=3)
    broker.run()
    broker.settle()
    broker.crash()
    (broker.config.root / "config" / "timercheck").unlink()
    broker = TimerBroker(broker.config.root, broker.clock)
    broker.advance(62_000, step_ms=1000)
    assert len(broker.delivered()) == 2
    broker.stop()


def test_deletions_of_nothing_leave_no_counts_behind(broker: TimerBroker) -> None:
    for number in range(20):
        broker.send(f"{number}", DELAY_MS=300, DEL_UNIQKEY=f"junk{number}+k")
    broker.advance(5000, step_ms=100)
    counts = json.loads(broker.timers.metrics())["timingCount"]
    assert {topic: entry["count"] for topic, entry in counts.items()} == {"orders": 0}
    broker.stop()


# Long downtimes, and retention.


@pytest.mark.parametrize("crashes", [1, 2])
def test_timers_delivered_before_a_long_downtime_are_not_delivered_again(
    memory_path: Path, clock: ManualClock, crashes: int
) -> None:
    """A far timer finds no room in the wheel at first, and timers behind it wait."""
    broker = TimerBroker(memory_path / "store", clock, timer_flush_interval_ms=10 * DAY_MS)
    broker.run()
    broker.send("far", DELIVER_MS=START_MS + 30 * DAY_MS)
    broker.send("near", DELIVER_MS=START_MS + 200)
    broker.advance(1000, step_ms=100)
    assert broker.keys() == ["near"]
    broker.flush_log()
    broker.clock.advance(hours=15 * 24)
    for _ in range(crashes):
        broker = restarted(broker)
        assert broker.timers.behind_count == 2, "there is no room for the first"
        # The delivery memory must not move past deliveries that the next start has to know.
        asyncio.run(broker._flush_tables())
    broker.run()
    for _ in range(17):
        broker.settle()
        broker.advance(hours=24)
    assert broker.keys() == ["near", "far"]
    assert broker.timers._intake.held_from is None
    broker.stop()


def test_a_recall_counts_while_an_earlier_timer_finds_no_room(
    memory_path: Path, clock: ManualClock
) -> None:
    broker = TimerBroker(memory_path / "store", clock)
    for key in ("a", "gone"):
        broker.send(key, DELIVER_MS=START_MS + DAY_MS)
    broker.settle()
    broker.send("far", DELIVER_MS=START_MS + 30 * DAY_MS)
    broker.delete("gone", START_MS + DAY_MS)
    broker.flush_log()
    clock.advance(hours=15 * 24)
    for _ in range(2):
        broker = restarted(broker)
        assert broker.timers.behind_count == 2, "there is no room for the first"
    broker.run()
    broker.settle()
    assert broker.keys() == ["a"]
    assert broker.timers.behind_count == 0
    for _ in range(16):
        broker.advance(hours=24)
    assert broker.keys() == ["a", "far"]
    broker.stop()


@pytest.mark.parametrize(
    ("reserved_hours", "rolled_after_hours"), [(1, 1), (24, 16), (72, 48), (0, 48)]
)
def test_waiting_timers_are_stored_again_before_retention_removes_them(
    memory_path: Path, clock: ManualClock, reserved_hours: int, rolled_after_hours: int
) -> None:
    broker = TimerBroker(memory_path / "store", clock, file_reserved_hours=reserved_hours)
    broker.send("a", DELIVER_MS=START_MS + 200 * 3_600_000)
    broker.run()
    topic = b"rmq_sys_wheel_timer"
    passed_hours = 0
    while broker.store.queue_offset_max(topic, 0) == 1:
        broker.advance(hours=1)
        passed_hours += 1
    assert passed_hours == rolled_after_hours
    broker.stop()


def test_a_shorter_reserved_time_counts_for_timers_that_wait_already(broker: TimerBroker) -> None:
    broker.send("a", DELIVER_MS=START_MS + 47 * 3_600_000 + 5)
    broker.send("gone", DELIVER_MS=START_MS + 47 * 3_600_000 + 5)
    broker.delete("gone", START_MS + 47 * 3_600_000 + 5)
    broker.settle()
    broker.changes["file_reserved_hours"] = 24
    broker = restarted(broker)
    broker.advance(hours=15)
    assert broker.store.queue_offset_max(b"rmq_sys_wheel_timer", 0) == 3
    broker.advance(hours=1)
    assert broker.store.queue_offset_max(b"rmq_sys_wheel_timer", 0) == 6
    broker.settle()
    broker = restarted(broker)
    for _ in range(33):
        broker.advance(hours=1)
    assert broker.keys() == ["a"]
    assert broker.times()["a"] >= START_MS + 47 * 3_600_000 + 5
    assert broker.timers.pending_count == 0
    broker.stop()


def test_a_reserved_time_too_short_for_timers_is_logged(
    memory_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        TimerBroker(memory_path / "a", clock, file_reserved_hours=1).stop()
        assert "fileReservedTime" not in caplog.text
        TimerBroker(memory_path / "b", clock, file_reserved_hours=0).stop()
    assert "fileReservedTime=0" in caplog.text

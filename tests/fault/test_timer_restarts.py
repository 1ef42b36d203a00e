"""Timed messages over a restart: clocks set back, long downtimes, odd properties, retention."""

from __future__ import annotations

import asyncio
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


# What clients put into their properties.


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
def test_what_was_delivered_before_a_long_downtime_is_not_delivered_again(
    memory_path: Path, clock: ManualClock, crashes: int
) -> None:
    """What is far away finds no room in the wheel at first, and what is behind it waits."""
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
        # The delivery memory must not move past what the next start has to know.
        asyncio.run(broker._flush_tables())
    broker.run()
    for _ in range(17):
        broker.settle()
        broker.advance(hours=24)
    assert broker.keys() == ["near", "far"]
    assert broker.timers._intake.held_from is None
    broker.stop()


@pytest.mark.parametrize(
    ("reserved_hours", "rolled_after_hours"), [(1, 1), (24, 16), (72, 48), (0, 48)]
)
def test_messages_are_stored_again_before_retention_takes_them(
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


def test_a_shorter_reserved_time_counts_for_what_waits_already(broker: TimerBroker) -> None:
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


def test_a_reserved_time_too_short_for_timers_is_told(
    memory_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        TimerBroker(memory_path / "a", clock, file_reserved_hours=1).stop()
        assert "fileReservedTime" not in caplog.text
        TimerBroker(memory_path / "b", clock, file_reserved_hours=0).stop()
    assert "fileReservedTime=0" in caplog.text

"""Timer messages over a real store: delivered on time and once, whatever happens to the files."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.broker.state.due_timers import DueTimers
from contrail.clock import ManualClock
from contrail.errors import DiskFull
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.config import FlushDiskType
from contrail.store.log import MessageStore
from tests.fault.timer_setup import START_MS, TimerBroker, restarted

DAY_MS = 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def broker(memory_path: Path, clock: ManualClock) -> TimerBroker:
    return TimerBroker(memory_path / "store", clock)


# On time.


@pytest.mark.proves("kinds.timers.any-time")
def test_each_is_delivered_in_its_millisecond(broker: TimerBroker) -> None:
    wanted = {"a": 1, "b": 999, "c": 1000, "d": 1001, "e": 2500, "f": 61_234}
    for key, delay_ms in wanted.items():
        broker.send(key, DELIVER_MS=START_MS + delay_ms)
    broker.run()
    broker.advance(3000, step_ms=1)
    broker.advance(59_000, step_ms=1)
    assert {key: time - START_MS for key, time in broker.times().items()} == wanted
    broker.stop()


@pytest.mark.proves("kinds.timers.any-time")
def test_relative_times_count_from_when_the_message_was_stored(broker: TimerBroker) -> None:
    broker.send("ms", DELAY_MS=1234)
    broker.send("s", DELAY_SEC=2)
    broker.send("both", DELAY_SEC=3, DELAY_MS=1, DELIVER_MS=START_MS + 9000)
    broker.advance(4000, step_ms=1)
    assert broker.times() == {"ms": START_MS + 1234, "s": START_MS + 2000, "both": START_MS + 3000}
    broker.stop()


def test_equal_times_are_delivered_in_the_order_of_sending(broker: TimerBroker) -> None:
    for number in range(600):
        broker.send(f"{number:03d}", DELIVER_MS=START_MS + 5000 - number % 2)
    broker.advance(6000)
    early = [f"{number:03d}" for number in range(1, 600, 2)]
    late = [f"{number:03d}" for number in range(0, 600, 2)]
    assert broker.keys() == early + late
    broker.stop()


def test_a_delivered_message_looks_as_rocketmq_makes_it(broker: TimerBroker) -> None:
    broker.send("a", queue_id=3, DELIVER_MS=START_MS + 5300)
    broker.advance(5400, step_ms=100)
    (message,) = broker.delivered(queue_id=3)
    assert message.properties == {
        "UNIQ_KEY": "a",
        "TIMER_DELIVER_MS": str(START_MS + 5300),
        "TIMER_OUT_MS": str(START_MS + 5000),
        "REAL_TOPIC": "orders",
        "REAL_QID": "3",
        "TIMER_ENQUEUE_MS": str(START_MS),
        "TIMER_DEQUEUE_MS": str(START_MS + 5300),
    }
    assert message.body == b"a"
    waited = broker.store.record(-1 - message.prepared_transaction_offset)
    assert (waited.topic, waited.body) == ("rmq_sys_wheel_timer", b"a")
    broker.stop()


def test_a_message_that_was_due_when_it_was_enqueued_says_so(broker: TimerBroker) -> None:
    broker.send("a", DELIVER_MS=START_MS + 10)
    broker.clock.advance(ms=5000)
    broker.run()
    (message,) = broker.delivered()
    assert message.properties["TIMER_ENQUEUE_MS"] == str((1 << 63) - 1)
    broker.stop()


def test_a_refusing_store_only_delays(broker: TimerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in "abc":
        broker.send(key, DELIVER_MS=START_MS + 1000)
    broker.run()
    with monkeypatch.context() as full:
        full.setattr(MessageStore, "append", _refuse)
        broker.clock.advance(ms=5000)
        for _ in range(10):
            broker.timers.run(broker.clock.now_ms())
        assert broker.keys() == []
    # After a refusal the job pauses, however little it got done.
    broker.advance(200, step_ms=20)
    assert broker.keys() == ["a", "b", "c"]
    broker.stop()


def _refuse(store: MessageStore, drafts: object) -> None:
    raise DiskFull("no room")


def test_a_message_without_a_legal_time_topic_or_queue_is_skipped(
    broker: TimerBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for number, properties in enumerate(
        (
            {},
            {"TIMER_OUT_MS": "soon", "REAL_TOPIC": "orders", "REAL_QID": "0"},
            {"TIMER_OUT_MS": str(START_MS + 1000), "REAL_QID": "0"},
            {"TIMER_OUT_MS": str(START_MS + 1000), "REAL_TOPIC": "orders", "REAL_QID": "x"},
            {"TIMER_OUT_MS": str(START_MS), "REAL_TOPIC": "bad/topic", "REAL_QID": "0"},
            {"TIMER_OUT_MS": str(START_MS), "REAL_TOPIC": "rmq_sys_wheel_timer", "REAL_QID": "0"},
        )
    ):
        named = {"UNIQ_KEY": f"bad{number}", **properties}
        draft = MessageDraft(b"rmq_sys_wheel_timer", 0, b"x", encode_properties(named))
        broker.store.append([draft])
    broker.send("good", DELIVER_MS=START_MS + 1500)
    with caplog.at_level(logging.ERROR):
        broker.advance(3000, step_ms=50)
    assert broker.keys() == ["good"]
    assert len(caplog.records) == 6
    assert broker.timers.pending_count == 0
    broker.stop()


def test_a_message_without_room_for_more_properties_is_delivered_as_it_is(
    broker: TimerBroker,
) -> None:
    broker.send("a", DELIVER_MS=START_MS + 1000, TIMER_X="v" * 32_600)
    broker.send("b", DELIVER_MS=START_MS + 1000)
    broker.advance(2000, step_ms=100)
    first, second = broker.delivered()
    assert "TIMER_DEQUEUE_MS" not in first.properties
    assert second.properties["TIMER_DEQUEUE_MS"] == str(START_MS + 1000)
    broker.stop()


# Rolling.


@pytest.mark.proves("kinds.timers.rolling")
@pytest.mark.parametrize("days", [2, 3, 5, 30, 365])
def test_far_times_are_rolled_on_and_kept_to_the_millisecond(
    broker: TimerBroker, days: int
) -> None:
    broker.send("abs", DELIVER_MS=START_MS + days * DAY_MS - 123)
    broker.send("rel", DELAY_MS=days * DAY_MS - 77)
    broker.run()
    for _ in range(days * 2 - 1):
        broker.advance(hours=12)
    assert broker.keys() == []
    broker.advance(12 * 3_600_000 - 200)
    broker.advance(300, step_ms=1)
    due_ms = START_MS + days * DAY_MS
    assert broker.times() == {"abs": due_ms - 123, "rel": due_ms - 77}
    rolls = [int(m.properties.get("TIMER_ROLL_TIMES", "0")) for m in broker.delivered()]
    # The window is two days, so half of it is what the last roll waits at the least.
    assert days / 2 - 1 <= rolls[0] <= days
    broker.stop()


def test_a_rolled_message_survives_restarts_on_its_way(broker: TimerBroker) -> None:
    broker.send("a", DELIVER_MS=START_MS + 9 * DAY_MS + 500)
    broker.run()
    for _ in range(9):
        broker.advance(hours=23.9)
        broker.settle()
        broker = restarted(broker)
    broker.advance(hours=24)
    assert broker.keys() == ["a"]
    broker.stop()


def test_a_message_rolled_on_up_to_the_year_limit_does_not_overflow(broker: TimerBroker) -> None:
    draft = MessageDraft(
        b"rmq_sys_wheel_timer",
        0,
        b"x",
        encode_properties(
            {"TIMER_OUT_MS": str((1 << 63) - 1), "REAL_TOPIC": "orders", "REAL_QID": "0"}
        ),
    )
    broker.store.append([draft])
    broker.store.dispatch()
    broker.run()
    broker.advance(hours=49)
    broker.advance(hours=49)
    assert broker.keys() == [] and broker.timers.pending_count == 1
    broker.stop()


# Deleting.


def test_a_deleted_message_is_not_delivered(broker: TimerBroker) -> None:
    for key in "abc":
        broker.send(key, DELIVER_MS=START_MS + 10_000)
    broker.delete("b", START_MS + 10_000)
    broker.delete("unknown", START_MS + 10_000)
    broker.run()
    assert broker.timers.pending_by_topic() == {"orders": 1}
    broker.advance(20_000, step_ms=500)
    assert broker.keys() == ["a", "c"]
    assert broker.timers.pending_by_topic() == {"orders": 0}
    assert broker.timers.pending_count == 0
    broker.stop()


def test_a_deletion_may_name_the_unique_key_alone(broker: TimerBroker) -> None:
    for key in "ab":
        broker.send(key, DELIVER_MS=START_MS + 10_000)
    broker.send("Db", DELIVER_MS=START_MS + 10_000, DEL_UNIQKEY="b")
    broker.advance(20_000, step_ms=500)
    assert broker.keys() == ["a"]
    assert broker.timers.pending_by_topic() == {"orders": 0}
    broker.stop()


def test_a_deletion_is_for_its_own_topic_and_slot_only(broker: TimerBroker) -> None:
    broker.send("a", DELIVER_MS=START_MS + 10_000)
    broker.send("a", topic="other", DELIVER_MS=START_MS + 10_000)
    broker.delete("a", START_MS + 12_000)
    broker.delete("a", START_MS + 10_000, topic="other")
    broker.advance(20_000, step_ms=500)
    assert broker.keys() == ["a"] and broker.keys("other") == []
    broker.stop()


def test_a_deletion_that_comes_while_its_slot_is_delivered_counts(broker: TimerBroker) -> None:
    broker.send("early", DELIVER_MS=START_MS + 5100)
    broker.send("late", DELIVER_MS=START_MS + 5900)
    broker.advance(5500, step_ms=50)
    assert broker.keys() == ["early"]
    broker.delete("early", START_MS + 5900)
    broker.delete("late", START_MS + 5900)
    broker.advance(2000, step_ms=50)
    assert broker.keys() == ["early"]
    broker.stop()


@pytest.mark.proves("kinds.timers.recall")
@pytest.mark.parametrize("settled", [True, False])
def test_a_deleted_message_stays_deleted_over_a_restart(broker: TimerBroker, settled: bool) -> None:
    broker.send("a", DELIVER_MS=START_MS + 100_000)
    broker.send("b", DELIVER_MS=START_MS + 100_000)
    broker.run()
    broker.settle()
    broker.delete("a", START_MS + 100_000)
    broker.run()
    if settled:
        broker.settle()
    broker = restarted(broker)
    broker.advance(200_000)
    assert broker.keys() == ["b"]
    broker.stop()


def test_a_deletion_follows_its_target_through_rolling(broker: TimerBroker) -> None:
    due_ms = START_MS + 7 * DAY_MS
    broker.send("a", DELIVER_MS=due_ms)
    broker.send("b", DELIVER_MS=due_ms)
    broker.advance(hours=30)
    broker.delete("a", due_ms)
    for _ in range(8 * 24):
        broker.advance(hours=1)
    assert broker.keys() == ["b"]
    broker.stop()


# Clocks.


@pytest.mark.proves("kinds.timers.clock-jumps")
def test_a_clock_set_back_makes_nothing_early(broker: TimerBroker) -> None:
    broker.send("a", DELIVER_MS=START_MS + 60_000)
    broker.advance(59_000, step_ms=1000)
    broker.clock.advance(hours=-2)
    broker.send("b", DELIVER_MS=broker.clock.now_ms() + 30_000)
    broker.run()
    broker.advance(29_999, step_ms=1111)
    assert broker.keys() == []
    broker.advance(1)
    assert broker.keys() == ["b"]
    broker.advance(hours=2)
    assert broker.keys() == ["b", "a"]
    broker.stop()


def test_a_clock_set_back_loses_nothing_over_a_restart(broker: TimerBroker) -> None:
    broker.send("a", DELIVER_MS=START_MS + 60_000)
    broker.advance(50_000, step_ms=5000)
    broker.settle()
    broker.clock.advance(hours=-2)
    broker.send("b", DELIVER_MS=broker.clock.now_ms() + 30_000)
    broker.run()
    broker.settle()
    broker = restarted(broker)
    broker.advance(hours=3)
    assert sorted(broker.keys()) == ["a", "b"]
    broker.stop()


@pytest.mark.parametrize("hours", [1, 8 * 24, 20 * 24, 400 * 24])
def test_a_clock_that_jumps_forward_delivers_all_that_is_due(
    broker: TimerBroker, hours: int
) -> None:
    for number in range(10):
        broker.send(f"{number}", DELIVER_MS=START_MS + 1000 + number * 300_000)
    broker.run()
    broker.advance(hours=hours)
    assert broker.keys() == [f"{number}" for number in range(10)]
    broker.send("new", DELIVER_MS=broker.clock.now_ms() + 90_000)
    broker.wait_filed()
    broker.advance(100_000, step_ms=1000)
    assert broker.keys()[-1] == "new"
    broker.stop()


@pytest.mark.proves("kinds.timers.down-past-the-time")
@pytest.mark.parametrize("days", [0.5, 8, 13, 30])
@pytest.mark.parametrize("files", ["kept", "lost"])
def test_a_broker_that_was_down_past_the_time_delivers_at_once(
    broker: TimerBroker, days: float, files: str
) -> None:
    for number in range(20):
        broker.send(f"{number:02d}", DELIVER_MS=START_MS + 60_000 + number * 7_000)
    broker.run()
    broker.settle()
    broker.stop()
    broker.clock.advance(hours=24 * days)
    if files == "lost":
        lose_everything(broker.config.root)
    broker = TimerBroker(broker.config.root, broker.clock)
    broker.send("new", DELIVER_MS=broker.clock.now_ms() + DAY_MS)
    broker.run()
    assert broker.keys() == [f"{number:02d}" for number in range(20)]
    broker.wait_filed()
    broker.advance(hours=25)
    assert broker.keys()[-1] == "new"
    broker.stop()


# Restarts and damage.

Damage = Callable[[Path], None]


def lose_everything(root: Path) -> None:
    shutil.rmtree(root / "timerlog")
    (root / "timerwheel").unlink()
    (root / "config" / "timercheck").unlink()


def lose_log(root: Path) -> None:
    shutil.rmtree(root / "timerlog")


def lose_wheel(root: Path) -> None:
    (root / "timerwheel").unlink()


def lose_check(root: Path) -> None:
    (root / "config" / "timercheck").unlink()


def halve_wheel(root: Path) -> None:
    with (root / "timerwheel").open("r+b") as wheel:
        wheel.truncate(1_209_600 * 16)


def halve_log(root: Path) -> None:
    for path in (root / "timerlog").iterdir():
        with path.open("r+b") as log:
            log.truncate(2096)


def wipe_log(root: Path) -> None:
    for path in (root / "timerlog").iterdir():
        path.write_bytes(bytes(4192))


def empty_check(root: Path) -> None:
    (root / "config" / "timercheck").write_bytes(b"")


def check_from_the_future(root: Path) -> None:
    path = root / "config" / "timercheck"
    data = bytearray(path.read_bytes())
    data[16:24] = (1 << 40).to_bytes(8, "big")
    path.write_bytes(bytes(data[:56]).ljust(4096, b"\0"))


def scribble(root: Path) -> None:
    for path in (root / "timerlog").iterdir():
        data = bytearray(path.read_bytes())
        data[30] ^= 0x40
        path.write_bytes(data)


DAMAGES = [
    lose_everything,
    lose_log,
    lose_wheel,
    lose_check,
    halve_wheel,
    halve_log,
    wipe_log,
    empty_check,
    check_from_the_future,
    scribble,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_files_are_built_anew_to_the_same_deliveries(
    broker: TimerBroker, damage: Damage
) -> None:
    due = {f"{number:02d}": START_MS + 5000 + number * 997 for number in range(60)}
    for key, deliver_ms in due.items():
        broker.send(key, DELIVER_MS=deliver_ms)
    broker.delete("50", due["50"])
    broker.send("far", DELIVER_MS=START_MS + 4 * DAY_MS)
    broker.advance(20_000, step_ms=500)
    broker.settle()
    delivered = broker.keys()
    assert 5 < len(delivered) < 30
    broker.stop()
    damage(broker.config.root)
    broker = TimerBroker(broker.config.root, broker.clock)
    assert broker.timers.pending_count == 60 - len(delivered) + 2
    before = dict(broker.times())
    broker.advance(60_000, step_ms=100)
    for _ in range(100):
        broker.advance(hours=1)
    expected = [*(key for key in due if key != "50"), "far"]
    assert broker.keys() == expected
    on_time = {key: time for key, time in broker.times().items() if key in due}
    assert all(0 <= time - due[key] <= 500 for key, time in on_time.items() if key not in before)
    broker.stop()


def test_files_that_were_built_anew_are_sound(broker: TimerBroker) -> None:
    for number in range(100):
        broker.send(f"{number:02d}", DELIVER_MS=START_MS + 5000 + number * 100)
    broker.advance(8000, step_ms=100)
    broker.settle()
    broker.stop()
    lose_everything(broker.config.root)
    broker = TimerBroker(broker.config.root, broker.clock)
    pending = broker.timers.pending_count
    broker = restarted(broker)
    found = broker.timers._filing.check
    assert found.queue_offset == 100
    assert broker.timers.pending_count == pending
    broker.advance(20_000)
    assert broker.keys() == [f"{number:02d}" for number in range(100)]
    broker.stop()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_crashes_at_any_moment_lose_and_repeat_nothing(
    memory_path: Path, clock: ManualClock, seed: int, flush: FlushDiskType
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    broker = TimerBroker(memory_path / "store", clock, flush_disk_type=flush)
    due: dict[str, int] = {}
    for life in range(12):
        for _ in range(chance.randrange(1, 60)):
            key = f"{len(due):04d}"
            due[key] = clock.now_ms() + chance.choice((300, 2000, 9000, 70_000))
            broker.send(key, DELIVER_MS=due[key])
            if chance.random() < 0.3:
                broker.advance(chance.randrange(1, 1500), step_ms=100)
        if chance.random() < 0.5:
            broker.settle()
            broker.advance(chance.randrange(1, 1500), step_ms=100)
        # Power cuts have another test; here the process ends and the disk keeps every write.
        broker.flush_log()
        broker = restarted(broker)
        if chance.random() < 0.2:
            clock.advance(hours=chance.choice((0.01, 3, 24 * 9)))
        waiting = broker.timers.pending_count + broker.timers.behind_count
        assert waiting + len(set(broker.keys())) == len(due), life
    broker.advance(100_000, step_ms=250)
    times = broker.times()
    assert sorted(broker.keys()) == sorted(due)
    assert all(times[key] >= deliver_ms for key, deliver_ms in due.items())
    broker.stop()


def test_no_row_is_filed_before_its_record_is_durable(tmp_path: Path, clock: ManualClock) -> None:
    broker = TimerBroker(tmp_path / "store", clock, flush_interval_ms=3_600_000, flush_pages_min=4)
    broker.send("a", DELIVER_MS=START_MS + 100_000)
    broker.run()
    for _ in range(5):
        broker.advance(1000)
    assert broker.timers._filing.check.queue_offset == 0
    broker.store.checkpoint()
    broker.wait_filed()
    assert broker.timers._filing.check.queue_offset == 1
    broker.stop()


def test_the_delivery_memory_waits_for_slots_that_are_half_done(broker: TimerBroker) -> None:
    broker.send("a", DELIVER_MS=START_MS + 5100)
    broker.send("b", DELIVER_MS=START_MS + 5900)
    broker.advance(5200, step_ms=100)
    broker.flush_log()
    assert broker.keys() == ["a"]
    (delivered,) = broker.delivered()
    for _ in range(3):
        broker.timers.run(broker.clock.now_ms())
    assert broker.timers.durable_end <= delivered.physical_offset
    broker.wait_filed()
    broker.advance(5000)
    broker.settle()
    assert broker.timers.durable_end == broker.store.flushed_end
    broker.stop()


@pytest.mark.proves("kinds.timers.counts")
def test_counts_by_horizon_tell_how_soon_messages_are_due(broker: TimerBroker) -> None:
    for delay_s in (1, 4, 30, 59, 200, 800, 3000, 14_000, 28_000, 86_000, 100_000):
        broker.send(f"{delay_s}", DELAY_SEC=delay_s)
    broker.run()
    counts = broker.timers.pending_by_horizon()
    assert counts == {
        5: 2,
        60: 2,
        300: 1,
        900: 1,
        3600: 1,
        14_400: 1,
        28_800: 1,
        86_400: 1,
    }
    assert broker.timers.pending_count == 11
    broker.stop()


def test_more_than_fits_in_memory_is_read_again_when_it_is_due(
    broker: TimerBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrail.broker.services.timers._HELD_BYTES_MAX", 1000)
    monkeypatch.setattr(broker.timers._table, "_due_count_max", 20)
    for number in range(100):
        broker.send(f"{number:02d}", DELIVER_MS=START_MS + 20_000)
    broker.advance(19_000, step_ms=500)
    assert broker.timers._table.due.bytes_held <= 1000
    broker.advance(1000)
    assert broker.keys() == [f"{number:02d}" for number in range(100)]
    assert isinstance(broker.timers._table.due, DueTimers) and not len(broker.timers._table.due)
    assert broker.timers._table.due.bytes_held == 0
    broker.stop()

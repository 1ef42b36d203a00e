"""Delay levels on a real store: on time, in order, once, over restarts, crashes and clock jumps."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any, Self

import pytest

from contrail.broker.services.delay_levels import DelayLevels
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.delivery_memory import DeliveryMemory, recall_deliveries
from contrail.broker.services.persistence import Persistence
from contrail.broker.services.stored_tables import load_delay_cursors
from contrail.broker.state.placement import TimerRules, place
from contrail.broker.state.stats import BrokerStats
from contrail.clock import ManualClock
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import encode_properties
from contrail.runtime.files import FileSystem
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker

START_MS = 1_760_000_000_000
FILE_INTERVAL_MS = 10_000


class Place:
    """A store folder with its delay levels, and a clock to move."""

    def __init__(self, root: Path, clock: ManualClock, **changes: Any) -> None:
        settings: dict[str, Any] = {
            "root": root,
            "segment_bytes": 64 << 10,
            "queue_file_bytes": 500 * 20,
            "index_enabled": False,
            "segments_prepared_ahead": False,
            "sound_ms": 0,
            "flush_disk_type": FlushDiskType.ASYNC_FLUSH,
            "delay_levels": "1s 5s 1h",
        }
        self.root, self.clock, self._changes = root, clock, changes
        self.config = StoreConfig(**{**settings, **changes})
        files = FileSystem()
        self.store = MessageStore.open(self.config, clock=clock, files=files)
        self.persistence = Persistence(root, files)
        stats = BrokerStats("c", started_ms=0, utc_offset_ms=0, is_system=lambda topic: False)
        deliveries = Deliveries(self.store, stats, on_appended=lambda: None)
        self.levels = DelayLevels(
            self.store,
            deliveries,
            self.persistence,
            load_delay_cursors(files, root, self.config.delay_table),
            interval_ms=FILE_INTERVAL_MS,
        )
        forgotten_from = self.levels.forgotten_from
        self.levels.recover(recall_deliveries(files, root, self.store, read_from=forgotten_from))
        DeliveryMemory(self.persistence, [lambda: self.levels.durable_end])
        # From the first delivery on, the log has to be read after a crash.
        self.persist()

    def send(self, level: int, body: str, *, queue_id: int = 0, **properties: str) -> None:
        """Store a delayed message the way a send does."""
        named = {"UNIQ_KEY": f"ID{body}", "TAGS": "red", **properties, "DELAY": str(level)}
        draft = place(
            MessageDraft(b"orders", queue_id, body.encode(), born_timestamp_ms=START_MS - 9),
            named,
            level_max=3,
            timers=TimerRules(),
            now_ms=self.clock.now_ms(),
        )
        self.store.append([draft._replace(properties=encode_properties(named))])
        self.settle()

    def settle(self) -> None:
        """Let readers see everything that was appended."""
        if self.config.syncs_before_ack:
            assert self.store.wait_flushed(self.store.physical_end, 60_000)
        self.store.dispatch()

    def run(self) -> None:
        """Deliver everything that is due now."""
        self.levels.run(self.clock.now_ms())
        while self.levels.interval_ms == 0:
            self.levels.run(self.clock.now_ms())
        self.settle()

    def messages(self, topic: str = "orders", queue_id: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while True:
            result = self.store.get(topic.encode(), queue_id, len(found), count_max=1000)
            if not result.ranges:
                return found
            found += result.messages

    def bodies(self, queue_id: int = 0) -> list[str]:
        return [message.body.decode() for message in self.messages(queue_id=queue_id)]

    def persist(self) -> None:
        """Write the files that are due."""

        async def write() -> None:
            self.persistence.flush_due(self.clock.now_ms())
            while self.persistence.busy:
                await asyncio.sleep(0.001)

        asyncio.run(write())

    def crashed(self, root: Path) -> Place:
        """A copy of the folder as a process killed now leaves it, opened again."""
        shutil.copytree(self.root, root)
        return Place(root, self.clock, **self._changes)

    def reopened(self) -> Place:
        self.close()
        return Place(self.root, self.clock, **self._changes)

    def close(self) -> None:
        assert self.store.wait_flushed(self.store.physical_end, 60_000)
        asyncio.run(self.persistence.close())
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


def stored_offsets(root: Path) -> dict[str, int]:
    content: dict[str, Any] = json.loads((root / "config" / "delayOffset.json").read_text())
    assert set(content) == {"dataVersion", "offsetTable"}
    offsets: dict[str, int] = content["offsetTable"]
    return offsets


@pytest.mark.proves("kinds.timers.levels")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
        {"queue_ext_enabled": True},
        {"record_crc_enabled": True},
    ],
    ids=["async flush", "sync flush", "queue extension", "record crc"],
)
def test_a_message_comes_when_its_delay_is_over_and_not_before(
    tmp_path: Path, clock: ManualClock, changes: dict[str, Any]
) -> None:
    with Place(tmp_path / "store", clock, **changes) as place:
        place.send(2, "five", queue_id=3, KEYS="k")
        place.send(1, "one")
        clock.advance(ms=999)
        place.run()
        assert place.bodies() == []
        clock.advance(ms=1)
        place.run()
        assert place.bodies() == ["one"]
        clock.advance(ms=3_999)
        place.run()
        assert place.bodies(queue_id=3) == []
        clock.advance(ms=1)
        place.run()
        (message,) = place.messages(queue_id=3)
        assert message.body == b"five"
        assert message.born_timestamp_ms == START_MS - 9
        assert message.store_timestamp_ms == START_MS + 5_000
        named = {name: message.properties[name] for name in message.properties if name[0] != "_"}
        assert named == {
            "UNIQ_KEY": "IDfive",
            "TAGS": "red",
            "KEYS": "k",
            "DELAY": "2",
            "REAL_TOPIC": "orders",
            "REAL_QID": "3",
        }


def test_a_delivered_message_can_be_found_by_its_tag(tmp_path: Path, clock: ManualClock) -> None:
    with Place(tmp_path / "store", clock) as place:
        place.send(1, "one")
        clock.advance(ms=1_000)
        place.run()
        (row,) = place.store.rows(b"orders", 0, 0, 10)
        # "red".hashCode()
        assert row.tags_code == 112785


@pytest.mark.proves("kinds.timers.level-order")
def test_order_is_kept_within_a_level_over_many_segments(
    tmp_path: Path, clock: ManualClock
) -> None:
    bodies = [f"{number:04d}" for number in range(1_500)]
    with Place(tmp_path / "store", clock) as place:
        for body in bodies:
            place.send(2, body)
            clock.advance(ms=1)
        assert place.levels.pending_counts() == {2: 1_500}
        for _ in range(100):
            clock.advance(ms=73)
            place.run()
        assert place.bodies() == bodies
        late = [
            message.store_timestamp_ms - (START_MS + number + 5_000)
            for number, message in enumerate(place.messages())
        ]
        assert min(late) >= 0 and max(late) < 73
        assert place.levels.pending_counts() == {}


@pytest.mark.proves("kinds.timers.level-restarts")
def test_waiting_messages_survive_a_restart_and_come_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    place = Place(tmp_path / "store", clock)
    place.send(1, "before")
    place.send(3, "after")
    clock.advance(ms=1_000)
    place.run()
    place = place.reopened()
    assert stored_offsets(place.root) == {"1": 1}
    place.run()
    assert place.bodies() == ["before"]
    # Down past the time: it comes at once.
    place.close()
    clock.advance(hours=30)
    with Place(place.root, clock) as place:
        place.run()
        assert place.bodies() == ["before", "after"]


@pytest.mark.proves("kinds.timers.level-restarts")
def test_a_file_that_rocketmq_wrote_is_gone_on_from(tmp_path: Path, clock: ManualClock) -> None:
    place = Place(tmp_path / "store", clock)
    for body in ("a", "b", "c"):
        place.send(1, body)
    clock.advance(ms=1_000)
    place.close()
    config = place.root / "config"
    shutil.rmtree(config, ignore_errors=True)
    config.mkdir()
    (config / "delayOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1760000000000},\n'
        '\t"offsetTable":{1:2,2:0\n\t}\n}'
    )
    with Place(place.root, clock) as place:
        place.run()
        assert place.bodies() == ["c"]
    assert stored_offsets(place.root) == {"1": 3, "2": 0}


def test_a_crash_with_an_old_cursor_file_repeats_nothing(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Place(tmp_path / "store", clock) as place:
        for number in range(40):
            place.send(1 + number % 2, str(number))
        clock.advance(ms=1_000)
        place.run()
        assert place.store.wait_flushed(place.store.physical_end, 60_000)
        place.persist()
        assert stored_offsets(place.root)["1"] == 20
        for number in range(40, 50):
            place.send(1, str(number))
        clock.advance(ms=5_000)
        place.run()
        # Delivered since, and the file does not know.
        assert stored_offsets(place.root)["1"] == 20
        with place.crashed(tmp_path / "crashed") as crashed:
            crashed.run()
            assert crashed.bodies() == place.bodies()
            assert sorted(map(int, crashed.bodies())) == list(range(50))


@pytest.mark.parametrize("loss", ["torn", "missing", "both missing"])
def test_a_lost_cursor_file_repeats_nothing(tmp_path: Path, clock: ManualClock, loss: str) -> None:
    place = Place(tmp_path / "store", clock)
    for number in range(3):
        place.send(1, str(number))
        clock.advance(ms=1_000)
        place.run()
        assert place.store.wait_flushed(place.store.physical_end, 60_000)
        clock.advance(ms=FILE_INTERVAL_MS)
        place.persist()
    place.send(3, "waits")
    place.close()
    path = place.root / "config" / "delayOffset.json"
    if loss == "torn":
        path.write_bytes(path.read_bytes()[:11])
    else:
        path.unlink()
    if loss == "both missing":
        path.with_name("delayOffset.json.bak").unlink()
    with Place(place.root, clock) as again:
        again.run()
        assert again.bodies() == ["0", "1", "2"]
        clock.advance(hours=1)
        again.run()
        assert again.bodies() == ["0", "1", "2", "waits"]


@pytest.mark.parametrize("extension", [False, True], ids=["rows", "queue extension"])
def test_changed_levels_change_nothing_for_what_waits(
    tmp_path: Path, clock: ManualClock, extension: bool
) -> None:
    changes = {"queue_ext_enabled": extension}
    place = Place(tmp_path / "store", clock, **changes)
    for level in (2, 3):
        place.send(level, str(level))
    place.close()
    with Place(place.root, clock, delay_levels="1s 2s", **changes) as changed:
        changed.store.checkpoint()
        while not (report := changed.store.scrubber.run_once(1 << 20)).finished_pass:
            pass
        assert report.repaired_rows == 0
        seen = []
        for wait_ms in (4_999, 1, 3_594_999, 1):
            clock.advance(ms=wait_ms)
            changed.run()
            seen.append(changed.bodies())
    assert seen == [[], ["2"], ["2"], ["2", "3"]]


def test_two_crashes_in_a_row_repeat_nothing(tmp_path: Path, clock: ManualClock) -> None:
    with Place(tmp_path / "store", clock) as place:
        place.send(1, "a")
        clock.advance(ms=1_000)
        place.run()
        with place.crashed(tmp_path / "first") as first:
            # It writes its files before it has come to deliver anything.
            first.persist()
            with first.crashed(tmp_path / "second") as second:
                second.run()
                assert second.bodies() == ["a"]


@pytest.mark.proves("kinds.timers.level-restarts")
def test_crashes_at_any_point_lose_and_repeat_nothing(tmp_path: Path, clock: ManualClock) -> None:
    choice = random.Random(20)
    place, sent = Place(tmp_path / "store0", clock), 0
    for crash in range(1, 21):
        for _ in range(choice.randrange(1, 12)):
            place.send(choice.choice((1, 2)), str(sent))
            sent += 1
            clock.advance(ms=choice.choice((0, 10, 400, 1_500)))
            if choice.random() < 0.6:
                place.run()
            if choice.random() < 0.3:
                clock.advance(ms=1_000)
                place.persist()
        again = place.crashed(tmp_path / f"store{crash}")
        place.close()
        place = again
    clock.advance(ms=5_000)
    with place:
        place.run()
        bodies = place.bodies()
        assert sorted(map(int, bodies)) == list(range(sent))


def test_a_power_cut_takes_deliveries_but_no_message(tmp_path: Path, clock: ManualClock) -> None:
    hour_ms = 3_600_000
    slow_disk = {"flush_interval_ms": hour_ms, "flush_thorough_interval_ms": hour_ms}
    with Place(tmp_path / "store", clock, segment_bytes=1 << 20, **slow_disk) as place:
        for number in range(10):
            place.send(1, str(number))
        assert place.store.wait_flushed(place.store.physical_end, 60_000)
        durable_end = place.store.flushed_end
        clock.advance(ms=1_000)
        place.run()
        place.persist()
        assert len(place.bodies()) == 10
        assert place.store.flushed_end == durable_end, "the deliveries are not on the disk yet"
        shutil.copytree(place.root, tmp_path / "cut")
    segment = tmp_path / "cut" / "commitlog" / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(durable_end)
        file.write(bytes((1 << 20) - durable_end))
    shutil.rmtree(tmp_path / "cut" / "consumequeue" / "orders", ignore_errors=True)
    with Place(tmp_path / "cut", clock, segment_bytes=1 << 20) as cut:
        assert cut.bodies() == []
        cut.run()
        assert cut.bodies() == [str(number) for number in range(10)]


@pytest.mark.proves("kinds.timers.clock-jumps")
def test_a_clock_set_back_neither_loses_nor_stalls(tmp_path: Path, clock: ManualClock) -> None:
    with Place(tmp_path / "store", clock) as place:
        place.send(2, "from the future")
        clock.advance(hours=-24)
        place.send(2, "from now")
        place.run()
        clock.advance(ms=4_999)
        place.run()
        assert place.bodies() == []
        clock.advance(ms=1)
        place.run()
        assert place.bodies() == ["from the future", "from now"]


def test_a_clock_set_back_a_little_makes_it_wait_that_much_longer(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Place(tmp_path / "store", clock) as place:
        place.send(2, "a")
        clock.advance(ms=3_000)
        clock.advance(ms=-2_000)
        place.run()
        clock.advance(ms=3_999)
        place.run()
        assert place.bodies() == []
        clock.advance(ms=1)
        place.run()
        assert place.bodies() == ["a"]


@pytest.mark.proves("kinds.timers.clock-jumps")
def test_a_clock_set_forward_delivers_everything_it_passed(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Place(tmp_path / "store", clock) as place:
        for level in (1, 2, 3):
            place.send(level, str(level))
        clock.advance(hours=24 * 365)
        place.run()
        assert sorted(place.bodies()) == ["1", "2", "3"]


def test_a_topic_that_was_deleted_meanwhile_gets_its_message(
    tmp_path: Path, clock: ManualClock
) -> None:
    with Place(tmp_path / "store", clock) as place:
        place.send(1, "a")
        clock.advance(ms=1_000)
        place.run()
        place.send(1, "b")
        place.store.delete_topic(b"orders")
        clock.advance(ms=1_000)
        place.run()
        assert place.bodies() == ["b"]


def test_a_damaged_record_is_passed_over_and_told(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Place(tmp_path / "store", clock) as place:
        for body in ("a", "bad", "c"):
            place.send(1, body)
        row = place.store.rows(b"SCHEDULE_TOPIC_XXXX", 0, 1, 1)[0]
        segment = place.root / "commitlog" / f"{0:020d}"
        data = bytearray(segment.read_bytes())
        data[data.index(b"bad", row.physical_offset)] ^= 1
        with segment.open("r+b") as file:
            file.write(data)
        clock.advance(ms=1_000)
        place.run()
        assert place.bodies() == ["a", "c"]
        assert caplog.text.count("passed over") == 1
        assert str(row.physical_offset) in caplog.text


def test_a_message_above_a_lowered_limit_is_passed_over_alone(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path / "store", clock)
    for body in ("a", "b" * 3_000, "c"):
        place.send(1, body)
    clock.advance(ms=1_000)
    place.close()
    with Place(place.root, clock, body_bytes_max=2_000) as place:
        place.run()
        assert place.bodies() == ["a", "c"]
        assert caplog.text.count("can never be delivered") == 1


def test_a_delayed_send_is_pulled_from_its_own_queue_after_its_delay() -> None:
    with LocalCluster(clock=ManualClock(START_MS)) as cluster:
        asker = Asker(cluster)
        delayed = {"DELAY": "3", "UNIQ_KEY": "ID3"}
        asker.stored("orders", b"later", queue_id=2, properties=delayed)
        cluster.advance(ms=9_999)
        # Sent after the last run of the delay levels: what that run did is to be seen by now.
        assert asker.stored("orders", b"plain", queue_id=2) == 0
        cluster.advance(ms=51)
        eventually(
            lambda: asker.pull("orders", 1, queueId="2").code == 0, "the message is delivered"
        )
        assert b"later" in asker.pull("orders", 1, queueId="2").body

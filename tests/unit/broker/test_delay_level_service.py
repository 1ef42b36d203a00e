"""The delay levels' service: order, retries, what is passed over, and when cursors are noted."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from contrail.broker.services import delay_levels
from contrail.broker.services.delay_levels import DelayLevels
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.persistence import Persistence
from contrail.broker.state.causes import Delivered
from contrail.broker.state.delay_cursors import DelayCursors
from contrail.errors import DeliveryUnderWay, DiskFull, MessageIllegal, RecordDamaged
from contrail.kernels.record_build import build_run
from contrail.model.data_version import DataVersion
from contrail.model.message import LOOPBACK_HOST, MessageDraft, StoredMessage
from contrail.model.properties import encode_properties
from contrail.model.record import decode_record
from contrail.store import DelayOffsetTable
from contrail.store.log import MessageStore
from contrail.store.services.append import AppendedRun
from contrail.store.services.reading import GetResult, QueueRow
from contrail.store.state.reading import GetStatus

NOW_MS = 1_760_000_000_000
TABLE = [0, 1_000, 5_000]
RECORD_STRIDE = 1_000


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run stops after some milliseconds, which a busy machine may take from it: not here."""
    monkeypatch.setattr(delay_levels, "monotonic_ms", lambda: 0)


class ScheduleQueues:
    """The schedule topic in memory: rows and records by level."""

    def __init__(self) -> None:
        self.asked_for: list[int] = []
        self.rows_by_queue: dict[int, list[tuple[int, int, bytes]]] = {}
        self.queue_offsets_min: dict[int, int] = {}
        self.unreadable: dict[tuple[int, int], GetStatus] = {}
        self._next_physical_offset = 0

    def put(
        self,
        level: int,
        body: bytes,
        deliver_ms: int,
        *,
        stored_ms: int | None = None,
        **properties: str,
    ) -> int:
        """Store one; returns its physical offset."""
        rows = self.rows_by_queue.setdefault(level - 1, [])
        physical_offset = self._next_physical_offset
        self._next_physical_offset += RECORD_STRIDE
        named = {"REAL_TOPIC": "orders", "REAL_QID": "1", "UNIQ_KEY": f"ID-{body.decode()}"}
        draft = MessageDraft(
            b"SCHEDULE_TOPIC_XXXX", level - 1, body, encode_properties({**named, **properties})
        )
        stored_ms = NOW_MS if stored_ms is None else stored_ms
        parts = build_run([draft], [len(rows)], physical_offset, stored_ms, LOOPBACK_HOST, False)
        rows.append((physical_offset, deliver_ms, b"".join(parts)))
        return physical_offset

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int:
        return self.queue_offsets_min.get(queue_id, 0)

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        return len(self.rows_by_queue.get(queue_id, ()))

    def rows(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> list[QueueRow]:
        if queue_offset < self.queue_offset_min(topic, queue_id):
            return []
        found = self.rows_by_queue.get(queue_id, [])[queue_offset : queue_offset + count]
        return [
            QueueRow(queue_offset + index, place, len(record), deliver_ms)
            for index, (place, deliver_ms, record) in enumerate(found)
        ]

    def queues(self) -> list[tuple[bytes, int]]:
        return [(b"SCHEDULE_TOPIC_XXXX", queue_id) for queue_id in self.rows_by_queue]

    def record(self, physical_offset: int) -> StoredMessage:
        for rows in self.rows_by_queue.values():
            for place, _, record in rows:
                if place == physical_offset:
                    return decode_record(record)
        raise RecordDamaged("nothing is there", physical_offset=physical_offset)

    def will_need(self, physical_offset: int, byte_count: int) -> None:
        self.asked_for.append(physical_offset)

    def get(
        self, topic: bytes, queue_id: int, queue_offset: int, *, count_max: int, bytes_max: int
    ) -> GetResult:
        low, high = self.queue_offset_min(topic, queue_id), self.queue_offset_max(topic, queue_id)
        if queue_offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        views: list[memoryview] = []
        for row in self.rows(topic, queue_id, queue_offset, count_max):
            status = self.unreadable.get((queue_id, row.queue_offset))
            if status is not None:
                if views:
                    break
                stays = status is GetStatus.QUEUE_ENTRY_DAMAGED
                behind = row.queue_offset + (0 if stays else 1)
                return GetResult(status, behind, low, high, damaged=[row.physical_offset])
            views.append(memoryview(self.rows_by_queue[queue_id][row.queue_offset][2]))
        return GetResult(GetStatus.FOUND, queue_offset + len(views), low, high, views, len(views))


class LogEnd:
    """Takes deliveries; the test says when it refuses, and how far it is durable."""

    def __init__(self) -> None:
        self.runs: list[list[MessageDraft]] = []
        self.full = False
        self.under_way: set[bytes] = set()
        self.illegal_bodies: set[bytes] = set()
        self.physical_end = 1_000_000
        self.settled_end = 1_000_000
        self.attempts = 0

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        self.attempts += 1
        if self.full:
            raise DiskFull("no room")
        if any(draft.body in self.under_way for draft in drafts):
            raise DeliveryUnderWay("on its way")
        if any(draft.body in self.illegal_bodies for draft in drafts):
            raise MessageIllegal("too large")
        self.runs.append(list(drafts))
        self.physical_end += 100 * len(drafts)
        return AppendedRun([], [], NOW_MS, self.physical_end)

    @property
    def bodies(self) -> list[bytes]:
        return [draft.body for run in self.runs for draft in run]


class OneFile:
    """Remembers what was registered, and asks for it like ``Persistence``."""

    def register(self, name: str, **parts: Any) -> None:
        self.name = name
        self._parts = parts

    def write(self) -> dict[str, Any] | None:
        if not self._parts["take_changed"]():
            return None
        render: Callable[[], bytes] = self._parts["snapshot"]()
        content: dict[str, Any] = json.loads(render())
        self._parts["on_written"]()
        return content


class Scene:
    """A service between a schedule topic and a log."""

    def __init__(self, queue_offsets: dict[int, int] | None = None) -> None:
        self.queues, self.log, self.file = ScheduleQueues(), LogEnd(), OneFile()
        self._queue_offsets = queue_offsets

    def start(self, waited: set[int] | None = None) -> DelayLevels:
        levels = DelayLevels(
            cast(MessageStore, self.queues),
            cast(Deliveries, self.log),
            cast(Persistence, self.file),
            DelayCursors(TABLE, self._queue_offsets),
            interval_ms=10_000,
        )
        levels.recover(Delivered(waited=waited or set()))
        return levels

    def written_offsets(self) -> dict[str, int] | None:
        content = self.file.write()
        return None if content is None else content["offsetTable"]


def test_due_messages_are_delivered_in_one_run_and_in_order() -> None:
    scene = Scene()
    for number in range(5):
        scene.queues.put(1, str(number).encode(), NOW_MS + 100 * number)
    levels = scene.start()
    levels.run(NOW_MS + 299)
    assert [[draft.body for draft in run] for run in scene.log.runs] == [[b"0", b"1", b"2"]]
    levels.run(NOW_MS + 299)
    assert len(scene.log.runs) == 1
    levels.run(NOW_MS + 400)
    assert scene.log.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert {(draft.topic, draft.queue_id) for draft in scene.log.runs[0]} == {(b"orders", 1)}


def test_a_level_that_waits_does_not_hold_up_another() -> None:
    scene = Scene()
    scene.queues.put(1, b"later", NOW_MS + 900)
    scene.queues.put(2, b"now", NOW_MS)
    scene.start().run(NOW_MS)
    assert scene.log.bodies == [b"now"]


def test_messages_that_are_due_soon_are_asked_for_once() -> None:
    scene = Scene()
    places = [scene.queues.put(2, b"a", NOW_MS + 1500), scene.queues.put(2, b"b", NOW_MS + 1600)]
    levels = scene.start()
    levels.run(NOW_MS)
    assert scene.queues.asked_for == []
    levels.run(NOW_MS + 600)
    levels.run(NOW_MS + 700)
    assert scene.queues.asked_for == places


def test_a_cursor_is_written_only_when_its_deliveries_are_durable() -> None:
    scene = Scene()
    scene.queues.put(1, b"a", NOW_MS)
    levels = scene.start()
    levels.run(NOW_MS)
    assert scene.file.name == "delayOffset.json"
    assert scene.written_offsets() is None
    assert levels.durable_end < scene.log.physical_end
    scene.log.settled_end = scene.log.physical_end
    assert scene.written_offsets() == {"1": 1}
    assert levels.durable_end == scene.log.physical_end


def test_a_refused_run_is_tried_again_at_the_same_place(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.queues.put(1, b"a", NOW_MS)
    scene.queues.put(1, b"b", NOW_MS)
    levels = scene.start()
    scene.log.full = True
    for _ in range(3):
        levels.run(NOW_MS)
    assert scene.log.bodies == [] and scene.log.attempts == 3
    assert levels.interval_ms > 0, "a full disk must not be asked without a pause"
    assert caplog.text.count("no room") == 1
    scene.log.full = False
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"a", b"b"]
    scene.queues.put(1, b"c", NOW_MS)
    scene.log.full = True
    levels.run(NOW_MS)
    assert caplog.text.count("no room") == 2


def test_only_the_message_that_can_never_be_stored_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    for body in (b"a", b"huge", b"c"):
        scene.queues.put(1, body, NOW_MS)
    scene.log.illegal_bodies = {b"huge"}
    levels = scene.start()
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"a", b"c"]
    assert "ID-huge" in caplog.text and "ID-a" not in caplog.text
    scene.log.settled_end = scene.log.physical_end
    assert scene.written_offsets() == {"1": 3}


def test_a_store_that_fills_up_between_single_appends_loses_nothing() -> None:
    scene = Scene()
    for body in (b"a", b"huge", b"c"):
        scene.queues.put(1, body, NOW_MS)
    scene.log.illegal_bodies = {b"huge"}
    append = scene.log.append

    def full_after_the_first(drafts: Sequence[MessageDraft]) -> AppendedRun:
        run = append(drafts)
        scene.log.full = True
        return run

    scene.log.append = full_after_the_first  # type: ignore[method-assign]
    levels = scene.start()
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"a"]
    scene.log.full = False
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"a", b"c"]


def test_a_message_without_a_real_topic_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.queues.put(1, b"lost", NOW_MS, REAL_QID="none")
    levels = scene.start()
    levels.run(NOW_MS)
    assert scene.log.attempts == 0
    assert scene.written_offsets() == {"1": 1}, "nothing was appended that it could wait for"
    scene.queues.put(1, b"b", NOW_MS)
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"b"]
    assert caplog.text.count("ID-lost") == 1


@pytest.mark.parametrize("status", [GetStatus.MESSAGE_DAMAGED, GetStatus.MESSAGE_WAS_REMOVING])
def test_a_record_that_is_gone_is_passed_over_once(
    status: GetStatus, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene({1: 0})
    for body in (b"a", b"bad", b"c"):
        scene.queues.put(1, body, NOW_MS)
    scene.queues.unreadable[0, 1] = status
    levels = scene.start()
    levels.run(NOW_MS)
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"a", b"c"]
    assert caplog.text.count(status.value) == 1


def test_a_record_that_cannot_be_taken_apart_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.queues.put(1, b"a", NOW_MS)
    place, deliver_ms, record = scene.queues.rows_by_queue[0][0]
    scene.queues.rows_by_queue[0][0] = (place, deliver_ms, record[:4] + bytes(4) + record[8:])
    scene.queues.put(1, b"b", NOW_MS)
    scene.start().run(NOW_MS)
    assert scene.log.bodies == [b"b"]
    assert "unknown magic" in caplog.text


def test_a_wrong_row_waits_to_be_derived_again_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.queues.put(1, b"a", NOW_MS)
    scene.queues.unreadable[0, 0] = GetStatus.QUEUE_ENTRY_DAMAGED
    scene.queues.put(2, b"other", NOW_MS)
    levels = scene.start()
    levels.run(NOW_MS)
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"other"]
    assert caplog.text.count("derived again") == 1
    del scene.queues.unreadable[0, 0]
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"other", b"a"]


def test_a_waiting_message_that_retention_took_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    for body in (b"a", b"b", b"c"):
        scene.queues.put(1, body, NOW_MS + 500)
    levels = scene.start()
    levels.run(NOW_MS)
    scene.queues.queue_offsets_min[0] = 2
    levels.run(NOW_MS)
    assert "queue offsets 0 to 1" in caplog.text
    levels.run(NOW_MS + 500)
    assert scene.log.bodies == [b"c"]


def test_after_a_crash_what_the_log_names_is_not_delivered_again() -> None:
    scene = Scene({1: 1})
    places = [scene.queues.put(1, body, NOW_MS) for body in (b"a", b"b", b"c", b"d")]
    other = scene.queues.put(2, b"other", NOW_MS)
    # The first of a level is below the stored cursor; "c" was delivered, so "b" was passed over.
    levels = scene.start(waited={places[0], places[2], other + 1})
    assert levels.queue_offsets() == {1: 3, 2: 0}
    assert levels.durable_end == 0, "until the file says so, the log must be read again"
    assert scene.written_offsets() == {"1": 3}
    levels.run(NOW_MS)
    assert sorted(scene.log.bodies) == [b"d", b"other"]


def test_many_rows_above_the_cursor_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delay_levels, "_RECOVERY_ROWS", 3)
    scene = Scene()
    places = [scene.queues.put(1, str(number).encode(), NOW_MS) for number in range(20)]
    levels = scene.start(waited=set(places[:11]))
    assert levels.queue_offsets() == {1: 11}
    levels.run(NOW_MS)
    assert scene.log.bodies == [str(number).encode() for number in range(11, 20)]


@pytest.mark.parametrize(("stored", "expected"), [(0, 2), (9, 3), (2, 2)])
def test_a_cursor_outside_the_queue_is_put_inside(
    stored: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene({1: stored})
    for body in (b"a", b"b", b"c"):
        scene.queues.put(1, body, NOW_MS)
    scene.queues.queue_offsets_min[0] = 2
    levels = scene.start()
    assert levels.queue_offsets() == {1: expected}
    assert ("delayOffset.json" in caplog.text) == (stored != expected)


def test_a_level_never_used_before_starts_at_the_lowest_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    for body in (b"a", b"b"):
        scene.queues.put(1, body, NOW_MS)
    scene.queues.queue_offsets_min[0] = 1
    scene.start().run(NOW_MS)
    assert scene.log.bodies == [b"b"]
    assert caplog.text == ""


def test_a_backlog_is_delivered_in_bounded_pieces_by_levels_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(delay_levels, "monotonic_ms", lambda: next(ticks))
    scene = Scene()
    for number in range(2_000):
        scene.queues.put(1, f"1-{number}".encode(), NOW_MS)
        scene.queues.put(2, f"2-{number}".encode(), NOW_MS)
    levels = scene.start()
    levels.run(NOW_MS)
    first = [run[0].body for run in scene.log.runs]
    assert first == [b"1-0", b"2-0", b"1-64", b"2-64"]
    assert max(len(run) for run in scene.log.runs) == 64
    assert levels.interval_ms == 0
    assert levels.pending_counts() == {1: 2_000 - 128, 2: 2_000 - 128}
    while levels.interval_ms == 0:
        levels.run(NOW_MS)
    assert levels.pending_counts() == {}
    for level in (b"1", b"2"):
        bodies = [body for body in scene.log.bodies if body.startswith(level)]
        assert bodies == [b"%b-%d" % (level, number) for number in range(2_000)]


def test_levels_without_messages_write_and_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene()
    levels = scene.start()
    levels.run(NOW_MS)
    assert levels.interval_ms == 40
    assert levels.queue_offsets() == {} and levels.pending_counts() == {}
    assert scene.written_offsets() is None
    assert caplog.text == ""


# A clock that is set back.


def run_at(scene: Scene, levels: DelayLevels, *shifts_ms: int) -> list[list[bytes]]:
    """The bodies delivered by a run at each time."""
    seen = []
    for shift_ms in shifts_ms:
        levels.run(NOW_MS + shift_ms)
        seen.append(scene.log.bodies)
    return seen


def test_one_message_that_waits_holds_back_those_behind_it() -> None:
    scene = Scene()
    scene.queues.put(2, b"a", NOW_MS + 1)
    scene.queues.put(2, b"b", NOW_MS)
    assert run_at(scene, scene.start(), 0, 1) == [[], [b"a", b"b"]]


def test_a_clock_set_back_makes_nothing_due_before_the_delay_has_passed_again() -> None:
    scene = Scene()
    scene.queues.put(2, b"a", NOW_MS + 5_000)
    scene.queues.put(2, b"b", NOW_MS + 5_003, stored_ms=NOW_MS + 3)
    levels = scene.start()
    # A second back, noticed then; both waited for less than their delay until now.
    seen = run_at(scene, levels, 0, -1_000, 3_999, 4_000)
    assert seen == [[], [], [], [b"a", b"b"]]


def test_the_time_of_a_message_stands_when_it_comes_first() -> None:
    scene = Scene()
    levels = scene.start()
    scene.queues.put(2, b"before", NOW_MS + 5_000)
    run_at(scene, levels, -60_000)
    scene.queues.put(2, b"after", NOW_MS - 54_000, stored_ms=NOW_MS - 59_000)
    assert run_at(scene, levels, -55_001, -55_000, -54_001) == [[], [b"before"], [b"before"]]
    assert run_at(scene, levels, -54_000) == [[b"before", b"after"]]


def test_a_clock_set_back_twice_is_noticed_twice() -> None:
    scene = Scene()
    scene.queues.put(2, b"a", NOW_MS + 5_000)
    levels = scene.start()
    seen = run_at(scene, levels, -10_000, -80_000, -75_001, -75_000)
    assert seen == [[], [], [], [b"a"]]


def test_after_a_restart_the_messages_behind_tell_when_the_clock_was_set_back() -> None:
    scene = Scene()
    scene.queues.put(2, b"before", NOW_MS + 5_000)
    scene.queues.put(2, b"after", NOW_MS - 55_000, stored_ms=NOW_MS - 60_000)
    scene.queues.put(2, b"later", NOW_MS - 54_000, stored_ms=NOW_MS - 59_000)
    seen = run_at(scene, scene.start(), -57_000, -55_001, -55_000)
    assert seen == [[], [], [b"before", b"after"]]


# Levels that were changed.


def test_a_message_of_a_level_that_was_shortened_keeps_its_time() -> None:
    scene = Scene()
    scene.queues.put(2, b"once an hour", NOW_MS + 3_600_000)
    seen = run_at(scene, scene.start(), 0, 5_000, 3_599_999, 3_600_000)
    assert seen == [[], [], [], [b"once an hour"]]


def test_a_level_that_is_gone_is_delivered_until_it_is_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.queues.put(18, b"two hours", NOW_MS + 7_200_000)
    levels = scene.start()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and "delay levels [18]" in told[0]
    assert levels.pending_counts() == {18: 1}
    seen = run_at(scene, levels, 0, 7_199_999, 7_200_000)
    assert seen == [[], [], [b"two hours"]]
    assert scene.written_offsets() is None
    scene.log.settled_end = scene.log.physical_end
    assert scene.written_offsets() == {"18": 1}


def test_a_run_on_its_way_to_another_broker_holds_its_own_level_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.queues.put(1, b"a", NOW_MS)
    scene.queues.put(2, b"b", NOW_MS)
    levels = scene.start()
    scene.log.under_way = {b"a"}
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"b"]
    assert levels.interval_ms > 0, "the other broker must not be asked for without a pause"
    scene.log.under_way.clear()
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"b", b"a"]
    assert caplog.text == ""


def test_a_master_goes_on_where_its_slave_has_delivered_further() -> None:
    scene = Scene({1: 1, 2: 1})
    for body in (b"0", b"1", b"2"):
        scene.queues.put(1, body, NOW_MS)
        scene.queues.put(2, body + b" of level 2", NOW_MS)
    levels = scene.start()
    levels.adopt(DelayOffsetTable({1: 2, 2: 0}, DataVersion()))
    levels.recover(Delivered())
    levels.run(NOW_MS)
    assert sorted(scene.log.bodies) == [b"1 of level 2", b"2", b"2 of level 2"]


def test_deliveries_unknown_to_the_cursors_stand_behind_the_first_message_that_waits() -> None:
    scene = Scene({1: 1})
    places = [scene.queues.put(1, body, NOW_MS) for body in (b"0", b"1", b"2")]
    levels = scene.start()
    assert levels.waiting_from == places[1]
    levels.run(NOW_MS)
    assert levels.waiting_from is None


@pytest.mark.proves("replication.failover.kinds")
def test_a_leader_that_leads_again_forgets_deliveries_that_were_cut() -> None:
    scene = Scene()
    places = [scene.queues.put(1, str(number).encode(), NOW_MS) for number in range(4)]
    levels = scene.start()
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"0", b"1", b"2", b"3"]
    # Another member leads, and of these deliveries its log has the first two alone.
    levels.stop()
    scene.log.settled_end = scene.log.physical_end
    assert scene.written_offsets() is None
    levels.take_over({1: 1}, Delivered(waited={places[1]}))
    levels.run(NOW_MS)
    assert scene.log.bodies[4:] == [b"2", b"3"]
    scene.log.settled_end = scene.log.physical_end
    assert scene.written_offsets() == {"1": 4}


@pytest.mark.proves("replication.failover.kinds")
def test_a_first_leader_goes_on_with_the_cursors_of_its_folder() -> None:
    scene = Scene({1: 2})
    for number in range(3):
        scene.queues.put(1, str(number).encode(), NOW_MS)
    levels = scene.start()
    levels.take_over(None, Delivered())
    levels.run(NOW_MS)
    assert scene.log.bodies == [b"2"]

"""Where a timed message waits: rolling, the line of finished slots, and what is filed."""

from __future__ import annotations

import pytest

from contrail.broker.state.causes import cause_mark
from contrail.broker.state.timer_records import TimerRecord
from contrail.broker.state.timer_table import TimerTable
from contrail.errors import MessageIllegal
from contrail.kernels.java_hash import java_hash
from contrail.kernels.record_build import build_run
from contrail.model.message import LOOPBACK_HOST, MessageDraft
from contrail.model.properties import encode_properties

NOW_MS = 1_760_000_000_000
WINDOW = 90


def table() -> TimerTable:
    return TimerTable(precision_ms=1000, roll_window_slots=WINDOW, due_count_max=100)


def record(**properties: object) -> TimerRecord:
    """Of these properties; ``mark`` goes into the header."""
    mark = int(str(properties.pop("mark", 0)))
    named = {"REAL_TOPIC": "orders", "REAL_QID": "2", "UNIQ_KEY": "k"}
    texts = {name: str(value) for name, value in {**named, **properties}.items() if value != ""}
    draft = MessageDraft(b"rmq_sys_wheel_timer", 0, b"body", encode_properties(texts))
    draft = draft._replace(prepared_transaction_offset=mark)
    data = b"".join(build_run([draft], [0], 4096, NOW_MS, LOOPBACK_HOST, False))
    return TimerRecord.read(data)


@pytest.mark.parametrize(
    ("left_s", "slot_s", "magic"),
    [
        (5, 5, 1),
        (WINDOW - 1, WINDOW - 1, 1),
        (WINDOW, WINDOW // 2, 3),
        (WINDOW + WINDOW // 3 - 1, WINDOW // 2, 3),
        (WINDOW + WINDOW // 3, WINDOW, 3),
        (10_000, WINDOW, 3),
    ],
)
def test_a_timer_too_far_away_waits_to_be_rolled_on(left_s: int, slot_s: int, magic: int) -> None:
    row = table().place(record(TIMER_OUT_MS=NOW_MS + left_s * 1000), NOW_MS + 500)
    assert (row.slot_ms - NOW_MS, row.magic) == (slot_s * 1000, magic)
    assert (row.write_ms, row.topic_hash) == (NOW_MS, java_hash(b"orders"))


def test_a_message_below_the_line_is_filed_in_the_lines_slot() -> None:
    timers = table()
    timers.read_ms = NOW_MS
    late = record(TIMER_OUT_MS=NOW_MS - 50_000, TIMER_DELIVER_MS=NOW_MS - 49_500)
    row = timers.place(late, NOW_MS + 10)
    assert row.slot_ms == NOW_MS
    timers.enqueue(late, row, NOW_MS + 10, NOW_MS + 2000)
    (due,) = timers.due.take_due(NOW_MS + 10, 10, 1 << 20)
    assert timers.advance(NOW_MS + 5000) == NOW_MS, "it is not finished yet"
    assert timers.finish(due, NOW_MS + 10) == NOW_MS
    assert timers.advance(NOW_MS + 5000) == NOW_MS + 5000


def test_the_line_never_goes_back() -> None:
    timers = table()
    assert timers.advance(NOW_MS + 60_000) == NOW_MS + 60_000
    assert timers.advance(NOW_MS) == NOW_MS + 60_000
    soon = record(TIMER_OUT_MS=NOW_MS + 30_000, TIMER_DELIVER_MS=NOW_MS + 30_001)
    row = timers.place(soon, NOW_MS)
    assert row.slot_ms == NOW_MS + 60_000, "the files would forget an earlier slot"
    timers.enqueue(soon, row, NOW_MS, NOW_MS + 2000)
    taken = timers.slots.take(NOW_MS + 30_000, 10)
    assert taken is not None and taken[0] == NOW_MS + 30_000, "but it waits for its own"


@pytest.mark.parametrize(
    ("properties", "deliver_ms"),
    [
        ({"TIMER_DELIVER_MS": NOW_MS + 5432}, NOW_MS + 5432),
        ({"TIMER_DELAY_MS": 5678}, NOW_MS + 5678),
        ({"TIMER_DELAY_SEC": 6}, NOW_MS + 6000),
        ({"TIMER_DELAY_SEC": 6, "TIMER_DELAY_MS": 1}, NOW_MS + 6000),
        ({"TIMER_DELIVER_MS": NOW_MS}, NOW_MS + 5001),
        ({"TIMER_DELIVER_MS": (1 << 63) - 1}, NOW_MS + 15_000),
        ({}, NOW_MS + 6000),
        # Rolled on: it was stored again, so only an absolute time still means something.
        ({"TIMER_DELAY_MS": 5678, "TIMER_ROLL_TIMES": 2}, NOW_MS + 6000),
        ({"TIMER_DELIVER_MS": NOW_MS + 5999, "TIMER_ROLL_TIMES": 2}, NOW_MS + 5999),
        (
            {
                "TIMER_DELAY_MS": 1,
                "TIMER_DELIVER_MS": NOW_MS + 5999,
                "TIMER_ROLL_TIMES": 2,
                "mark": cause_mark(77),
            },
            NOW_MS + 5999,
        ),
        # Nothing says that a broker wrote these: the end of the slot cannot be early.
        (
            {"TIMER_DELAY_MS": 5900, "TIMER_DELIVER_MS": NOW_MS + 5100, "TIMER_ROLL_TIMES": 2},
            NOW_MS + 6000,
        ),
        (
            {"TIMER_DELAY_SEC": 6, "TIMER_DELIVER_MS": NOW_MS - 9000, "TIMER_ROLL_TIMES": 2},
            NOW_MS + 6000,
        ),
    ],
    ids=str,
)
def test_the_time_to_the_millisecond(properties: dict[str, int], deliver_ms: int) -> None:
    found = record(TIMER_OUT_MS=NOW_MS + 5000, **properties)
    assert found.deliver_ms(1000) == deliver_ms


@pytest.mark.parametrize("missing", ["REAL_TOPIC", "TIMER_OUT_MS"])
def test_a_record_that_says_neither_when_nor_where_is_none(missing: str) -> None:
    with pytest.raises(MessageIllegal):
        record(**{"TIMER_OUT_MS": NOW_MS, missing: ""})


def test_a_distance_that_the_file_cannot_hold_is_left_out() -> None:
    timers = TimerTable(precision_ms=60_000_000, roll_window_slots=172_800, due_count_max=1)
    timers.read_ms = 0
    row = timers.place(record(TIMER_OUT_MS=0), NOW_MS)
    assert (row.slot_ms, row.write_ms) == (0, 0)

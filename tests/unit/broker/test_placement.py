"""Where a message waits: delay levels and timers, by the rules of the original."""

from __future__ import annotations

import pytest

from contrail.broker.state.placement import TimerRules, place, slot_time_ms
from contrail.errors import RequestRejected
from contrail.model.message import MessageDraft
from contrail.protocol.codes import ResponseCode

NOW_MS = 1_700_000_000_123
DRAFT = MessageDraft(b"orders", 3, b"body")
I64_MAX = (1 << 63) - 1


def placed(properties: dict[str, str], timers: TimerRules | None = None) -> MessageDraft:
    rules = timers or TimerRules()
    return place(DRAFT, properties, level_max=18, timers=rules, now_ms=NOW_MS)


def test_a_message_without_a_delay_stays_where_it_is() -> None:
    properties = {"KEYS": "k"}
    assert placed(properties) == DRAFT
    assert properties == {"KEYS": "k"}


@pytest.mark.proves("kinds.timers.levels")
def test_a_delay_level_waits_in_the_queue_of_its_level() -> None:
    properties = {"DELAY": "3"}
    found = placed(properties)
    assert (found.topic, found.queue_id) == (b"SCHEDULE_TOPIC_XXXX", 2)
    assert properties == {"DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "3"}


def test_a_level_above_the_highest_is_the_highest() -> None:
    properties = {"DELAY": "99"}
    assert placed(properties).queue_id == 17
    assert properties["DELAY"] == "18"


@pytest.mark.parametrize("level", ["0", "-1", "-0", str(-(1 << 31))])
def test_a_level_below_the_first_is_none(level: str) -> None:
    assert placed({"DELAY": level}) == DRAFT


@pytest.mark.parametrize("level", ["", " 2", "abc", "2.0", "1_0", str(1 << 31), "9" * 20])
def test_a_level_that_is_no_number_is_refused(level: str) -> None:
    with pytest.raises(RequestRejected) as refusal:
        placed({"DELAY": level})
    assert refusal.value.code == ResponseCode.SYSTEM_ERROR


def test_a_delay_level_wins_over_a_timer() -> None:
    properties = {"DELAY": "1", "TIMER_DELAY_MS": "5000"}
    assert placed(properties).topic == b"SCHEDULE_TOPIC_XXXX"
    assert "TIMER_DELAY_MS" not in properties


@pytest.mark.parametrize(
    ("name", "value", "deliver_ms"),
    [
        ("TIMER_DELAY_SEC", "10", NOW_MS + 10_000),
        ("TIMER_DELAY_MS", "1", NOW_MS + 1),
        ("TIMER_DELIVER_MS", str(NOW_MS + 77), NOW_MS + 77),
    ],
)
def test_a_timer_waits_in_the_slot_that_is_over_when_its_time_has_come(
    name: str, value: str, deliver_ms: int
) -> None:
    properties = {name: value}
    found = placed(properties)
    assert (found.topic, found.queue_id) == (b"rmq_sys_wheel_timer", 0)
    slot_ms = int(properties["TIMER_OUT_MS"])
    assert slot_ms % 1000 == 0
    assert slot_ms < deliver_ms <= slot_ms + 1000


def test_seconds_come_before_milliseconds_and_these_before_a_time() -> None:
    properties = {
        "TIMER_DELIVER_MS": str(NOW_MS + 60_000),
        "TIMER_DELAY_MS": "30000",
        "TIMER_DELAY_SEC": "10",
    }
    placed(properties)
    assert int(properties["TIMER_OUT_MS"]) == slot_time_ms(NOW_MS + 10_000, 1000)


@pytest.mark.parametrize("value", [str(NOW_MS), "0", "-5", str(-(1 << 63))])
def test_a_time_that_has_come_needs_no_waiting(value: str) -> None:
    assert placed({"TIMER_DELIVER_MS": value}) == DRAFT


def test_cancelling_what_was_due_already_is_refused() -> None:
    with pytest.raises(RequestRejected) as refusal:
        placed({"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "orders+k"})
    assert refusal.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.proves("kinds.timers.limit")
@pytest.mark.parametrize(
    ("properties", "part"),
    [
        ({"TIMER_DELAY_SEC": "259201"}, "259200"),
        ({"TIMER_DELAY_SEC": str(I64_MAX)}, "timerMaxDelaySec"),
        ({"TIMER_DELAY_MS": str(I64_MAX)}, "timerMaxDelaySec"),
        ({"TIMER_DELIVER_MS": str(I64_MAX)}, "timerMaxDelaySec"),
        ({"TIMER_DELIVER_MS": str(I64_MAX + 1)}, "TIMER_DELIVER_MS"),
        ({"TIMER_DELAY_MS": "soon"}, "'soon'"),
        ({"TIMER_DELAY_MS": "1_000"}, "'1_000'"),
        ({"TIMER_DELAY_MS": "9" * 5000}, "TIMER_DELAY_MS"),
    ],
)
def test_a_time_that_cannot_be_kept_is_refused_by_name(
    properties: dict[str, str], part: str
) -> None:
    with pytest.raises(RequestRejected) as refusal:
        placed(properties)
    assert refusal.value.code == ResponseCode.MESSAGE_ILLEGAL
    assert part in refusal.value.remark
    assert len(refusal.value.remark) < 300


def test_the_limit_itself_is_taken() -> None:
    assert placed({"TIMER_DELAY_SEC": "259200"}).topic == b"rmq_sys_wheel_timer"


def test_a_broker_without_timers_says_so() -> None:
    with pytest.raises(RequestRejected, match="timerWheelEnable"):
        placed({"TIMER_DELAY_MS": "5"}, TimerRules(enabled=False))


def test_a_message_that_has_waited_is_not_delayed_again() -> None:
    properties = {"TIMER_DELAY_MS": "5000", "TIMER_OUT_MS": "1"}
    assert placed(properties) == DRAFT

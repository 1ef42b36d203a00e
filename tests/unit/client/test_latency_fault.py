"""How long slow and failed brokers are avoided."""

from __future__ import annotations

import pytest

from contrail.client.state.latency_fault import LatencyFaults, avoided_ms
from contrail.client.state.queue_picking import QueuePicker
from contrail.protocol.json_style import MessageQueue

NOW_MS = 1_000_000
QUEUES = [MessageQueue("t", name, at) for name in ("a", "b") for at in range(2)]


@pytest.mark.proves("client.producer.latency-fault")
@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [
        (0, 0),
        (49, 0),
        (100, 0),
        (549, 0),
        (550, 2_000),
        (1_799, 2_000),
        (1_800, 5_000),
        (3_000, 6_000),
        (5_000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (99_999, 30_000),
    ],
)
def test_a_broker_is_avoided_by_the_duration_of_its_send(latency_ms: int, expected_ms: int) -> None:
    assert avoided_ms(latency_ms) == expected_ms


def note(faults: LatencyFaults, name: str, latency_ms: int = 1, **given: bool) -> None:
    failed, reachable = given.get("failed", False), given.get("reachable", True)
    faults.note(name, latency_ms=latency_ms, failed=failed, reachable=reachable, now_ms=NOW_MS)


def test_a_failure_counts_as_ten_seconds() -> None:
    faults = LatencyFaults()
    note(faults, "a", failed=True)
    assert not faults.is_available("a", NOW_MS + 9_999)
    assert faults.is_available("a", NOW_MS + 10_000)


def test_a_quick_answer_does_not_end_the_avoided_time_of_a_slow_one() -> None:
    faults = LatencyFaults()
    note(faults, "a", 3_000)
    note(faults, "a", 1)
    assert not faults.is_available("a", NOW_MS + 5_999)


def test_sends_go_to_the_available_broker_only() -> None:
    faults, picker = LatencyFaults(), QueuePicker(QUEUES, 0)
    note(faults, "a", 600)
    assert {faults.pick(picker, None, NOW_MS).broker_name for _ in range(8)} == {"b"}
    later_ms = NOW_MS + 2_000
    assert {faults.pick(picker, None, later_ms).broker_name for _ in range(8)} == {"a", "b"}


def test_when_none_is_available_a_reachable_one_is_taken() -> None:
    faults, picker = LatencyFaults(), QueuePicker(QUEUES, 0)
    note(faults, "a", failed=True, reachable=False)
    note(faults, "b", failed=True)
    assert {faults.pick(picker, None, NOW_MS).broker_name for _ in range(8)} == {"b"}


def test_when_none_is_reachable_any_broker_is_taken() -> None:
    faults, picker = LatencyFaults(), QueuePicker(QUEUES, 0)
    for name in ("a", "b"):
        note(faults, name, failed=True, reachable=False)
    assert {faults.pick(picker, "a", NOW_MS).broker_name for _ in range(8)} == {"a", "b"}


def test_the_broker_that_failed_is_not_picked_while_another_is_there() -> None:
    faults, picker = LatencyFaults(), QueuePicker(QUEUES, 0)
    assert {faults.pick(picker, "b", NOW_MS).broker_name for _ in range(8)} == {"a"}


def test_brokers_that_left_the_routes_are_forgotten() -> None:
    faults = LatencyFaults()
    note(faults, "a", failed=True)
    faults.forget_all_but({"b"})
    assert faults.is_available("a", NOW_MS)

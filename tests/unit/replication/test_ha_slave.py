"""A slave: its reports, the bytes that it takes, and when it gives up."""

from __future__ import annotations

import pytest

from contrail.replication.state.ha_limits import HaLimits
from contrail.replication.state.ha_slave import HaSlaveState, Phase


def following(physical_end: int = 500, *, is_empty: bool = False) -> HaSlaveState:
    state = HaSlaveState(HaLimits(), segment_bytes=1_000, now_ms=0)
    assert state.is_due(0)
    state.begin(physical_end, 0, is_empty=is_empty)
    return state


def test_bytes_at_the_expected_place_are_taken() -> None:
    state = following()
    assert state.received(500, 100, 1) and state.received(600, 0, 2) and state.received(600, 50, 3)
    assert (state.expected, state.received_bytes) == (650, 150)


@pytest.mark.parametrize("byte_count", [0, 10])
def test_bytes_and_heartbeats_at_another_place_end_the_link(byte_count: int) -> None:
    state = following()
    assert not state.received(499, byte_count, 1)
    assert "499" in state.problem and "500" in state.problem
    state.lost("mismatch", 1)
    assert state.phase is Phase.READY


@pytest.mark.proves("replication.pair.ha-slave")
def test_an_empty_log_begins_at_the_start_of_a_segment() -> None:
    state = following(0, is_empty=True)
    assert state.received(0, 0, 1)
    assert state.received(7_000, 10, 2) and state.received(7_010, 5, 3)
    assert not following(0, is_empty=True).received(7_001, 10, 1)


@pytest.mark.proves("replication.pair.diverged")
def test_three_mismatches_in_a_row_are_a_divergence() -> None:
    state = following()
    for round_number in range(3):
        assert state.phase is not Phase.DIVERGED
        assert not state.received(499, 10, round_number)
        state.lost("mismatch", round_number)
        if state.phase is Phase.READY:
            state.begin(500, round_number, is_empty=False)
    assert state.phase is Phase.DIVERGED and state.counts["diverged_mismatch"] == 1
    assert not state.is_due(1 << 40) and not state.received(500, 10, 9)
    assert state.due_report(600, 1 << 40) is None


def test_bytes_that_fit_forgive_earlier_mismatches() -> None:
    state = following()
    for _ in range(5):
        assert not state.received(499, 10, 1)
        state.lost("mismatch", 1)
        state.begin(500, 1, is_empty=False)
        assert state.received(500, 10, 1)
        state.appended()
    assert state.phase is Phase.TRANSFER and state.problem == ""


@pytest.mark.proves("replication.pair.ha-slave")
def test_a_report_is_due_when_the_log_moved_and_when_nothing_was_sent() -> None:
    state = following()
    assert state.due_report(500, 4_999) is None
    assert state.due_report(560, 1_000) == 560
    assert state.due_report(560, 5_999) is None
    assert state.due_report(560, 6_000) == 560


@pytest.mark.proves("replication.pair.ha-slave")
def test_a_silent_master_is_left_and_connected_to_again_after_5_seconds() -> None:
    state = following()
    assert not state.is_silent(19_999) and state.is_silent(20_000)
    state.lost("silent", 20_000)
    assert not state.is_due(24_999) and state.is_due(25_000)


@pytest.mark.proves("replication.pair.diverged")
def test_a_diverged_slave_keeps_its_first_problem() -> None:
    state = following()
    state.diverged("record", "no record there")
    state.diverged("place", "later")
    state.lost("diverged", 5)
    assert (state.phase, state.problem) == (Phase.DIVERGED, "no record there")

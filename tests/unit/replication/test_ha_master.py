"""A master: the bytes for each slave, the reports that it believes, the slaves that it refuses."""

from __future__ import annotations

import pytest

from contrail.replication.state.ha_limits import HaLimits
from contrail.replication.state.ha_master import (
    Beat,
    Close,
    Frame,
    HaMasterState,
    LogRange,
    SlaveProgress,
)

LOG = LogRange(physical_min=2_000, sendable_end=5_500, segment_bytes=1_000)


def connected(state: HaMasterState, now_ms: int = 0) -> SlaveProgress:
    slave = state.connected("10.0.0.1:5", now_ms)
    assert isinstance(slave, SlaveProgress)
    return slave


def receiving(state: HaMasterState, physical_end: int, now_ms: int = 0) -> SlaveProgress:
    slave = connected(state, now_ms)
    assert state.begun(slave, physical_end, LOG, now_ms) is None
    return slave


def closed(effect: object) -> str:
    assert isinstance(effect, Close), effect
    return effect.reason


@pytest.mark.proves("replication.pair.ha-master")
@pytest.mark.parametrize(("request_at", "start"), [(0, 5_000), (2_000, 2_000), (3_217, 3_217)])
def test_a_request_of_0_gets_the_last_segment_and_others_their_place(
    request_at: int, start: int
) -> None:
    state = HaMasterState(HaLimits())
    slave = receiving(state, request_at)
    assert slave.next_offset == start and slave.acknowledged_end == request_at


def test_a_request_of_0_to_a_log_that_ends_with_its_segment() -> None:
    state = HaMasterState(HaLimits())
    slave = connected(state)
    assert state.begun(slave, 0, LOG._replace(sendable_end=6_000), 0) is None
    assert slave.next_offset == 6_000


def test_a_contrail_slave_that_asks_for_0_means_0() -> None:
    state = HaMasterState(HaLimits())
    slave = connected(state)
    state.proved(slave.number, 1)
    assert closed(state.begun(slave, 0, LOG, 0)) == "reset_needed"
    slave = connected(state)
    state.proved(slave.number, 1)
    assert state.begun(slave, 0, LOG._replace(physical_min=0), 0) is None
    assert slave.next_offset == 0


@pytest.mark.proves("replication.pair.refusals")
@pytest.mark.parametrize(
    ("request_at", "reason"), [(1_999, "reset_needed"), (5_501, "future_offset")]
)
def test_requests_outside_of_the_log_end_the_link_and_are_counted(
    request_at: int, reason: str
) -> None:
    state = HaMasterState(HaLimits())
    slave = connected(state)
    assert closed(state.begun(slave, request_at, LOG, 0)) == reason
    assert state.counts == {reason: 1} and not state.slaves


@pytest.mark.proves("replication.pair.refusals")
def test_an_acknowledgement_of_bytes_that_were_never_sent_ends_the_link() -> None:
    state = HaMasterState(HaLimits())
    slave = receiving(state, 5_000)
    state.pushed(slave, 100, 1)
    assert state.reported(slave, 5_100, 2) is None
    assert closed(state.reported(slave, 5_101, 3)) == "fake_acknowledgement"
    assert state.acknowledged_ends() == []


def test_an_acknowledgement_does_not_go_back() -> None:
    state = HaMasterState(HaLimits())
    slave = receiving(state, 5_000)
    state.pushed(slave, 100, 1)
    state.reported(slave, 5_100, 2)
    state.reported(slave, 5_050, 3)
    assert state.acknowledged_ends() == [5_100]


@pytest.mark.proves("replication.pair.ha-master")
def test_frames_end_with_their_batch_their_segment_and_the_log() -> None:
    state = HaMasterState(HaLimits())
    slave = receiving(state, 4_600)
    sent = []
    while (frame := state.next_frame(slave, LOG, body_bytes_max=300)) is not None:
        assert isinstance(frame, Frame)
        sent.append(frame)
        state.pushed(slave, frame.byte_count, 1)
    assert sent == [(4_600, 300), (4_900, 100), (5_000, 300), (5_300, 200)]


def test_nothing_is_sent_before_the_first_report() -> None:
    state = HaMasterState(HaLimits())
    slave = connected(state)
    assert state.next_frame(slave, LOG, body_bytes_max=300) is None


def test_a_slave_that_retention_overtook_must_be_reset() -> None:
    state = HaMasterState(HaLimits())
    slave = receiving(state, 2_500)
    log = LOG._replace(physical_min=3_000)
    assert closed(state.next_frame(slave, log, body_bytes_max=300)) == "reset_needed"


@pytest.mark.proves("replication.pair.ha-master")
def test_an_idle_slave_gets_a_heartbeat_and_a_silent_one_is_left() -> None:
    state = HaMasterState(HaLimits())
    slave = receiving(state, 5_500)
    assert state.expire(4_999) == []
    assert state.expire(5_000) == [Beat(slave.number, 5_500)]
    assert state.expire(5_001) == []
    state.reported(slave, 5_500, 10_000)
    assert state.expire(29_999) == [Beat(slave.number, 5_500)]
    assert [closed(effect) for effect in state.expire(30_000)] == ["silent"]


@pytest.mark.proves("replication.pair.ha-master")
def test_a_slave_that_asks_for_nothing_is_left_after_10_seconds() -> None:
    state = HaMasterState(HaLimits())
    connected(state)
    assert state.expire(9_999) == []
    assert [closed(effect) for effect in state.expire(10_000)] == ["first_report_late"]


@pytest.mark.proves("replication.pair.ha-master")
def test_there_are_at_most_64_slaves() -> None:
    state = HaMasterState(HaLimits())
    for _ in range(64):
        connected(state)
    assert state.connected("10.0.0.1:5", 0) == "too_many"
    state.lost(1)
    connected(state)


def test_a_broker_that_connects_again_replaces_its_old_link() -> None:
    state = HaMasterState(HaLimits())
    old, other, new = (connected(state) for _ in range(3))
    assert state.proved(old.number, 1) == state.proved(other.number, 2) == []
    assert [close.number for close in state.proved(new.number, 1)] == [old.number]
    assert set(state.slaves) == {other.number, new.number}


def test_a_link_that_was_refused_outside_is_counted() -> None:
    state = HaMasterState(HaLimits())
    slave = connected(state)
    assert closed(state.refused(slave.number, "stranger", "who?")) == "stranger"
    assert state.counts["stranger"] == 1


@pytest.mark.proves("replication.pair.refusals")
def test_a_full_master_lets_the_busiest_strangers_oldest_link_go() -> None:
    state = HaMasterState(HaLimits(slave_count_max=5))
    slave = receiving(state, 5_000)
    proved = connected(state)
    state.proved(proved.number, 3)
    other = state.connected("10.0.0.9:1", 0)
    first, second = (state.connected(f"10.0.0.5:{port}", 0) for port in (1, 2))
    assert isinstance(first, SlaveProgress) and isinstance(second, SlaveProgress)
    effect = state.make_room()
    assert closed(effect) == "crowded_out" and effect is not None
    assert effect.number == first.number
    assert state.make_room() is None, "there is room again"
    assert [*state.slaves.values()] == [slave, proved, other, second]

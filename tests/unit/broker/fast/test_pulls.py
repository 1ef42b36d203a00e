"""Where a pull goes that the frame kernel has taken apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.fast import pulls
from contrail.broker.fast.pull_templates import PeerTemplates
from contrail.broker.state.pull_plan import FLAG_COMMIT
from contrail.errors import RequestRejected, StoreError
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReadyAnswer, Request, Response
from contrail.protocol.frames import PullFrame
from contrail.store import GetResult, GetStatus, Reach
from tests.unit.broker.fast.pull_room import PullRoom, pull, pull_bytes

FOUND = ResponseCode.SUCCESS


@pytest.fixture
def room() -> PullRoom:
    return PullRoom()


# Pulls with a form.


def test_a_pull_without_a_form_goes_the_general_way_and_has_one_then(room: PullRoom) -> None:
    assert room.taken([pull(1), pull(2)]) == 2
    assert room.general == [1]
    assert [opaque for opaque, _, _ in room.told()] == [2]


def test_pulls_with_a_form_are_answered_in_order(room: PullRoom) -> None:
    room.learn(pull(1))
    assert room.taken([pull(2, 6), pull(3, 8)]) == 2
    assert room.told() == [(2, FOUND, b"006007008009"), (3, FOUND, b"008009")]
    assert room.ways.pull_known == 2 and not room.served


def test_a_frame_that_is_no_pull_is_left(room: PullRoom) -> None:
    room.learn(pull(1))
    frames = [pull(2), Request(34, 3, {}), pull(4)]
    assert room.taken(frames) == 1
    assert room.pulls.take(room.peer, frames, 2, 1e9) == 3


def test_a_peer_that_has_enough_gets_the_rest_in_another_run(room: PullRoom) -> None:
    room.learn(pull(1))
    room.peer._out_bytes = room.server.limits.write_bytes_max - 1
    assert room.pulls._give_run(room.peer, [pull(2), pull(3)], 0) == (1, pulls.Outcome.ANSWERED)


def test_pulls_behind_one_that_took_too_long_are_left(room: PullRoom) -> None:
    room.refusal = RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    room.server.monotonic_s = lambda: float(len(room.served))
    frames = [pull(number, subVersion=str(number)) for number in range(1, 6)]
    assert room.taken(frames, until_s=2.0) == 2
    assert room.general == [1, 2]
    assert room.taken(frames[2:], until_s=2.0) == 1, "one is taken whatever the time"


def test_a_connection_learns_templates_from_its_pulls(room: PullRoom) -> None:
    assert room.pulls.take_before_tick(room.peer, [pull(1), Request(34, 2, {})]) == [
        Request(34, 2, {})
    ]
    data = pull_bytes(3)
    assert room.peer.at_hand.take(data) == len(data)
    assert room.ways.pull_template == 1


# Guards.


def test_a_ready_answer_of_a_guard_is_given(room: PullRoom) -> None:
    room.learn(pull(1))
    room.verdict = ReadyAnswer(Response(ResponseCode.SYSTEM_BUSY, "later"))
    assert room.taken([pull(2), pull(3)]) == 2
    assert [answer[:2] for answer in room.told()] == [(2, 2), (3, 2)]
    assert room.ways.pull_refused == 2


def test_any_other_verdict_of_a_guard_leaves_the_pull_to_the_general_way(room: PullRoom) -> None:
    room.learn(pull(1))
    room.verdict = object()
    assert room.taken([pull(2), pull(3, 10)]) == 2
    assert room.general == [2, 3] and not room.held.held


# Refusals.


def test_a_pull_like_one_that_was_refused_is_refused_the_same(room: PullRoom) -> None:
    room.refusal = RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    room.learn(pull(1))
    assert room.taken([pull(2), pull(3)]) == 2
    assert [answer[:2] for answer in room.told()] == [(2, 17), (3, 17)]
    assert room.ways.pull_refused == 2 and room.ways.pull_known == 0
    room.pulls.note_answered()
    assert room.router.refused == {(11, 17): 2}
    room.table_changes()
    room.taken([pull(4)])
    assert room.general == [4]


# Filters.


def test_a_filtered_pull_is_answered_with_what_its_filter_wants(room: PullRoom) -> None:
    room.plan = room.plan._replace(tag_codes=frozenset({3}))
    room.learn(pull(1))
    assert room.taken([pull(2)]) == 1
    assert room.told() == [(2, FOUND, b"007")]
    assert room.read_on == [(0, 5, 8)]
    assert room.ways.pull_filtered == 1 and room.ways.pull_known == 0


def test_a_filtered_pull_of_nothing_is_general_and_of_old_messages_is_far(room: PullRoom) -> None:
    room.plan = room.plan._replace(tag_codes=frozenset({3}))
    room.filtered = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 10, 0, 10)
    room.learn(pull(1))
    room.taken([pull(2, 10)])
    assert room.general == [2] and not room.held.held, "nor is it held here"
    room.runs.near = 8
    room.taken([pull(3)])
    assert len(room.in_line) == 1


def test_filtered_pulls_that_take_long_end_their_run(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = iter(range(100))
    monkeypatch.setattr(pulls, "monotonic_ms", lambda: next(now_ms))
    room.plan = room.plan._replace(tag_codes=frozenset({3}))
    room.learn(pull(1))
    frames = [pull(2), pull(3)]
    assert room.pulls._give_run(room.peer, frames, 0) == (1, pulls.Outcome.ANSWERED)


# The suggested broker.


@pytest.mark.proves("broker.fast.one-home")
@pytest.mark.parametrize("way", ["template", "known", "filtered", "far", "woken"])
def test_the_broker_that_a_plan_suggests_goes_out_on_every_way(room: PullRoom, way: str) -> None:
    room.plan = room.plan._replace(suggested_broker_id=3)
    if way == "filtered":
        room.plan = room.plan._replace(tag_codes=frozenset({3}))
    room.learn(pull(1))
    if way == "template":
        templates = PeerTemplates(room.pulls, room.peer, room.server)
        templates.learn([pull(1)])
        templates.take(pull_bytes(2))
    elif way == "woken":
        room.runs.end = 12
        assert woken(room)
    else:
        room.runs.near = 8 if way == "far" else 0
        room.cold_reads.may_skip_line = way != "far"
        room.taken([pull(2)])
        for waiting in room.in_line:
            waiting.answer()
    assert getattr(room.ways, f"pull_{way}") == 1
    room.peer.flush()
    answers: list[Any] = room.transport.frames()
    assert [answer.fields["suggestWhichBrokerId"] for answer in answers] == ["3"]


# Counts.


def test_answers_are_timed_by_request_and_response_code(room: PullRoom) -> None:
    timed: list[Any] = []
    room.pulls._times = SimpleNamespace(answered_pulls=lambda c: timed.append(dict(c)))  # type: ignore[assignment]
    room.plan = room.plan._replace(tag_codes=frozenset({3}))
    room.learn(pull(1))
    room.taken([pull(2)])
    room.filtered = GetResult(GetStatus.NO_MATCHED_MESSAGE, 10, 0, 10)
    room.taken([pull(3)])
    room.pulls.note_answered()
    assert timed == [{(11, 0): 1, (11, 20): 1}]
    room.pulls.note_answered()
    assert len(timed) == 1


# At the end of a queue.


def held(room: PullRoom, frame: PullFrame) -> bool:
    return room.pulls.hold(frame, room.peer, room.forms.find(frame))


def test_a_pull_at_the_end_of_its_queue_is_held(room: PullRoom) -> None:
    room.learn(pull(1))
    assert room.taken([pull(2, 10)]) == 1
    assert room.held.held == [pull(2, 10)] and room.ways.pull_held == 1
    assert room.read_on == [(0, 10, 10)] and room.missed_count == 1
    room.peer.in_flight_count = 2
    room.taken([pull(3, 10)])
    assert len(room.held.held) == 1 and room.general == [3], "too many are unanswered"


def test_a_pull_that_finds_no_room_is_left_without_a_trace(room: PullRoom) -> None:
    room.learn(pull(1))
    room.held.count_max = 0
    assert not held(room, pull(2, 10))
    assert room.read_on == [] and room.missed_count == 0, "the general way notes it"


def test_a_pull_that_is_not_at_the_end_or_may_not_wait_is_not_held(room: PullRoom) -> None:
    room.learn(pull(1))
    assert not held(room, pull(2, 9))
    assert not held(room, pull(3, 11))
    room.table_changes()
    room.plan = room.plan._replace(sys_flag=FLAG_COMMIT)
    room.learn(pull(1))
    assert not held(room, pull(4, 10))


def woken(room: PullRoom) -> bool:
    frame = pull(2, 10)
    request = Request(11, 2, {})
    parked: Any = SimpleNamespace(peer=room.peer, fast=frame, request=request)
    return bool(room.held.answer_fast(parked))


def test_a_held_pull_is_answered_with_the_messages_that_have_arrived(room: PullRoom) -> None:
    room.learn(pull(1))
    assert not woken(room), "nothing has"
    room.runs.end = 12
    assert woken(room)
    assert room.told() == [(2, FOUND, b"010011")]
    assert room.read_on == [(0, -1, 12)] and room.ways.pull_woken == 1
    room.table_changes()
    assert not woken(room)


def test_a_held_pull_whose_read_fails_is_left_to_the_general_way(room: PullRoom) -> None:
    room.learn(pull(1))

    def failing(*asked: Any) -> Any:
        raise StoreError("torn")

    room.runs.read = failing  # type: ignore[method-assign]
    assert not woken(room)


# Old messages.


def test_old_messages_are_far_while_others_wait_for_theirs(room: PullRoom) -> None:
    room.learn(pull(1))
    room.runs.near = 8
    room.cold_reads.may_skip_line = False
    room.taken([pull(2)])
    [waiting] = room.in_line
    assert room.committed == [5] and room.ways.pull_far == 1, "its offset is committed now"
    assert waiting.answer() == (b"orders", 0, 5, 700)
    assert room.told() == [(2, FOUND, b"005006007008")]
    assert room.read_on == [(0, -1, 9)]


def test_a_far_pull_whose_messages_left_memory_goes_the_general_way(room: PullRoom) -> None:
    room.learn(pull(1))
    room.runs.near = 8
    room.cold_reads.may_skip_line = False
    room.taken([pull(2)])
    [waiting] = room.in_line
    room.runs.end = 0
    assert waiting.answer() is None
    waiting.general()
    [request] = room.served
    assert request.fields["commitOffset"] == "-1", "it was committed already"


def test_a_far_pull_that_finds_no_room_in_line_goes_the_general_way(room: PullRoom) -> None:
    room.learn(pull(1))
    room.runs.near = 8
    room.cold_reads.may_skip_line = False
    room.handler.wait_in_line = lambda waiting: False
    room.taken([pull(2)])
    assert room.general == [2] and room.committed == []


def test_old_messages_are_far_once_enough_was_handed_out(room: PullRoom) -> None:
    room.learn(pull(1))
    room.runs.near = 8
    room.cold_reads.note_direct = lambda byte_count: False
    assert room.taken([pull(2), pull(3)]) == 2
    assert [reach for _, _, reach in room.runs.reads] == [Reach.WARM, Reach.NEAR]
    assert len(room.in_line) == 1


def test_a_sweep_tells_whether_the_log_fits_memory(room: PullRoom) -> None:
    assert room.forms.log_fits_memory
    room.handler.log_fits_memory = False
    room.pulls.sweep(0)
    assert not room.forms.log_fits_memory

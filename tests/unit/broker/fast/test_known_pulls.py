"""Pulls that are like one before: answered without a decoder, or left to another way."""

from __future__ import annotations

import pytest

from contrail.broker.fast import known_pulls
from contrail.broker.fast.known_pulls import Outcome
from contrail.broker.state.pull_plan import FLAG_COMMIT
from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request
from contrail.store.services.queue_runs import Reach
from contrail.store.services.reading import GetResult
from contrail.store.state.reading import GetStatus
from tests.unit.broker.fast.pull_room import PullRoom, pull

FOUND = ResponseCode.SUCCESS


@pytest.fixture
def room() -> PullRoom:
    return PullRoom()


# Runs.


def test_a_pull_that_nobody_has_seen_goes_the_general_way(room: PullRoom) -> None:
    assert room.known.answer_run([pull(1)], 0, room.peer) == (0, Outcome.GENERAL)
    assert room.told() == [] and not room.runs.reads


def test_pulls_like_one_before_are_answered_in_order(room: PullRoom) -> None:
    room.remember(pull(1))
    assert room.known.answer_run([pull(2, 6), pull(3, 8)], 0, room.peer) == (2, Outcome.ANSWERED)
    assert room.told() == [(2, FOUND, b"006007008009"), (3, FOUND, b"008009")]
    assert room.read_on == [(0, 6, 10), (0, 8, 10)], "the offset they carry, and where they go on"
    assert room.pulled == [(4, 12), (2, 6)]
    assert room.ways.pull_known == 2 and room.known.take_counts() == {11: 2}
    assert room.known.take_counts() == {}


def test_a_pull_gets_what_it_asks_for_and_the_settings_allow(room: PullRoom) -> None:
    room.remember(pull(1))
    room.known.answer_run([pull(2, maxMsgNums="2")], 0, room.peer)
    room.known.answer_run([pull(3, maxMsgNums="0")], 0, room.peer)
    room.known.answer_run([pull(4)], 0, room.peer)
    assert [count_max for _, count_max, _ in room.runs.reads] == [2, 1, 4]


def test_a_run_ends_at_what_is_no_pull(room: PullRoom) -> None:
    room.remember(pull(1))
    frames = [pull(2), Request(34, 3, {}), pull(4)]
    assert room.known.answer_run(frames, 0, room.peer) == (1, Outcome.ANSWERED)
    assert room.known.answer_run(frames, 2, room.peer) == (3, Outcome.ANSWERED)


def test_a_run_ends_when_the_peer_has_enough(room: PullRoom) -> None:
    room.remember(pull(1))
    room.peer._out_bytes = room.server.limits.write_bytes_max - 1
    frames = [pull(2), pull(3)]
    assert room.known.answer_run(frames, 0, room.peer) == (1, Outcome.ANSWERED)


def test_at_the_end_of_the_queue_nothing_is_answered(room: PullRoom) -> None:
    room.remember(pull(1))
    frames = [pull(2, 8), pull(3, 10)]
    assert room.known.answer_run(frames, 0, room.peer) == (1, Outcome.GENERAL)
    assert [opaque for opaque, _, _ in room.told()] == [2]


def test_a_pull_without_an_offset_to_commit_writes_none(room: PullRoom) -> None:
    room.sys_flag = 0
    room.remember(pull(1))
    room.known.answer_run([pull(2)], 0, room.peer)
    assert room.read_on == [(0, -1, 9)]


def test_old_messages_are_far_while_others_wait_for_theirs(room: PullRoom) -> None:
    room.remember(pull(1))
    room.runs.near = 8
    room.cold_reads.has_turn_at_once = False
    assert room.known.answer_run([pull(2)], 0, room.peer) == (0, Outcome.FAR)
    room.cold_reads.has_turn_at_once = True
    assert room.known.answer_run([pull(2)], 0, room.peer) == (1, Outcome.ANSWERED)


def test_old_messages_are_far_once_enough_was_handed_out(room: PullRoom) -> None:
    room.remember(pull(1))
    room.runs.near = 8
    noted = []
    room.cold_reads.note_at_once = lambda *read: noted.append(read)
    assert room.known.answer_run([pull(2), pull(3)], 0, room.peer) == (1, Outcome.FAR)
    assert noted == [((b"orders", 0), 5, 700, 12)]
    assert [reach for _, _, reach in room.runs.reads] == [Reach.WARM, Reach.NEAR]


# What is known.


def test_what_is_known_ends_when_a_table_changes(room: PullRoom) -> None:
    room.remember(pull(1))
    [known] = room.known.known_pulls.values()
    pattern = room.known.pattern(b"template", pull(1))
    pattern.knowns[0] = known
    room.table_changes()
    assert room.known.answer_run([pull(2)], 0, room.peer) == (0, Outcome.GENERAL)
    assert not pattern.knowns


def test_a_pending_reset_and_a_log_beyond_memory_are_for_the_general_way(room: PullRoom) -> None:
    room.remember(pull(1))
    room.offsets.pending_resets["billing"] = {}
    assert room.known.answer_run([pull(2)], 0, room.peer) == (0, Outcome.GENERAL)
    room.offsets.pending_resets.clear()
    room.known.log_fits_memory = False
    assert room.known.answer_run([pull(2)], 0, room.peer) == (0, Outcome.GENERAL)


def test_a_negative_offset_to_commit_is_for_the_general_way(room: PullRoom) -> None:
    room.remember(pull(1))
    item = (*pull(2)[:7], -1, b"")
    assert room.known.answer_run([item], 0, room.peer) == (0, Outcome.GENERAL)


def test_a_pull_that_is_known_already_keeps_what_patterns_have(room: PullRoom) -> None:
    room.remember(pull(1))
    [known] = room.known.known_pulls.values()
    room.remember(pull(2))
    assert list(room.known.known_pulls.values()) == [known]


def test_a_header_that_is_longer_than_those_of_clients_is_not_kept(room: PullRoom) -> None:
    room.remember(pull(1, subscription="x" * 3000))
    assert not room.known.known_pulls


def test_more_than_may_be_known_is_all_forgotten(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_pulls, "_KNOWN_MAX", 2)
    for number in range(3):
        room.remember(pull(1, subVersion=str(number)))
    assert len(room.known.known_pulls) == 1


def test_who_reads_what_is_told_once_in_a_while(room: PullRoom) -> None:
    room.remember(pull(1))
    room.known.answer_run([pull(2), pull(3)], 0, room.peer)
    assert len(room.given) == 1
    room.known.note_given_again()
    room.known.answer_run([pull(4)], 0, room.peer)
    assert len(room.given) == 2


# Refusals.


def test_a_pull_like_one_that_was_refused_is_refused_the_same(room: PullRoom) -> None:
    room.refusal = RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    room.remember(pull(1))
    assert room.known.answer_run([pull(2), pull(3)], 0, room.peer) == (2, Outcome.ANSWERED)
    assert [answer[:2] for answer in room.told()] == [(2, 17), (3, 17)]
    assert room.ways.pull_refused == 2 and room.ways.pull_known == 0
    assert room.known.take_refused() == {(11, 17): 2}
    assert room.known.take_refused() == {}
    room.table_changes()
    assert room.known.answer_run([pull(4)], 0, room.peer) == (0, Outcome.GENERAL)


def test_a_refused_pull_that_asks_for_too_many_is_told_so_the_general_way(room: PullRoom) -> None:
    room.refusal = RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    room.remember(pull(1))
    item = pull(2)
    many = (*item[:6], 1 << 31, *item[7:])
    assert room.known.answer_run([many], 0, room.peer) == (0, Outcome.GENERAL)


def test_no_more_refusals_are_kept_than_may_be(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_pulls, "_REFUSED_MAX", 2)
    room.refusal = RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    for number in range(3):
        room.remember(pull(1, subVersion=str(number)))
    assert len(room.known._refused) == 1
    room.remember(pull(1, subVersion="x" * 3000))
    assert len(room.known._refused) == 1, "nor one with longer fields than a client's"


# Filters.


def test_a_filtered_pull_is_answered_with_what_its_filter_wants(room: PullRoom) -> None:
    room.tag_codes = frozenset({3})
    room.remember(pull(1))
    assert room.known.answer_run([pull(2)], 0, room.peer) == (1, Outcome.ANSWERED)
    assert room.told() == [(2, FOUND, b"007")]
    assert room.read_on == [(0, 5, 8)]
    assert room.ways.pull_filtered == 1 and room.ways.pull_known == 0


def test_a_filter_that_wants_nothing_of_what_is_there_lets_the_consumer_go_on(
    room: PullRoom,
) -> None:
    room.tag_codes = frozenset({3})
    room.filtered = GetResult(GetStatus.NO_MATCHED_MESSAGE, 10, 0, 10)
    room.known._read_filtered = lambda plan: (room.filtered, [])
    room.remember(pull(1))
    assert room.known.answer_run([pull(2)], 0, room.peer) == (1, Outcome.ANSWERED)
    assert room.told() == [(2, ResponseCode.PULL_RETRY_IMMEDIATELY, b"")]
    assert room.read_on == [(0, 5, 10)] and room.missed_count == 1


def test_a_filtered_pull_of_nothing_or_of_old_messages_is_left(room: PullRoom) -> None:
    room.tag_codes = frozenset({3})
    room.filtered = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 10, 0, 10)
    room.remember(pull(1))
    assert room.known.answer_run([pull(2)], 0, room.peer) == (0, Outcome.GENERAL)
    room.runs.near = 8
    assert room.known.answer_run([pull(2)], 0, room.peer) == (0, Outcome.FAR)


def test_filtered_pulls_that_take_long_end_their_run(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = iter(range(100))
    monkeypatch.setattr(known_pulls, "monotonic_ms", lambda: next(now_ms))
    room.tag_codes = frozenset({3})
    room.remember(pull(1))
    assert room.known.answer_run([pull(2), pull(3)], 0, room.peer) == (1, Outcome.ANSWERED)


# Old messages.


def test_a_far_pull_writes_its_offset_when_it_comes_and_is_answered_in_its_turn(
    room: PullRoom,
) -> None:
    room.remember(pull(1))
    room.runs.near = 8
    room.known.commit_far(pull(2))
    assert room.committed == [("billing", "orders", 0, 5)]
    answered = room.known.answer_far(pull(2), room.peer)
    assert answered == (b"orders", 0, 5, 700)
    assert room.told() == [(2, FOUND, b"005006007008")]
    assert room.read_on == [(0, -1, 9)], "its offset was written already"


def test_a_far_pull_whose_messages_left_memory_is_left(room: PullRoom) -> None:
    room.remember(pull(1))
    assert room.known.answer_far(pull(2, 10), room.peer) is None
    room.table_changes()
    assert room.known.answer_far(pull(2), room.peer) is None
    room.known.commit_far(pull(2))
    assert room.committed == [] and room.told() == []


def test_a_far_pull_with_a_filter_is_answered_while_its_rows_are_in_memory(room: PullRoom) -> None:
    room.tag_codes = frozenset({3})
    room.remember(pull(1))
    assert room.known.answer_far(pull(2), room.peer) == (b"orders", 0, 5, 700)
    assert room.read_on == [(0, -1, 8)]
    room.store.warm_end = lambda *place: 0
    assert room.known.answer_far(pull(3), room.peer) is None
    assert [opaque for opaque, _, _ in room.told()] == [2]


# Held pulls.


def test_a_pull_at_the_end_of_its_queue_may_be_held(room: PullRoom) -> None:
    room.remember(pull(1))
    known = room.known.note_held(pull(2, 10))
    assert known is not None and known.hold_ms == 15_000
    assert room.read_on == [(0, 10, 10)] and room.missed_count == 1 and len(room.given) == 1


def test_a_pull_that_is_not_at_the_end_is_not_held(room: PullRoom) -> None:
    room.remember(pull(1))
    assert room.known.note_held(pull(2, 9)) is None
    assert room.known.note_held(pull(3, 11)) is None
    assert room.read_on == [] and room.missed_count == 0, "the general way notes it"


def test_a_pull_that_may_not_wait_is_not_held(room: PullRoom) -> None:
    room.sys_flag = FLAG_COMMIT
    room.remember(pull(1))
    assert room.known.note_held(pull(2, 10)) is None


def test_a_pull_with_a_filter_is_not_held(room: PullRoom) -> None:
    room.tag_codes = frozenset({3})
    room.remember(pull(1))
    assert room.known.note_held(pull(2, 10)) is None


def test_a_held_pull_is_answered_with_what_has_arrived(room: PullRoom) -> None:
    room.remember(pull(1))
    assert not room.known.answer_held(pull(2, 10), room.peer), "nothing has"
    room.runs.end = 12
    assert room.known.answer_held(pull(2, 10), room.peer)
    assert room.told() == [(2, FOUND, b"010011")]
    assert room.read_on == [(0, -1, 12)] and room.pulled == [(2, 6)]
    room.table_changes()
    assert not room.known.answer_held(pull(2, 10), room.peer)

"""The one body that hands out messages: what it notes, and what it answers."""

from __future__ import annotations

from typing import Any

import pytest

from contrail.broker.fast.pull_answers import COMMITTED, RECORD_BYTES_MAX, Parts
from contrail.broker.fast.pull_forms import PullForm
from contrail.broker.state.pull_plan import FLAG_SUSPEND
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.frames import FrameDecoder
from contrail.store import FAR, GetResult, GetStatus, Reach
from tests.unit.broker.fast.pull_room import PullRoom, pull


@pytest.fixture
def room() -> PullRoom:
    return PullRoom()


def learned(room: PullRoom) -> PullForm:
    room.learn(pull(1))
    form = room.forms.find(pull(1))
    assert form is not None
    return form


def given(room: PullRoom, form: PullForm, *, reach: Reach = Reach.NEAR, **changes: int) -> Any:
    """The messages handed out, and the answer."""
    numbers = {"opaque": 7, "queue_offset": 6, "asked": 32, "consumer_offset": 6} | changes
    parts: Parts = []
    run = room.answers.give(form, **numbers, reach=reach, now_ms=0, parts=parts)
    frames = FrameDecoder().feed(b"".join(parts))
    assert all(isinstance(frame, ReceivedResponse) for frame in frames)
    return run, frames


@pytest.mark.proves("broker.fast.one-body")
def test_messages_are_handed_out_noted_and_committed(room: PullRoom) -> None:
    run, [answer] = given(room, learned(room))
    assert run[2] == 4 and (answer.opaque, answer.code) == (7, 0)
    assert answer.body == b"006007008009"
    assert answer.fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "10",
        "minOffset": "0",
        "maxOffset": "10",
        "topicSysFlag": "5",
        "groupSysFlag": "6",
    }
    assert room.read_on == [(0, 6, 10)], "the offset that it carries, and where it goes on"
    assert (room.tally.calls, room.tally.count, room.tally.byte_count) == (1, 4, 12)


def test_a_pull_gets_what_it_asks_for_and_the_settings_allow(room: PullRoom) -> None:
    form = learned(room)
    for asked in (2, 0, 32):
        given(room, form, asked=asked)
    assert [count_max for _, count_max, _ in room.runs.reads] == [2, 1, 4]


def test_a_pull_that_commits_nothing_or_has_done_so_writes_no_offset(room: PullRoom) -> None:
    given(room, learned(room), consumer_offset=COMMITTED)
    room.table_changes()
    room.plan = room.plan._replace(sys_flag=FLAG_SUSPEND)
    given(room, learned(room))
    assert room.read_on == [(0, -1, 10), (0, -1, 10)]


def test_messages_that_cannot_be_handed_out_here_leave_no_trace(room: PullRoom) -> None:
    form = learned(room)
    assert given(room, form, queue_offset=10) == (None, [])
    room.runs.near = 8
    assert given(room, form) == (FAR, [])
    big = ([memoryview(b"")], RECORD_BYTES_MAX + 1, 1, 7, 0, 10, 0)
    form.reader = type("Big", (), {"read": lambda *asked: big})()
    assert given(room, form) == (None, [])
    assert room.read_on == [] and room.tally.calls == 0 and not room.given


def test_a_filter_that_wants_none_of_the_messages_lets_the_consumer_go_on(room: PullRoom) -> None:
    room.plan = room.plan._replace(tag_codes=frozenset({3}))
    room.filtered = GetResult(GetStatus.NO_MATCHED_MESSAGE, 10, 0, 10)
    _, [answer] = given(room, learned(room))
    assert (answer.code, answer.remark, answer.body) == (20, "NO_MATCHED_MESSAGE", b"")
    assert answer.fields["nextBeginOffset"] == "10"
    assert room.read_on == [(0, 6, 10)] and room.missed_count == 1 and room.tally.calls == 0


def test_operators_are_told_once_in_a_while_which_group_reads_what(room: PullRoom) -> None:
    form = learned(room)
    given(room, form)
    given(room, form)
    assert len(room.given) == 1
    room.forms.note_given_again()
    given(room, form)
    assert len(room.given) == 2


def test_a_held_pull_commits_its_offset_and_counts_as_missed(room: PullRoom) -> None:
    room.answers.note_held(learned(room), 10, 9)
    assert room.read_on == [(0, 9, 10)] and room.missed_count == 1 and len(room.given) == 1


def test_how_far_back_a_pull_reads_depends_on_the_line_of_pulls(room: PullRoom) -> None:
    assert room.answers.reach is Reach.WARM
    room.cold_reads.may_skip_line = False
    assert room.answers.reach is Reach.NEAR


def test_the_disk_is_told_once_for_each_block_and_again_after_its_epoch(room: PullRoom) -> None:
    form = learned(room)
    for _ in range(2):
        assert room.answers.note_far(form, 5, 12, 700) is Reach.WARM
    assert room.told_ahead == [(b"orders", 0, 5, 700)]
    room.cold_reads.told_epoch = 1
    room.cold_reads.note_direct = lambda byte_count: False
    assert room.answers.note_far(form, 5, 12, 700) is Reach.NEAR
    assert len(room.told_ahead) == 2


def test_a_hint_that_was_not_taken_is_given_again(room: PullRoom) -> None:
    form = learned(room)
    room.cold_reads.read_ahead = lambda answered: bool(room.told_ahead.append(answered))
    for _ in range(2):
        room.answers.note_far(form, 5, 12, 700)
    assert len(room.told_ahead) == 2

"""Templates of pulls: which reads they answer, how many are kept, and how they are learned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.fast import pull_templates
from contrail.broker.fast.pull_templates import PeerTemplates, PullTemplate, template_of
from contrail.errors import StoreError
from contrail.protocol.frames import PullFrame
from contrail.wire.connection import Connection
from tests.unit.broker.fast.pull_room import PullRoom, pull, pull_bytes

FOUND = 0


@pytest.fixture
def room() -> PullRoom:
    return PullRoom()


def learned(room: PullRoom, *frames: PullFrame) -> PeerTemplates:
    templates = PeerTemplates(room.pulls, room.peer, room.server)
    for frame in frames or (pull(1),):
        room.learn(frame)
        templates.learn([frame])
    return templates


def test_pulls_that_have_a_template_are_answered_as_they_are_read(room: PullRoom) -> None:
    templates = learned(room)
    data = pull_bytes(2, 6) + pull_bytes(3, 8)
    assert templates.take(data + b"\0\0") == len(data)
    assert room.told() == [(2, FOUND, b"006007008009"), (3, FOUND, b"008009")]
    assert room.read_on == [(0, 6, 10), (0, 8, 10)]
    assert room.ways.pull_template == 2 and room.ways.pull_known == 0


def test_a_pull_at_the_end_of_its_queue_is_held_as_the_kernel_would_hand_it_out(
    room: PullRoom,
) -> None:
    templates = learned(room)
    data = pull_bytes(2, 10)
    assert templates.take(data) == len(data)
    assert room.held.held == [pull(2, 10)]
    assert room.ways.pull_template_held == 1
    room.peer.in_flight_count = 2
    assert templates.take(pull_bytes(3, 10)) == 0, (
        "too many are unanswered: the general way says so"
    )


@pytest.mark.parametrize("what", ["tick", "long tick", "reset", "memory", "guard", "form"])
def test_nothing_is_taken_while_something_else_comes_first(room: PullRoom, what: str) -> None:
    templates = learned(room)
    if what == "tick":
        room.server.tick_is_due = True
    elif what == "long tick":
        room.server.took_s = 1.0
    elif what == "reset":
        room.offsets.pending_resets["billing"] = {}
    elif what == "memory":
        room.forms.log_fits_memory = False
    elif what == "guard":
        room.verdict = object()
    else:
        room.table_changes()
    assert templates.take(pull_bytes(2)) == 0
    assert room.told() == []


def test_queues_that_are_behind_the_log_are_hurried(room: PullRoom) -> None:
    hurried: list[bool] = []
    room.store.underived_bytes = 1
    room.deriving.hurry = lambda: hurried.append(True)
    learned(room).take(pull_bytes(2))
    assert hurried


def test_another_template_of_the_connection_comes_first_from_then_on(room: PullRoom) -> None:
    templates = learned(room, pull(1), pull(1, subVersion="7"))
    data = pull_bytes(2) + pull_bytes(3, subVersion="7")
    assert templates.take(data) == len(data)
    assert not templates.is_missing
    other = pull_bytes(4, subVersion="9")
    assert templates.take(other) == 0 and templates.is_missing


def test_old_messages_are_left_once_enough_was_handed_out(room: PullRoom) -> None:
    templates = learned(room)
    room.runs.near = 8
    room.cold_reads.note_direct = lambda byte_count: False
    first = pull_bytes(2, 5)
    assert templates.take(first + pull_bytes(3, 6)) == len(first)
    assert room.told_ahead == [(b"orders", 0, 5, 700)]


def test_no_more_than_a_turn_of_pulls_is_taken(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = learned(room)
    templates._request_count_max = 2
    room.server._loop = SimpleNamespace(call_soon=lambda tick: None)  # type: ignore[assignment]
    waiting: list[bytes] = []
    monkeypatch.setattr(Connection, "wait_again", lambda peer, data: waiting.append(data))
    data = b"".join(map(pull_bytes, range(2, 5)))
    assert templates.take(data) == len(data)
    assert waiting == [pull_bytes(4)] and room.ways.pull_template == 2


@pytest.mark.parametrize(("error", "left_count"), [(StoreError("torn"), 1), (TypeError("bug"), 0)])
def test_a_read_that_fails_is_left_and_pulls_before_it_are_answered(
    room: PullRoom, error: Exception, left_count: int
) -> None:
    templates = learned(room)
    read = room.runs.read

    def failing(queue_offset: int, *limits: Any) -> Any:
        if queue_offset == 9:
            raise error
        return read(queue_offset, *limits)

    room.runs.read = failing  # type: ignore[method-assign]
    first = pull_bytes(2, 5)
    assert templates.take(first + pull_bytes(3, 9)) == len(first)
    assert [opaque for opaque, _, _ in room.told()] == [2]
    assert len(templates._templates) == left_count, "after a bug the connection has none"


def test_pulls_with_a_filter_are_left(room: PullRoom) -> None:
    room.plan = room.plan._replace(tag_codes=frozenset({3}))
    templates = learned(room)
    assert templates.take(pull_bytes(2)) == 0 and not templates.is_missing


# Learning.


def test_a_template_has_the_code_and_count_of_its_pulls_and_makes_their_frames() -> None:
    template = PullTemplate(b"text", pull(1, 5), None)
    frame = pull(2, 9)
    numbers = (frame.opaque, frame.key, frame.queue_offset, frame.consumer_offset)
    assert template.frame(*numbers, frame.header) == frame
    assert (template.code, template.asked) == (11, 32)


@pytest.mark.parametrize("language", [b"J\\u0041VA", "é".encode(), b"J\x01"])
def test_a_header_with_anything_escaped_makes_no_template(language: bytes) -> None:
    frame = pull(1)
    assert template_of(frame) is not None
    assert template_of(frame._replace(header=frame.header.replace(b"JAVA", language))) is None


def test_a_number_that_is_there_twice_makes_no_template() -> None:
    frame = pull(1)
    twice = frame.header.replace(b'"flag":0', b'"flag":0,"opaque":1')
    assert template_of(frame._replace(header=twice)) is None


def test_a_pull_without_a_form_is_waited_for(room: PullRoom) -> None:
    templates = PeerTemplates(room.pulls, room.peer, room.server)
    templates.learn([pull(1)])
    assert templates.is_missing


def test_more_templates_than_are_kept_harm_no_connection(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_templates, "_TEMPLATES_MAX", 3)
    frames = [pull(7, subVersion=str(number)) for number in range(7)]
    templates = learned(room, *frames)
    # Forms are kept; a template that was not asked for lately is learned when its pull comes again.
    assert not templates.is_missing
    assert len(room.forms.by_key) == 7 and len(room.pulls.templates) <= 3


def test_a_connection_whose_pulls_are_never_alike_is_given_up(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_templates, "_TEMPLATES_PER_PEER_MAX", 2)
    monkeypatch.setattr(pull_templates, "_TRIES_MAX", 2)
    templates = learned(room, *(pull(7, subVersion=str(number)) for number in range(9)))
    assert len(templates._templates) == 2 and templates._tries == 0

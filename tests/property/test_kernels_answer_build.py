"""Answers to runs of sends: compiled equals pure, and they say what the general encoder says."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from contrail.protocol.command import ReceivedResponse, Response, encode_response
from contrail.protocol.frames import FrameDecoder
from tests.unit.kernels.material import i32, i64, outcome, twins

KERNEL, PURE = twins("answer_build")

EXTRA_FIELDS = b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"'
keys = st.text("0123456789ABCDEF", max_size=32).map(str.encode)
host_digits = st.sampled_from([b"7F00000100002A9F", b"00" * 20])


@st.composite
def sends(draw: st.DrawFn, opaques: Any = i32, queue_ids: Any = i32) -> tuple[Any, ...]:
    """A send as the frame kernel hands it out, with what an answer needs of it."""
    draft = (b"t", draw(queue_ids), b"", b"", 0, 0, 0, b"", 0, 0)
    flag = draw(st.sampled_from([0, 0, 2]))
    return (draw(opaques), flag, 1, 310, b"", b"", 4, False, -1, 0, draw(keys), draft)


@st.composite
def runs(draw: st.DrawFn, items: Any = None, offsets: Any = i64) -> tuple[Any, ...]:
    """The arguments of one call: a part of a list of sends, and where the whole run was stored."""
    sent = draw(st.lists(items if items is not None else sends(), max_size=5))
    first = draw(st.integers(0, len(sent)))
    last = draw(st.integers(first, len(sent)))
    run_start = draw(st.integers(0, 3))
    count = run_start + last - first
    queue_offsets = draw(st.lists(offsets, min_size=count, max_size=count))
    physical_offsets = draw(st.lists(offsets, min_size=count, max_size=count))
    digits = draw(host_digits)
    return (sent, first, last, queue_offsets, physical_offsets, run_start, digits, EXTRA_FIELDS)


_LEAST = (
    [(1, 0, 1, 310, b"", b"", 4, False, -1, 0, b"", (b"t", 0, b"", b"", 0, 0, 0, b"", 0, 0))],
    0,
    1,
    [-(1 << 63)],
    [0],
    0,
    b"00" * 20,
    EXTRA_FIELDS,
)


@example(_LEAST)
@given(runs())
def test_compiled_and_pure_build_the_same_answers(arguments: tuple[Any, ...]) -> None:
    compiled = outcome(KERNEL.send_answers, *arguments)
    assert compiled == outcome(PURE.send_answers, *arguments)
    assert compiled[0] == "returned"


# Numbers of more than 64 bits cannot come from a frame: both refuse them, each in its own words.
@given(runs())
def test_offsets_that_are_missing_are_no_answer(arguments: tuple[Any, ...]) -> None:
    items, first, last, queue_offsets, *rest = arguments
    is_answered = any(not item[1] & 2 for item in items[first:last])
    shorter = (items, first, last, queue_offsets[:0], *rest)
    compiled, pure = outcome(KERNEL.send_answers, *shorter), outcome(PURE.send_answers, *shorter)
    assert (compiled[0], pure[0]) == (("IndexError",) * 2 if is_answered else ("returned",) * 2)


@given(runs(items=sends(queue_ids=st.integers(0, 2**31 - 1)), offsets=st.integers(0, 2**63 - 1)))
def test_each_answer_is_what_the_general_encoder_writes(arguments: tuple[Any, ...]) -> None:
    items, first, last, queue_offsets, physical_offsets, run_start, digits, extra = arguments
    expected = b""
    for number, item in enumerate(items[first:last]):
        if item[1] & 2:
            continue
        place = run_start + number
        fields = {
            "msgId": digits.decode() + f"{physical_offsets[place]:016X}",
            "queueId": str(item[11][1]),
            "queueOffset": str(queue_offsets[place]),
            "transactionId": item[10].decode(),
            **json.loads(b"{" + extra + b"}"),
        }
        expected += b"".join(encode_response(Response(0, None, fields), item[0]))
    answers = KERNEL.send_answers(*arguments)
    assert answers == expected
    received = FrameDecoder().feed(answers) if answers else []
    assert all(isinstance(frame, ReceivedResponse) for frame in received)


@given(runs(), st.lists(st.sampled_from([None, None, "note"]), min_size=1, max_size=4))
def test_a_part_is_answered_as_if_it_were_alone_unless_it_has_a_note(
    arguments: tuple[Any, ...], notes: list[Any]
) -> None:
    items, first, last, *_, digits, extra = arguments
    offsets = list(range(len(items)))
    parts = [("peer", first, last, note) for note in notes]
    run = (items, parts, offsets, offsets, digits, extra)
    answers = KERNEL.part_answers(*run)
    assert answers == PURE.part_answers(*run)
    alone = KERNEL.send_answers(items, first, last, offsets, offsets, first, digits, extra)
    assert answers == [None if note else alone for note in notes]

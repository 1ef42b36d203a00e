"""Answers to stored sends: compiled equals pure, and both equal the general encoder."""

from __future__ import annotations

import json
from array import array
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from contrail.kernels import send_rows
from contrail.protocol.command import Response, encode_response
from tests.unit.kernels.material import i32, i64, outcome, twins

KERNEL, PURE = twins("answer_build")

EXTRA_FIELDS = b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"'
keys = st.text("0123456789ABCDEF", min_size=1, max_size=32).map(str.encode)
host_digits = st.sampled_from([b"7F00000100002A9F", b"00" * 20])

Send = tuple[int, int, int, int, int, bytes]
"""Opaque, one-way, queue id, queue offset, physical offset, unique key."""


def sends(numbers: Any = i64, queue_ids: Any = i32) -> st.SearchStrategy[list[Send]]:
    return st.lists(
        st.tuples(i32, st.sampled_from([0, 0, 2]), queue_ids, numbers, numbers, keys), max_size=5
    )


def rows_of(sent: list[Send]) -> tuple[int, array[int], bytearray]:
    """Rows of ``send_rows`` with the numbers that an answer needs."""
    rows, texts = array("q"), bytearray()
    for opaque, one_way, queue_id, queue_offset, physical_offset, key in sent:
        row = [0] * send_rows.ROW_NUMBERS
        row[send_rows.OPAQUE] = opaque
        row[send_rows.ONE_WAY] = one_way
        row[send_rows.QUEUE_ID] = queue_id
        row[send_rows.QUEUE_OFFSET] = queue_offset
        row[send_rows.PHYSICAL_OFFSET] = physical_offset
        row[send_rows.KEY_AT] = len(texts)
        texts += key
        row[send_rows.KEY_END] = len(texts)
        rows.extend(row)
    return len(sent), rows, texts


def encoded(opaque: int, places: list[int], rest: dict[str, str], digits: bytes) -> bytes:
    """The answer as the general encoder writes it."""
    ids = ",".join(digits.decode() + f"{place:016X}" for place in places)
    fields = {"msgId": ids, **rest, **json.loads(b"{" + EXTRA_FIELDS + b"}")}
    return b"".join(encode_response(Response(0, None, fields), opaque))


@example([(1, 0, 0, -(1 << 63), 0, b"A")], b"00" * 20)
@given(sends(), host_digits)
def test_compiled_and_pure_build_the_same_answers(sent: list[Send], digits: bytes) -> None:
    arguments = (*rows_of(sent), digits, EXTRA_FIELDS)
    compiled = outcome(KERNEL.row_answers, *arguments)
    assert compiled == outcome(PURE.row_answers, *arguments)
    singly = outcome(KERNEL.row_answers_singly, *arguments)
    assert singly == outcome(PURE.row_answers_singly, *arguments)
    assert compiled[0] == singly[0] == "returned" and b"".join(singly[1]) == compiled[1]


@given(sends(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)), host_digits)
def test_each_answer_is_what_the_general_encoder_writes(sent: list[Send], digits: bytes) -> None:
    expected = []
    for opaque, one_way, queue_id, queue_offset, place, key in sent:
        rest = {"queueId": str(queue_id), "queueOffset": str(queue_offset)}
        rest["transactionId"] = key.decode()
        expected.append(b"" if one_way else encoded(opaque, [place], rest, digits))
    assert KERNEL.row_answers_singly(*rows_of(sent), digits, EXTRA_FIELDS) == expected


@given(
    i32,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4),
    keys | st.just(b""),
    host_digits,
)
def test_one_answer_to_several_places_is_what_the_general_encoder_writes(
    opaque: int, queue_id: int, queue_offset: int, places: list[int], key: bytes, digits: bytes
) -> None:
    rest = {"queueId": str(queue_id), "queueOffset": str(queue_offset)}
    if key:
        rest["transactionId"] = key.decode()
    arguments = (opaque, queue_id, queue_offset, places, key, digits, EXTRA_FIELDS)
    assert KERNEL.batch_answer(*arguments) == PURE.batch_answer(*arguments)
    assert KERNEL.batch_answer(*arguments) == encoded(opaque, places, rest, digits)

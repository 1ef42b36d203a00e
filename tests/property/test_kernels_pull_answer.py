"""Answers to pulls: compiled equals pure, and they say what the general encoder says."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from contrail.protocol.command import Response, encode_response
from tests.unit.kernels.material import i32, twins

KERNEL, PURE = twins("pull_answer")

# The least number of 64 bits has no positive counterpart, and no queue has such an offset.
numbers = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-20, 2000)
record_bytes = st.integers(0, (16 << 20) - 1000)


@example((-(2**63) + 1,) * 4, (-(2**31), -(2**31)), 0)
@given(st.tuples(i32, numbers, numbers, numbers), st.tuples(i32, i32), record_bytes)
def test_the_answer_is_what_the_general_encoder_writes(
    told: tuple[int, int, int, int], flags: tuple[int, int], byte_count: int
) -> None:
    opaque, *offsets = told
    names = ("nextBeginOffset", "minOffset", "maxOffset", "topicSysFlag", "groupSysFlag")
    fields = {"suggestWhichBrokerId": "0"}
    fields |= {name: str(value) for name, value in zip(names, (*offsets, *flags), strict=True)}
    body = bytes(byte_count)
    encoded = encode_response(Response(0, "FOUND", fields, body), opaque)
    expected = b"".join(encoded)[: -byte_count or None]
    for found_answer in (KERNEL.found_answer, PURE.found_answer):
        assert found_answer(*told, *flags, byte_count) == expected

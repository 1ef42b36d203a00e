"""Answers to pulls: compiled equals pure, and both equal the general encoder."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contrail.broker.fast.pull_forms import laid_out
from contrail.broker.handlers.pull_answers import pull_response
from contrail.broker.state.pull_plan import PullPlan
from contrail.protocol.command import encode_response
from contrail.store import GetResult, GetStatus
from tests.unit.kernels.material import i32, twins

KERNEL, PURE = twins("pull_answer")

# The least number of 64 bits has no positive counterpart, and no queue has such an offset.
numbers = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-20, 2000)
record_bytes = st.integers(0, (16 << 20) - 1000)
statuses = st.sampled_from((GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE))
PLAN = PullPlan("billing", "orders", b"orders", 3, 0, 32, 0, None, None, 5, 6)


@example((-(2**63) + 1,) * 3, -(2**31), (-(2**31), -(2**31), 0), 0, GetStatus.FOUND)
@given(st.tuples(numbers, numbers, numbers), i32, st.tuples(i32, i32, i32), record_bytes, statuses)
def test_the_answer_is_what_the_general_encoder_writes(
    offsets: tuple[int, int, int],
    opaque: int,
    flags: tuple[int, int, int],
    byte_count: int,
    status: GetStatus,
) -> None:
    topic_flag, group_flag, broker_id = flags
    plan = PLAN._replace(
        topic_sys_flag=topic_flag, group_sys_flag=group_flag, suggested_broker_id=broker_id
    )
    result = GetResult(status, *offsets, [memoryview(bytes(byte_count))])
    encoded = encode_response(pull_response(plan, result), opaque)
    pieces = laid_out(plan, status)
    for fill_answer in (KERNEL.fill_answer, PURE.fill_answer):
        assert fill_answer(pieces, *offsets, opaque, byte_count) == encoded[0]


@pytest.mark.parametrize("count", [0, 4, 6])
def test_another_number_of_pieces_is_refused(count: int) -> None:
    for fill_answer in (KERNEL.fill_answer, PURE.fill_answer):
        with pytest.raises(ValueError, match=f"{count} pieces"):
            fill_answer((b"",) * count, 0, 0, 0, 0, 0)

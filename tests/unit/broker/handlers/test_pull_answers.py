"""Answers to pulls: codes by what was read, and the fields of all of them."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.pull_answers import pull_response
from contrail.broker.state.pull_plan import PullPlan
from contrail.protocol.codes import ResponseCode
from contrail.store import GetResult, GetStatus

PLAN = PullPlan("billing", "orders", b"orders", 3, 7, 32, 0, None, None, 5, 6)


def test_the_fields_are_those_of_the_plan_and_the_read() -> None:
    plan = PLAN._replace(suggested_broker_id=2)
    views = [memoryview(b"abc")]
    response = pull_response(plan, GetResult(GetStatus.FOUND, 8, 1, 9, views))
    assert (response.code, response.remark, response.body) == (0, "FOUND", views)
    assert response.fields == {
        "suggestWhichBrokerId": "2",
        "nextBeginOffset": "8",
        "minOffset": "1",
        "maxOffset": "9",
        "topicSysFlag": "5",
        "groupSysFlag": "6",
    }


@pytest.mark.parametrize("status", GetStatus)
def test_every_outcome_of_a_read_has_a_code(status: GetStatus) -> None:
    codes = {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
    assert pull_response(PLAN, GetResult(status, 8, 1, 9)).code in codes


@pytest.mark.parametrize(
    "status", [GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE]
)
def test_an_empty_queue_is_no_error_for_a_pull_from_its_beginning(status: GetStatus) -> None:
    moved = pull_response(PLAN, GetResult(status, 0, 0, 0))
    first = pull_response(PLAN._replace(queue_offset=0), GetResult(status, 0, 0, 0))
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert first.code == ResponseCode.PULL_NOT_FOUND


def test_a_problem_of_the_read_stands_in_the_remark() -> None:
    result = GetResult(GetStatus.MESSAGE_DAMAGED, 8, 1, 9)
    result.problem = "has another checksum"
    assert pull_response(PLAN, result).remark == "MESSAGE_DAMAGED: it has another checksum"

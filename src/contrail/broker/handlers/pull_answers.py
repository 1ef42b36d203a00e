"""Answers to pulls: which code a read leads to, and the fields of every answer.

This is the only place that names the fields: the fast path lays its answers out by encoding one of
these (``fast.pull_forms``).
"""

from __future__ import annotations

from contrail.broker.state.pull_plan import PullPlan
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Response
from contrail.store import GetResult, GetStatus

_OUTCOMES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    # A damaged message cannot be handed out; the reader goes on behind it.
    GetStatus.MESSAGE_DAMAGED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_REPLACED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    # The row's record is not there: the client waits until the scrubber derives the row again.
    GetStatus.QUEUE_ENTRY_DAMAGED: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


def pull_response(plan: PullPlan, result: GetResult) -> Response:
    """The answer to a pull that read ``result``."""
    remark = result.status.value
    if result.problem:
        remark = f"{remark}: it {result.problem}"
    return Response(_outcome(result, plan), remark, answer_fields(plan, result), result.ranges)


def answer_fields(plan: PullPlan, result: GetResult) -> dict[str, str]:
    """The fields of an answer; a client pulls next from ``suggestWhichBrokerId``."""
    return {
        "suggestWhichBrokerId": str(plan.suggested_broker_id),
        "nextBeginOffset": str(result.next_queue_offset),
        "minOffset": str(result.queue_offset_min),
        "maxOffset": str(result.queue_offset_max),
        "topicSysFlag": str(plan.topic_sys_flag),
        "groupSysFlag": str(plan.group_sys_flag),
    }


def _outcome(result: GetResult, plan: PullPlan) -> ResponseCode:
    """An empty or unknown queue is no error for a pull from its beginning."""
    if result.status in _EMPTY:
        moved = plan.queue_offset != 0
        return ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
    return _OUTCOMES[result.status]

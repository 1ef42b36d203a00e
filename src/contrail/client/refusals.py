"""A server's error as an exception that names the request, the server and the cause."""

from __future__ import annotations

from contrail.errors import BrokerRefused
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.failover_fields import IN_DOUBT_FIELD, LEADER_FIELD


def code_name(code: int) -> str:
    """A response code by its RocketMQ name."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"code {code}"


def refused(answer: ReceivedResponse, what: str, who: str) -> BrokerRefused:
    """The error for a request ``what``: the server ``who`` did not answer with success."""
    remark = answer.remark or "no reason given"
    is_in_doubt = answer.fields.get(IN_DOUBT_FIELD) == "true"
    verb = "did not confirm" if is_in_doubt else "refused"
    return BrokerRefused(
        f"{who} {verb} {what}: {code_name(answer.code)}: {remark}",
        code=answer.code,
        remark=answer.remark or "",
        is_in_doubt=is_in_doubt,
        leader=answer.fields.get(LEADER_FIELD, ""),
    )

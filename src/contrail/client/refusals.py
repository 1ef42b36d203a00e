"""A server's error as an exception that names what was asked, of whom, and the cause."""

from __future__ import annotations

from contrail.errors import BrokerRefused
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse


def code_name(code: int) -> str:
    """A response code as people know it."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"code {code}"


def refused(answer: ReceivedResponse, what: str, who: str) -> BrokerRefused:
    """``what`` was asked of ``who``, and the answer is no success."""
    remark = answer.remark or "no reason given"
    return BrokerRefused(
        f"{who} refused {what}: {code_name(answer.code)}: {remark}",
        code=answer.code,
        remark=answer.remark or "",
    )

"""Finding the leader of a test's failover group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from contrail.errors import CallFailed
from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing.caller import BlockingCaller

_LEADS = "LEADER"


class ReachedMember(Protocol):
    """The part of a ``LocalBroker`` that is needed to ask it."""

    address: str

    @property
    def caller(self) -> BlockingCaller: ...


M = TypeVar("M", bound=ReachedMember)


def leader_of(members: Sequence[M]) -> M | None:
    """The member that takes sends; None while there is none."""
    for member in members:
        status = member_status(member.caller, member)
        if status is not None and status.role == _LEADS:
            return member
    return None


def member_status(caller: BlockingCaller, member: ReachedMember) -> HaStatus | None:
    """A member's word on its group; None if it does not answer."""
    try:
        answer = caller.call(member.address, RequestCode.GET_BROKER_HA_STATUS, timeout_ms=3_000)
    except CallFailed:
        return None
    return decode_ha_status(answer.body) if answer.code == ResponseCode.SUCCESS else None

"""The gate of a member of a failover group: which handlers serve by the role of the moment.

The leader serves everything; consumer offsets and locks it changes only with a lease. Every other
member serves what changes neither log nor tables, tells nothing of what only the leader may know,
and refuses the rest by 14: it stores nothing, and names the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from contrail.broker.handlers.role_gate import served_by_followers, without_commit
from contrail.broker.handlers.unknown_here import nothing_made_up
from contrail.broker.state.roles import PULLS, SERVED_BY_SLAVES
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.failover_fields import LEADER_FIELD
from contrail.wire.peer import Answer, Handler, Peer

LEASED = frozenset(
    {
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
        RequestCode.CLONE_GROUP_OFFSET,
    }
)
"""Requests that a leader carries out only while no other member can be leader."""

NOT_IN_GROUPS = frozenset(
    {
        # Every member would have to follow what is in flight.
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.DECIDE_IN_FLIGHT,
        # A group in mode POP would stand still.
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    }
)
"""Requests that failover groups do not serve yet."""


class GroupStanding(Protocol):
    """A member's standing in its group at the moment."""

    @property
    def leads(self) -> bool:
        """Whether this member serves as leader."""
        ...

    def has_lease(self) -> bool:
        """Whether it leads and no other member can."""
        ...

    @property
    def leader_address(self) -> str:
        """The address of the member that leads; empty while none is known."""
        ...


def not_leading(standing: GroupStanding, group: str) -> RequestRejected:
    """The refusal of a request that the leader alone serves: nothing was stored."""
    leader = standing.leader_address
    refusal = RequestRejected(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"this broker does not lead failover group {group!r}: "
        + (f"the leader is {leader}" if leader else "no leader is known, ask again soon"),
    )
    if leader:
        refusal.fields = {LEADER_FIELD: leader}
    return refusal


def group_handlers(
    handlers: Mapping[int, Handler],
    standing: GroupStanding,
    group: str,
    *,
    knows_topic: Callable[[str], bool],
) -> dict[int, Handler]:
    """Handlers that ask for the role before each request."""

    def refusing(code: int) -> Handler:
        def handle(request: Request, peer: Peer) -> Answer:
            raise not_leading(standing, group)

        return handle

    of_follower = {
        code: handler if code in SERVED_BY_SLAVES else refusing(code)
        for code, handler in handlers.items()
    }
    of_follower = nothing_made_up(
        served_by_followers(of_follower),
        knows_topic=knows_topic,
        sends_readers_back=lambda: bool(standing.leader_address),
    )
    of_leader = {
        code: _not_yet(code) if code in NOT_IN_GROUPS else _leased(code, handler, standing, group)
        for code, handler in handlers.items()
    }
    return {code: _by_role(of_leader[code], of_follower[code], standing) for code in handlers}


def _not_yet(code: int) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        raise RequestRejected(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"failover groups do not serve {RequestCode(code).name} yet: use a broker outside of "
            "groups",
        )

    return handle


def _by_role(leading: Handler, following: Handler, standing: GroupStanding) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        return (leading if standing.leads else following)(request, peer)

    return handle


def _leased(code: int, handler: Handler, standing: GroupStanding, group: str) -> Handler:
    """A leader's handler; without a lease progress stays as it is, and messages are read on."""

    def of_progress(request: Request, peer: Peer) -> Answer:
        if not standing.has_lease():
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"this leader of failover group {group!r} cannot prove that it still leads: ask "
                "again soon",
            )
        return handler(request, peer)

    def of_pulls(request: Request, peer: Peer) -> Answer:
        return handler(request if standing.has_lease() else without_commit(request), peer)

    if code in LEASED:
        return of_progress
    return of_pulls if code in PULLS else handler

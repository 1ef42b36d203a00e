"""Where a client pulls from next, and a slave's answer about messages that it does not have.

With ``slaveReadEnable`` a master sends a group that reads far behind its memory to the broker id
that the group's settings name, and back when the group has caught up. A slave sends every other
reader back to its master while that is alive. A slave's ends prove nothing, so it never tells a
client that an offset has moved: with a live master the client asks there next, for the same offset,
without one the pull may be held.
"""

from __future__ import annotations

from typing import NamedTuple

from contrail.model.group import SubscriptionGroupConfig
from contrail.protocol.bodies.routes import MASTER_ID
from contrail.protocol.codes import ResponseCode


class Redirect(NamedTuple):
    """The code of an answer to a pull, and the broker id that the client should pull from next.

    ``stays``: from the offset it asked for, however this broker would go on.
    """

    code: int
    broker_id: int
    stays: bool = False


def redirect_at_master(
    code: int, *, is_slow: bool, group: SubscriptionGroupConfig, reads_enabled: bool
) -> Redirect:
    """``is_slow``: the messages lie so far behind that they have probably left memory."""
    if not reads_enabled:
        return Redirect(code, MASTER_ID)
    return Redirect(code, group.broker_id_when_slow if is_slow else group.broker_id)


def redirect_at_slave(
    code: int,
    *,
    is_slow: bool,
    group: SubscriptionGroupConfig,
    own_id: int,
    master_is_alive: bool,
) -> Redirect:
    """RocketMQ's rule while the master is alive; without it clients stay where they are."""
    if not master_is_alive:
        if code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND):
            return Redirect(ResponseCode.PULL_NOT_FOUND, own_id, stays=True)
        return Redirect(code, own_id)
    if is_slow:
        return Redirect(code, group.broker_id_when_slow)
    if code == ResponseCode.SUCCESS:
        return Redirect(code, MASTER_ID)
    return Redirect(ResponseCode.PULL_RETRY_IMMEDIATELY, MASTER_ID, stays=True)

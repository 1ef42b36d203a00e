"""The gate of a slave: its handlers without those that would change log or tables.

A slave has no fast way, so every request passes here. ``state.roles`` lists the requests it
serves; a request that both reads and writes is stripped of its writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contrail.broker.state.roles import (
    PULLS,
    SERVED_BY_PRIMES,
    SERVED_BY_SLAVES,
    refusal_of,
)
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from contrail.wire.peer import Answer, Handler, Peer

# Bit 0 of a pull's ``sysFlag``: it brings the group's progress along.
_COMMITS = 1
_SYS_FLAG = "sysFlag"
_ZERO_IF_UNKNOWN = "setZeroIfNotFound"


class SlaveGate:
    """The facts that a slave's gate asks for before each request."""

    def __init__(
        self,
        *,
        reads_enabled: Callable[[], bool],
        may_act: bool = False,
        is_prime: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_prime`` says whether this slave answers for its master now."""
        self.reads_enabled = reads_enabled
        self.may_act = may_act
        self.is_prime = is_prime


def slave_handlers(handlers: Mapping[int, Handler], gate: SlaveGate) -> dict[int, Handler]:
    """The handlers of a slave; those of other codes refuse, naming the role."""
    found = {
        code: handler if code in SERVED_BY_SLAVES else _refusing(code, gate)
        for code, handler in handlers.items()
    }
    for code in PULLS & found.keys():
        found[code] = _reading(code, found[code], gate)
    query = RequestCode.QUERY_CONSUMER_OFFSET
    if query in found:
        found[query] = _querying(found[query])
    if gate.may_act:
        for code in (SERVED_BY_PRIMES | {query}) & found.keys():
            found[code] = _while_prime(handlers[code], found[code], gate)
    return found


def _refusing(code: int, gate: SlaveGate) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        raise RequestRejected(
            refusal_of(code, may_act=gate.may_act),
            f"this broker is a slave and does not serve request {code}: ask the master of its name",
        )

    return handle


def _while_prime(handler: Handler, otherwise: Handler, gate: SlaveGate) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        return (handler if gate.is_prime() else otherwise)(request, peer)

    return handle


def _reading(code: int, handler: Handler, gate: SlaveGate) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        if not gate.reads_enabled():
            raise RequestRejected(
                refusal_of(code), "this broker is a slave, and slaveReadEnable is false there"
            )
        return handler(request if gate.is_prime() else without_commit(request), peer)

    return handle


def served_by_followers(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Handlers of a member that does not lead; those that read and write are stripped of writes."""
    found = dict(handlers)
    for code in PULLS & found.keys():
        found[code] = _stripped(found[code])
    query = RequestCode.QUERY_CONSUMER_OFFSET
    if query in found:
        found[query] = _querying(found[query])
    return found


def _stripped(handler: Handler) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        return handler(without_commit(request), peer)

    return handle


def without_commit(request: Request) -> Request:
    """A group's progress counts where its master is: the next copy of its table would undo it."""
    text = request.fields.get(_SYS_FLAG, "")
    if not text.isdecimal() or not int(text) & _COMMITS:
        return request
    fields = {**request.fields, _SYS_FLAG: str(int(text) & ~_COMMITS)}
    return request._replace(fields=fields)


def _querying(handler: Handler) -> Handler:
    """Unknown to a slave is not new: a made-up 0 would have the whole queue consumed again."""

    def handle(request: Request, peer: Peer) -> Answer:
        fields = {**request.fields, _ZERO_IF_UNKNOWN: "false"}
        try:
            return handler(request._replace(fields=fields), peer)
        except RequestRejected as refusal:
            if refusal.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{refusal.remark}, or its master knows more than this slave: ask the master",
            ) from refusal

    return handle

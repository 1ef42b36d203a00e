"""Data requests that name the broker's own topics and groups in their header are refused here.

Sends and pulls are not among them: ``SendAdmission`` and ``PullAdmission`` ask the same
``SystemNames``, once for all requests that are alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from contrail.broker.state.system_names import NAMED, SystemNames
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request
from contrail.wire.peer import Answer, Handler, Peer

ADMITTED = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONTRAIL_SINK_SEND,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
)
"""Codes whose topics and groups are looked at where sends and pulls are admitted."""


def guarded(handlers: Mapping[int, Handler], names: SystemNames) -> dict[int, Handler]:
    """The same handlers; those of data codes look at the names in a request's header first."""
    found = dict(handlers)
    for code, named in NAMED.items():
        if code in found and code not in ADMITTED and (named.topics or named.groups):
            found[code] = _guarded(code, found[code], names)
    return found


def _guarded(code: RequestCode, handler: Handler, names: SystemNames) -> Handler:
    def handle(request: Request, peer: Peer) -> Answer:
        names.require_named(code, request.fields, peer.address)
        return handler(request, peer)

    return handle

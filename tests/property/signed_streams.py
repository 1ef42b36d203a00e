"""Frames of request streams as several users sign them: rightly, wrongly, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contrail.access.state.rights import Entry, PolicyType
from contrail.access.state.users import UserStatus
from contrail.broker.app import Broker
from contrail.protocol.command import Request
from contrail.protocol.signing import SIGNATURE, Credentials, signed_fields
from tests.property.request_streams import PLAIN, frame

_ROOT = Credentials("root", "the-root-password")
_SOME = Credentials("some", "a secret with a space", security_token="a-token")
_GONE = Credentials("gone", "the-password-of-gone")
_NOBODY = Credentials("nobody", "any")
FIRST_USER = json.dumps({"username": _ROOT.access_key, "password": _ROOT.secret_key})

# By the request's number; most streams are those of a Super, so that every way is met.
_SIGNERS = (*[_ROOT] * 10, *[_SOME] * 4, _GONE, _NOBODY)


def make_users(broker: Broker) -> None:
    """The users that sign, beside the first one; none without access control."""
    gate = broker.access.gate
    if gate is None:
        return
    gate.table.create_user(_SOME.access_key, _SOME.secret_key)
    rows = [Entry.parse(one, ["All"], [], "Allow") for one in (f"Topic:{PLAIN}", "Group:*")]
    gate.table.merge(_SOME.access_key, {PolicyType.CUSTOM: rows})
    gate.table.create_user(_GONE.access_key, _GONE.secret_key, status=UserStatus.DISABLE)


def signed_frame(
    request: Request, pairs: Mapping[str, Any] | None = None, separators: Any = (",", ":")
) -> bytes:
    """As ``request_streams.frame``, signed by one of the users."""
    fields = request.fields if pairs is None else pairs.get("extFields")
    is_plain = isinstance(fields, dict) and all(isinstance(one, str) for one in fields.values())
    if not is_plain or request.opaque % 23 == 22:
        return frame(request, pairs, separators)
    signer = _SIGNERS[request.opaque // 3 % len(_SIGNERS)] if request.opaque > 20 else _ROOT
    signed = signed_fields(fields, request.body, signer)
    if request.opaque % 29 == 28:
        signed[SIGNATURE] = signed[SIGNATURE][::-1]
    if pairs is not None:
        return frame(request, {**pairs, "extFields": signed}, separators)
    return frame(request._replace(fields=signed), None, separators)

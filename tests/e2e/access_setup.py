"""A broker with access control, and sockets that sign for a user, rightly or not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contrail.protocol.codes import RequestCode
from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse, Request, encode_request
from contrail.protocol.signing import Credentials, signed_fields
from contrail.testing import LocalBroker
from tests.e2e.raw_client import RawClient

ADMIN = Credentials("root", "the-root-password")
INNER = Credentials("inner", "the-inner-password")
ACCESS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    # Tests that send wrong signatures must not keep others of this host from signing in.
    "contrailFailedLogInsPerSecond": "0",
    "initAuthenticationUser": json.dumps(
        {"username": ADMIN.access_key, "password": ADMIN.secret_key}
    ),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
    ),
}


class Signer(RawClient):
    """A connection whose requests are signed; without credentials they are not."""

    def __init__(self, broker: LocalBroker, credentials: Credentials | None) -> None:
        super().__init__(broker.port)
        self._credentials = credentials

    def frame(
        self,
        code: int,
        opaque: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        one_way: bool = False,
    ) -> bytes:
        """The bytes of one signed request."""
        given = dict(fields or {})
        if self._credentials is not None:
            given = signed_fields(given, body, self._credentials)
        return encode_request(Request(code, opaque, given, body, FLAG_ONE_WAY if one_way else 0))

    def ask(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> ReceivedResponse:
        self._opaque += 1
        self.send(self.frame(code, self._opaque, fields, body))
        return self.answer_to(self._opaque)

    # Requests of administrators.

    def make_user(self, credentials: Credentials, **more: str) -> ReceivedResponse:
        user = {"password": credentials.secret_key, **more}
        return self.ask(
            RequestCode.AUTH_CREATE_USER,
            {"username": credentials.access_key},
            json.dumps(user).encode(),
        )

    def change_user(self, name: str, **changes: str) -> ReceivedResponse:
        return self.ask(
            RequestCode.AUTH_UPDATE_USER, {"username": name}, json.dumps(changes).encode()
        )

    def grant(self, name: str, *entries: tuple[str, str], decision: str = "Allow") -> Any:
        """Give a user rights, each a resource and actions with commas."""
        rows = [
            {"resource": resource, "actions": actions.split(","), "decision": decision}
            for resource, actions in entries
        ]
        body = {"policies": [{"policyType": "Custom", "entries": rows}]}
        return self.ask(
            RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, json.dumps(body).encode()
        )

    def revoke(self, name: str, resource: str = "") -> ReceivedResponse:
        fields = {"subject": f"User:{name}"} | ({"resource": resource} if resource else {})
        return self.ask(RequestCode.AUTH_DELETE_ACL, fields)

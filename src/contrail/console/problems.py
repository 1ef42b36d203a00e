"""Errors as RFC 9457 problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    ClientError,
    ContrailError,
    DeadLettersClosed,
    NameServerUnreachable,
    NoBroker,
    NotOnCluster,
    RouteMissing,
)
from contrail.protocol.codes import ResponseCode

MEDIA_TYPE = "application/problem+json"
_MISSING = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})


class ProblemBody(msgspec.Struct, omit_defaults=True, rename={"kind": "type"}):
    """The members of a problem; ``needs_role`` tells which role a request needs."""

    title: str
    status: int
    detail: str
    kind: str = "about:blank"
    needs_role: str | None = None


@dataclass(slots=True)
class Problem(Exception):
    """A request that is answered with an error."""

    status: int
    detail: str
    needs_role: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.detail

    def response(self) -> Response:
        title = HTTPStatus(self.status).phrase
        body = ProblemBody(title, self.status, self.detail, needs_role=self.needs_role)
        # Names and remarks come from anywhere: half of a surrogate pair is no UTF-8.
        content = msgspec.json.encode(body)
        return Response(content, self.status, dict(self.headers), media_type=MEDIA_TYPE)


def problem_of(error: ContrailError) -> Problem:
    """The cluster's error as an answer: it is missing, unreachable, refused, or ill asked for."""
    if isinstance(error, DeadLettersClosed):
        return Problem(HTTPStatus.CONFLICT, str(error))
    if not isinstance(error, ClientError):
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
    if isinstance(error, NotOnCluster | RouteMissing | BrokerUnknown):
        return Problem(HTTPStatus.NOT_FOUND, str(error))
    if isinstance(error, BrokerRefused):
        missing = error.code in _MISSING
        return Problem(HTTPStatus.NOT_FOUND if missing else HTTPStatus.CONFLICT, str(error))
    if isinstance(error, NameServerUnreachable | NoBroker | CallFailed):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    return Problem(HTTPStatus.CONFLICT, str(error))

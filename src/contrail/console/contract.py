"""The routes of the API as one table, and the OpenAPI 3.1 document that is written from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from contrail import __version__
from contrail.console.calls import Call
from contrail.console.problems import MEDIA_TYPE, ProblemBody
from contrail.console.state.roles import Role

PREFIX = "/api/v1"
JSON = "application/json"
EVENTS = "text/event-stream"
_PLACES = re.compile(r"\{(\w+)\}")

Handle = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path. Without a ``role`` it needs no login; ``answer`` None is no body."""

    method: str
    path: str
    name: str
    summary: str
    handle: Handle
    answer: Any
    role: Role | None
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    status: HTTPStatus = HTTPStatus.OK
    media_type: str = JSON
    problems: tuple[HTTPStatus, ...] = ()

    @property
    def is_change(self) -> bool:
        return self.method != "GET"

    @property
    def places(self) -> list[str]:
        return _PLACES.findall(self.path)


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """The document; equal tables make equal documents."""
    types = _types(routes)
    shown, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(map(_key, types), shown, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, schemas, components)
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = operation
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Contrail console", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "session": {"type": "apiKey", "in": "cookie", "name": "contrail_session"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }
    # As a reader of JSON has it: msgspec's schemas hold tuples.
    return msgspec.json.decode(msgspec.json.encode(document), type=dict[str, Any])


def _types(routes: Iterable[Route]) -> list[Any]:
    found: dict[str, Any] = {_key(ProblemBody): ProblemBody}
    for route in routes:
        for one in (route.answer, route.query, route.body):
            if one is not None:
                found.setdefault(_key(one), one)
    return list(found.values())


def _key(one: Any) -> str:
    return f"{getattr(one, '__module__', '')} {one!r}"


def _operation(
    route: Route, schemas: Mapping[str, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": _responses(route, schemas),
        "security": [] if route.role is None else [{"session": []}, {"token": []}],
    }
    if route.role is not None:
        operation["x-role"] = route.role.word
    parameters = [
        {
            "name": place,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for place in route.places
    ]
    if route.query is not None:
        parameters += _query(components[route.query.__name__])
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {JSON: {"schema": schemas[_key(route.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _query(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": of}
        for name, of in schema["properties"].items()
    ]


def _responses(route: Route, schemas: Mapping[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": route.summary}
    if route.answer is not None:
        good["content"] = {route.media_type: {"schema": schemas[_key(route.answer)]}}
    statuses = set(route.problems) | {HTTPStatus.BAD_REQUEST, HTTPStatus.MISDIRECTED_REQUEST}
    if route.role is not None:
        statuses |= {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        # A broker refused, or a name is none that a cluster may have.
        statuses |= {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}
    if route.is_change:
        statuses.add(HTTPStatus.FORBIDDEN)
    if route.body is not None:
        statuses |= {HTTPStatus.UNSUPPORTED_MEDIA_TYPE, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
    problem = {"content": {MEDIA_TYPE: {"schema": schemas[_key(ProblemBody)]}}}
    return {
        str(int(route.status)): good,
        **{str(int(one)): {"description": one.phrase, **problem} for one in sorted(statuses)},
    }

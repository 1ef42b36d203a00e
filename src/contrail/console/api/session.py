"""Log in, log out, and see who is logged in."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Annotated

import msgspec
from starlette.responses import Response

from contrail.console.calls import Call, Parts
from contrail.console.contract import Route
from contrail.console.gate import COOKIE
from contrail.console.problems import Problem
from contrail.console.state.roles import Role
from contrail.console.state.sessions import IDLE_MS, LIFE_MS, Session

_TOKEN_BYTES = 32


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """A log-in."""

    account: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    password: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class SessionTold(msgspec.Struct):
    """An account that is logged in; ``csrf`` goes into the header of each change."""

    account: str
    role: str
    csrf: str | None
    idle_ms: int
    ends_ms: int | None


async def log_in(call: Call) -> Response:
    parts, login, now_ms = call.parts, call.body, call.parts.clock.now_ms()
    wait_ms = parts.throttle.wait_ms(login.account, call.address, now_ms)
    if wait_ms:
        call.note(login.account, "log-in", "", "throttled")
        seconds = str(-(-wait_ms // 1000))
        raise Problem(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"too many log-ins failed: try again in {seconds} s",
            headers={"Retry-After": seconds},
        )
    # Counted before the hash is made, so that attempts at once do not escape the count.
    parts.throttle.failed(login.account, call.address, now_ms)
    found = await parts.accounts.with_password(login.account, login.password)
    if found is None:
        call.note(login.account, "log-in", "", "refused")
        raise Problem(HTTPStatus.UNAUTHORIZED, "account or password is wrong")
    parts.throttle.succeeded(login.account, call.address)
    call.note(found.name, "log-in", "", "done")
    token, session = begin_session(parts, found.name, found.role)
    response = Response(msgspec.json.encode(_told(session)), media_type="application/json")
    set_cookie(response, parts, token)
    return response


def begin_session(parts: Parts, account: str, role: Role) -> tuple[str, Session]:
    token, csrf = secrets.token_urlsafe(_TOKEN_BYTES), secrets.token_urlsafe(_TOKEN_BYTES)
    return token, parts.sessions.begin(token, account, role, csrf, parts.clock.now_ms())


def set_cookie(response: Response, parts: Parts, token: str) -> None:
    response.set_cookie(
        COOKIE,
        token,
        max_age=LIFE_MS // 1000,
        httponly=True,
        samesite="strict",
        secure=parts.config.is_secure,
    )


async def who(call: Call) -> SessionTold:
    caller = call.known_caller
    if caller.session is None:
        return SessionTold(caller.account, caller.role.word, None, IDLE_MS, None)
    told = _told(caller.session)
    told.role = caller.role.word
    return told


async def log_out(call: Call) -> Response:
    caller = call.known_caller
    if caller.session_token is not None:
        call.note(caller.account, "log-out", "", "done")
        call.parts.sessions.end(caller.session_token)
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _told(session: Session) -> SessionTold:
    return SessionTold(session.account, session.role.word, session.csrf, IDLE_MS, session.ends_ms)


ROUTES = (
    Route(
        method="POST",
        path="/session",
        name="log_in",
        summary="Log in",
        handle=log_in,
        body=Login,
        answer=SessionTold,
        role=None,
        problems=(HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS),
    ),
    Route(
        method="GET",
        path="/session",
        name="who",
        summary="The account that is logged in",
        handle=who,
        answer=SessionTold,
        role=Role.VIEWER,
    ),
    Route(
        method="DELETE",
        path="/session",
        name="log_out",
        summary="Log out",
        handle=log_out,
        answer=None,
        status=HTTPStatus.NO_CONTENT,
        role=Role.VIEWER,
    ),
)

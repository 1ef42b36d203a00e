"""The checks before a request: its host, login and role, and for changes the page behind it.

| check | refuses | with |
| --- | --- | --- |
| host | a name that is none of the console's (DNS rebinding) | 421 |
| login | a request without a session or token, or with one that is over | 401 |
| role | an account whose role is too low | 403 |
| origin | a change of a session that another site sent, or without its token | 403 |
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from http import HTTPStatus

from starlette.requests import HTTPConnection, Request

from contrail.console.calls import Caller, Parts
from contrail.console.problems import Problem
from contrail.console.state.roles import Role

COOKIE = "contrail_session"
CSRF_HEADER = "x-contrail-csrf"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BEARER = "bearer "
_OWN_FETCH_SITES = frozenset({"same-origin", "none"})


def require_host(request: HTTPConnection, origins: Iterable[str]) -> None:
    host = request.headers.get("host", "")
    if host.lower() not in {origin.partition("://")[2].lower() for origin in origins}:
        raise Problem(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"this console does not answer for host {host[:255]!r}: use the address that it prints "
            "at its start, or name this one by --public-url",
        )


def caller_of(request: Request, parts: Parts) -> Caller | None:
    """The account of a bearer token or else of the session's cookie; None without either.

    A role that was changed counts from the next request on.
    """
    authorization = request.headers.get("authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        found = parts.accounts.with_token(authorization[len(_BEARER) :].strip())
        return None if found is None else Caller(found.name, found.role)
    token = request.cookies.get(COOKIE)
    session = None if token is None else parts.sessions.find(token, parts.clock.now_ms())
    if session is None:
        return None
    role = parts.accounts.role_of(session.account)
    if role is None:
        parts.sessions.end_of_account(session.account)
        return None
    return Caller(session.account, role, session, token)


def require_role(caller: Caller | None, role: Role) -> None:
    if caller is None:
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "log in first, or send the token of an account",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if caller.role < role:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"account {caller.account!r} is a {caller.role.word}: this needs a {role.word}",
            needs_role=role.word,
        )


def require_same_origin(request: Request, origins: Iterable[str]) -> None:
    """Refuse a request that a browser sent for another site's page."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if (origin is not None and origin not in origins) or (
        site is not None and site not in _OWN_FETCH_SITES
    ):
        raise Problem(HTTPStatus.FORBIDDEN, "the request comes from another site's page")


def require_csrf(request: Request, caller: Caller | None) -> None:
    """A change of a session carries its token, which no other site can read."""
    if caller is None or caller.session is None:
        return
    sent = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(sent.encode(), caller.session.csrf.encode()):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            f"the request lacks its session's token: send it as header {CSRF_HEADER}",
        )


def address_of(request: HTTPConnection, *, behind_proxy: bool) -> str:
    """The caller's address: of the connection, or as the proxy in front saw it."""
    forwarded = request.headers.get("x-forwarded-for", "") if behind_proxy else ""
    # The caller wrote all that stands further left.
    nearest = forwarded.rpartition(",")[2].strip()
    if nearest:
        return nearest
    return request.client.host if request.client is not None else "unknown"

"""The console put together: routes, the parts behind them, and the listening port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route as WebRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contrail.client.admin import Admin
from contrail.client.producer import Producer
from contrail.clock import Clock
from contrail.console.api import (
    audit,
    changes,
    dead_letters,
    groups,
    messages,
    operations,
    overview,
    session,
    topics,
    waiting,
)
from contrail.console.assets import Assets
from contrail.console.calls import Call, Parts
from contrail.console.config import ConsoleConfig
from contrail.console.contract import JSON, PREFIX, Route, openapi
from contrail.console.gate import (
    address_of,
    caller_of,
    require_csrf,
    require_host,
    require_role,
    require_same_origin,
)
from contrail.console.problems import Problem, problem_of
from contrail.console.services.accounts import FIRST_ACCOUNT, Accounts
from contrail.console.services.audit_log import AuditLine, AuditLog
from contrail.console.services.replays import Replays
from contrail.console.services.sampler import Sampler
from contrail.console.services.sending import GROUP, Sending
from contrail.console.state.plans import Plans
from contrail.console.state.roles import Role
from contrail.console.state.sessions import Sessions
from contrail.console.state.throttle import Throttle
from contrail.console.streams.events import Events
from contrail.console.streams.tail import Tails
from contrail.errors import ConfigError, ContrailError
from contrail.insight.changes.planned import Hands

_log = logging.getLogger(__name__)

BODY_BYTES_MAX = 64 << 10
# A place in a search names all queues of a topic: see api/messages.py.
_HEADER_BYTES_MAX = 64 << 10
_CONNECTIONS_MAX = 500
_KEEP_ALIVE_S = 75
_STOP_S = 3
_START_POLL_S = 0.005
# The first words of the page's addresses.
VIEWS = (
    "topics",
    "groups",
    "messages",
    "dlq",
    "timers",
    "transactions",
    "brokers",
    "replication",
    "clients",
    "doctor",
    "access",
    "audit",
    "licences",
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; font-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NOT_KEPT = (b"cache-control", b"no-store")
_NO_PAGE = """<!doctype html>
<html lang="en"><title>Contrail console</title>
<h1>Contrail console</h1>
<p>This installation has no page: a source tree builds one by <code>make setup</code>, and the
packages of releases have it. The API is there:
log in with <code>POST /api/v1/session</code>, or send the token that
<code>contrail console user token NAME</code> prints. Its description is
<a href="/api/v1/openapi.json">/api/v1/openapi.json</a>.</p>
</html>
"""


class Console:
    """One console over one cluster."""

    def __init__(
        self,
        config: ConsoleConfig,
        *,
        clock: Clock,
        admin: Admin,
        assets: Assets | None = None,
        **options: Any,
    ) -> None:
        """``options`` are those of clients, for the console's producer and clients of its own."""
        config.check()
        self._config = config
        self._clock = clock
        self._admin = admin
        self._events = Events()
        self._tails = Tails(self._events)
        self._sending = Sending(lambda: Producer(GROUP, admin.name_servers, **options))
        hands = Hands(admin, self._sending.send)
        self._assets = Assets() if assets is None else assets
        self.first_password: str | None = None
        self.port = config.port
        self.parts = Parts(
            config=config,
            admin=self._admin,
            sampler=Sampler(self._admin, clock, interval_s=config.sample_interval_s),
            accounts=Accounts(config.folder / "accounts.json"),
            sessions=Sessions(),
            throttle=Throttle(),
            audit=AuditLog(config.folder / "audit.jsonl"),
            clock=clock,
            hands=hands,
            plans=Plans(),
            replays=Replays(config.folder, hands, clock),
            admin_of=lambda name_server: Admin(name_server, **options),
        )

    # Life.

    async def start(self) -> None:
        """Listen, and take the first sample beside it.

        Raises:
            ConfigError: the port or the folder cannot be used.
        """
        config = self._config
        listening = _listen(config.listen_address, config.port)
        self.port = listening.getsockname()[1]
        try:
            self._server = _Server(self._settings())
            # Last of all that may fail: the password is told once.
            self._make_first_account()
        except BaseException:
            listening.close()
            raise
        await self._admin.start()
        await self.parts.sampler.start()
        self._serving = asyncio.create_task(self._server.serve([listening]), name="console-http")
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(_START_POLL_S)

    def _make_first_account(self) -> None:
        folder = self._config.folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.first_password = self.parts.accounts.create_first()
        except OSError as error:
            raise ConfigError(f"the folder {folder} cannot be used: {error}") from error

    async def stop(self) -> None:
        self._server.should_exit = True
        await asyncio.gather(self._serving, return_exceptions=True)
        await self.parts.replays.stop()
        await self._sending.stop()
        await self.parts.sampler.stop()
        await self._admin.close()

    def _settings(self) -> uvicorn.Config:
        config = self._config
        settings = uvicorn.Config(
            self.web(),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
            ssl_certfile=config.tls_certificate,
            ssl_keyfile=config.tls_key,
        )
        try:
            settings.load()
        except OSError as error:
            raise ConfigError(f"--tls-cert and --tls-key cannot be used: {error}") from error
        return settings

    @property
    def url(self) -> str:
        config = self._config
        if config.public_url is not None:
            return config.public_url.rstrip("/")
        host = (
            f"[{config.listen_address}]"
            if ":" in config.listen_address
            else (config.listen_address)
        )
        return f"{'https' if config.has_tls else 'http'}://{host}:{self.port}"

    def login_link(self) -> str:
        """A link that logs the first account in, once."""
        token = secrets.token_urlsafe(32)
        now_ms = self._clock.now_ms()
        self.parts.sessions.add_link(token, FIRST_ACCOUNT, Role.ADMIN, now_ms)
        return f"{self.url}/enter/{token}"

    # Requests.

    @property
    def _origins(self) -> frozenset[str]:
        return self._config.origins(self.port)

    @property
    def routes(self) -> tuple[Route, ...]:
        return (
            *session.ROUTES,
            *overview.ROUTES,
            *topics.ROUTES,
            *groups.ROUTES,
            *messages.ROUTES,
            *dead_letters.ROUTES,
            *waiting.ROUTES,
            *operations.ROUTES,
            *audit.ROUTES,
            *changes.ROUTES,
            *self._events.routes(),
            *self._tails.routes(),
        )

    def web(self) -> ASGIApp:
        """The application as the server runs it."""
        return _with_headers(self._app(), is_secure=self._config.is_secure)

    def _app(self) -> ASGIApp:
        document = msgspec.json.encode(openapi(self.routes))

        async def described(request: Request) -> Response:
            return Response(document, media_type=JSON)

        page = self._assets.page if self._assets.has_page else _no_page
        return Starlette(
            routes=[
                WebRoute("/", self._guarded(page)),
                WebRoute("/assets/{name}", self._guarded(self._assets.file)),
                WebRoute("/enter/{token}", self._guarded(self._enter)),
                WebRoute(f"{PREFIX}/openapi.json", self._guarded(described)),
                *(
                    WebRoute(PREFIX + one.path, self._endpoint(one), methods=[one.method])
                    for one in self.routes
                ),
                *(
                    WebRoute(path, self._guarded(page))
                    for one in VIEWS
                    for path in (f"/{one}", f"/{one}/{{rest:path}}")
                ),
            ],
            exception_handlers={
                Problem: _answer_problem,
                ContrailError: _answer_error,
                HTTPException: _answer_http,
                Exception: _answer_bug,
            },
        )

    def _guarded(self, answer: Any) -> Any:
        async def handle(request: Request) -> Response:
            require_host(request, self._origins)
            found: Response = await answer(request)
            return found

        return handle

    def _endpoint(self, route: Route) -> Any:
        encoder = msgspec.json.Encoder()

        async def handle(request: Request) -> Response:
            require_host(request, self._origins)
            caller = None if route.role is None else caller_of(request, self.parts)
            if route.is_change:
                require_same_origin(request, self._origins)
            if route.role is not None:
                require_role(caller, route.role)
            if route.is_change:
                require_csrf(request, caller)
            call = Call(
                parts=self.parts,
                request=request,
                caller=caller,
                address=address_of(request, behind_proxy=self._config.behind_proxy),
                path=request.path_params,
                query=_query(request, route),
                body=await _body(request, route),
            )
            found = await route.handle(call)
            if isinstance(found, Response):
                return found
            return Response(encoder.encode(found), route.status, media_type=JSON)

        return handle

    async def _enter(self, request: Request) -> Response:
        """Log in by a link that works once."""
        parts, now_ms = self.parts, self._clock.now_ms()
        link = parts.sessions.take_link(request.path_params["token"], now_ms)
        address = address_of(request, behind_proxy=self._config.behind_proxy)
        outcome = "refused" if link is None else "done"
        account = "" if link is None else link[0]
        parts.audit.write(AuditLine(now_ms, account, address, "log-in by link", "", outcome))
        if link is None:
            raise Problem(HTTPStatus.FORBIDDEN, "the link was used before, or is too old")
        token, _ = session.begin_session(parts, *link)
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        session.set_cookie(response, parts, token)
        return response


async def _no_page(request: Request) -> Response:
    return HTMLResponse(_NO_PAGE)


# Input.


def _query(request: Request, route: Route) -> Any:
    given = request.query_params
    if route.query is None:
        if given:
            raise Problem(HTTPStatus.BAD_REQUEST, "the request takes no query")
        return None
    if len(given.multi_items()) != len(given):
        raise Problem(HTTPStatus.BAD_REQUEST, "a name stands in the query twice")
    try:
        return msgspec.convert(dict(given), route.query, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, str(error)) from error


async def _body(request: Request, route: Route) -> Any:
    if route.body is None:
        return None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the body as {JSON}")
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > BODY_BYTES_MAX:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has up to {BODY_BYTES_MAX} bytes"
            )
    try:
        return msgspec.json.decode(data, type=route.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, str(error)) from error


# Errors.


async def _answer_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ContrailError)
    return problem_of(error).response()


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    return Problem(error.status_code, error.detail, headers=headers).response()


async def _answer_bug(request: Request, error: Exception) -> Response:
    # The server logs it with its traceback; the caller learns nothing of this program's inside.
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the console failed: see its log").response()


# The server.


class _Server(uvicorn.Server):
    """Leaves signals to the program that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(128)
    except (OSError, OverflowError) as error:
        listening.close()
        raise ConfigError(f"port {port} of {address} cannot be listened on: {error}") from error
    return listening


def _with_headers(app: ASGIApp, *, is_secure: bool) -> ASGIApp:
    """The same answers with the headers that keep a page from being used by another."""
    more = list(_HEADERS)
    if is_secure:
        more.append((b"strict-transport-security", b"max-age=31536000"))

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message["headers"]
                kept = [] if any(name == b"cache-control" for name, _ in given) else [_NOT_KEPT]
                message["headers"] = [*given, *more, *kept]
            await send(message)

        await app(scope, receive, sent)

    return wrapped

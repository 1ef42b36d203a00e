"""SQL92 expressions of many characters are compiled by a thread: 16,384 of them take 0.2 s.

A heartbeat, a check or a pull with more than ``LOOP_CHARACTERS_MAX`` characters that nobody uses
yet waits until they are compiled, and is carried out then. Heartbeats and goodbyes that its
connection sends meanwhile wait behind it, in order. Expressions in use are shared: the same text is
compiled once, for as long as a group, a held pull or one of the last pulls has it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol
from weakref import WeakValueDictionary

from contrail.broker.state.sql92 import Sql92Filter, compile_sql
from contrail.errors import FilterInvalid, RequestRejected
from contrail.model.subscription import SQL92, SubscriptionData
from contrail.protocol.bodies.connections import decode_client_check
from contrail.protocol.bodies.heartbeat import decode_heartbeat
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)

LOOP_CHARACTERS_MAX = 512
"""How many characters of new expressions a request may have that is carried out in its tick."""
WAITING_MAX = 256
WAITING_PER_PEER_MAX = 16
# Expressions that stand in the pulls themselves stay compiled: this many, with this many
# characters; together with the verdicts they remember some twenty megabytes.
_RECENT_MAX = 64
_RECENT_CHARACTERS_MAX = 64 * 512

Outcome = Sql92Filter | FilterInvalid
Reply = Callable[[Request, Peer, Callable[[], Answer]], None]


class Loop(Protocol):
    """The part of an event loop that is used here."""

    def call_soon_threadsafe(self, callback: Callable[..., None], *given: object) -> object: ...


class _Waiting:
    """A request whose expressions are being compiled, or that waits behind one of these."""

    def __init__(self, request: Request, peer: Peer, handler: Handler) -> None:
        self.request = request
        self.peer = peer
        self.handler = handler


class LongExpressions:
    """Compiles expressions. Belongs to the event loop's thread, but for the compiling."""

    def __init__(self) -> None:
        self._live: WeakValueDictionary[str, Sql92Filter] = WeakValueDictionary()
        self._recent: dict[str, Sql92Filter] = {}
        self._recent_characters = 0
        # Called when expressions are forgotten, so that caches of them forget them, too.
        self.on_forgotten: list[Callable[[], None]] = []
        # Of the request that is carried out now.
        self._invalid: Mapping[str, FilterInvalid] = {}
        self._lines: dict[object, deque[_Waiting]] = {}
        self._counts: Counter[Peer] = Counter()
        self._threads: Executor | None = None
        self._loop: Loop | None = None
        self._reply: Reply | None = None
        self._is_closed = False

    def begin(self, loop: Loop, reply: Reply) -> None:
        """Must be called before the first request."""
        self._loop = loop
        self._reply = reply

    def __len__(self) -> int:
        """How many requests wait."""
        return self._counts.total()

    # Compiling.

    def compile(self, text: str) -> Sql92Filter:
        """Compile ``text``, unless somebody uses it already; raises ``FilterInvalid``."""
        found = self._live.get(text)
        if found is None:
            problem = self._invalid.get(text)
            if problem is not None:
                raise problem.with_traceback(None)
            found = self._live[text] = compile_sql(text)
        return found

    def compile_for_pull(self, text: str) -> Sql92Filter:
        """The same, for an expression that no table keeps; the last ones stay compiled."""
        found = self.compile(text)
        if text not in self._recent:
            self._recent_characters += len(text)
            if len(self._recent) >= _RECENT_MAX or self._recent_characters > _RECENT_CHARACTERS_MAX:
                self._recent.clear()
                self._recent_characters = len(text)
                for forget in self.on_forgotten:
                    forget()
            self._recent[text] = found
        return found

    # Requests.

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers; those that compile expressions never compile long ones on the loop."""
        return {
            code: self._guard(handler, _EXPRESSIONS_OF[code], code in _IN_ORDER)
            if code in _EXPRESSIONS_OF
            else handler
            for code, handler in handlers.items()
        }

    def _guard(
        self, handler: Handler, expressions_of: Callable[[Request], list[str]], in_order: bool
    ) -> Handler:
        def handle(request: Request, peer: Peer) -> Answer:
            is_behind = in_order and peer in self._lines
            new = [] if is_behind else self._new(expressions_of(request))
            if not is_behind and not new:
                return handler(request, peer)
            waiting = _Waiting(request, peer, handler)
            self._hold(peer if in_order else waiting, waiting, new)
            return LATER

        return handle

    def _new(self, texts: list[str]) -> list[str]:
        """The expressions that must be compiled first; none if they are short."""
        new = [text for text in dict.fromkeys(texts) if text not in self._live]
        return new if sum(map(len, new)) > LOOP_CHARACTERS_MAX else []

    def _hold(self, key: object, waiting: _Waiting, new: list[str]) -> None:
        if self._is_closed:
            raise RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker stops")
        count = self._counts[waiting.peer]
        if len(self) >= WAITING_MAX or count >= WAITING_PER_PEER_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self)} requests wait for their SQL92 expressions to be compiled, {count} of "
                "this connection: ask again later",
            )
        self._counts[waiting.peer] += 1
        waiting.peer.in_flight_count += 1
        line = self._lines.setdefault(key, deque())
        line.append(waiting)
        if len(line) == 1:
            self._submit(key, new)

    def _submit(self, key: object, texts: Sequence[str]) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="expressions")
        self._threads.submit(self._compile_all, key, texts)

    def _compile_all(self, key: object, texts: Sequence[str]) -> None:
        """Runs on the thread."""
        outcomes = {text: _outcome(text) for text in texts}
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._compiled, key, outcomes)

    def _compiled(self, key: object, outcomes: Mapping[str, Outcome]) -> None:
        """Carry out the requests that waited for expressions, and those that wait behind them."""
        line = self._lines.get(key)
        if line is None:
            return
        invalid: dict[str, FilterInvalid] = {}
        for text, outcome in outcomes.items():
            if isinstance(outcome, Sql92Filter):
                self._live.setdefault(text, outcome)
            else:
                invalid[text] = outcome
        self._invalid = invalid
        try:
            self._carry_out(line.popleft())
        finally:
            self._invalid = {}
        while line:
            new = self._new(_EXPRESSIONS_OF[line[0].request.code](line[0].request))
            if new:
                self._submit(key, new)
                return
            self._carry_out(line.popleft())
        del self._lines[key]

    def _carry_out(self, waiting: _Waiting) -> None:
        request, peer = waiting.request, waiting.peer
        self._leave(peer)
        if not peer.is_closed:
            assert self._reply is not None, "begin comes first"
            self._reply(request, peer, lambda: waiting.handler(request, peer))

    def _leave(self, peer: Peer) -> None:
        peer.in_flight_count -= 1
        self._counts[peer] -= 1
        if not self._counts[peer]:
            del self._counts[peer]

    def close(self) -> None:
        """Stop, and refuse those that wait."""
        self._is_closed = True
        waiting = [one for line in self._lines.values() for one in line]
        self._lines.clear()
        for one in waiting:
            self._leave(one.peer)
            refusal = Response(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker stops")
            one.peer.reply(one.request, refusal)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _outcome(text: str) -> Outcome:
    try:
        return compile_sql(text)
    except FilterInvalid as error:
        return error.with_traceback(None)
    except Exception as error:
        # Requests that wait for it must not wait for ever.
        _log.exception("an SQL92 expression of %d characters was not compiled", len(text))
        return FilterInvalid(f"the expression cannot be compiled: {error!r}")


def _of_heartbeat(request: Request) -> list[str]:
    if not _may_have_sql(request.body):
        return []
    try:
        heartbeat = decode_heartbeat(request.body, now_ms=0)
    except RequestRejected:
        return []  # Its handler says why.
    return _texts(entry for data in heartbeat.consumers for entry in data.subscriptions)


def _of_check(request: Request) -> list[str]:
    if not _may_have_sql(request.body):
        return []
    try:
        subscription = decode_client_check(request.body).subscription
    except RequestRejected:
        return []  # Its handler says why.
    return [] if subscription is None else _texts([subscription])


def _of_pull(request: Request) -> list[str]:
    text = request.fields.get("subscription", "")
    is_sql = request.fields.get("expressionType") == SQL92
    return [text] if is_sql and len(text) > LOOP_CHARACTERS_MAX else []


def _of_goodbye(request: Request) -> list[str]:
    return []


def _may_have_sql(body: bytes) -> bool:
    return len(body) > LOOP_CHARACTERS_MAX and (SQL92.encode() in body or b"\\" in body)


def _texts(subscriptions: Iterable[SubscriptionData]) -> list[str]:
    return [entry.sub_string for entry in subscriptions if entry.expression_type == SQL92]


_EXPRESSIONS_OF: Mapping[int, Callable[[Request], list[str]]] = {
    RequestCode.HEART_BEAT: _of_heartbeat,
    RequestCode.UNREGISTER_CLIENT: _of_goodbye,
    RequestCode.CHECK_CLIENT_CONFIG: _of_check,
    RequestCode.PULL_MESSAGE: _of_pull,
    RequestCode.LITE_PULL_MESSAGE: _of_pull,
}
_IN_ORDER = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})

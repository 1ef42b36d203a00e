"""Handlers that do their work once, although messages may come more than once.

The promises, for as long as the store remembers (``ttl_ms``):

- A message whose handler ended well is not handled again; it is acknowledged at once.
- A handler that raised, or returned ``ConsumeResult.LATER``, runs again when the message comes
  again. A handler whose process died in the middle runs again, too: its work until then is done
  twice, unless ``when_unfinished="skip"`` chooses to have it done at most once.
- With ``in_transaction=True`` and a ``SqliteStore`` the handler works in the store's own file, and
  its work and the mark commit together: done exactly once, whenever the process dies.
- Copies of a message that come at the same time wait for each other within a process. Between
  processes that share a file they do so only with ``in_transaction``.

A handler that calls ``message.later()`` itself and returns counts as done: raise instead.

Of a plain function ``idempotent`` makes a plain function: consumers run it in their threads, and
the blocking ones hand it messages whose methods wait. Of an ``async`` function it makes an
``async`` one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from contrail.client.consumed_message import ConsumeResult
from contrail.client.idempotent_stores import (
    IdempotentStore,
    MemoryStore,
    PlainIdempotentStore,
    SqliteStore,
    Standing,
)
from contrail.client.message import ReceivedMessage
from contrail.errors import ClientError, ConfigError
from contrail.model.shown import shown

Key = str | Callable[[Any], str]
Handler = Callable[..., Any]
WhenUnfinished = Literal["run", "skip"]


def idempotent(
    *,
    key: Key | None = None,
    store: IdempotentStore | PlainIdempotentStore | None = None,
    when_unfinished: WhenUnfinished = "run",
    in_transaction: bool = False,
) -> Callable[[Handler], Handler]:
    """Make a handler of single messages, plain or ``async``, do its work once per key.

    ``key`` is the name of a property, or a function of the message; without a key, or without the
    property, it is the message id. The default store is in memory. With ``in_transaction`` the
    handler gets a second argument: the ``SqliteTransaction`` if it is ``async``, the
    ``sqlite3.Connection`` if it is plain.

    Raises:
        ConfigError: ``in_transaction`` without a ``SqliteStore``, an unknown ``when_unfinished``,
            or a store without the methods that this kind of handler needs.
    """
    if when_unfinished not in ("run", "skip"):
        raise ConfigError(f"when_unfinished={shown(when_unfinished)}: choose 'run' or 'skip'")
    chosen = store if store is not None else MemoryStore()
    if in_transaction and not isinstance(chosen, SqliteStore):
        raise ConfigError("in_transaction needs store=SqliteStore(path)")

    def decorate(handler: Handler) -> Handler:
        made = _of_async if _is_async(handler) else _of_plain
        handle = functools.wraps(handler)(
            made(handler, key, chosen, notes_begin=when_unfinished == "skip", whole=in_transaction)
        )
        # The signature is that of a handler, whatever more the wrapped function takes.
        del handle.__wrapped__
        return handle

    return decorate


def _is_async(handler: Handler) -> bool:
    # An object may have an ``async def __call__``.
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        type(handler).__call__
    )


def _key_of(message: Any, key: Key | None) -> str:
    if not isinstance(message, ReceivedMessage):
        raise ConfigError(
            f"an idempotent handler takes one message, not a {type(message).__name__}: register it "
            "with on_message, not on_messages"
        )
    if callable(key):
        return key(message)
    return (message.properties.get(key) if key else None) or message.message_id


class _Postponed(Exception):
    """Rolls a transaction back without an error for the consumer."""


# Coroutine functions.


def _of_async(
    handler: Handler, key: Key | None, store: Any, *, notes_begin: bool, whole: bool
) -> Any:
    if not isinstance(store, IdempotentStore):
        raise ConfigError(
            f"the store {shown(store)} is for plain handlers only: give it async methods "
            "standing, note "
            "and forget"
        )
    run: Runner = _Marked(handler, store, notes_begin)
    if whole:
        assert isinstance(store, SqliteStore)
        run = _InTransaction(handler, store)
    once = _Once(run, key)

    async def handle(message: Any) -> Any:
        return await once.handle(message)

    return handle


Runner = Callable[[str, Any], Awaitable[Any]]


class _Once:
    """Keeps copies of one message apart: one is handled, the others wait for it."""

    def __init__(self, run: Runner, key: Key | None) -> None:
        self._run = run
        self._key = key
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def handle(self, message: Any) -> Any:
        key = _key_of(message, self._key)
        while key in self._under_way:
            # However the other handler ended, the store knows; if it failed, this copy is handled.
            await asyncio.shield(self._under_way[key])
        ended = asyncio.get_running_loop().create_future()
        self._under_way[key] = ended
        try:
            return await self._run(key, message)
        finally:
            del self._under_way[key]
            ended.set_result(None)


class _Marked:
    """Runs a handler, then marks the key as done."""

    def __init__(self, handler: Handler, store: IdempotentStore, notes_begin: bool) -> None:
        self._handler = handler
        self._store = store
        # Only ``when_unfinished="skip"`` needs the note that a handler began, so only it pays for
        # one.
        self._notes_begin = notes_begin

    async def __call__(self, key: str, message: Any) -> Any:
        standing = await self._store.standing(key)
        if standing is Standing.DONE or (standing is Standing.BEGUN and self._notes_begin):
            return None
        if self._notes_begin:
            await self._store.note(key, Standing.BEGUN)
        try:
            result = await self._handler(message)
        except Exception:
            await self._forget_begin(key)
            raise
        if result is ConsumeResult.LATER:
            await self._forget_begin(key)
        else:
            await self._store.note(key, Standing.DONE)
        return result

    async def _forget_begin(self, key: str) -> None:
        if self._notes_begin:
            await self._store.forget(key)


class _InTransaction:
    """Runs a handler in a transaction of the store's file."""

    def __init__(self, handler: Handler, store: SqliteStore) -> None:
        self._handler = handler
        self._store = store

    async def __call__(self, key: str, message: Any) -> Any:
        try:
            async with self._store.transaction(key) as transaction:
                if transaction.is_done:
                    return None
                result = await self._handler(message, transaction)
                if result is ConsumeResult.LATER:
                    raise _Postponed
                return result
        except _Postponed:
            return ConsumeResult.LATER


# Plain functions: the same, in threads.


def _of_plain(
    handler: Handler, key: Key | None, store: Any, *, notes_begin: bool, whole: bool
) -> Any:
    if not isinstance(store, PlainIdempotentStore):
        raise ConfigError(
            f"the store {shown(store)} is for async handlers only: make the handler `async "
            "def`, or "
            "give the store plain methods standing_now, note_now and forget_now"
        )
    run: Callable[[str, Any], Any] = _PlainMarked(handler, store, notes_begin)
    if whole:
        assert isinstance(store, SqliteStore)
        run = _PlainTransaction(handler, store)
    once = _PlainOnce(run, key)

    def handle(message: Any) -> Any:
        return once.handle(message)

    return handle


class _PlainOnce:
    """Keeps copies of one message apart: one is handled, the others wait for it."""

    def __init__(self, run: Callable[[str, Any], Any], key: Key | None) -> None:
        self._run = run
        self._key = key
        self._under_way: dict[str, threading.Event] = {}

    def handle(self, message: Any) -> Any:
        key, ended = _key_of(message, self._key), threading.Event()
        # ``setdefault`` is atomic: of several concurrent threads one gets its own entry.
        while (first := self._under_way.setdefault(key, ended)) is not ended:
            first.wait()
        try:
            return self._run(key, message)
        finally:
            del self._under_way[key]
            ended.set()


class _PlainMarked:
    """Runs a handler, then marks the key as done."""

    def __init__(self, handler: Handler, store: PlainIdempotentStore, notes_begin: bool) -> None:
        self._handler = handler
        self._store = store
        self._notes_begin = notes_begin

    def __call__(self, key: str, message: Any) -> Any:
        standing = self._store.standing_now(key)
        if standing is Standing.DONE or (standing is Standing.BEGUN and self._notes_begin):
            return None
        if self._notes_begin:
            self._store.note_now(key, Standing.BEGUN)
        try:
            result = _returned(self._handler(message))
        except BaseException:
            # Also ``sys.exit()``: in a thread it only means that the handler failed.
            self._forget_begin(key)
            raise
        if result is ConsumeResult.LATER:
            self._forget_begin(key)
        else:
            self._store.note_now(key, Standing.DONE)
        return result

    def _forget_begin(self, key: str) -> None:
        if self._notes_begin:
            self._store.forget_now(key)


class _PlainTransaction:
    """Runs a handler in a transaction of the store's file."""

    def __init__(self, handler: Handler, store: SqliteStore) -> None:
        self._handler = handler
        self._store = store

    def __call__(self, key: str, message: Any) -> Any:
        try:
            with self._store.transaction_now(key) as connection:
                if connection is None:
                    return None
                result = _returned(self._handler(message, connection))
                if result is ConsumeResult.LATER:
                    raise _Postponed
                return result
        except _Postponed:
            return ConsumeResult.LATER


def _returned(result: Any) -> Any:
    """Raises ``ClientError`` for a coroutine, which would be marked as done before it began."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ClientError("an idempotent plain handler returned an awaitable: use `async def`")
    return result

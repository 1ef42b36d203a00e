"""Stores of handled keys for idempotent handlers: in memory, or in a SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from contrail.client.turns import Turns
from contrail.clock import Clock, SystemClock
from contrail.errors import ClientError

T = TypeVar("T")

DAY_MS = 24 * 3600 * 1000
# How many new keys come between two looks for expired ones.
_CLEANUP_EVERY = 1_000
_BUSY_TIMEOUT_S = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS contrail_handled (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    done INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID
"""
_PREPARE = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    _SCHEMA,
    "CREATE INDEX IF NOT EXISTS contrail_handled_at ON contrail_handled (at_ms)",
)


class Standing(Enum):
    """The state of a key in a store."""

    UNKNOWN = "UNKNOWN"
    # A handler began and its end is not noted: its process died, or still works on it.
    BEGUN = "BEGUN"
    DONE = "DONE"


@runtime_checkable
class IdempotentStore(Protocol):
    """The methods that ``idempotent`` needs of a store for ``async`` handlers."""

    async def standing(self, key: str) -> Standing: ...
    async def note(self, key: str, standing: Standing) -> None:
        """Returns once the note is as durable as the store makes it."""
        ...

    async def forget(self, key: str) -> None: ...


@runtime_checkable
class PlainIdempotentStore(Protocol):
    """The same methods for plain handlers, from any thread."""

    def standing_now(self, key: str) -> Standing: ...
    def note_now(self, key: str, standing: Standing) -> None: ...
    def forget_now(self, key: str) -> None: ...


class MemoryStore:
    """Remembers a bounded number of keys for ``ttl_ms``, until the process ends."""

    def __init__(
        self, *, limit: int = 100_000, ttl_ms: int = DAY_MS, clock: Clock | None = None
    ) -> None:
        self._limit = limit
        self._ttl_ms = ttl_ms
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        # Oldest first.
        self._noted: dict[str, tuple[Standing, int]] = {}

    def __len__(self) -> int:
        return len(self._noted)

    async def standing(self, key: str) -> Standing:
        return self.standing_now(key)

    async def note(self, key: str, standing: Standing) -> None:
        self.note_now(key, standing)

    async def forget(self, key: str) -> None:
        self.forget_now(key)

    # The same for plain handlers, from any thread.

    def standing_now(self, key: str) -> Standing:
        with self._lock:
            self._expire(self._clock.now_ms())
            return self._noted.get(key, (Standing.UNKNOWN, 0))[0]

    def note_now(self, key: str, standing: Standing) -> None:
        with self._lock:
            now_ms = self._clock.now_ms()
            self._noted.pop(key, None)
            self._noted[key] = (standing, now_ms)
            self._expire(now_ms)

    def forget_now(self, key: str) -> None:
        with self._lock:
            self._noted.pop(key, None)

    def _expire(self, now_ms: int) -> None:
        while self._noted:
            oldest = next(iter(self._noted))
            if len(self._noted) <= self._limit and self._noted[oldest][1] + self._ttl_ms > now_ms:
                return
            del self._noted[oldest]


class SqliteTransaction:
    """A transaction of the store's file: statements run through it commit with the mark."""

    def __init__(self, store: SqliteStore, is_done: bool) -> None:
        self._store = store
        # The message was handled before: do nothing.
        self.is_done = is_done

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run one statement on the store's thread; its rows, if it has any."""
        return await self.run(lambda connection: connection.execute(sql, parameters).fetchall())

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``work`` on the store's thread; it must not commit or roll back."""
        return await self._store._on_thread(work)


class SqliteStore:
    """Remembers in a SQLite file, which survives the process and the machine.

    A note is on the disk when ``note`` returns (WAL, ``synchronous=FULL``). The file may be one of
    your own: there is one table more, ``contrail_handled``. Groups that share a file need a
    ``scope`` each, or one group skips messages that the other handled.

    It is used in ``async with`` or with ``await store.aclose()`` where there is an event loop
    (SQLite then runs on a thread of its own), elsewhere in ``with`` or with ``close()``.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        scope: str = "",
        ttl_ms: int = 7 * DAY_MS,
        clock: Clock | None = None,
    ) -> None:
        self._path = str(path)
        self._scope = scope
        self._ttl_ms = ttl_ms
        self._clock = clock or SystemClock()
        # Starts when a coroutine first needs it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="contrail-idempotent")
        # Opened when it is first needed. The holder of the turn uses it, in any thread: a
        # transaction spans many calls.
        self._connection: sqlite3.Connection | None = None
        self._turns = Turns(f"the idempotent store {self._path}")
        self._is_closed = False
        self._noted_count = 0

    # For coroutines.

    async def aclose(self) -> None:
        """Close the file. It is sound without this, too."""
        await self._turns.take()
        if self._is_closed:
            self._turns.give()
            return
        closing = self._thread.submit(self._close)
        closing.add_done_callback(self._turns.give)
        await asyncio.wrap_future(closing)
        self._thread.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def standing(self, key: str) -> Standing:
        return await self._alone(lambda connection: self._read(connection, key))

    async def note(self, key: str, standing: Standing) -> None:
        await self._alone(lambda connection: self._write(connection, key, standing))

    async def forget(self, key: str) -> None:
        await self._alone(lambda connection: self._delete(connection, key))

    @asynccontextmanager
    async def transaction(self, key: str) -> AsyncIterator[SqliteTransaction]:
        """A transaction that changes the file and marks ``key`` as done: both happen, or neither.

        Other users of the store wait meanwhile, also in other processes.
        """
        await self._take_turn()
        try:
            found = await self._on_thread(lambda connection: self._begin(connection, key))
            yield SqliteTransaction(self, found is Standing.DONE)
            await self._on_thread(lambda connection: self._commit(connection, key, found))
        except BaseException:
            # Queued behind the thread's present work: only then may others use the connection.
            rolled_back = self._thread.submit(self._roll_back)
            rolled_back.add_done_callback(self._turns.give)
            await asyncio.shield(asyncio.wrap_future(rolled_back))
            raise
        self._turns.give()

    async def _take_turn(self) -> None:
        await self._turns.take()
        if self._is_closed:
            self._turns.give()
            raise self._closed()

    async def _alone(self, work: Callable[[sqlite3.Connection], T]) -> T:
        await self._take_turn()
        try:
            running = self._thread.submit(self._run, work)
        except BaseException:
            self._turns.give()
            raise
        # Not before the thread is done, even if this task is cancelled meanwhile.
        running.add_done_callback(self._turns.give)
        return await asyncio.wrap_future(running)

    async def _on_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(self._run, work))

    # For threads.

    def close(self) -> None:
        """Close the file. It is sound without this, too."""
        with self._turn_now():
            self._close()
        self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def standing_now(self, key: str) -> Standing:
        with self._turn_now():
            return self._run(lambda connection: self._read(connection, key))

    def note_now(self, key: str, standing: Standing) -> None:
        with self._turn_now():
            self._run(lambda connection: self._write(connection, key, standing))

    def forget_now(self, key: str) -> None:
        with self._turn_now():
            self._run(lambda connection: self._delete(connection, key))

    @contextmanager
    def transaction_now(self, key: str) -> Iterator[sqlite3.Connection | None]:
        """``transaction`` for threads: the connection, or None if ``key`` is done already."""
        with self._turn_now():
            try:
                found = self._run(lambda connection: self._begin(connection, key))
                yield None if found is Standing.DONE else self._connection
                self._run(lambda connection: self._commit(connection, key, found))
            except BaseException:
                self._roll_back()
                raise

    @contextmanager
    def _turn_now(self) -> Iterator[None]:
        self._turns.take_now()
        try:
            yield
        finally:
            self._turns.give()

    # Called by the holder of the turn.

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._is_closed:
            raise self._closed()
        if self._connection is None:
            self._connection = self._open()
        return work(self._connection)

    def _open(self) -> sqlite3.Connection:
        try:
            # No implicit transactions: each statement is one, unless we begin one.
            connection = sqlite3.connect(
                self._path,
                isolation_level=None,
                timeout=_BUSY_TIMEOUT_S,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            for statement in _PREPARE:
                connection.execute(statement)
        except sqlite3.Error as error:
            connection.close()
            raise self._unusable(error) from error
        return connection

    def _closed(self) -> ClientError:
        return ClientError(f"the idempotent store {self._path} is closed")

    def _unusable(self, error: sqlite3.Error) -> ClientError:
        return ClientError(f"the idempotent store {self._path} cannot be used: {error}")

    def _close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read(self, connection: sqlite3.Connection, key: str) -> Standing:
        row = connection.execute(
            "SELECT done FROM contrail_handled WHERE scope = ? AND key = ? AND at_ms > ?",
            (self._scope, key, self._clock.now_ms() - self._ttl_ms),
        ).fetchone()
        if row is None:
            return Standing.UNKNOWN
        return Standing.DONE if row[0] else Standing.BEGUN

    def _write(self, connection: sqlite3.Connection, key: str, standing: Standing) -> None:
        now_ms = self._clock.now_ms()
        connection.execute(
            "INSERT OR REPLACE INTO contrail_handled VALUES (?, ?, ?, ?)",
            (self._scope, key, standing is Standing.DONE, now_ms),
        )
        self._noted_count += 1
        if self._noted_count % _CLEANUP_EVERY == 1:
            sql = "DELETE FROM contrail_handled WHERE at_ms <= ? AND scope = ?"
            connection.execute(sql, (now_ms - self._ttl_ms, self._scope))

    def _delete(self, connection: sqlite3.Connection, key: str) -> None:
        sql = "DELETE FROM contrail_handled WHERE scope = ? AND key = ?"
        connection.execute(sql, (self._scope, key))

    def _begin(self, connection: sqlite3.Connection, key: str) -> Standing:
        connection.execute("BEGIN IMMEDIATE")
        return self._read(connection, key)

    def _commit(self, connection: sqlite3.Connection, key: str, found: Standing) -> None:
        if found is not Standing.DONE:
            self._write(connection, key, Standing.DONE)
        connection.execute("COMMIT")

    def _roll_back(self) -> None:
        # A commit that failed half-way may have ended the transaction by itself.
        if self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

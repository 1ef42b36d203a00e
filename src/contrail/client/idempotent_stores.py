"""Where idempotent handlers remember what they did: in memory, or in a SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

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
    """What a store knows of a key."""

    UNKNOWN = "UNKNOWN"
    # A handler began and nobody said how it ended: its process died, or still works on it.
    BEGUN = "BEGUN"
    DONE = "DONE"


class IdempotentStore(Protocol):
    """What ``idempotent`` needs of a store."""

    async def standing(self, key: str) -> Standing: ...
    async def note(self, key: str, standing: Standing) -> None:
        """Returns once it is as durable as the store makes things."""
        ...

    async def forget(self, key: str) -> None: ...


class MemoryStore:
    """Remembers so many keys for so long, and nothing after the process ended."""

    def __init__(
        self, *, limit: int = 100_000, ttl_ms: int = DAY_MS, clock: Clock | None = None
    ) -> None:
        self._limit = limit
        self._ttl_ms = ttl_ms
        self._clock = clock or SystemClock()
        # Oldest first.
        self._noted: dict[str, tuple[Standing, int]] = {}

    def __len__(self) -> int:
        return len(self._noted)

    async def standing(self, key: str) -> Standing:
        self._expire(self._clock.now_ms())
        return self._noted.get(key, (Standing.UNKNOWN, 0))[0]

    async def note(self, key: str, standing: Standing) -> None:
        now_ms = self._clock.now_ms()
        self._noted.pop(key, None)
        self._noted[key] = (standing, now_ms)
        self._expire(now_ms)

    async def forget(self, key: str) -> None:
        self._noted.pop(key, None)

    def _expire(self, now_ms: int) -> None:
        while self._noted:
            oldest = next(iter(self._noted))
            if len(self._noted) <= self._limit and self._noted[oldest][1] + self._ttl_ms > now_ms:
                return
            del self._noted[oldest]


class SqliteTransaction:
    """A transaction of the store's file: what is done through it commits with the mark."""

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

    What was noted is on the disk when ``note`` returns (WAL, ``synchronous=FULL``). The file may
    be one of your own: there is one table more, ``contrail_handled``. Groups that share a file
    need a ``scope`` each, or one skips what the other handled. SQLite runs on a thread of its own.
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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="contrail-idempotent")
        # Opened by the thread when it is first needed.
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._noted_count = 0
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def close(self) -> None:
        """Close the file. It is sound without this, too."""
        async with self._alone():
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def standing(self, key: str) -> Standing:
        async with self._alone():
            return await self._on_thread(lambda connection: self._read(connection, key))

    async def note(self, key: str, standing: Standing) -> None:
        async with self._alone():
            await self._on_thread(lambda connection: self._write(connection, key, standing))

    async def forget(self, key: str) -> None:
        sql = "DELETE FROM contrail_handled WHERE scope = ? AND key = ?"
        async with self._alone():
            await self._on_thread(lambda connection: connection.execute(sql, (self._scope, key)))

    @asynccontextmanager
    async def transaction(self, key: str) -> AsyncIterator[SqliteTransaction]:
        """Do something to the file and mark ``key`` as done: both happen, or neither.

        Other users of the store wait meanwhile, also in other processes.
        """
        async with self._alone():
            try:
                await self._on_thread(lambda connection: connection.execute("BEGIN IMMEDIATE"))
                found = await self._on_thread(lambda connection: self._read(connection, key))
                yield SqliteTransaction(self, found is Standing.DONE)
                if found is not Standing.DONE:
                    await self._on_thread(
                        lambda connection: self._write(connection, key, Standing.DONE)
                    )
                await self._on_thread(lambda connection: connection.execute("COMMIT"))
            except BaseException:
                # Handed to the thread before anyone else may use the connection.
                await asyncio.shield(self._submit(_roll_back))
                raise

    # On the store's thread.

    async def _on_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._submit(work)

    def _submit(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        if self._is_closed:
            raise ClientError(f"the idempotent store {self._path} is closed")
        return asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._open()
        return work(self._connection)

    def _open(self) -> sqlite3.Connection:
        try:
            # No implicit transactions: each statement is one, unless we begin one.
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=_BUSY_TIMEOUT_S)
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            for statement in _PREPARE:
                connection.execute(statement)
        except sqlite3.Error as error:
            connection.close()
            raise self._unusable(error) from error
        return connection

    def _unusable(self, error: sqlite3.Error) -> ClientError:
        return ClientError(f"the idempotent store {self._path} cannot be used: {error}")

    def _close(self) -> None:
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

    # One at a time: there is one connection, and a transaction spans many calls.

    def _alone(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:
            self._turn = (loop, asyncio.Lock())
        return self._turn[1]


def _roll_back(connection: sqlite3.Connection) -> None:
    # A commit that failed half-way may have ended the transaction by itself.
    if connection.in_transaction:
        connection.execute("ROLLBACK")

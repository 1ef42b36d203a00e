"""Writes the tables that changed to their files: copied on the loop, written by one thread.

To use: ``register`` each table once; ``services.stored_tables`` knows the broker's. Have
``flush_due`` called about once a second: it writes changed tables that are due by their interval;
during a write, the next follows it. ``flush_soon`` asks for all tables at the next turn of
the loop, for changes that should not wait; ``when_written`` for one table, and says how that
ended. ``close`` writes the rest, at the stop.

All that is asked for while a write runs shares the next. A write that fails is logged and tried
again when it is due; the old file stays readable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from contrail.errors import RequestRejected, StoreError
from contrail.protocol.codes import ResponseCode
from contrail.runtime.durable_changes import Done, WhenWritten
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state
from contrail.store import CONFIG_FOLDER

_log = logging.getLogger(__name__)

FLUSH_INTERVAL_MS = 5000
WAITING_COUNT_MAX = 100_000
"""How many changes may wait for one file."""

Render = Callable[[], bytes]
"""Turns a copy into a file's content; called on the writing thread."""


@dataclass(slots=True)
class _Table:
    name: str
    take_changed: Callable[[], bool]
    snapshot: Callable[[], Render]
    interval_ms: int
    sealed: bool
    mode: int | None
    on_written: Callable[[], None]
    on_failed: Callable[[Exception], None]
    changed: bool = False
    written_ms: int | None = None
    # Those that wait for the next write.
    waiting: list[Done] = field(default_factory=list)

    def is_due(self, now_ms: int) -> bool:
        if self.written_ms is None or now_ms < self.written_ms:
            return True
        return now_ms - self.written_ms >= self.interval_ms


class Keeping(Protocol):
    """Where a table is registered to be kept in a file."""

    def register(
        self,
        name: str,
        *,
        take_changed: Callable[[], bool],
        snapshot: Callable[[], Render],
        interval_ms: int = FLUSH_INTERVAL_MS,
    ) -> None: ...


class NoPersistence:
    """Keeps nothing: for a table that lasts only while a slave acts as master."""

    def register(
        self,
        name: str,
        *,
        take_changed: Callable[[], bool],
        snapshot: Callable[[], Render],
        interval_ms: int = FLUSH_INTERVAL_MS,
    ) -> None:
        """Nothing is written."""


class Persistence:
    """Owns the files of a broker's tables below ``<root>/config``."""

    def __init__(self, root: Path, files: FileSystem) -> None:
        self._folder = root / CONFIG_FOLDER
        self._files = files
        self._tables: list[_Table] = []
        self._writer = ThreadPoolExecutor(1, "persistence")
        self._running: asyncio.Task[None] | None = None
        self._hurried: set[str] = set()
        self._missed_ms: int | None = None
        self._closed = False
        # Files whose changes are durable without being written: in the log of a failover group.
        self.instead: dict[str, WhenWritten] = {}

    def register(
        self,
        name: str,
        *,
        take_changed: Callable[[], bool],
        snapshot: Callable[[], Render],
        interval_ms: int = FLUSH_INTERVAL_MS,
        sealed: bool = False,
        mode: int | None = None,
        on_written: Callable[[], None] = lambda: None,
        on_failed: Callable[[Exception], None] = lambda problem: None,
    ) -> None:
        """Keep the file ``name`` up to date.

        ``take_changed`` says whether the table changed since it was last asked. ``snapshot``
        copies the table on the loop's thread and returns the copy's renderer; ``on_written`` is
        called there once the copy is durable, ``on_failed`` if it could not be written.
        ``sealed`` is for files of our own shape; ``mode`` is for files that not everybody may read.
        """
        self._tables.append(
            _Table(name, take_changed, snapshot, interval_ms, sealed, mode, on_written, on_failed)
        )

    def forget(self, name: str) -> None:
        """Write the file ``name`` no more."""
        self._tables = [table for table in self._tables if table.name != name]

    @property
    def busy(self) -> bool:
        """Whether a write is running."""
        return self._running is not None

    def flush_due(self, now_ms: int) -> None:
        """Start writing changed tables that are due, now or when the running write has ended."""
        if self._running is not None:
            self._missed_ms = now_ms
        elif not self._closed:
            tables = [table for table in self._changed() if table.is_due(now_ms)]
            self._start(tables, now_ms)

    def flush_soon(self) -> None:
        """Start writing everything that changed, at the loop's next turn or after this write."""
        self._hurry(table.name for table in self._tables)

    def when_written(self, name: str, done: Done) -> None:
        """Write the table ``name`` at the loop's next turn or after this write; then call ``done``.

        Raises:
            RequestRejected: too many wait already, or the tables are closed.
        """
        if name in self.instead:
            self.instead[name](done)
            return
        table = next(table for table in self._tables if table.name == name)
        if self._closed:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"{name} is closed: the broker stops"
            )
        if len(table.waiting) >= WAITING_COUNT_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{WAITING_COUNT_MAX} changes wait for {name} to be written; try again later",
            )
        table.waiting.append(done)
        self._hurry((name,))

    def _hurry(self, names: Iterable[str]) -> None:
        if self._closed:
            return
        if not self._hurried and self._running is None:
            asyncio.get_running_loop().call_soon(self._flush_hurried)
        self._hurried.update(names)

    async def settled(self) -> None:
        """Return once nothing is being written that somebody waits for."""
        while self._running is not None or any(table.waiting for table in self._tables):
            if self._running is None:
                self._flush_hurried()
            if self._running is not None:
                await asyncio.shield(self._running)

    async def close(self) -> None:
        """Write everything that changed and stop; only the first call does something.

        Raises:
            StoreError: a file could not be written.
        """
        if self._closed:
            return
        self._closed = True
        if self._running is not None:
            await self._running
        try:
            failures = await self._write(self._changed())
        finally:
            self._writer.shutdown()
        if failures:
            raise StoreError(
                f"{', '.join(failures)} could not be written; see the log for the reason"
            )

    def _flush_hurried(self) -> None:
        if self._running is None and not self._closed:
            hurried, self._hurried = self._hurried, set()
            self._start([table for table in self._changed() if table.name in hurried], None)

    def _changed(self) -> list[_Table]:
        for table in self._tables:
            table.changed |= table.take_changed()
        return [table for table in self._tables if table.changed or table.waiting]

    def _start(self, tables: list[_Table], now_ms: int | None) -> None:
        if tables:
            for table in tables:
                table.written_ms = table.written_ms if now_ms is None else now_ms
            self._running = asyncio.get_running_loop().create_task(self._run(tables))

    async def _run(self, tables: list[_Table]) -> None:
        try:
            await self._write(tables)
        finally:
            self._running = None
            missed_ms, self._missed_ms = self._missed_ms, None
            if self._hurried:
                self._flush_hurried()
            elif missed_ms is not None:
                self.flush_due(missed_ms)

    async def _write(self, tables: list[_Table]) -> list[str]:
        """Write the tables as they are now; returns the names of those that failed."""
        loop = asyncio.get_running_loop()
        copies = []
        waiting: list[tuple[_Table, list[Done]]] = []
        for table in tables:
            table.changed = False
            copies.append((table, table.snapshot()))
            waiting.append((table, table.waiting))
            table.waiting = []
        failed = await loop.run_in_executor(self._writer, self._write_copies, copies)
        for table, dones in waiting:
            problem = failed.get(table.name)
            if problem is not None:
                # Perhaps only the last step failed: then the file holds the refused change.
                table.changed = True
                table.on_failed(problem)
            else:
                table.on_written()
            for done in dones:
                done(problem)
        return list(failed)

    def _write_copies(self, copies: list[tuple[_Table, Render]]) -> dict[str, Exception]:
        failed: dict[str, Exception] = {}
        for table, render in copies:
            try:
                path = self._folder / table.name
                write_state(self._files, path, render(), sealed=table.sealed, mode=table.mode)
            except (OSError, ValueError, StoreError) as error:
                _log.exception("%s could not be written; it will be tried again", table.name)
                failed[table.name] = error
        return failed

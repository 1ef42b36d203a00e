"""Writes the tables that changed to their files: copied on the loop, written by one thread.

How it is used. ``register`` each table once; ``services.stored_tables`` knows the usual ones. Have
``flush_due`` called about once a second: it writes what changed and is due by its interval; while
a write runs, the next follows it. ``flush_soon`` asks for everything at the next turn of
the loop, for changes that should not wait. ``close`` writes what is left, at the stop.

A write that fails is logged and tried again when it is due; the old file stays readable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from contrail.errors import StoreError
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state
from contrail.store.config_files import CONFIG_FOLDER

_log = logging.getLogger(__name__)

FLUSH_INTERVAL_MS = 5000

Render = Callable[[], bytes]
"""Turns a copy into a file's content; called on the writing thread."""


@dataclass(slots=True)
class _Table:
    name: str
    take_changed: Callable[[], bool]
    snapshot: Callable[[], Render]
    interval_ms: int
    sealed: bool
    on_written: Callable[[], None]
    changed: bool = False
    written_ms: int | None = None

    def is_due(self, now_ms: int) -> bool:
        if self.written_ms is None or now_ms < self.written_ms:
            return True
        return now_ms - self.written_ms >= self.interval_ms


class Persistence:
    """Owns the files of a broker's tables below ``<root>/config``."""

    def __init__(self, root: Path, files: FileSystem) -> None:
        self._folder = root / CONFIG_FOLDER
        self._files = files
        self._tables: list[_Table] = []
        self._writer = ThreadPoolExecutor(1, "persistence")
        self._running: asyncio.Task[None] | None = None
        self._wanted_soon = False
        self._missed_ms: int | None = None
        self._closed = False

    def register(
        self,
        name: str,
        *,
        take_changed: Callable[[], bool],
        snapshot: Callable[[], Render],
        interval_ms: int = FLUSH_INTERVAL_MS,
        sealed: bool = False,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the file ``name`` up to date.

        ``take_changed`` says whether the table changed since it was last asked. ``snapshot``
        copies the table on the loop's thread and returns what renders the copy; ``on_written`` is
        called there once the copy is durable. ``sealed`` is for files of our own shape.
        """
        self._tables.append(_Table(name, take_changed, snapshot, interval_ms, sealed, on_written))

    @property
    def busy(self) -> bool:
        """Whether a write is running."""
        return self._running is not None

    def flush_due(self, now_ms: int) -> None:
        """Start writing what changed and is due, at once or when the running write has ended."""
        if self._running is not None:
            self._missed_ms = now_ms
        elif not self._closed:
            tables = [table for table in self._changed() if table.is_due(now_ms)]
            self._start(tables, now_ms)

    def flush_soon(self) -> None:
        """Start writing everything that changed, at the loop's next turn or after this write."""
        if not self._wanted_soon and not self._closed:
            self._wanted_soon = True
            asyncio.get_running_loop().call_soon(self._flush_wanted)

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

    def _flush_wanted(self) -> None:
        if self._running is None and not self._closed:
            self._wanted_soon = False
            self._start(self._changed(), None)

    def _changed(self) -> list[_Table]:
        for table in self._tables:
            table.changed |= table.take_changed()
        return [table for table in self._tables if table.changed]

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
            if self._wanted_soon:
                self._flush_wanted()
            elif missed_ms is not None:
                self.flush_due(missed_ms)

    async def _write(self, tables: list[_Table]) -> list[str]:
        """Write the tables as they are now; returns the names of those that failed."""
        loop = asyncio.get_running_loop()
        copies = []
        for table in tables:
            table.changed = False
            copies.append((table, table.snapshot()))
        failed = await loop.run_in_executor(self._writer, self._write_copies, copies)
        for table, _ in copies:
            if table in failed:
                table.changed = True
            else:
                table.on_written()
        return [table.name for table in failed]

    def _write_copies(self, copies: list[tuple[_Table, Render]]) -> list[_Table]:
        failed = []
        for table, render in copies:
            try:
                path = self._folder / table.name
                write_state(self._files, path, render(), sealed=table.sealed)
            except (OSError, ValueError, StoreError):
                _log.exception("%s could not be written; it will be tried again", table.name)
                failed.append(table)
        return failed

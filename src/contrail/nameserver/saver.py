"""Writes a small state file in a worker thread, so that a slow disk does not delay answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state

Done = Callable[[OSError | None], None]
"""Called once the document, or a newer one, is durable; with what went wrong if it is not."""


class Saver(Protocol):
    """Takes whole documents to be made durable."""

    def save(self, document: bytes, done: Done) -> None: ...


class FileSaver:
    """Saves to one file. Of the documents that wait for the writer only the newest is written."""

    def __init__(self, path: Path, files: FileSystem | None = None) -> None:
        self._path = path
        self._files = files or FileSystem()
        self._newest: bytes | None = None
        self._waiting: list[Done] = []
        self._task: asyncio.Task[None] | None = None

    def save(self, document: bytes, done: Done) -> None:
        """Call on the event loop; ``done`` is called there too."""
        self._newest = document
        self._waiting.append(done)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    async def drain(self) -> None:
        """Return once everything that was handed in is written or has failed."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _write_all(self) -> None:
        try:
            while self._newest is not None:
                document, waiting = self._newest, self._waiting
                self._newest, self._waiting = None, []
                problem = await asyncio.to_thread(self._write, document)
                for done in waiting:
                    done(problem)
        finally:
            self._task = None

    def _write(self, document: bytes) -> OSError | None:
        try:
            write_state(self._files, self._path, document, sealed=False)
        except OSError as error:
            return error
        return None

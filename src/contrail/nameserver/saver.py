"""Writes a small state file in a worker thread, so that a slow disk does not delay answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from contrail.model.fastjson import DOCUMENT_BYTES_MAX
from contrail.runtime.durable_changes import Done
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state

_log = logging.getLogger(__name__)


class FileSaver:
    """Saves one document to one file; callers that ask while a write runs share the next write."""

    def __init__(
        self, path: Path, render: Callable[[], bytes], files: FileSystem | None = None
    ) -> None:
        """``render`` is called on the event loop when a write begins."""
        self._path = path
        self._render = render
        self._files = files or FileSystem()
        self._waiting: list[Done] = []
        self._task: asyncio.Task[None] | None = None
        self._has_failed = False

    def when_written(self, done: Done) -> None:
        """Call on the event loop; ``done`` is called there too, once the document is durable."""
        self._waiting.append(done)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    async def drain(self) -> None:
        """Return once every requested write has ended or failed.

        If the last write failed, one more is tried: perhaps only its last step failed, and the file
        holds a change that was refused.
        """
        if self._task is not None:
            await asyncio.shield(self._task)
        if self._has_failed:
            await asyncio.to_thread(self._write, self._render())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                document = self._render()
                waiting, self._waiting = self._waiting, []
                problem = await asyncio.to_thread(self._write, document)
                self._has_failed = problem is not None
                if problem is not None:
                    _log.error("%s could not be written: %s", self._path, problem)
                for done in waiting:
                    done(problem)
        finally:
            self._task = None

    def _write(self, document: bytes) -> Exception | None:
        if len(document) > DOCUMENT_BYTES_MAX:
            return ValueError(
                f"it would have {len(document)} bytes, its reader accepts {DOCUMENT_BYTES_MAX}"
            )
        try:
            write_state(self._files, self._path, document, sealed=False)
        except OSError as error:
            return error
        return None

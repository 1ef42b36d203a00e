"""The common part of consume queues and batch queues: rows in files, a mark, a tail in memory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from contrail.kernels.send_dispatch import RowTail
from contrail.runtime.files import FileSystem
from contrail.store.disk.handles import FileHandles, UnsyncedPaths
from contrail.store.disk.row_files import RowFiles

# More unwritten rows than this are written by ``put`` itself.
PENDING_BYTES_MAX = 8192
_log = logging.getLogger(__name__)


class QueueMark(NamedTuple):
    """A queue's end on disk: its next offset, and the physical end of its last record."""

    queue_offset_min: int
    queue_offset_max: int
    physical_end: int


class RowQueue(RowTail):
    """The rows of one queue, appended in log order. Belongs to one thread, but for ``sync``."""

    __slots__ = (
        "_files",
        "_mark",
        "_rows",
        "_unsynced",
        "_write_at_bytes",
        "queue_offset_min",
    )

    queue_offset_min: int
    _mark: QueueMark

    def __init__(
        self,
        folder: Path,
        file_bytes: int,
        *,
        files: FileSystem,
        handles: FileHandles,
        unsynced: UnsyncedPaths | None,
    ) -> None:
        super().__init__()
        self._files = files
        self._unsynced = unsynced or UnsyncedPaths()
        self._rows = RowFiles(
            folder, file_bytes, files=files, handles=handles, unsynced=self._unsynced
        )
        self.tail = self._rows.tail
        self._become_empty()

    @property
    def folder(self) -> Path:
        return self._rows.folder

    @property
    def row_files(self) -> RowFiles:
        """The files of the rows; the same object for the lifetime of the queue."""
        return self._rows

    @property
    def pending_bytes(self) -> int:
        return self._rows.pending_bytes

    def reset(self) -> None:
        """Delete every file; the queue is empty, as a new one."""
        self._rows.remove_all()
        self._become_empty()

    def write_pending(self) -> None:
        """Write all rows to the files. On an error the other rows stay pending."""
        self._rows.write_pending()
        self._write_at_bytes = PENDING_BYTES_MAX
        self._note_mark()

    def cool(self) -> None:
        """Give back the memory kept for readers near the end; for idle queues."""
        self._rows.cool()

    def sync(self) -> None:
        """Make written rows durable. Any thread may call it, after ``write_pending``."""
        self._unsynced.sync(self._files, self._rows.folder)

    def mark(self) -> QueueMark:
        """The end of the rows in the files, which the next start checks."""
        return self._mark

    def mark_to_come(self) -> QueueMark:
        """The mark of the files once all rows are written."""
        return QueueMark(self.queue_offset_min, self.queue_offset_max, self.physical_end)

    def _appended(self, queue_offset_max: int, physical_end: int) -> None:
        """Note the new ends after rows were added, and write if many wait."""
        self.queue_offset_max = queue_offset_max
        self.physical_end = physical_end
        self.write_if_many()

    def write_if_many(self) -> None:
        """Write the rows if many wait in memory."""
        if self._rows.pending_bytes >= self._write_at_bytes:
            self._write_early()
        self.tail_bytes_max = len(self.tail) + self._write_at_bytes - self._rows.pending_bytes

    def _become_empty(self) -> None:
        self.queue_offset_min = self.queue_offset_max = self.physical_end = 0
        self._mark = QueueMark(0, 0, 0)
        self._write_at_bytes = self.tail_bytes_max = PENDING_BYTES_MAX

    def _note_mark(self) -> None:
        self._mark = self.mark_to_come()

    def _write_early(self) -> None:
        try:
            self.write_pending()
        except OSError as error:
            # The rows stay pending, and the regular ``write_pending`` meets the same error where
            # the caller can act on it; raised here, it would lose the arrival.
            _log.debug("%s: rows stay in memory: %s", self.folder, error)
            self._write_at_bytes = self._rows.pending_bytes + PENDING_BYTES_MAX

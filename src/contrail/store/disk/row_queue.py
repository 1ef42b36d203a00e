"""What queues of messages and queues of batches share: rows in files, a mark, a tail in memory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from contrail.kernels.plain_rows import RowTail
from contrail.runtime.files import FileSystem
from contrail.store.disk.handles import FileHandles, UnsyncedPaths
from contrail.store.disk.row_files import RowFiles

# More unwritten rows than this are written by ``put`` itself.
PENDING_BYTES_MAX = 8192
_log = logging.getLogger(__name__)


class QueueMark(NamedTuple):
    """Where a queue stood on disk: next offset, and the end of the last record it knows."""

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
        """The rows as they are stored; the same object for as long as there is the queue."""
        return self._rows

    @property
    def pending_bytes(self) -> int:
        return self._rows.pending_bytes

    def reset(self) -> None:
        """Delete every file; the queue is as if it had never been."""
        self._rows.remove_all()
        self._become_empty()

    def write_pending(self) -> None:
        """Put all rows into the files. On an error the rest stays pending."""
        self._rows.write_pending()
        self._write_at_bytes = PENDING_BYTES_MAX
        self._note_mark()

    def cool(self) -> None:
        """Give back memory kept for readers near the end; for queues that went idle."""
        self._rows.cool()

    def sync(self) -> None:
        """Make written rows durable. Any thread, after ``write_pending``."""
        self._unsynced.sync(self._files, self._rows.folder)

    def mark(self) -> QueueMark:
        """What is in the files, for the next start to hold them to."""
        return self._mark

    def mark_to_come(self) -> QueueMark:
        """What will be in the files once all rows are written."""
        return QueueMark(self.queue_offset_min, self.queue_offset_max, self.physical_end)

    def _appended(self, queue_offset_max: int, physical_end: int) -> None:
        """Rows were added: note the new ends, and write when many wait."""
        self.queue_offset_max = queue_offset_max
        self.physical_end = physical_end
        self.write_if_many()

    def write_if_many(self) -> None:
        """Write when many rows wait in memory."""
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
            # The rows stay pending and the regular ``write_pending`` meets the same error, in a
            # place where the caller can act on it; here it would lose the news of an arrival.
            _log.debug("%s: rows stay in memory: %s", self.folder, error)
            self._write_at_bytes = self._rows.pending_bytes + PENDING_BYTES_MAX

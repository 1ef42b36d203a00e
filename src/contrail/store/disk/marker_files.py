"""The three small files RocketMQ keeps beside the log: ``lock``, ``abort`` and ``checkpoint``."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import ClassVar, NamedTuple

from contrail.errors import StoreLocked
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, opened, write_fully

_CHECKPOINT_BYTES = 4096
_CHECKPOINT = struct.Struct(">qqqqq")


class ApacheCheckpoint(NamedTuple):
    """RocketMQ's ``checkpoint``: store times up to which each kind of file is durable."""

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    @property
    def safe_timestamp_ms(self) -> int:
        """Records up to this time are surely in log and queues; with RocketMQ's 3 s of slack."""
        return max(0, min(self.physic_timestamp_ms, self.logics_timestamp_ms) - 3000)


class StoreLock:
    """The exclusive hold on a store folder: a POSIX lock that Java's FileLock respects.

    POSIX locks belong to a process, and closing any descriptor of the file drops them: a second
    store on the same folder in this process is turned away before it opens the file at all.
    """

    _held: ClassVar[set[Path]] = set()

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path.resolve()
        self._fd = -1

    def take(self) -> None:
        if self._path in self._held:
            raise self._refusal("in this process already: close that store first")
        self._fd = self._files.open(self._path, create=True)
        if not self._files.lock_exclusively(self._fd):
            self._files.close(self._fd)
            raise self._refusal(
                "in another process: stop that broker, or give this one another storePathRootDir"
            )
        try:
            write_fully(self._files, self._fd, b"lock", 0)
        except OSError:
            self._files.close(self._fd)
            raise
        self._held.add(self._path)
        crashpoint("lock.taken")

    def _refusal(self, where: str) -> StoreLocked:
        return StoreLocked(f"{self._path.parent} is open {where}")

    def release(self) -> None:
        self._held.discard(self._path)
        self._files.close(self._fd)


def read_checkpoint(files: FileSystem, path: Path) -> ApacheCheckpoint | None:
    """The checkpoint; None without a usable file: it is rebuilt from the log."""
    if not files.exists(path):
        return None
    data = files.read_bytes(path)
    if len(data) < _CHECKPOINT.size:
        return None
    return ApacheCheckpoint(*_CHECKPOINT.unpack_from(data))


def write_checkpoint(files: FileSystem, path: Path, checkpoint: ApacheCheckpoint) -> None:
    """Overwrite in place, as RocketMQ does: 40 bytes of one sector do not tear."""
    with opened(files, path, create=True) as fd:
        files.truncate(fd, _CHECKPOINT_BYTES)
        write_fully(files, fd, _CHECKPOINT.pack(*checkpoint), 0)
        crashpoint("checkpoint.apache_written")
        files.fdatasync(fd)
    crashpoint("checkpoint.apache_synced")


def fingerprint(checkpoint: ApacheCheckpoint) -> str:
    return _CHECKPOINT.pack(*checkpoint).hex()


def write_abort(files: FileSystem, path: Path, pid: int) -> None:
    """Mark the store as running; a start that finds ``abort`` knows the last exit was abnormal."""
    with opened(files, path, create=True) as fd:
        files.truncate(fd, 0)
        write_fully(files, fd, str(pid).encode(), 0)
        files.fsync(fd)
    files.sync_folder(path.parent)
    crashpoint("abort.written")


def remove_abort(files: FileSystem, path: Path) -> None:
    if files.exists(path):
        files.unlink(path)
        files.sync_folder(path.parent)
    crashpoint("abort.removed")

"""Small state files, replaced whole and never torn: offsets, topics, checkpoints.

Writing ``name`` takes these steps. After any crash the old or the new content is readable, also
when renames reach the disk in another order than they were made:

    ====  ================================================  ================  ==================
    step  action                                            ``name``          ``name.bak``
    ====  ================================================  ================  ==================
    1     write ``name.tmp`` and sync it                    old               older
    2     rename ``name`` to ``name.bak``                   missing           old
    3     rename ``name.tmp`` to ``name``                   new               old
    4     sync the folder                                   new, for good     old, for good
    ====  ================================================  ================  ==================

A missing or empty ``name`` never becomes the backup, since the backup is then the only good copy.

Files of RocketMQ's shape are written as they are: a torn file does not parse. Contrail's own files
are sealed: the last line holds the length and CRC-32 of the bytes before it.
"""

from __future__ import annotations

import errno
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from contrail.errors import StateFileDamaged
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, opened, write_fully

T = TypeVar("T")

BACKUP_SUFFIX = ".bak"

_SEAL = re.compile(rb"\n#sealed bytes=([0-9]{20}) crc32=([0-9a-f]{8})\n\Z")
_SEAL_BYTES = 51


@dataclass(frozen=True, slots=True)
class StateRead(Generic[T]):
    """The value read, the copy it came from, and the main file's problem, if it has one."""

    value: T | None
    source: Literal["main", "backup", "none"]
    problem: str | None = None


def write_state(
    files: FileSystem, path: Path, data: bytes, *, sealed: bool, mode: int | None = None
) -> None:
    """Replace the content of ``path``; on return it is durable, and the old one is the backup.

    ``mode`` is set before the first byte is written, so that no other user ever reads the content.

    An ``OSError`` passes through; the old content, the new, or both are then readable.
    """
    temporary = _beside(path, ".tmp")
    _make_folder(files, path.parent)
    with opened(files, temporary, create=True) as fd:
        files.truncate(fd, 0)
        if mode is not None:
            files.set_mode(fd, mode)
        crashpoint("state_file.tmp_created")
        write_fully(files, fd, _seal(data) if sealed else data, 0)
        crashpoint("state_file.tmp_written")
        files.fsync(fd)
    crashpoint("state_file.tmp_synced")
    if _worth_keeping(files, path, sealed):
        files.rename(path, _beside(path, BACKUP_SUFFIX))
    crashpoint("state_file.backup_made")
    files.rename(temporary, path)
    crashpoint("state_file.renamed")
    files.sync_folder(path.parent)
    crashpoint("state_file.folder_synced")


def read_state(
    files: FileSystem,
    path: Path,
    *,
    sealed: bool,
    parse: Callable[[bytes], T],
    set_aside: bool = True,
) -> StateRead[T]:
    """Read ``path``, or its backup when it is missing or damaged; the answer says which.

    ``parse`` raises ``ValueError`` for damaged content. If the backup is used, the damaged file is
    renamed to ``name.damaged``, unless ``set_aside`` is False (for readers that may not touch the
    folder). An empty unsealed file counts as missing, as it does for RocketMQ.

    Raises:
        StateFileDamaged: there is content, but neither the file nor its backup can be read.
    """
    main = _read_copy(files, path, sealed, parse)
    if main.outcome == "good":
        return StateRead(main.value, "main")
    backup = _read_copy(files, _beside(path, BACKUP_SUFFIX), sealed, parse)
    if backup.outcome == "good":
        if main.outcome == "damaged" and set_aside:
            files.rename(path, _beside(path, ".damaged"))
        return StateRead(backup.value, "backup", f"{main.problem}; its backup was read instead")
    if "damaged" in (main.outcome, backup.outcome):
        raise StateFileDamaged(
            f"{main.problem}, and {backup.problem}. Restore one of the two from a copy, "
            "or move both away to start without what they held"
        )
    nothing_ever = main.outcome == backup.outcome == "missing"
    return StateRead(
        None, "none", None if nothing_ever else f"{main.problem}, and {backup.problem}"
    )


def write_only_copy(files: FileSystem, path: Path, data: bytes) -> None:
    """Replace the sealed content of ``path``; no backup stays, for an older content is wrong.

    On return the new content is durable; after a crash before, the old or the new one is there.
    """
    temporary = _beside(path, ".tmp")
    _make_folder(files, path.parent)
    with opened(files, temporary, create=True) as fd:
        files.truncate(fd, 0)
        crashpoint("only_copy.tmp_created")
        write_fully(files, fd, _seal(data), 0)
        crashpoint("only_copy.tmp_written")
        files.fsync(fd)
    crashpoint("only_copy.tmp_synced")
    files.rename(temporary, path)
    crashpoint("only_copy.renamed")
    files.sync_folder(path.parent)
    crashpoint("only_copy.folder_synced")


def read_only_copy(files: FileSystem, path: Path, *, parse: Callable[[bytes], T]) -> T | None:
    """The content that ``write_only_copy`` wrote; None if it never did.

    Raises:
        StateFileDamaged: the file is damaged; no older copy is taken for it.
    """
    copy = _read_copy(files, path, True, parse)
    if copy.outcome == "damaged":
        raise StateFileDamaged(copy.problem)
    return copy.value


@dataclass(frozen=True, slots=True)
class _Copy(Generic[T]):
    outcome: Literal["good", "missing", "empty", "damaged"]
    problem: str
    value: T | None = None


def _read_copy(
    files: FileSystem, path: Path, sealed: bool, parse: Callable[[bytes], T]
) -> _Copy[T]:
    try:
        data = files.read_bytes(path)
        if not data and not sealed:
            return _Copy("empty", f"{path} is empty")
        return _Copy("good", "", parse(_unseal(data) if sealed else data))
    except FileNotFoundError:
        return _Copy("missing", f"{path} is missing")
    except ValueError as error:
        return _Copy("damaged", f"{path} is damaged ({error})")
    except OSError as error:
        # A bad sector is damage; a missing permission is not: reading the older backup instead
        # would lose the file's content.
        if error.errno != errno.EIO:
            raise
        return _Copy("damaged", f"{path} is damaged ({error})")


def _make_folder(files: FileSystem, folder: Path) -> None:
    """Make ``folder`` and sync its name: a durable file in a lost folder is lost."""
    if not files.exists(folder):
        _make_folder(files, folder.parent)
        files.make_folder(folder)
        files.sync_folder(folder.parent)


def _worth_keeping(files: FileSystem, path: Path, sealed: bool) -> bool:
    """Whether ``path`` may become the backup."""
    try:
        if sealed:
            _unseal(files.read_bytes(path))
            return True
        with opened(files, path, writable=False) as fd:
            return files.size(fd) > 0
    except (FileNotFoundError, ValueError):
        return False


def _seal(data: bytes) -> bytes:
    length = b"%020d" % len(data)
    return data + b"\n#sealed bytes=%s crc32=%08x\n" % (
        length,
        zlib.crc32(length, zlib.crc32(data)),
    )


def _unseal(sealed: bytes) -> bytes:
    data = sealed[:-_SEAL_BYTES]
    match = _SEAL.match(sealed, max(len(sealed) - _SEAL_BYTES, 0))
    if match is None:
        raise ValueError("its last line is not a seal")
    if int(match[1]) != len(data):
        raise ValueError(f"its seal is for {int(match[1])} bytes, it has {len(data)}")
    if zlib.crc32(match[1], zlib.crc32(data)) != int(match[2], 16):
        raise ValueError("its content does not match the CRC in its seal")
    return data


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)

"""The audit log: a JSON line for each log-in and each change, in files that are rotated.

``{"at_ms", "account", "address", "action", "target", "outcome"}``; never a body, never a password.
A line is in the file before the answer of its request goes out.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path

import msgspec

FILE_BYTES_MAX = 10 << 20
FILES_MAX = 5
_FIELD_CHARACTERS_MAX = 512
_MODE = 0o600


class AuditLine(msgspec.Struct, frozen=True):
    """One event."""

    at_ms: int
    account: str
    address: str
    action: str
    target: str
    outcome: str


class AuditLog:
    """Appends lines; reads the newest ones back."""

    def __init__(self, path: Path, *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = path
        self._file_bytes_max = file_bytes_max

    def write(self, line: AuditLine) -> None:
        """Raises ``OSError`` when it cannot be written: then the request must not succeed."""
        texts = (line.account, line.address, line.action, line.target, line.outcome)
        short = AuditLine(line.at_ms, *(text[:_FIELD_CHARACTERS_MAX] for text in texts))
        data = msgspec.json.encode(short) + b"\n"
        self._rotate(len(data))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self._path, flags, _MODE)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def newest(self, count_max: int) -> list[AuditLine]:
        """The newest first, of this file and the one before; a torn line is passed over."""
        found: deque[AuditLine] = deque(maxlen=count_max)
        for path in (self._numbered(1), self._path):
            with contextlib.suppress(FileNotFoundError):
                for raw in path.read_bytes().splitlines():
                    with contextlib.suppress(msgspec.MsgspecError):
                        found.append(msgspec.json.decode(raw, type=AuditLine))
        return list(reversed(found))

    def _rotate(self, more_bytes: int) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size + more_bytes <= self._file_bytes_max:
            return
        for number in range(FILES_MAX - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

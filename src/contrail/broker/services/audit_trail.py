"""The audit trail of one broker: changes of users and rights, and refusals, a JSON line each.

``{"time", "outcome", "user", "address", "what"}`` in ``contrailAudit.jsonl`` of the store folder,
for its owner alone; never a secret. Files are rotated. Refusals come at a bounded rate, with the
number of those that were left out in their text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

_log = logging.getLogger(__name__)

FILE_NAME = "contrailAudit.jsonl"
DONE, REFUSED = "done", "refused"
FILES_MAX = 5
_FILE_BYTES_MAX = 16 << 20
_TEXT_CHARACTERS_MAX = 1024
_OWNER_ONLY = 0o600


class AuditTrail:
    """Appends lines; a line that cannot be written is told in the log, and work goes on."""

    def __init__(self, root: Path, *, file_bytes_max: int = _FILE_BYTES_MAX) -> None:
        self._path = root / FILE_NAME
        self._file_bytes_max = file_bytes_max
        self._fails = False

    def write(self, now_ms: int, outcome: str, user: str, address: str, what: str) -> None:
        line = {
            "time": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "outcome": outcome,
            "user": user[:_TEXT_CHARACTERS_MAX],
            "address": address,
            "what": what[:_TEXT_CHARACTERS_MAX],
        }
        data = json.dumps(line, ensure_ascii=True).encode() + b"\n"
        try:
            self._append(data)
        except OSError as error:
            if not self._fails:
                _log.error("the audit trail %s cannot be written: %s", self._path, error)
            self._fails = True
        else:
            self._fails = False

    def _append(self, data: bytes) -> None:
        self._rotate(len(data))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, _OWNER_ONLY)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def _rotate(self, more_bytes: int) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size + more_bytes <= self._file_bytes_max:
            return
        for number in range(FILES_MAX - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                numbered(self._path, number - 1).replace(numbered(self._path, number))


def numbered(path: Path, number: int) -> Path:
    """A file of the trail: 0 is written now, a higher number is older."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def read_trail(
    root: Path, count_max: int, *, user: str = "", outcome: str = ""
) -> list[dict[str, str]]:
    """The newest lines of a folder, oldest first, of one user or outcome if they are given.

    A torn line is passed over.

    Raises:
        OSError: a file cannot be read.
    """
    found: deque[dict[str, str]] = deque(maxlen=count_max)
    for number in range(FILES_MAX - 1, -1, -1):
        path = numbered(root / FILE_NAME, number)
        if not path.exists():
            continue
        for raw in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                line = json.loads(raw)
                if user in ("", line["user"]) and outcome in ("", line["outcome"]):
                    found.append(line)
    return list(found)

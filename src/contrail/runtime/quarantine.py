"""Entries of state files that break their rule: kept in ``<name>.quarantine`` beside the file.

Each entry is one line of JSON with its ``place`` in the file, its ``value`` and the ``problem``;
operators inspect it and put it back by hand. The lines are durable before the file itself is
written again without the entries.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state

_log = logging.getLogger(__name__)

SUFFIX = ".quarantine"
_SAID_MAX = 20


class Entry(Protocol):
    """An entry that was refused."""

    @property
    def place(self) -> tuple[str, ...]: ...
    @property
    def value(self) -> object: ...
    @property
    def problem(self) -> str: ...


def quarantine(files: FileSystem, path: Path, refused: Iterable[Entry]) -> None:
    """Keep the refused entries of the state file at ``path`` beside it, and log each.

    An ``OSError`` passes through: without the side file the entries would be lost.
    """
    entries = list(refused)
    if not entries:
        return
    side = path.with_name(path.name + SUFFIX)
    kept = _lines(files, side)
    lines = [line for line in map(_line, entries) if line not in set(kept)]
    if lines:
        write_state(files, side, b"".join(line + b"\n" for line in kept + lines), sealed=False)
    for entry in entries[:_SAID_MAX]:
        _log.error(
            "%s: the entry %s is left out and kept in %s: %s",
            path,
            _printable(".".join(entry.place)[:200]),
            side.name,
            _printable(entry.problem),
        )
    if len(entries) > _SAID_MAX:
        _log.error("%s: %d more entries are kept in %s", path, len(entries) - _SAID_MAX, side.name)


def _printable(text: str) -> str:
    """Half of a surrogate pair, which no stream can write, as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def _line(entry: Entry) -> bytes:
    kept = {"place": list(entry.place), "problem": entry.problem, "value": entry.value}
    return json.dumps(kept, separators=(",", ":")).encode()


def _lines(files: FileSystem, side: Path) -> list[bytes]:
    try:
        return files.read_bytes(side).splitlines()
    except FileNotFoundError:
        return []

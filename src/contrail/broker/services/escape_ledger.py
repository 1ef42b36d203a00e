"""Keeps the ledger of messages that this broker, acting as master, handed to other brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from contrail.broker.services.persistence import Persistence
from contrail.broker.state.escaped import Escaped
from contrail.errors import RemoteProtocolError, StateFileDamaged
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state
from contrail.store import CONFIG_FOLDER

_log = logging.getLogger(__name__)

FILE_NAME = "contrailEscaped"
_INTERVAL_MS = 1000


def load_escaped(files: FileSystem, root: Path) -> Escaped:
    """The ledger of the folder; an empty one if there is none, or none that can be read."""
    path = root / CONFIG_FOLDER / FILE_NAME
    try:
        found = read_state(files, path, sealed=True, parse=_parse)
    except StateFileDamaged as damage:
        _log.warning("%s: messages that were handed to other brokers may come again", damage)
        return Escaped()
    return found.value or Escaped()


def _parse(data: bytes) -> Escaped:
    try:
        return Escaped.decode(data)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error


def keep_escaped(persistence: Persistence, escaped: Escaped) -> None:
    """Have the ledger written when it changed."""

    def take_changed() -> bool:
        changed, escaped.changed = escaped.changed, False
        return changed

    def snapshot() -> Callable[[], bytes]:
        copy = Escaped(escaped.waited, escaped.halves)
        return copy.encode

    persistence.register(
        FILE_NAME,
        take_changed=take_changed,
        snapshot=snapshot,
        interval_ms=_INTERVAL_MS,
        sealed=True,
    )

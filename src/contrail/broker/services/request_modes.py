"""How each group asks for messages: ``messageRequestMode.json``, carried along and never acted on.

Every group pulls from this broker. A slave keeps what its master has set, so that the table is
there for an Apache broker that takes over the folder, or follows this one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from contrail.broker.services.persistence import Persistence, Render
from contrail.errors import StateFileDamaged
from contrail.model.fastjson import Fields, JsonValue, dumps, loads
from contrail.protocol.json_style import encode_body
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state
from contrail.store import CONFIG_FOLDER

_log = logging.getLogger(__name__)

FILE_NAME = "messageRequestMode.json"
_FIELD = "messageRequestModeMap"

Modes = Mapping[str, Mapping[str, JsonValue]]
"""By topic and group, the mode as it was set."""


class RequestModes:
    """The table and its file."""

    def __init__(self, files: FileSystem, root: Path, persistence: Persistence) -> None:
        self._modes = _load(files, root / CONFIG_FOLDER / FILE_NAME)
        self._changed = False
        persistence.register(FILE_NAME, take_changed=self._take_changed, snapshot=self._snapshot)

    def body(self) -> bytes:
        """The body of GET_ALL_MESSAGE_REQUEST_MODE."""
        return encode_body({_FIELD: self._modes})

    def follow(self, body: bytes) -> None:
        """Take over the table of another broker.

        Raises:
            FastJsonError: the body is no such table; nothing is taken.
        """
        modes = _parse(body)
        if modes != self._modes:
            self._modes = modes
            self._changed = True

    def _take_changed(self) -> bool:
        was, self._changed = self._changed, False
        return was

    def _snapshot(self) -> Render:
        modes = self._modes
        return lambda: dumps({_FIELD: modes})


def _load(files: FileSystem, path: Path) -> Modes:
    try:
        read = read_state(files, path, sealed=False, parse=_parse)
    except StateFileDamaged as damage:
        _log.warning("%s: no broker of ours needs it, so it is passed over", damage)
        return {}
    if read.problem is not None:
        _log.warning("%s", read.problem)
    return read.value or {}


def _parse(data: bytes) -> Modes:
    topics = Fields(loads(data), FILE_NAME).children(_FIELD)
    return {topic: groups.unknown(frozenset()) for topic, groups in topics.items()}

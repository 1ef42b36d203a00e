"""How each group asks for messages: ``messageRequestMode.json``.

A slave keeps what its master has set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from contrail.broker.services.persistence import Persistence, Render
from contrail.errors import StateFileDamaged
from contrail.model.fastjson import Fields, JsonValue, dumps, loads
from contrail.protocol.bodies.groups import POP_MODE, PULL_MODE, RequestMode
from contrail.protocol.json_style import encode_body
from contrail.runtime.durable_changes import Done
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
        self._persistence = persistence
        self._modes = _load(files, root / CONFIG_FOLDER / FILE_NAME)
        self._changed = False
        persistence.register(FILE_NAME, take_changed=self._take_changed, snapshot=self._snapshot)

    def set(self, mode: RequestMode, done: Done) -> None:
        """Have a group pull or pop a topic from now on; ``done`` learns when the file says so.

        Raises:
            RequestRejected: too many changes wait, or the broker stops.
        """
        fields: dict[str, JsonValue] = {
            "consumerGroup": mode.group,
            "mode": mode.mode,
            "popShareQueueNum": mode.pop_share_count,
            "topic": mode.topic,
        }
        of_topic = {**self._modes.get(mode.topic, {}), mode.group: fields}
        self._modes = {**self._modes, mode.topic: of_topic}
        self._changed = True
        self._persistence.when_written(FILE_NAME, done)

    def find(self, topic: str, group: str) -> RequestMode | None:
        """The mode that was set for a group; None for one that nobody set."""
        found = self._modes.get(topic, {}).get(group)
        if not isinstance(found, dict):
            return None
        mode, share_count = found.get("mode"), found.get("popShareQueueNum")
        return RequestMode(
            topic,
            group,
            POP_MODE if mode == POP_MODE else PULL_MODE,
            share_count if isinstance(share_count, int) else 0,
        )

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
        _log.warning(
            "%s: groups ask for messages as the default says, until modes are set anew", damage
        )
        return {}
    if read.problem is not None:
        _log.warning("%s", read.problem)
    return read.value or {}


def _parse(data: bytes) -> Modes:
    topics = Fields(loads(data), FILE_NAME).children(_FIELD)
    return {topic: groups.unknown(frozenset()) for topic, groups in topics.items()}

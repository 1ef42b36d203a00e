"""The key of a folder's recall handles: made at the first start, readable by its owner alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from contrail.broker.state.recall_seal import KEY_BYTES, RecallKey
from contrail.errors import StateFileDamaged
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state, write_state
from contrail.store import CONFIG_FOLDER

_log = logging.getLogger(__name__)

KEY_FILE = "contrailRecallKey"
_OWNER_ONLY = 0o600


def load_recall_key(files: FileSystem, root: Path, *, now_ms: int, new_secret: bytes) -> RecallKey:
    """The folder's key; a folder that has none gets ``new_secret``, made now.

    With another key the handles that were given before are not taken any more, and nothing else
    is lost: so a key that cannot be read is replaced.
    """
    path = root / CONFIG_FOLDER / KEY_FILE
    try:
        read = read_state(files, path, sealed=True, parse=_parse)
        if read.problem is not None:
            _log.warning("%s", read.problem)
        if read.value is not None:
            return read.value
    except StateFileDamaged as damage:
        _log.error(
            "recall handles given before are not taken any more, a new key is made: %s", damage
        )
    key = RecallKey(new_secret, now_ms)
    write_state(files, path, _render(key), sealed=True, mode=_OWNER_ONLY)
    return key


def _render(key: RecallKey) -> bytes:
    return json.dumps({"secret": key.secret.hex(), "madeMs": key.made_ms}).encode()


def _parse(data: bytes) -> RecallKey:
    """Raises ``ValueError`` for text that is no key."""
    try:
        found = json.loads(data)
        key = RecallKey(bytes.fromhex(found["secret"]), int(found["madeMs"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"it holds no key: {error}") from error
    if len(key.secret) != KEY_BYTES:
        raise ValueError(f"its key has {len(key.secret)} bytes, not {KEY_BYTES}")
    return key

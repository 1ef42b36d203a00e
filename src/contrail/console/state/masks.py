"""Bodies as an account may see them: hidden from viewers, masked by JSON paths for the others."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from contrail.console.state.roles import Role

MASK = "***"
SHOWN_BYTES_MAX = 256 << 10
_PATH = re.compile(r"\$(?:\.(?:\*|[^.\[\]*]+)|\[\*\])+")
_STEP = re.compile(r"\.(\*|[^.\[\]*]+)|(\[\*\])")


class MaskInvalid(ValueError):
    """A path of which a mask cannot be made."""


@dataclass(frozen=True, slots=True)
class ShownBody:
    """``text`` for UTF-8, ``base64`` for other bytes; neither where the body is hidden."""

    text: str | None = None
    base64: str | None = None
    is_hidden: bool = False
    is_masked: bool = False
    is_cut: bool = False


def parse_path(text: str) -> tuple[str, ...]:
    """``$.card.number`` and ``$.items[*].name``: names, with ``*`` for any.

    Raises:
        MaskInvalid: the text is no such path.
    """
    if not _PATH.fullmatch(text):
        raise MaskInvalid(f"{text!r} is no path: write it as $.card.number or $.items[*].name")
    return tuple("*" if other else name for name, other in _STEP.findall(text[1:]))


def shown_body(body: bytes, role: Role, masks: Sequence[tuple[str, ...]]) -> ShownBody:
    """Viewers see no body. Masks hold for all but admins, and hide what is no JSON whole."""
    if role < Role.READER:
        return ShownBody(is_hidden=True)
    is_masked = bool(masks) and role < Role.ADMIN
    if is_masked:
        masked = _masked(body, masks)
        if masked is None:
            return ShownBody(is_hidden=True, is_masked=True)
        body = masked
    is_cut = len(body) > SHOWN_BYTES_MAX
    shown = body[:SHOWN_BYTES_MAX]
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        # A cut within a character is not a body of other bytes.
        if is_cut and error.start >= len(shown) - 3:
            return ShownBody(shown[: error.start].decode(), None, False, is_masked, True)
        return ShownBody(None, base64.b64encode(shown).decode(), False, is_masked, is_cut)
    return ShownBody(text, None, False, is_masked, is_cut)


def _masked(body: bytes, masks: Sequence[tuple[str, ...]]) -> bytes | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    for path in masks:
        value = _without(value, path)
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _without(value: Any, path: Sequence[str]) -> Any:
    if not path:
        return MASK
    name, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {
            key: _without(one, rest) if name in ("*", key) else one for key, one in value.items()
        }
    if isinstance(value, list) and name == "*":
        return [_without(one, rest) for one in value]
    return value

"""Durations as a person writes them: ``500ms``, ``90s``, ``15m`` or ``15min``, ``2h``, ``1d``."""

from __future__ import annotations

import re

_DURATION = re.compile(r"([0-9]{1,15})\s*(ms|s|m|min|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(text: str) -> int | None:
    """Milliseconds of a duration; None if ``text`` is no duration."""
    found = _DURATION.fullmatch(text.lower())
    return None if found is None else int(found[1]) * _UNIT_MS[found[2]]

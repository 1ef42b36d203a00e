"""Values from peers as error texts show them: enough to recognise them, but bounded."""

from __future__ import annotations

_LENGTH_MAX = 120
_KEPT = 96


def shown(value: object) -> str:
    """``repr``, shortened if it is long; a value without a repr is named by its type."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} without a repr>"
    if len(text) <= _LENGTH_MAX:
        return text
    return f"{text[:_KEPT]}… ({len(text)} characters)"

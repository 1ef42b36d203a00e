"""Values of others' making as errors show them: enough to know them by, never all of them."""

from __future__ import annotations

_LENGTH_MAX = 120
_KEPT = 96


def shown(value: object) -> str:
    """``repr``, cut where it is long; what cannot even be shown is named by its type."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} without a repr>"
    if len(text) <= _LENGTH_MAX:
        return text
    return f"{text[:_KEPT]}… ({len(text)} characters)"

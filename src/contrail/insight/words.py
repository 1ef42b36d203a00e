"""Words for what a cluster tells in numbers."""

from __future__ import annotations

from datetime import UTC, datetime

from contrail.model.topic import Perm


def perm_text(perm: int) -> str:
    """``rw``, ``r``, ``w`` or ``none``."""
    letters = ("r" if perm & Perm.READ else "") + ("w" if perm & Perm.WRITE else "")
    return letters or "none"


def time_text(ms: int | None) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC; ``-`` for none."""
    if ms is None or ms <= 0:
        return "-"
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"

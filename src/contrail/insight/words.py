"""Words for what a cluster tells in numbers."""

from __future__ import annotations

from contrail.model.topic import Perm


def perm_text(perm: int) -> str:
    """``rw``, ``r``, ``w`` or ``none``."""
    letters = ("r" if perm & Perm.READ else "") + ("w" if perm & Perm.WRITE else "")
    return letters or "none"

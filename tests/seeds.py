"""The seed that somebody asked for: ``make torture SEED=…``, or ``CONTRAIL_SEED`` in any run."""

from __future__ import annotations

import os
from collections.abc import Iterable


def seed_asked_for(usual: int) -> int:
    """``CONTRAIL_SEED`` runs one seed again."""
    return int(os.environ.get("CONTRAIL_SEED", usual))


def seeds_asked_for(usual: Iterable[int]) -> list[int]:
    """The usual seeds of a campaign, or the one that somebody asked for."""
    asked = os.environ.get("CONTRAIL_SEED")
    return list(usual) if asked is None else [int(asked)]

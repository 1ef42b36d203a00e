"""The command that lets a diverged slave begin anew."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePath

_ASIDE = ".diverged"


def rebuild_command(root: PurePath, others: Iterable[PurePath]) -> str:
    """Moves a stopped slave's folders aside; when it starts again it copies what its master has.

    ``others`` are folders of the store that may lie outside of ``root``.
    """
    apart = [folder for folder in others if not folder.is_relative_to(root)]
    moves = (
        shlex.join(["mv", str(one), f"{one}{_ASIDE}"]) for one in dict.fromkeys([root, *apart])
    )
    return " && ".join(moves)

"""A member's memory of the others: it recognises a disk that was put back to an older state.

Of each identity the highest term is remembered, and up to where it acknowledged the log in that
term. A member that comes back with less has lost what a majority counted on: it may neither vote
nor acknowledge under that identity. In a later term less may be right, for a leader may have cut
what was never committed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_MEMBERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Remembered:
    """The highest term of a member, and the highest end that it acknowledged in it."""

    term: int
    acknowledged_end: int


class PeerMemory:
    """By the members' names; ``is_changed`` since it was last written."""

    def __init__(self, known: dict[str, Remembered] | None = None) -> None:
        self._known = known or {}
        self.is_changed = False

    def acknowledged(self, name: str, term: int, physical_end: int) -> None:
        known = self._known.get(name)
        if known is None or (term, physical_end) > (known.term, known.acknowledged_end):
            self._known[name] = Remembered(term, physical_end)
            self.is_changed = True
            if len(self._known) > _MEMBERS_MAX:
                del self._known[next(iter(self._known))]

    def problem(self, name: str, term: int, synced_end: int) -> str:
        """Why a member that has this much now is not the one that it was; empty if it may be."""
        known = self._known.get(name)
        if known is None or term > known.term:
            return ""
        if term < known.term:
            return f"its term is {term}, and was {known.term}"
        if synced_end < known.acknowledged_end:
            return f"its log ends at {synced_end}, and was acknowledged to {known.acknowledged_end}"
        return ""

    def encode(self) -> bytes:
        """All that is remembered, for ``contrail.peers``."""
        self.is_changed = False
        return json.dumps(
            {name: [one.term, one.acknowledged_end] for name, one in self._known.items()}
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> PeerMemory:
        """Raises ``ValueError`` for content that ``encode`` did not write."""
        try:
            fields: Any = json.loads(data)
            known = {
                str(name): Remembered(_number(term), _number(end))
                for name, (term, end) in fields.items()
            }
        except (AttributeError, TypeError) as error:
            raise ValueError(f"no memory of members: {error}") from error
        return cls(known)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no term or place")
    return value

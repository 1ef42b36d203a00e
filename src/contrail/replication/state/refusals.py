"""Decides which of a master's refusals an operator is told: a stranger's never hides a slave's.

Anyone who reaches the HA port can be refused as often as he likes. A slave that was sent away comes
again every five seconds, so its refusal stays the one that is told for a minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# A handshake that failed by another secret: a slave set up wrongly, most often.
_OTHER_SECRET = "secret"
_TOLD_MS = 60_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a master ended the link of a slave; ``at_ms`` is by the clock's elapsed time."""

    reason: str
    text: str
    at_ms: int


class _Rank(IntEnum):
    STRANGER = 0
    OTHER_SECRET = 1
    SLAVE = 2


class Refusals:
    """The newest refusal of each rank."""

    def __init__(self) -> None:
        self._newest: dict[_Rank, Refusal] = {}

    def note(self, refusal: Refusal, *, is_slave: bool) -> None:
        """``is_slave``: the peer had proved the cluster secret, or is a slave of Apache's make."""
        rank = _Rank.SLAVE if is_slave else _Rank.STRANGER
        if not is_slave and refusal.reason == _OTHER_SECRET:
            rank = _Rank.OTHER_SECRET
        self._newest[rank] = refusal

    def told(self, now_ms: int) -> Refusal | None:
        """The refusal of the highest rank within a minute, else the newest; None before any."""
        lately = [one for one in self._newest.items() if now_ms - one[1].at_ms <= _TOLD_MS]
        if lately:
            return max(lately)[1]
        return max(self._newest.values(), key=lambda one: one.at_ms, default=None)

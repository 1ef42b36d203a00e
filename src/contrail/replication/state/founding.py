"""Decides how a broker without a group comes to one: found it, adopt that of a peer, or wait.

The first of the configured peers founds the group, and only after *every* other one has said over
a link that stands that it has none: a first peer whose disk was wiped would found a second group
otherwise. All others adopt the group that a peer names. A log with messages joins no group by
itself: its bytes are no part of the group's log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """Found a group: this member is the one voter at first."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Join the group of a peer as learner."""

    group_id: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be decided yet; the text is for the operator."""

    why: str


def plan_founding(
    self_id: str, peers: Sequence[str], groups: Mapping[str, str], *, is_log_empty: bool
) -> Found | Adopt | Wait:
    """The next step of a broker without a group.

    ``peers`` are all configured members in their order, this one among them; ``groups`` has the
    group of each peer whose link stands, empty for a peer without one.
    """
    known = sorted({group for group in groups.values() if group})
    if len(known) > 1:
        return Wait(f"the peers belong to different groups: {', '.join(known)}")
    if not is_log_empty:
        return Wait(
            "this broker's log has messages and belongs to no group, and a group cannot take them "
            "over yet: start with an empty folder"
        )
    if known:
        return Adopt(known[0])
    silent = [peer for peer in peers if peer != self_id and peer not in groups]
    if self_id != peers[0]:
        return Wait(f"{peers[0]} founds the group, once every member can be reached")
    if silent:
        return Wait(f"the group is founded once {', '.join(silent)} can be reached")
    return Found()

"""Effects: what a member of a failover group asks its runner to do, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from contrail.protocol.group_messages import Message
from contrail.protocol.log_floor import LogFloor


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Send:
    peer: str
    message: Message


@dataclass(frozen=True, slots=True)
class SaveVote:
    """Write term and vote durably, then call ``vote_saved(number)``."""

    number: int
    term: int
    voted_for: str | None
    is_installed: bool = False
    """Write too that the member has again all that it acknowledged."""


@dataclass(frozen=True, slots=True)
class AppendMarker:
    """Append the record that opens ``epoch``, then call ``appended``."""

    epoch: int
    previous_epoch: int


@dataclass(frozen=True, slots=True)
class AppendVoters:
    """Append the record that names the voters, then call ``appended``."""

    voters: frozenset[str]


@dataclass(frozen=True, slots=True)
class AppendRaw:
    """Write the bytes of the received ``Append`` from ``physical_offset`` on."""

    physical_offset: int
    physical_end: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at ``physical_end``, durably; syncs that began before count no more."""

    physical_end: int
    cut_count: int


@dataclass(frozen=True, slots=True)
class CommitMoved:
    commit: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """``is_serving``: a leader whose marker is committed, which may take sends."""

    role: Role
    term: int
    leader: str | None
    is_serving: bool


@dataclass(frozen=True, slots=True)
class BeginAt:
    """Keep the floor durably: the first byte of the empty log comes next and is there."""

    floor: LogFloor


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Note durably that the member lacks what it acknowledged up to ``must_reach``; empty it."""

    must_reach: int


Effect = (
    Send
    | SaveVote
    | AppendMarker
    | AppendVoters
    | AppendRaw
    | Truncate
    | CommitMoved
    | RoleChanged
    | BeginAt
    | BeginAnew
)

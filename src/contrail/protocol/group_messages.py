"""Messages between the members of a failover group, as values.

``sent_ms`` is the sender's monotonic time, echoed by the answer: a lease goes by when a beat was
*sent*, since a leader that was stopped finds fresh answers to old beats in its socket buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from contrail.protocol.log_floor import LogFloor


@dataclass(frozen=True, slots=True)
class PreVote:
    """Would you vote for me in ``term``? Changes nothing at the receiver."""

    term: int
    last_epoch: int
    log_end: int


@dataclass(frozen=True, slots=True)
class PreVoteAnswer:
    """``term`` is that of the request; a member that is behind takes ``own_term`` up."""

    term: int
    is_granted: bool
    own_term: int


@dataclass(frozen=True, slots=True)
class Vote:
    """Vote for me in ``term``. ``is_transfer``: the leader asked for it, its lease is over."""

    term: int
    last_epoch: int
    log_end: int
    is_transfer: bool


@dataclass(frozen=True, slots=True)
class VoteAnswer:
    term: int
    is_granted: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Log bytes of one epoch behind ``previous_end``, or none: a beat.

    The member decides which bytes go; its runner puts them behind the frame.
    """

    term: int
    previous_end: int
    previous_epoch: int
    epoch: int
    batch_end: int
    commit: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """The follower's log agrees up to ``matched_end``, and that much is on its disk."""

    term: int
    matched_end: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class AppendRefusal:
    """The logs do not agree at ``previous_end``; what the follower has at or before it."""

    term: int
    previous_end: int
    epoch: int
    epoch_end: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Stand for election at once: the leader hands over."""

    term: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The leader's log begins behind what the follower lacks: begin anew at the floor."""

    term: int
    sent_ms: int
    floor: LogFloor


@dataclass(frozen=True, slots=True)
class CopyAnswer:
    """As ``AppendAnswer``, of a member that lacks what it acknowledged once: it acknowledges none.

    The leader goes on behind ``matched_end``, and counts the copy for no commit.
    """

    term: int
    matched_end: int
    sent_ms: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send these bytes of the log, which are committed and damaged at the sender of this."""

    physical_start: int
    physical_end: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes of the log; none if the member does not have them for sure."""

    physical_start: int
    data: bytes


Message = (
    PreVote
    | PreVoteAnswer
    | Vote
    | VoteAnswer
    | Append
    | AppendAnswer
    | AppendRefusal
    | TimeoutNow
    | Reset
    | CopyAnswer
)

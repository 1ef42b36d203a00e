"""One member in the one situation where a rule counts. Random stories come to some of them late.

Each scenario takes the kind of member and asserts what must hold, whatever the member decides.
"""

from __future__ import annotations

from collections.abc import Callable

from contrail.protocol.group_messages import (
    Append,
    AppendAnswer,
    AppendRefusal,
    Message,
    PreVoteAnswer,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from contrail.replication.state.epochs import EpochStart, EpochTable
from contrail.replication.state.group_effects import AppendVoters, Effect, Role, Send
from contrail.replication.state.member import Member
from contrail.replication.state.member_log import MemberLog
from contrail.replication.state.voters import Voters

Scenario = Callable[[type[Member]], None]
SCENARIOS: dict[str, Scenario] = {}

_NOW = 100_000
_ABC = frozenset("abc")


def _scenario(scenario: Scenario) -> Scenario:
    SCENARIOS[scenario.__name__] = scenario
    return scenario


def _member(kind: type[Member], *, end: int, term: int, commit: int = 0) -> Member:
    """A follower whose log is of epoch 1 up to its end."""
    starts = [EpochStart(1, 0)] if end else []
    return kind(
        "a",
        term=term,
        voted_for=None,
        log=MemberLog(end, end, commit, EpochTable(starts), Voters(_ABC)),
        batch_end=lambda start, limit: limit,
        between=lambda low, high: high,
        now_ms=_NOW,
    )


def _leader(kind: type[Member], *, end: int) -> Member:
    """The leader of term 2; its marker of 50 bytes is written and synced."""
    member = _member(kind, end=end, term=1)
    member.tick(_NOW + 2_000)
    member.received("b", PreVoteAnswer(2, True, 1), _NOW + 2_000)
    member.vote_saved(1, _NOW + 2_001)
    member.received("b", VoteAnswer(2, True), _NOW + 2_002)
    assert member.role is Role.LEADER
    member.marker_appended(end + 50)
    member.synced(end + 50, 0, _NOW + 2_003)
    return member


def _sent(effects: list[Effect]) -> list[Message]:
    return [one.message for one in effects if isinstance(one, Send)]


@_scenario
def commit_past_batch(kind: type[Member]) -> None:
    """The batch agrees up to 100; behind it this member has records of a former leader."""
    member = _member(kind, end=300, term=2)
    member.received("b", Append(2, 50, 1, 1, 100, 200, _NOW), _NOW)
    assert member.log.commit <= 100


@_scenario
def old_term_ack(kind: type[Member]) -> None:
    """A former term's answer speaks of bytes that may have been cut since."""
    member = _leader(kind, end=100)
    member.received("b", AppendAnswer(1, 150, _NOW), _NOW + 2_010)
    assert member.log.commit == 0


@_scenario
def change_before_own_commit(kind: type[Member]) -> None:
    """Two leaders could each commit with a majority of their own."""
    member = _leader(kind, end=100)
    effects = member.change_voters(_ABC - {"c"})
    assert not [one for one in effects if isinstance(one, AppendVoters)]


@_scenario
def epoch_of_next_byte(kind: type[Member]) -> None:
    """At the marker's first byte the epoch is still the old one."""
    member = _leader(kind, end=100)
    member.received("b", AppendAnswer(2, 100, _NOW), _NOW + 2_010)
    assert member.log.commit == 0


@_scenario
def old_epoch_counted(kind: type[Member]) -> None:
    """Raft's figure 8: a majority has the bytes, and another leader may yet replace them."""
    member = _leader(kind, end=100)
    member.received("b", AppendAnswer(2, 60, _NOW), _NOW + 2_010)
    assert member.log.commit == 0


@_scenario
def learner_counted(kind: type[Member]) -> None:
    member = _leader(kind, end=100)
    member.add_learner("d")
    member.received("d", AppendAnswer(2, 150, _NOW), _NOW + 2_010)
    assert member.log.commit == 0


@_scenario
def lease_by_arrival(kind: type[Member]) -> None:
    """A leader that was stopped finds answers to old beats in its socket buffers."""
    member = _leader(kind, end=100)
    for peer in "bc":
        member.received(peer, AppendAnswer(2, 150, _NOW + 2_003), _NOW + 6_000)
    assert member.is_serving
    assert not member.has_lease(_NOW + 6_000)


@_scenario
def prev_epoch_unchecked(kind: type[Member]) -> None:
    """The leader's bytes before the batch are of another epoch than this member's."""
    member = _member(kind, end=100, term=3)
    member.received("b", Append(3, 100, 2, 3, 150, 0, _NOW), _NOW)
    assert member.log.end == 100


@_scenario
def stale_term_append(kind: type[Member]) -> None:
    """A leader that was deposed still sends."""
    member = _member(kind, end=100, term=3)
    answers = _sent(member.received("b", Append(2, 100, 1, 2, 150, 150, _NOW), _NOW))
    assert member.log.end == 100 and member.log.commit == 0
    assert [type(one) for one in answers] == [AppendRefusal]


@_scenario
def sync_of_cut_bytes(kind: type[Member]) -> None:
    """The sync that ends began before the cut."""
    member = _member(kind, end=200, term=2)
    member.log.synced_end = 100
    member.received("b", Append(2, 150, 1, 2, 250, 0, _NOW), _NOW)
    assert member.log.cut_count == 1
    member.synced(200, 0, _NOW + 5)
    assert member.log.synced_end <= 150


@_scenario
def transfer_unmatched(kind: type[Member]) -> None:
    """The target lacks the end of the log."""
    member = _leader(kind, end=100)
    member.received("b", AppendAnswer(2, 150, _NOW + 2_003), _NOW + 2_010)
    member.received("c", AppendAnswer(2, 150, _NOW + 2_003), _NOW + 2_010)
    member.appended(400)
    effects = member.transfer("b", _NOW + 2_020)
    assert not [one for one in _sent(effects) if isinstance(one, TimeoutNow)]


@_scenario
def vote_in_lease(kind: type[Member]) -> None:
    """A leader that was heard a moment ago may hold a lease that the vote would break."""
    member = _member(kind, end=100, term=2)
    member.is_connected("b", True, _NOW)
    member.received("b", Append(2, 100, 1, 2, 100, 0, _NOW + 3_000), _NOW + 3_000)
    effects = member.received("c", Vote(3, 1, 500, False), _NOW + 3_100)
    effects += member.vote_saved(9, _NOW + 3_101)
    assert not [one for one in _sent(effects) if isinstance(one, VoteAnswer) and one.is_granted]

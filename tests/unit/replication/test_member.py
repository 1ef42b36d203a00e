"""Rules of one member of a failover group; whole groups are simulated in tests/simulation."""

from __future__ import annotations

from contrail.protocol.group_messages import (
    Append,
    AppendAnswer,
    AppendRefusal,
    Message,
    PreVote,
    PreVoteAnswer,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from contrail.replication.state.epochs import EpochStart, EpochTable
from contrail.replication.state.group_effects import (
    AppendMarker,
    AppendRaw,
    AppendVoters,
    CommitMoved,
    Effect,
    Role,
    SaveVote,
    Send,
    Truncate,
)
from contrail.replication.state.member import Member
from contrail.replication.state.member_log import MemberLog
from contrail.replication.state.voters import Voters

NOW = 100_000
ABC = frozenset("abc")


def _member(
    *,
    end: int = 0,
    commit: int = 0,
    starts: list[EpochStart] | None = None,
    term: int = 0,
    voted_for: str | None = None,
    voters: frozenset[str] = ABC,
) -> Member:
    log = MemberLog(end, end, commit, EpochTable(starts), Voters(voters))
    return Member(
        "a",
        term=term,
        voted_for=voted_for,
        log=log,
        batch_end=lambda start, limit: limit,
        between=lambda low, high: high,
        now_ms=NOW,
    )


def _sent(effects: list[Effect]) -> list[tuple[str, Message]]:
    return [(one.peer, one.message) for one in effects if isinstance(one, Send)]


def _leader(end: int = 0, *, voters: frozenset[str] = ABC) -> Member:
    """A leader of term 1 whose marker of 50 bytes is written, not synced."""
    member = _member(end=end, voters=voters)
    member.tick(NOW + 2_000)
    member.received("b", PreVoteAnswer(1, True, 0), NOW + 2_000)
    effects = member.vote_saved(1, NOW + 2_001)
    effects += member.received("b", VoteAnswer(1, True), NOW + 2_002)
    assert [one for one in effects if isinstance(one, AppendMarker)] == [AppendMarker(1, 0)]
    member.marker_appended(end + 50)
    return member


def test_a_candidate_asks_before_it_takes_a_new_term() -> None:
    member = _member(end=10)
    asked = _sent(member.tick(NOW + 2_000))
    assert asked == [("b", PreVote(1, 0, 10)), ("c", PreVote(1, 0, 10))]
    assert member.term == 0


def test_requests_for_votes_leave_once_term_and_vote_are_saved() -> None:
    member = _member(end=10)
    member.tick(NOW + 2_000)
    effects = member.received("b", PreVoteAnswer(1, True, 0), NOW + 2_001)
    assert [one for one in effects if isinstance(one, SaveVote)] == [SaveVote(1, 1, "a")]
    assert _sent(effects) == []
    assert _sent(member.vote_saved(1, NOW + 2_002)) == [
        ("b", Vote(1, 0, 10, False)),
        ("c", Vote(1, 0, 10, False)),
    ]


def test_votes_are_refused_for_a_second_after_the_start() -> None:
    member = _member()
    assert _sent(member.received("b", PreVote(1, 0, 0), NOW + 999)) == [
        ("b", PreVoteAnswer(1, False, 0))
    ]
    assert _sent(member.received("b", PreVote(1, 0, 0), NOW + 1_000)) == [
        ("b", PreVoteAnswer(1, True, 0))
    ]


def test_a_shorter_log_gets_no_vote() -> None:
    member = _member(end=100, starts=[EpochStart(3, 50)], term=3)
    for epoch, end, is_granted in ((3, 99, False), (2, 500, False), (3, 100, True), (4, 1, True)):
        answer = _sent(member.received("b", PreVote(9, epoch, end), NOW + 5_000))
        assert answer == [("b", PreVoteAnswer(9, is_granted, 3))], (epoch, end)


def test_a_second_candidate_of_a_term_gets_no_vote() -> None:
    member = _member()
    member.received("b", Vote(1, 0, 0, False), NOW + 5_000)
    assert _sent(member.vote_saved(2, NOW + 5_001)) == [("b", VoteAnswer(1, True))]
    assert _sent(member.received("c", Vote(1, 0, 0, False), NOW + 5_002)) == [
        ("c", VoteAnswer(1, False))
    ]


def test_a_follower_that_hears_its_leader_answers_no_candidate_but_one_of_a_transfer() -> None:
    member = _member(term=1)
    member.is_connected("b", True, NOW)
    member.received("b", Append(1, 0, 0, 1, 0, 0, 5), NOW + 5_000)
    assert _sent(member.received("c", Vote(2, 0, 0, False), NOW + 5_100)) == []
    assert member.term == 1
    member.received("c", Vote(2, 0, 0, True), NOW + 5_200)
    assert member.voted_for == "c"


def test_the_term_of_an_epoch_that_was_not_saved_is_taken_up_and_saved_without_a_vote() -> None:
    member = _member(end=80, starts=[EpochStart(4, 30)], term=2, voted_for="b")
    assert (member.term, member.voted_for) == (4, None)
    effects = member.received("c", PreVote(5, 4, 80), NOW + 5_000)
    assert effects == [SaveVote(1, 4, None)], "the answer waits for the save"
    assert _sent(member.vote_saved(1, NOW + 5_001)) == [("c", PreVoteAnswer(5, True, 4))]


def test_a_leader_serves_once_its_marker_is_committed() -> None:
    leader = _leader()
    leader.synced(50, 0, NOW + 2_100)
    assert not leader.is_serving
    effects = leader.received("b", AppendAnswer(1, 50, NOW + 2_100), NOW + 2_200)
    assert CommitMoved(50) in effects
    assert leader.is_serving


def test_bytes_of_a_former_epoch_are_not_committed_by_counting_copies() -> None:
    leader = _leader(end=40)
    leader.synced(90, 0, NOW + 2_100)
    effects = leader.received("b", AppendAnswer(1, 40, NOW + 2_100), NOW + 2_200)
    assert [one for one in effects if isinstance(one, CommitMoved)] == []


def test_a_follower_acknowledges_synced_bytes_alone() -> None:
    member = _member(term=1)
    effects = member.received("b", Append(1, 0, 0, 1, 70, 0, 5), NOW + 5_000)
    assert AppendRaw(0, 70) in effects
    assert ("b", AppendAnswer(1, 0, 5)) in _sent(effects)
    assert _sent(member.synced(70, 0, NOW + 5_010)) == [("b", AppendAnswer(1, 70, 5))]


def test_a_follower_cuts_where_the_bytes_of_another_leader_begin() -> None:
    member = _member(end=200, commit=100, starts=[EpochStart(1, 0), EpochStart(2, 150)], term=3)
    effects = member.received("b", Append(3, 150, 1, 3, 180, 100, 5), NOW + 5_000)
    assert [one for one in effects if isinstance(one, Truncate | AppendRaw)] == [
        Truncate(150, 1),
        AppendRaw(150, 180),
    ]
    assert member.log.epochs.last_epoch == 3


def test_a_batch_that_comes_late_cuts_nothing() -> None:
    member = _member(end=200, starts=[EpochStart(1, 0)], term=1)
    effects = member.received("b", Append(1, 0, 0, 1, 90, 0, 5), NOW + 5_000)
    assert [one for one in effects if isinstance(one, Truncate | AppendRaw)] == []
    assert member.log.end == 200


def test_a_refusal_tells_the_followers_epoch_and_its_end() -> None:
    member = _member(end=200, starts=[EpochStart(1, 0), EpochStart(2, 150)], term=3)
    effects = member.received("b", Append(3, 170, 3, 3, 180, 0, 5), NOW + 5_000)
    assert _sent(effects) == [("b", AppendRefusal(3, 170, 2, 170, 5))]
    effects = member.received("b", Append(3, 900, 3, 3, 950, 0, 6), NOW + 5_000)
    assert _sent(effects) == [("b", AppendRefusal(3, 900, 2, 200, 6))]


def test_a_sync_that_began_before_a_cut_says_nothing_of_newer_bytes() -> None:
    member = _member(end=200, commit=100, starts=[EpochStart(1, 0)], term=3)
    member.received("b", Append(3, 150, 1, 3, 260, 100, 5), NOW + 5_000)
    assert _sent(member.synced(200, 0, NOW + 5_010)) == []
    assert member.log.synced_end == 150


def test_a_leader_without_answers_of_a_majority_steps_down() -> None:
    leader = _leader()
    leader.tick(NOW + 4_001)
    assert leader.role is Role.LEADER
    leader.tick(NOW + 4_002)
    assert leader.role is Role.FOLLOWER


def test_a_lease_goes_by_when_beats_were_sent_and_opens_a_second_after_the_election() -> None:
    leader = _leader()
    leader.synced(50, 0, NOW + 2_100)
    leader.received("b", AppendAnswer(1, 50, NOW + 2_900), NOW + 3_300)
    assert not leader.has_lease(NOW + 3_001)
    assert leader.has_lease(NOW + 3_002)
    assert not leader.has_lease(NOW + 3_650)


def test_a_leader_hands_over_to_a_member_that_has_its_whole_log() -> None:
    leader = _leader()
    leader.synced(50, 0, NOW + 2_100)
    leader.received("b", AppendAnswer(1, 50, NOW + 2_100), NOW + 2_200)
    leader.appended(80)
    assert _sent(leader.transfer("b", NOW + 2_300)) == []
    assert not leader.is_serving
    effects = leader.received("b", AppendAnswer(1, 80, NOW + 2_300), NOW + 2_400)
    assert ("b", TimeoutNow(1)) in _sent(effects)


def test_voters_change_one_by_one_and_only_behind_a_commit_of_the_own_term() -> None:
    leader = _leader()
    assert leader.change_voters(ABC | {"d"}) == []
    leader.synced(50, 0, NOW + 2_100)
    leader.received("b", AppendAnswer(1, 50, NOW + 2_100), NOW + 2_200)
    assert leader.change_voters(ABC | {"d", "e"}) == []
    assert leader.change_voters(ABC | {"d"}) == [AppendVoters(ABC | {"d"})]
    leader.voters_appended(90, ABC | {"d"}, NOW + 2_300)
    assert leader.change_voters(ABC) == [], "the change before is not committed yet"

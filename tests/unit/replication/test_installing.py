"""A member that lacks what it acknowledged, and the leader that tells it to begin anew."""

from __future__ import annotations

import pytest

from contrail.protocol.group_messages import (
    Append,
    AppendAnswer,
    AppendRefusal,
    CopyAnswer,
    Message,
    PreVote,
    PreVoteAnswer,
    Reset,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from contrail.protocol.log_floor import LogFloor
from contrail.replication.state.epochs import EpochStart, EpochTable
from contrail.replication.state.group_effects import (
    AppendMarker,
    BeginAnew,
    BeginAt,
    CommitMoved,
    Effect,
    Role,
    SaveVote,
    Send,
)
from contrail.replication.state.member import Member
from contrail.replication.state.member_log import MemberLog
from contrail.replication.state.voters import Voters

pytestmark = pytest.mark.proves("replication.failover.behind-retention")

NOW = 100_000
ABC = frozenset("abc")
FLOOR = LogFloor(
    physical_start=500, removed_count=1, starts=((3, 400),), voters=ABC, voters_end=450
)


def installing(*, must_reach: int = 0, end: int = 0) -> Member:
    starts = [EpochStart(3, 0)] if end else []
    log = MemberLog(end, end, 0, EpochTable(starts), Voters(ABC))
    return make(log, must_reach=must_reach)


def make(log: MemberLog, *, must_reach: int | None = None) -> Member:
    return Member(
        "a",
        term=3,
        voted_for=None,
        log=log,
        batch_end=lambda start, limit: min(limit, start + 100),
        between=lambda low, high: high,
        now_ms=NOW,
        must_reach=must_reach,
    )


def sent(effects: list[Effect]) -> list[Message]:
    return [one.message for one in effects if isinstance(one, Send)]


def batch(start: int, end: int, *, commit: int = 700, epoch: int = 3) -> Append:
    return Append(3, start, epoch, epoch, end, commit, NOW)


def test_an_empty_log_begins_at_the_floor_of_its_leader() -> None:
    member = installing(must_reach=600)
    effects = member.received("b", Reset(3, NOW, FLOOR), NOW)
    assert BeginAt(FLOOR) in effects
    assert sent(effects) == [CopyAnswer(3, 500, NOW)]
    log = member.log
    assert (log.start, log.end, log.synced_end, log.commit) == (500, 500, 500, 500)
    assert log.epochs.epoch_of_end(500) == 3 and log.epochs.marker_count == 2
    # The batch behind it agrees.
    effects = member.received("b", batch(500, 600), NOW)
    assert log.end == 600 and not any(isinstance(one, AppendRefusal) for one in sent(effects))


def test_a_log_with_bytes_is_emptied_and_what_it_acknowledged_is_noted() -> None:
    member = make(MemberLog(300, 280, 200, EpochTable([EpochStart(2, 0)]), Voters(ABC)))
    effects = member.received("b", Reset(3, NOW, FLOOR), NOW)
    assert [one for one in effects if isinstance(one, BeginAnew)] == [BeginAnew(280)]
    # Once more while it copies: the greater end counts.
    member = installing(must_reach=600, end=300)
    effects = member.received("b", Reset(3, NOW, FLOOR), NOW)
    assert BeginAnew(600) in effects


def test_a_reset_of_a_former_leader_changes_nothing() -> None:
    member = installing()
    effects = member.received("b", Reset(2, NOW, FLOOR), NOW)
    assert sent(effects) == [AppendRefusal(3, 500, 0, 0, NOW)] and member.log.end == 0


def test_a_leader_is_not_believed_that_begins_behind_what_is_committed_here() -> None:
    member = make(MemberLog(900, 900, 800, EpochTable([EpochStart(2, 0)]), Voters(ABC)))
    with pytest.raises(AssertionError, match="lacks what is committed"):
        member.received("b", Reset(3, NOW, FLOOR), NOW)


def test_it_neither_votes_nor_stands_nor_acknowledges() -> None:
    member = installing(must_reach=600)
    late = NOW + 10_000
    assert sent(member.received("b", PreVote(4, 9, 9_000), late)) == [PreVoteAnswer(4, False, 3)]
    member.received("b", Vote(4, 9, 9_000, False), late)
    answers = sent(member.vote_saved(1, late))
    assert answers == [VoteAnswer(4, False)] and member.voted_for is None
    member.received("b", TimeoutNow(4), late)
    assert sent(member.tick(late + 20_000)) == [] and member.role is Role.FOLLOWER


def test_it_counts_again_once_it_has_what_it_acknowledged_and_what_is_committed() -> None:
    member = installing(must_reach=600)
    member.received("b", Reset(3, NOW, FLOOR), NOW)
    member.received("b", batch(500, 650), NOW)
    # All of it is written, but of what is committed (700) it lacks some.
    assert sent(member.synced(650, 0, NOW)) == [CopyAnswer(3, 650, NOW)]
    member.received("b", batch(650, 720), NOW)
    effects = member.synced(720, 0, NOW)
    # The answer waits until the change is written down.
    assert effects == [SaveVote(1, 3, None, is_installed=True)]
    assert sent(member.vote_saved(1, NOW)) == [AppendAnswer(3, 720, NOW)]
    assert member.may_vote


def leader() -> Member:
    """The leader of term 4 whose log begins at 500."""
    log = MemberLog(700, 700, 700, EpochTable([EpochStart(3, 400)], removed_count=1), Voters(ABC))
    log.start = 500
    member = make(log)
    member.tick(NOW + 2_000)
    member.received("b", PreVoteAnswer(4, True, 3), NOW + 2_000)
    effects = member.vote_saved(1, NOW + 2_001)
    effects += member.received("b", VoteAnswer(4, True), NOW + 2_002)
    assert any(isinstance(one, AppendMarker) for one in effects)
    member.marker_appended(750)
    return member


def test_a_leader_sends_its_floor_to_a_member_that_is_behind_it() -> None:
    member = leader()
    member.push(NOW + 2_003)
    effects = member.received("c", AppendRefusal(4, 700, 0, 100, NOW), NOW + 2_004)
    (reset,) = (one for one in sent(effects) if isinstance(one, Reset))
    assert reset.floor == LogFloor(
        physical_start=500, removed_count=1, starts=((3, 400),), voters=ABC, voters_end=0
    )
    # Not again before it has answered, or a beat is due.
    assert sent(member.push(NOW + 2_005)) == []


def test_a_copy_counts_for_no_commit() -> None:
    member = leader()
    member.synced(750, 0, NOW)
    member.push(NOW)
    assert member.received("c", CopyAnswer(4, 750, NOW), NOW) == []
    assert member.log.commit == 700
    effects = member.received("c", AppendAnswer(4, 750, NOW), NOW)
    assert CommitMoved(750) in effects


def test_a_members_log_is_asked_for_anew_when_it_comes_back() -> None:
    member = leader()
    member.push(NOW)
    member.received("c", AppendAnswer(4, 750, NOW), NOW)
    assert member.progress["c"].matched_end == 750
    member.is_connected("c", False, NOW)
    member.is_connected("c", True, NOW)
    assert (member.progress["c"].matched_end, member.progress["c"].next_end) == (0, 750)
    member.push(NOW)
    # It was emptied: its log is sent from its beginning, not from where it ended.
    effects = member.received("c", AppendRefusal(4, 750, 0, 0, NOW), NOW)
    assert any(isinstance(one, Reset) for one in sent(effects))

"""One member of a failover group: Raft on the commit log, as a decider.

Events go in (``tick``, ``received``, ``appended``, ``synced``, ``vote_saved`` ...), effects come
out; the runner carries them out in their order. Nothing leaves the member before the save that it
depends on: messages wait for term and vote to be on the disk, answers for the bytes they speak of.

| role      | moved to by                                                                       |
| --------- | --------------------------------------------------------------------------------- |
| follower  | the start; a higher term; an ``Append`` of its term; lost majority; a cut          |
| candidate | a majority of pre-votes, or ``TimeoutNow``; its own vote counts once it is saved   |
| leader    | a majority of votes; it serves once the marker of its epoch is committed           |

All times are monotonic milliseconds of this process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
from contrail.replication.state.group_effects import (
    AppendMarker,
    AppendRaw,
    AppendVoters,
    BeginAnew,
    BeginAt,
    CommitMoved,
    Effect,
    Role,
    RoleChanged,
    SaveVote,
    Send,
    Truncate,
)
from contrail.replication.state.member_log import MemberLog, MemberTimes
from contrail.replication.state.progress import Progress
from contrail.replication.state.voters import is_single_change


@dataclass(slots=True)
class _Election:
    """Votes of one candidacy; ``is_asking`` while they are pre-votes."""

    term: int
    is_asking: bool
    is_transfer: bool
    granted: set[str] = field(default_factory=set)


class Member:
    """Decides for one member; its log, its disk and its network belong to the runner."""

    def __init__(
        self,
        self_id: str,
        *,
        term: int,
        voted_for: str | None,
        log: MemberLog,
        batch_end: Callable[[int, int], int],
        between: Callable[[int, int], int],
        now_ms: int,
        times: MemberTimes | None = None,
        in_flight_bytes_max: int = 4 << 20,
        must_reach: int | None = None,
    ) -> None:
        """``batch_end(start, limit)`` is where a batch of whole records from ``start`` ends.

        ``between(low, high)`` draws an election time-out. A log may hold an epoch whose term was
        not saved before a crash: the member takes that term up and saves it, without a vote.
        A member that lacks what it acknowledged up to ``must_reach`` neither votes nor acknowledges
        until it has that from a leader; None: it lacks nothing.
        """
        self.self_id = self_id
        self.log = log
        self.role = Role.FOLLOWER
        self.term = term
        self.voted_for = voted_for
        self.leader: str | None = None
        self.progress: dict[str, Progress] = {}
        self.connected: set[str] = set()
        self.is_installing = must_reach is not None
        self._must_reach = must_reach or 0
        # The commit of the leader when it was first heard: later ones run ahead under load.
        self._commit_told = 0
        self._batch_end = batch_end
        self._between = between
        self._times = times or MemberTimes()
        self._in_flight_bytes_max = in_flight_bytes_max
        self._effects: list[Effect] = []
        self._save_number = 0
        self._saved_number = 0
        self._held: list[tuple[int, Send]] = []
        self._election: _Election | None = None
        self._transfer_target: str | None = None
        self._is_transferring = False
        self._marker_end: int | None = None
        self._ack_end = 0
        self._ack_sent_ms = 0
        self._refuses_votes_until_ms = now_ms + self._times.heard_ms
        self._heard_from: str | None = None
        self._elected_ms = now_ms
        self._was_handed_over = False
        self._next_beat_ms = now_ms
        self._deadline_ms = now_ms + self._election_timeout()
        if log.epochs.last_epoch > term:
            self._adopt(log.epochs.last_epoch, voted_for=None)

    # Asked by others.

    @property
    def is_voter(self) -> bool:
        return self.self_id in self.log.voters.now

    @property
    def may_vote(self) -> bool:
        """Whether it votes and stands: a voter that has all that it acknowledged."""
        return self.is_voter and not self.is_installing

    @property
    def is_serving(self) -> bool:
        """A leader whose marker is committed takes sends, unless it hands over."""
        return (
            self.role is Role.LEADER
            and self._marker_end is not None
            and self.log.commit >= self._marker_end
            and self._transfer_target is None
        )

    def has_lease(self, now_ms: int) -> bool:
        """Whether no other member can be leader now: locks and consumer offsets may change."""
        if not self.is_serving or self._is_transferring:
            return False
        opens_ms = self._elected_ms + (0 if self._was_handed_over else self._times.heard_ms)
        return now_ms >= opens_ms and self._majority_answered_ms(now_ms) > (
            now_ms - self._times.lease_ms
        )

    # Events.

    def tick(self, now_ms: int) -> list[Effect]:
        """Beat, stand for election or step down, whatever is due."""
        if self.role is Role.LEADER:
            self._lead_on(now_ms)
        elif now_ms >= self._deadline_ms:
            self._deadline_ms = now_ms + self._election_timeout()
            if self.may_vote:
                self._ask_for_pre_votes(now_ms)
        return self._taken()

    def received(self, peer: str, message: Message, now_ms: int) -> list[Effect]:
        match message:
            case PreVote():
                self._on_pre_vote(peer, message, now_ms)
            case PreVoteAnswer():
                self._on_pre_vote_answer(peer, message, now_ms)
            case Vote():
                self._on_vote(peer, message, now_ms)
            case VoteAnswer():
                self._on_vote_answer(peer, message, now_ms)
            case Append():
                self._on_append(peer, message, now_ms)
            case AppendAnswer():
                self._on_append_answer(peer, message, now_ms)
            case AppendRefusal():
                self._on_append_refusal(peer, message, now_ms)
            case TimeoutNow():
                self._on_timeout_now(message, now_ms)
            case Reset():
                self._on_reset(peer, message, now_ms)
            case CopyAnswer():
                self._on_copy_answer(peer, message, now_ms)
        return self._taken()

    def is_connected(self, peer: str, is_connected: bool, now_ms: int) -> list[Effect]:
        """A connection to ``peer`` was made or lost."""
        if is_connected:
            self.connected.add(peer)
            if peer in self.progress:
                self.progress[peer].connected()
        else:
            self.connected.discard(peer)
            if peer in self.progress:
                self.progress[peer].disconnected()
            if peer == self._heard_from and self.role is not Role.LEADER:
                # A killed leader closes its connections: stand soon, not after a whole time-out.
                soon_ms = now_ms + self._times.election_ms_min * 150 // 1000
                late_ms = soon_ms + self._times.election_ms_min * 300 // 1000
                self._deadline_ms = min(self._deadline_ms, self._between(soon_ms, late_ms))
        return self._taken()

    def vote_saved(self, number: int, now_ms: int) -> list[Effect]:
        """Term and vote of ``SaveVote(number)`` are on the disk."""
        self._saved_number = max(self._saved_number, number)
        election = self._election
        if (
            election is not None
            and not election.is_asking
            and self._saved_number == self._save_number
            and self.self_id not in election.granted
        ):
            election.granted.add(self.self_id)
            self._lead_if_elected(now_ms)
        return self._taken()

    def marker_appended(self, physical_end: int) -> list[Effect]:
        """The leader's marker, with the blank in front of it if there is one, is written."""
        assert self.role is Role.LEADER and self._marker_end is None
        self.log.epochs.begin(self.term, self.log.end)
        self.log.end = self._marker_end = physical_end
        return self._taken()

    def appended(self, physical_end: int) -> list[Effect]:
        """The leader has written records of its own up to ``physical_end``."""
        assert self.role is Role.LEADER and physical_end >= self.log.end
        self.log.end = physical_end
        return self._taken()

    def voters_appended(
        self, physical_end: int, voters: frozenset[str], now_ms: int
    ) -> list[Effect]:
        """A voter record that ends at ``physical_end`` is in the log, here or from the leader."""
        self.log.end = max(self.log.end, physical_end)
        self.log.voters.record(physical_end, voters)
        if self.role is Role.LEADER:
            self._follow_voters(now_ms)
        return self._taken()

    def push(self, now_ms: int) -> list[Effect]:
        """Send what has been appended to every member that can take more."""
        if self.role is Role.LEADER:
            for peer in self.progress:
                self._push_to(peer, now_ms)
        return self._taken()

    def synced(self, physical_end: int, cut_count: int, now_ms: int) -> list[Effect]:
        """A sync that began after ``cut_count`` cuts has put the log up to here on the disk."""
        if cut_count == self.log.cut_count:
            self.log.synced_end = max(self.log.synced_end, min(physical_end, self.log.end))
            if self.role is Role.LEADER:
                self._move_commit(now_ms)
            elif self.leader is not None and self._ack_end:
                self._finish_installing()
                self._answer_append(self.leader)
        return self._taken()

    def transfer(self, target: str, now_ms: int) -> list[Effect]:
        """Hand over to ``target`` as soon as it has the whole log; sends wait meanwhile."""
        if self.is_serving and target in self.log.voters.now and target != self.self_id:
            self._transfer_target = target
            self._hand_over_if_matched(now_ms)
        return self._taken()

    def give_up_transfer(self) -> list[Effect]:
        """The target took too long. After ``TimeoutNow`` the lease stays closed."""
        self._transfer_target = None
        return self._taken()

    def change_voters(self, voters: frozenset[str]) -> list[Effect]:
        """Append a voter record, if one may be appended now; else no effect.

        One change at a time, and only behind a commit in the leader's own term: without it two
        leaders can each commit with a majority of their own.
        """
        may_change = self.is_serving and self.log.voters.changed_end <= self.log.commit
        if may_change and is_single_change(self.log.voters.now, voters):
            self._effects.append(AppendVoters(voters))
        return self._taken()

    def add_learner(self, peer: str) -> list[Effect]:
        """Replicate to ``peer`` too; its copy does not count until it is a voter."""
        if self.role is Role.LEADER and peer not in self.progress and peer != self.self_id:
            self.progress[peer] = Progress(next_end=self.log.end)
        return self._taken()

    # Elections.

    def _ask_for_pre_votes(self, now_ms: int) -> None:
        self.leader = None
        self._election = _Election(self.term + 1, is_asking=True, is_transfer=False)
        self._election.granted.add(self.self_id)
        self._change_role(Role.FOLLOWER)
        request = PreVote(self.term + 1, self.log.epochs.epoch_of_end(self.log.end), self.log.end)
        for peer in self._other_voters():
            self._send(peer, request)
        self._stand_if_asked(now_ms)

    def _stand_if_asked(self, now_ms: int) -> None:
        election = self._election
        if election is not None and self.log.voters.is_majority(election.granted):
            self._stand(is_transfer=False, now_ms=now_ms)

    def _stand(self, *, is_transfer: bool, now_ms: int) -> None:
        """Begin a term as candidate; the requests leave once term and vote are saved."""
        self._adopt(self.term + 1, voted_for=self.self_id)
        self._election = _Election(self.term, is_asking=False, is_transfer=is_transfer)
        self._change_role(Role.CANDIDATE)
        self._deadline_ms = now_ms + self._election_timeout()
        last_epoch = self.log.epochs.epoch_of_end(self.log.end)
        for peer in self._other_voters():
            self._send(peer, Vote(self.term, last_epoch, self.log.end, is_transfer))

    def _on_pre_vote(self, peer: str, request: PreVote, now_ms: int) -> None:
        is_granted = (
            request.term > self.term
            and self.may_vote
            and not self._keeps_its_leader(now_ms)
            and self._is_up_to_date(request.last_epoch, request.log_end)
        )
        self._send(peer, PreVoteAnswer(request.term, is_granted, self.term))

    def _on_pre_vote_answer(self, peer: str, answer: PreVoteAnswer, now_ms: int) -> None:
        if answer.own_term > self.term:
            self._step_down(answer.own_term, now_ms)
            return
        election = self._election
        if (
            election is not None
            and election.is_asking
            and election.term == answer.term
            and answer.is_granted
        ):
            election.granted.add(peer)
            self._stand_if_asked(now_ms)

    def _on_vote(self, peer: str, request: Vote, now_ms: int) -> None:
        if not request.is_transfer and self._keeps_its_leader(now_ms):
            return
        if request.term > self.term:
            self._step_down(request.term, now_ms)
        is_granted = (
            request.term == self.term
            and self.may_vote
            and self.role is not Role.LEADER
            and self.voted_for in (None, peer)
            and self._is_up_to_date(request.last_epoch, request.log_end)
        )
        if is_granted:
            if self.voted_for is None:
                self._adopt(self.term, voted_for=peer)
            self._deadline_ms = now_ms + self._election_timeout()
        self._send(peer, VoteAnswer(self.term, is_granted))

    def _on_vote_answer(self, peer: str, answer: VoteAnswer, now_ms: int) -> None:
        if answer.term > self.term:
            self._step_down(answer.term, now_ms)
            return
        election = self._election
        if (
            election is not None
            and not election.is_asking
            and election.term == answer.term
            and answer.is_granted
        ):
            election.granted.add(peer)
            self._lead_if_elected(now_ms)

    def _on_timeout_now(self, message: TimeoutNow, now_ms: int) -> None:
        if message.term == self.term and self.may_vote and self.role is not Role.LEADER:
            self._stand(is_transfer=True, now_ms=now_ms)

    def _lead_if_elected(self, now_ms: int) -> None:
        election = self._election
        if election is None or self.self_id not in election.granted:
            return
        if not self.log.voters.is_majority(election.granted):
            return
        self._election = None
        self.leader = self.self_id
        self._elected_ms, self._was_handed_over = now_ms, election.is_transfer
        self._next_beat_ms = now_ms
        self._marker_end, self._transfer_target, self._is_transferring = None, None, False
        self.progress = {}
        self._follow_voters(now_ms)
        self._change_role(Role.LEADER)
        previous_epoch = self.log.epochs.epoch_of_end(self.log.end)
        self._effects.append(AppendMarker(self.term, previous_epoch))

    def _keeps_its_leader(self, now_ms: int) -> bool:
        """Whether a leader was heard a moment ago over a connection that still stands."""
        if self.role is Role.LEADER:
            return not self._is_transferring
        if self._heard_from is None:
            return now_ms < self._refuses_votes_until_ms
        return now_ms < self._refuses_votes_until_ms and self._heard_from in self.connected

    def _is_up_to_date(self, last_epoch: int, log_end: int) -> bool:
        own_epoch = self.log.epochs.epoch_of_end(self.log.end)
        return (last_epoch, log_end) >= (own_epoch, self.log.end)

    # Following.

    def _on_append(self, peer: str, batch: Append, now_ms: int) -> None:
        if batch.term < self.term:
            self._send(peer, AppendRefusal(self.term, batch.previous_end, 0, 0, batch.sent_ms))
            return
        self._hear(peer, batch.term, now_ms)
        log = self.log
        previous_end = min(batch.previous_end, log.end)
        own_epoch = log.epochs.epoch_of_end(previous_end)
        if batch.previous_end > log.end or own_epoch != batch.previous_epoch:
            _, epoch_end = log.epochs.end_at_most(own_epoch, log.end)
            end = min(epoch_end, batch.previous_end)
            self._send(
                peer, AppendRefusal(self.term, batch.previous_end, own_epoch, end, batch.sent_ms)
            )
            return
        self._take_batch(batch)
        self._believe_commit(min(batch.commit, batch.batch_end))
        self._commit_told = self._commit_told or batch.commit
        self._ack_end = max(self._ack_end, batch.batch_end)
        self._ack_sent_ms = max(self._ack_sent_ms, batch.sent_ms)
        self._finish_installing()
        self._answer_append(peer)

    def _hear(self, leader: str, term: int, now_ms: int) -> None:
        """A leader of this term, or a later one, speaks."""
        assert self.role is not Role.LEADER or term > self.term, "two leaders of one term"
        if term > self.term or self.role is not Role.FOLLOWER or self.leader != leader:
            self._follow(leader, term, now_ms)
        self._heard_from = leader
        self._refuses_votes_until_ms = now_ms + self._times.heard_ms
        self._deadline_ms = now_ms + self._election_timeout()

    def _on_reset(self, peer: str, reset: Reset, now_ms: int) -> None:
        """Begin the empty log where the leader's begins; a log with bytes is emptied first."""
        floor = reset.floor
        if reset.term < self.term:
            self._send(peer, AppendRefusal(self.term, floor.physical_start, 0, 0, reset.sent_ms))
            return
        self._hear(peer, reset.term, now_ms)
        if self.is_installing and self.log.end == self.log.start:
            self.log.begin_at(floor)
            self._effects.append(BeginAt(floor))
            self._ack_end, self._ack_sent_ms = floor.physical_start, reset.sent_ms
            self._answer_append(peer)
            return
        assert floor.physical_start > self.log.commit, "a leader lacks what is committed here"
        self._effects.append(BeginAnew(max(self._must_reach, self.log.synced_end)))

    def _finish_installing(self) -> None:
        """Vote and acknowledge again, once all is here that was acknowledged or is committed."""
        matched_end = min(self.log.synced_end, self._ack_end)
        if (
            self.is_installing
            and self._commit_told
            and matched_end >= max(self._must_reach, self._commit_told)
        ):
            self.is_installing = False
            self._save_number += 1
            self._effects.append(
                SaveVote(self._save_number, self.term, self.voted_for, is_installed=True)
            )

    def _take_batch(self, batch: Append) -> None:
        """Skip the bytes that are there already, cut where another leader's begin, write the rest.

        The logs agree at ``previous_end``, and bytes of one epoch at one place are the same.
        """
        log = self.log
        if batch.batch_end == batch.previous_end:
            return
        begin = batch.previous_end
        if begin < log.end and log.epochs.epoch_of_byte(begin) == batch.epoch:
            begin = min(log.epochs.stretch_end(begin, log.end), batch.batch_end)
        if begin == batch.batch_end:
            return
        if begin < log.end:
            assert begin >= log.commit, "a cut below commit"
            log.cut(begin)
            self._ack_end = min(self._ack_end, begin)
            self._effects.append(Truncate(begin, log.cut_count))
        if log.epochs.last_epoch != batch.epoch:
            log.epochs.begin(batch.epoch, begin)
        self._effects.append(AppendRaw(begin, batch.batch_end))
        log.end = batch.batch_end

    def _answer_append(self, peer: str) -> None:
        matched_end = min(self.log.synced_end, self._ack_end)
        answer = CopyAnswer if self.is_installing else AppendAnswer
        self._send(peer, answer(self.term, matched_end, self._ack_sent_ms))

    def _believe_commit(self, commit: int) -> None:
        if commit > self.log.commit:
            self.log.commit = commit
            self._effects.append(CommitMoved(commit))

    # Leading.

    def _lead_on(self, now_ms: int) -> None:
        if self._majority_answered_ms(now_ms) <= now_ms - self._times.quorum_ms:
            self._step_down(self.term, now_ms)
            return
        if now_ms < self._next_beat_ms:
            return
        self._next_beat_ms = now_ms + self._times.beat_ms
        for peer, progress in self.progress.items():
            progress.is_awaited = False
            sent = self._push_to(peer, now_ms)
            if not sent:
                self._send_batch(peer, progress.next_end, now_ms)

    def _push_to(self, peer: str, now_ms: int) -> bool:
        progress, is_sent = self.progress[peer], False
        while progress.next_end < self.log.end and progress.may_send(self._in_flight_bytes_max):
            begin, is_sent = progress.next_end, True
            if begin < self.log.start:
                self._send_batch(peer, begin, now_ms)
                break
            limit = self.log.epochs.stretch_end(begin, self.log.end)
            self._send_batch(peer, self._batch_end(begin, limit), now_ms)
        return is_sent

    def _send_batch(self, peer: str, batch_end: int, now_ms: int) -> None:
        progress, log = self.progress[peer], self.log
        begin = progress.next_end
        if begin < log.start:
            progress.is_streaming, progress.is_awaited = False, True
            self._send(peer, Reset(self.term, now_ms, log.floor_at(log.start)))
            return
        self._send(
            peer,
            Append(
                term=self.term,
                previous_end=begin,
                previous_epoch=log.epochs.epoch_of_end(begin),
                epoch=log.epochs.epoch_of_byte(begin) if batch_end > begin else self.term,
                batch_end=batch_end,
                commit=log.commit,
                sent_ms=now_ms,
            ),
        )
        progress.sent(batch_end)

    def _on_append_answer(self, peer: str, answer: AppendAnswer, now_ms: int) -> None:
        if answer.term > self.term:
            self._step_down(answer.term, now_ms)
            return
        if self.role is not Role.LEADER or answer.term != self.term or peer not in self.progress:
            return
        progress = self.progress[peer]
        progress.is_copying = False
        progress.answered(answer.sent_ms)
        progress.matched(answer.matched_end)
        self._move_commit(now_ms)
        if self.role is Role.LEADER:
            self._hand_over_if_matched(now_ms)
            self._push_to(peer, now_ms)

    def _on_copy_answer(self, peer: str, answer: CopyAnswer, now_ms: int) -> None:
        if answer.term > self.term:
            self._step_down(answer.term, now_ms)
            return
        if self.role is not Role.LEADER or answer.term != self.term or peer not in self.progress:
            return
        progress = self.progress[peer]
        progress.is_copying = True
        progress.answered(answer.sent_ms)
        progress.matched(answer.matched_end)
        self._push_to(peer, now_ms)

    def _on_append_refusal(self, peer: str, refusal: AppendRefusal, now_ms: int) -> None:
        if refusal.term > self.term:
            self._step_down(refusal.term, now_ms)
            return
        if self.role is not Role.LEADER or refusal.term != self.term or peer not in self.progress:
            return
        progress = self.progress[peer]
        progress.answered(refusal.sent_ms)
        if refusal.previous_end > progress.next_end:
            # Of a batch that was on its way when the leader went back for an earlier one.
            return
        epoch, own_end = self.log.epochs.end_at_most(refusal.epoch, self.log.end)
        common_end = min(own_end, refusal.epoch_end) if epoch == refusal.epoch else own_end
        progress.disagreed(min(common_end, refusal.previous_end))
        self._push_to(peer, now_ms)

    def _move_commit(self, now_ms: int) -> None:
        """Commit what a majority has on disk, if its last byte is of the leader's own epoch."""
        ends = {
            peer: progress.matched_end
            for peer, progress in self.progress.items()
            if not progress.is_copying
        }
        ends[self.self_id] = self.log.synced_end
        reached = self.log.voters.reached_by_majority(ends)
        was_serving = self.is_serving
        if reached > self.log.commit and self.log.epochs.epoch_of_end(reached) == self.term:
            self._believe_commit(reached)
        if self.is_serving and not was_serving:
            self._announce_role()
        if not self.is_voter and self.log.voters.changed_end <= self.log.commit:
            self._step_down(self.term, now_ms)

    def _majority_answered_ms(self, now_ms: int) -> int:
        """A majority answered beats that were sent at this time or later."""
        times = {peer: one.answered_sent_ms or 0 for peer, one in self.progress.items()}
        times[self.self_id] = now_ms
        return self.log.voters.reached_by_majority(times)

    def _hand_over_if_matched(self, now_ms: int) -> None:
        target = self._transfer_target
        if target is None or self._is_transferring:
            return
        progress = self.progress[target]
        if progress.matched_end == self.log.end and not progress.is_copying:
            self._is_transferring = True
            self._send(target, TimeoutNow(self.term))

    def _follow_voters(self, now_ms: int) -> None:
        """Replicate to every voter; a new one has its time until the next check of the quorum."""
        for peer in self._other_voters():
            if peer not in self.progress:
                self.progress[peer] = Progress(next_end=self.log.end, answered_sent_ms=now_ms)

    # Roles and terms.

    def _follow(self, leader: str, term: int, now_ms: int) -> None:
        """Follow the leader of ``term``; its log decides anew what is acknowledged."""
        if term > self.term or self.role is not Role.FOLLOWER:
            self._step_down(term, now_ms)
        self.leader, self._election = leader, None
        self._ack_end, self._ack_sent_ms, self._commit_told = 0, 0, 0
        self._announce_role()

    def _step_down(self, term: int, now_ms: int) -> None:
        if term > self.term:
            self._adopt(term, voted_for=None)
        self.leader, self._election = None, None
        self._ack_end, self._ack_sent_ms = 0, 0
        self._transfer_target, self._is_transferring, self._marker_end = None, False, None
        self.progress = {}
        self._deadline_ms = now_ms + self._election_timeout()
        self._change_role(Role.FOLLOWER)

    def _adopt(self, term: int, *, voted_for: str | None) -> None:
        assert term >= self.term
        self.term, self.voted_for = term, voted_for
        self._save_number += 1
        self._effects.append(SaveVote(self._save_number, term, voted_for))

    def _change_role(self, role: Role) -> None:
        if self.role is not role:
            self.role = role
            self._announce_role()

    def _announce_role(self) -> None:
        self._effects.append(RoleChanged(self.role, self.term, self.leader, self.is_serving))

    # Small parts.

    def _other_voters(self) -> list[str]:
        return sorted(self.log.voters.now - {self.self_id})

    def _election_timeout(self) -> int:
        return self._between(self._times.election_ms_min, self._times.election_ms_max)

    def _send(self, peer: str, message: Message) -> None:
        """Queue a message; it leaves once the newest term and vote are on the disk."""
        self._held.append((self._save_number, Send(peer, message)))

    def _taken(self) -> list[Effect]:
        """The effects so far, and every message whose save is done."""
        effects, self._effects = self._effects, []
        kept = []
        for number, send in self._held:
            if number <= self._saved_number:
                effects.append(send)
            else:
                kept.append((number, send))
        self._held = kept
        return effects

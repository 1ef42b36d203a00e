"""Members with one rule left out each. A simulation that lets one of them live proves nothing."""

from __future__ import annotations

from dataclasses import replace

from contrail.protocol.group_messages import (
    Append,
    AppendAnswer,
    Message,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from contrail.replication.state.epochs import EpochTable
from contrail.replication.state.group_effects import (
    AppendMarker,
    AppendVoters,
    Effect,
    Role,
    Send,
    Truncate,
)
from contrail.replication.state.member import Member
from tests.simulation.group import Group, Node

MEMBERS: dict[str, type[Member]] = {}
GROUPS: dict[str, type[Group]] = {}


def _member(kind: type[Member]) -> type[Member]:
    MEMBERS[_name(kind)] = kind
    return kind


def _group(kind: type[Group]) -> type[Group]:
    GROUPS[_name(kind)] = kind
    return kind


def _name(kind: type) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).strip("_")


# Saves and syncs.


@_member
class TermUnsynced(Member):
    """Messages of a new term leave before the term is on the disk."""

    def _send(self, peer: str, message: Message) -> None:
        is_vote = isinstance(message, Vote | VoteAnswer)
        self._held.append((self._save_number if is_vote else 0, Send(peer, message)))


@_member
class VoteUnsynced(Member):
    """Votes leave before they are on the disk."""

    def _send(self, peer: str, message: Message) -> None:
        is_vote = isinstance(message, VoteAnswer)
        self._held.append((0 if is_vote else self._save_number, Send(peer, message)))


@_member
class AckBeforeSync(Member):
    """A follower acknowledges bytes that it has written and not synced."""

    def _answer_append(self, peer: str) -> None:
        end = min(self.log.end, self._ack_end)
        self._send(peer, AppendAnswer(self.term, end, self._ack_sent_ms))


@_member
class OwnUnsyncedCounted(Member):
    """A leader counts its own bytes before it has synced them."""

    def _move_commit(self, now_ms: int) -> None:
        synced_end, self.log.synced_end = self.log.synced_end, self.log.end
        super()._move_commit(now_ms)
        self.log.synced_end = min(synced_end, self.log.end)


@_member
class SyncOfCutBytes(Member):
    """A sync that began before a cut is believed of the bytes written since."""

    def synced(self, physical_end: int, cut_count: int, now_ms: int) -> list[Effect]:
        return super().synced(physical_end, self.log.cut_count, now_ms)


@_group
class CutNotDurable(Group):
    """A cut is not synced before new bytes are acknowledged."""

    def cut(self, node: Node, physical_end: int) -> None:
        node.disk.cut(physical_end, is_durable=False)


# Elections.


@_member
class VoteWithoutLogCheck(Member):
    """A vote is granted to a candidate with a shorter log."""

    def _is_up_to_date(self, last_epoch: int, log_end: int) -> bool:
        return True


@_member
class DoubleVote(Member):
    """A member votes twice in one term."""

    def _on_vote(self, peer: str, request: Vote, now_ms: int) -> None:
        if request.term == self.term and self.role is not Role.LEADER:
            self.voted_for = None
        super()._on_vote(peer, request, now_ms)


@_member
class VoteInLease(Member):
    """Votes are granted while a leader was heard a moment ago."""

    def _keeps_its_leader(self, now_ms: int) -> bool:
        return False


@_member
class MajorityLessOne(Member):
    """One acknowledgement less than a majority commits."""

    def _move_commit(self, now_ms: int) -> None:
        ends = sorted([one.matched_end for one in self.progress.values()], reverse=True)
        own = sorted([*ends, self.log.synced_end], reverse=True)
        reached = own[max(len(self.log.voters.now) // 2 - 1, 0)]
        if reached > self.log.commit and self.log.epochs.epoch_of_end(reached) == self.term:
            self._believe_commit(reached)
        super()._move_commit(now_ms)


@_member
class NoMarker(Member):
    """A leader commits bytes of former epochs without a marker of its own."""

    def _lead_if_elected(self, now_ms: int) -> None:
        super()._lead_if_elected(now_ms)
        markers = [one for one in self._effects if isinstance(one, AppendMarker)]
        if markers:
            self._effects = [one for one in self._effects if one not in markers]
            self._marker_end = self.log.end

    def appended(self, physical_end: int) -> list[Effect]:
        if self.log.epochs.last_epoch < self.term:
            self.log.epochs.begin(self.term, self.log.end)
        return super().appended(physical_end)


# Agreement.


@_member
class OldEpochCounted(Member):
    """A leader commits bytes of former epochs by counting copies."""

    def _move_commit(self, now_ms: int) -> None:
        ends = {peer: progress.matched_end for peer, progress in self.progress.items()}
        ends[self.self_id] = self.log.synced_end
        self._believe_commit(self.log.voters.reached_by_majority(ends))
        super()._move_commit(now_ms)


@_member
class PrevEpochUnchecked(Member):
    """A follower appends behind bytes of another epoch than the leader's."""

    def _on_append(self, peer: str, batch: Append, now_ms: int) -> None:
        end = min(batch.previous_end, self.log.end)
        own = self.log.epochs.epoch_of_end(end)
        super()._on_append(peer, replace(batch, previous_epoch=own), now_ms)


@_member
class AlwaysCut(Member):
    """A follower cuts behind every batch, also behind an old one that comes late."""

    def _take_batch(self, batch: Append) -> None:
        if self.log.commit <= batch.batch_end < self.log.end:
            self.log.cut(batch.batch_end)
            self._ack_end = min(self._ack_end, batch.batch_end)
            self._effects.append(Truncate(batch.batch_end, self.log.cut_count))
        super()._take_batch(batch)


@_member
class CommitPastBatch(Member):
    """A follower believes the leader's commit beyond what it has compared."""

    def _believe_commit(self, commit: int) -> None:
        if self.role is Role.FOLLOWER:
            commit = max(commit, min(self._leader_commit, self.log.end))
        super()._believe_commit(commit)

    _leader_commit = 0

    def _on_append(self, peer: str, batch: Append, now_ms: int) -> None:
        self._leader_commit = batch.commit
        super()._on_append(peer, batch, now_ms)


@_member
class StaleTermAppend(Member):
    """A follower takes batches of a deposed leader."""

    def _on_append(self, peer: str, batch: Append, now_ms: int) -> None:
        if self.role is Role.FOLLOWER and batch.term < self.term:
            batch = replace(batch, term=self.term)
        super()._on_append(peer, batch, now_ms)


@_member
class OldTermAck(Member):
    """A leader counts acknowledgements of a former term."""

    def _on_append_answer(self, peer: str, answer: AppendAnswer, now_ms: int) -> None:
        if answer.term < self.term:
            answer = AppendAnswer(self.term, answer.matched_end, answer.sent_ms)
        super()._on_append_answer(peer, answer, now_ms)


@_member
class EpochOfNextByte(Member):
    """The epoch of an end is taken for that of the byte behind it."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
        self.log.epochs.__class__ = _NextByteTable


class _NextByteTable(EpochTable):
    def epoch_of_end(self, physical_end: int) -> int:
        return self.epoch_of_byte(physical_end)


@_group
class AckAtAppend(Group):
    """A producer is answered when its record is appended."""

    def produce(self) -> None:
        before = {name: list(self.judge._waiting[name]) for name in self.nodes}
        super().produce()
        for name, units in self.judge._waiting.items():
            self.judge.acknowledged += [unit for unit in units if unit not in before[name]]


# Leases, transfer, voters.


@_member
class LeaseByArrival(Member):
    """A lease goes by when answers arrive, not by when their beats were sent."""

    def _on_append_answer(self, peer: str, answer: AppendAnswer, now_ms: int) -> None:
        super()._on_append_answer(
            peer, AppendAnswer(answer.term, answer.matched_end, now_ms), now_ms
        )


@_member
class TransferUnmatched(Member):
    """A leader hands over, and drops its lease late, whatever the target has."""

    def _hand_over_if_matched(self, now_ms: int) -> None:
        if self._transfer_target is not None:
            self._send(self._transfer_target, TimeoutNow(self.term))


@_member
class LearnerCounted(Member):
    """Copies of learners count."""

    def _move_commit(self, now_ms: int) -> None:
        ends = sorted(
            [*(one.matched_end for one in self.progress.values()), self.log.synced_end],
            reverse=True,
        )
        reached = ends[min(len(self.log.voters.now) // 2, len(ends) - 1)]
        if reached > self.log.commit and self.log.epochs.epoch_of_end(reached) == self.term:
            self._believe_commit(reached)
        super()._move_commit(now_ms)


@_member
class ChangeBeforeOwnCommit(Member):
    """Voters change before the leader has committed in its own term."""

    def change_voters(self, voters: frozenset[str]) -> list[Effect]:
        if self.role is Role.LEADER and self._marker_end is not None:
            self._effects.append(AppendVoters(voters))
        return self._taken()

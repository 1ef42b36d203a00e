"""Judges a simulated group by what is on its disks and on its wires, not by what members say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from contrail.protocol.group_messages import (
    AppendAnswer,
    Message,
    PreVote,
    PreVoteAnswer,
    VoteAnswer,
)
from contrail.replication.state.group_effects import Role, RoleChanged
from tests.simulation.disk import Unit

if TYPE_CHECKING:
    from tests.simulation.group import Node


class Violation(AssertionError):
    """An invariant of the protocol does not hold."""


class Judge:
    """The invariants I1-I7, I10, I11, I19 and I20 of a failover group."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._leaders: dict[int, str] = {}
        self._committed: list[Unit] = []
        self._commits: dict[str, int] = {}
        self._waiting: dict[str, list[Unit]] = {}
        self.acknowledged: list[Unit] = []

    @property
    def committed_count(self) -> int:
        return len(self._committed)

    @property
    def committed_end(self) -> int:
        return self._committed[-1].physical_end if self._committed else 0

    def started(self, node: Node) -> None:
        self._commits[node.name] = 0
        self._waiting[node.name] = []

    crashed = started

    def appended(self, node: Node, unit: Unit) -> None:
        self._waiting[node.name].append(unit)

    def role_changed(self, node: Node, change: RoleChanged) -> None:
        if change.role is not Role.LEADER:
            # A held send is in doubt from here on; it is not acknowledged by this member.
            self._waiting[node.name] = []
            return
        leader = self._leaders.setdefault(change.term, node.name)
        hold(leader == node.name, f"I1: {leader} and {node.name} lead term {change.term}")
        count = len(self._committed)
        hold(
            node.disk.units[:count] == self._committed,
            f"I3: leader {node.name} of term {change.term} lacks committed records",
        )

    def committed(self, node: Node, commit: int) -> None:
        hold(commit >= self._commits[node.name], f"I4: commit of {node.name} goes back")
        units, known = node.disk.units, self._committed
        first, count = node.disk.index_of(self._commits[node.name]), node.disk.index_of(commit)
        hold(count > 0 and units[count - 1].physical_end == commit, "I4: commit inside a record")
        self._commits[node.name] = commit
        hold(
            units[first : min(count, len(known))] == known[first:count],
            f"I2, I6: {node.name} commits other records than were committed before",
        )
        known += units[len(known) : count]
        member = node.member
        assert member is not None
        if member.role is Role.LEADER:
            self._majority_has(member.log.voters.now, count - 1)
        self._acknowledge(node, commit)

    def _majority_has(self, voters: frozenset[str], index: int) -> None:
        unit = self._committed[index]
        holders = [
            name for name in voters if self._nodes[name].disk.durable[index : index + 1] == [unit]
        ]
        hold(2 * len(holders) > len(voters), f"I4: {unit} is committed, on disk at {holders}")

    def _acknowledge(self, node: Node, commit: int) -> None:
        waiting = self._waiting[node.name]
        self.acknowledged += [unit for unit in waiting if unit.physical_end <= commit]
        self._waiting[node.name] = [unit for unit in waiting if unit.physical_end > commit]

    def cut(self, node: Node, physical_end: int) -> None:
        hold(physical_end >= self._commits[node.name], f"I5: {node.name} cuts below its commit")

    def sent(self, node: Node, message: Message) -> None:
        disk = node.disk
        if not isinstance(message, PreVote | PreVoteAnswer):
            hold(disk.term >= message.term, f"I10: {node.name} sent {message} of an unsaved term")
        if isinstance(message, VoteAnswer) and message.is_granted and message.term == disk.term:
            hold(disk.voted_for is not None, f"I10: {node.name} sent an unsaved vote")
        if isinstance(message, AppendAnswer) and message.term == disk.term:
            hold(
                message.matched_end <= disk.durable_end,
                f"I11: {node.name} acknowledged bytes that are not synced",
            )

    def looked_at(self, node: Node, now_ms: int) -> None:
        member = node.member
        if member is None:
            return
        hold(member.log.end == node.disk.end, f"the log of {node.name} ends elsewhere")
        hold(
            member.log.synced_end <= node.disk.durable_end,
            f"I19: {node.name} takes bytes for synced that are not",
        )
        if member.role is not Role.LEADER:
            return
        holders = [
            one.name
            for one in self._nodes.values()
            if one.member is not None and one.member.has_lease(one.now_ms(now_ms))
        ]
        hold(len(holders) <= 1, f"I20: {holders} hold a lease at once")

    def all_is_well(self, voters: frozenset[str]) -> None:
        """After healing: logs of the voters are equal and hold all that was acknowledged."""
        logs = [self._nodes[name].disk.units for name in sorted(voters)]
        hold(all(log == logs[0] for log in logs), "I12: logs differ after healing")
        kept = set(logs[0])
        lost = [unit for unit in self.acknowledged if unit not in kept]
        hold(not lost, f"I7: {len(lost)} acknowledged records are lost, first {lost[:1]}")


def hold(is_kept: bool, text: str) -> None:
    if not is_kept:
        raise Violation(text)

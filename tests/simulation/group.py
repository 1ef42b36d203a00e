"""A failover group under a seeded clock: real members, simulated network, disks and producers."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from contrail.protocol.group_messages import Append, Message
from contrail.replication.state.epochs import EpochTable
from contrail.replication.state.group_effects import (
    AppendMarker,
    AppendRaw,
    AppendVoters,
    CommitMoved,
    Effect,
    Role,
    RoleChanged,
    SaveVote,
    Send,
    Truncate,
)
from contrail.replication.state.member import Member
from contrail.replication.state.member_log import MemberLog
from contrail.replication.state.voters import Voters
from tests.simulation.disk import SimulatedDisk, Unit
from tests.simulation.invariants import Judge

SEGMENT_BYTES = 1_000


@dataclass(frozen=True, slots=True)
class Swarm:
    """How rough one seed is; drawn from the seed."""

    drop: float
    duplicate: float
    delay_ms_max: int
    sync_ms_max: int
    save_ms_max: int
    crash_per_s: float
    cut_off_per_s: float
    pause_per_s: float
    change_per_s: float
    transfer_per_s: float
    send_per_s: float

    @classmethod
    def drawn(cls, random: Random) -> Swarm:
        def sometimes(value: float) -> float:
            return value if random.random() < 0.6 else 0.0

        return cls(
            drop=sometimes(random.choice([0.01, 0.05, 0.2])),
            duplicate=sometimes(0.05),
            delay_ms_max=random.choice([2, 20, 200, 1_000]),
            sync_ms_max=random.choice([1, 10, 300, 3_000]),
            save_ms_max=random.choice([1, 10, 300]),
            crash_per_s=sometimes(random.choice([0.1, 0.5, 1.0])),
            cut_off_per_s=sometimes(random.choice([0.1, 0.5])),
            pause_per_s=sometimes(0.2),
            change_per_s=sometimes(0.3),
            transfer_per_s=sometimes(0.3),
            send_per_s=random.choice([5, 20, 60]),
        )


class Node:
    """One member with its disk; the disk outlives the member."""

    def __init__(self, name: str, disk: Any) -> None:
        self.name = name
        # A ``SimulatedDisk``, or a store with its interface.
        self.disk = disk
        self.member: Member | None = None
        self.life = 0
        self.paused_until_ms = 0
        self.is_syncing = False
        self.saves_done_ms = 0
        self.clock_rate = 1.0
        self.clock_shift_ms = 0

    def now_ms(self, group_ms: int) -> int:
        return int(group_ms * self.clock_rate) + self.clock_shift_ms


class Group:
    """Nodes, what is on its way between them, and the judge of what they do."""

    node_count = 3
    voter_count = 3
    batch_bytes_max = 400

    def __init__(self, seed: int, *, member_type: type[Member] = Member) -> None:
        self.random = Random(seed)
        self.swarm = Swarm.drawn(self.random)
        self.member_type = member_type
        self.now_ms = 0
        self.names = [chr(ord("a") + i) for i in range(self.node_count)]
        self.nodes = {name: Node(name, self.make_disk(name)) for name in self.names}
        self.first_voters = frozenset(self.names[: self.voter_count])
        self.judge = Judge(self.nodes)
        self.cut_links: set[tuple[str, str]] = set()
        self.is_healed = False
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_number = 0
        self._value = 0
        for node in self.nodes.values():
            node.clock_rate = self.random.choice([0.97, 1.0, 1.0, 1.03])
            node.clock_shift_ms = self.random.randrange(10_000)
            self.start(node)

    def make_disk(self, name: str) -> Any:
        return SimulatedDisk()

    # Time.

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self._event_number += 1
        heapq.heappush(self._events, (self.now_ms + int(delay_ms), self._event_number, action))

    def run_until(self, end_ms: int) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
        self.now_ms = end_ms

    # Lives of members.

    def start(self, node: Node) -> None:
        node.life += 1
        node.is_syncing = False
        disk = node.disk
        voters = Voters(self.first_voters)
        starts = EpochTable()
        for unit in disk.units:
            if unit.is_marker:
                starts.begin(unit.epoch, self.epoch_start(unit))
            if unit.voters is not None:
                voters.record(unit.physical_end, unit.voters)
        log = MemberLog(
            end=disk.end,
            synced_end=disk.durable_end,
            commit=min(disk.commit_hint, disk.end),
            epochs=starts,
            voters=voters,
        )
        node.member = self.member_type(
            node.name,
            term=disk.term,
            voted_for=disk.voted_for,
            log=log,
            batch_end=lambda start, limit: node.disk.batch_end(start, limit, self.batch_bytes_max),
            between=self.random.randint,
            now_ms=node.now_ms(self.now_ms),
        )
        self.judge.started(node)
        life = node.life
        for peer in self.names:
            if peer != node.name and self.nodes[peer].member is not None:
                self._connect(node.name, peer)
        self.after(0, lambda: self._tick(node, life))

    def epoch_start(self, unit: Unit) -> int:
        return unit.physical_start

    def crash(self, node: Node) -> None:
        if node.member is None:
            return
        node.member = None
        node.life += 1
        node.disk.crash(self.random)
        self.judge.crashed(node)
        for peer in self.names:
            if peer != node.name:
                self.after(self.random.randint(0, 5), lambda p=peer: self._lost(p, node.name))

    def _connect(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            self.act(
                self.nodes[here],
                lambda member, ms, t=there: member.is_connected(t, True, ms),
            )

    def _lost(self, here: str, there: str) -> None:
        if self.nodes[there].member is None:
            self.act(self.nodes[here], lambda member, ms: member.is_connected(there, False, ms))

    # Events of members.

    def act(
        self,
        node: Node,
        event: Callable[[Member, int], list[Effect]],
        batch: list[Unit] | None = None,
    ) -> None:
        member = node.member
        if member is None:
            return
        effects = event(member, node.now_ms(self.now_ms))
        self._carry_out(node, effects, batch or [])
        self.judge.looked_at(node, self.now_ms)

    def _tick(self, node: Node, life: int) -> None:
        if node.life != life:
            return
        if self.now_ms >= node.paused_until_ms:
            self.act(node, lambda member, ms: member.tick(ms))
            self.act(node, lambda member, ms: member.push(ms))
        self.after(self.random.randint(40, 120), lambda: self._tick(node, life))

    def _carry_out(self, node: Node, effects: list[Effect], batch: list[Unit]) -> None:
        member = node.member
        assert member is not None
        for effect in effects:
            match effect:
                case Send():
                    self._send(node, effect.peer, effect.message)
                case SaveVote():
                    self._save(node, effect)
                case AppendMarker():
                    unit = self._written(node, effect.epoch, is_marker=True)
                    self._more(node, member.marker_appended(unit.physical_end))
                case AppendVoters():
                    unit = self._written(node, member.term, voters=effect.voters)
                    ms = node.now_ms(self.now_ms)
                    self._more(node, member.voters_appended(unit.physical_end, effect.voters, ms))
                case AppendRaw():
                    self._take_raw(node, effect, batch)
                case Truncate():
                    self.judge.cut(node, effect.physical_end)
                    self.cut(node, effect.physical_end)
                case CommitMoved():
                    self.judge.committed(node, effect.commit)
                    self.committed(node, effect.commit)
                case RoleChanged():
                    self.role_changed(node, effect)
        self._sync_soon(node)

    def committed(self, node: Node, commit: int) -> None:
        node.disk.commit_hint = min(commit, node.disk.durable_end)

    def role_changed(self, node: Node, change: RoleChanged) -> None:
        self.judge.role_changed(node, change)

    def cut(self, node: Node, physical_end: int) -> None:
        node.disk.cut(physical_end)
        node.disk.commit_hint = min(node.disk.commit_hint, physical_end)

    def _more(self, node: Node, effects: list[Effect]) -> None:
        if effects:
            self._carry_out(node, effects, [])

    def _take_raw(self, node: Node, effect: AppendRaw, batch: list[Unit]) -> None:
        assert node.member is not None
        for unit in batch:
            if unit.physical_start < effect.physical_offset:
                continue
            node.disk.write(unit)
            if unit.voters is not None:
                ms = node.now_ms(self.now_ms)
                self._more(node, node.member.voters_appended(unit.physical_end, unit.voters, ms))
        assert node.disk.end == effect.physical_end, "a batch holds whole records"

    def _written(
        self,
        node: Node,
        epoch: int,
        *,
        is_marker: bool = False,
        voters: frozenset[str] | None = None,
    ) -> Unit:
        self._value += 1
        size = self.random.randint(20, 150)
        start = node.disk.end
        room = SEGMENT_BYTES - start % SEGMENT_BYTES
        blank = room if size > room - 8 else 0
        unit = Unit(start, start + blank + size, epoch, self._value, voters, is_marker, blank)
        node.disk.write(unit)
        return unit

    # Disk.

    def _save(self, node: Node, effect: SaveVote) -> None:
        life = node.life

        def saved() -> None:
            if node.life != life or node.member is None:
                # A save under way at a crash may have reached the disk.
                if node.life == life + 1 and self.random.random() < 0.3:
                    self._save_to_disk(node, effect)
                return
            self._save_to_disk(node, effect)
            self.act(node, lambda member, ms: member.vote_saved(effect.number, ms))

        # Saves follow each other: a later one never overtakes an earlier one.
        begin_ms = max(self.now_ms, node.saves_done_ms)
        node.saves_done_ms = begin_ms + self.random.randint(0, self._save_ms)
        self.after(node.saves_done_ms - self.now_ms, saved)

    @property
    def _save_ms(self) -> int:
        return 1 if self.is_healed else self.swarm.save_ms_max

    def _save_to_disk(self, node: Node, effect: SaveVote) -> None:
        node.disk.term, node.disk.voted_for = effect.term, effect.voted_for

    def _sync_soon(self, node: Node) -> None:
        if node.is_syncing or node.disk.durable_end >= node.disk.end:
            return
        node.is_syncing = True
        assert node.member is not None
        life, end, cut_count = node.life, node.disk.end, node.member.log.cut_count
        node.disk.sync_begins()

        def synced() -> None:
            if node.life != life:
                return
            node.is_syncing = False
            self.sync_ends(node)
            self.act(node, lambda member, ms: member.synced(end, cut_count, ms))

        slowest_ms = 5 if self.is_healed else self.swarm.sync_ms_max
        self.after(self.random.randint(0, slowest_ms), synced)

    def sync_ends(self, node: Node) -> None:
        node.disk.sync_ends()

    # Network.

    def _send(self, node: Node, peer: str, message: Message) -> None:
        self.judge.sent(node, message)
        batch = []
        if isinstance(message, Append):
            batch = node.disk.between(message.previous_end, message.batch_end)
        swarm = self.swarm
        if not self.is_healed and self.random.random() < swarm.drop:
            return
        count = 2 if not self.is_healed and self.random.random() < swarm.duplicate else 1
        for _ in range(count):
            slowest_ms = 5 if self.is_healed else swarm.delay_ms_max
            delay_ms = self.random.randint(0, slowest_ms)
            self.after(delay_ms, lambda: self._arrive(node.name, peer, message, batch))

    def _arrive(self, sender: str, peer: str, message: Message, batch: list[Unit]) -> None:
        node = self.nodes[peer]
        if (sender, peer) in self.cut_links or node.member is None:
            return
        if self.now_ms < node.paused_until_ms:
            self.after(
                node.paused_until_ms - self.now_ms,
                lambda: self._arrive(sender, peer, message, batch),
            )
            return
        self.act(node, lambda member, ms: member.received(sender, message, ms), batch)

    # Producers.

    def produce(self) -> None:
        """One producer sends to every member that takes sends at this moment."""
        for node in self.nodes.values():
            member = node.member
            if member is None or not member.is_serving or self.now_ms < node.paused_until_ms:
                continue
            self._produce_at(node)

    def _produce_at(self, node: Node) -> None:
        assert node.member is not None
        unit = self._written(node, node.member.term)
        self.judge.appended(node, unit)
        self.act(node, lambda member, ms: member.appended(unit.physical_end))

    def leader(self) -> Node | None:
        leading = [
            node
            for node in self.nodes.values()
            if node.member is not None and node.member.role is Role.LEADER
        ]
        return max(leading, key=lambda node: node.member.term if node.member else 0, default=None)

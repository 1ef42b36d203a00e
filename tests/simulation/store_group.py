"""Layer B: the real member and the real store, under the same story as layer A."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from contrail.replication.state.group_effects import (
    AppendRaw,
    Effect,
    Role,
    RoleChanged,
    SaveVote,
)
from contrail.replication.state.member import Member
from tests.simulation.disk import Unit
from tests.simulation.group import Group, Node
from tests.simulation.invariants import hold
from tests.simulation.store_disk import PowerCut, StoreDisk, StoredUnit
from tests.simulation.story import Story

_TICK_MS = 700
ROUGH_STORE_MS = 10_000


class StoreGroup(Group):
    """A group whose members' disks are stores."""

    batch_bytes_max = 4_000

    def __init__(self, seed: int, *, member_type: type[Member] = Member, folder: Path) -> None:
        self._folder = folder
        if seed % 2:
            # Of five a minority can have records that are cut, beside a leader's own.
            self.node_count = self.voter_count = 5
        super().__init__(seed, member_type=member_type)

    def make_disk(self, name: str) -> StoreDisk:
        return StoreDisk(self._folder, name)

    def store_disk(self, node: Node) -> StoreDisk:
        disk = node.disk
        assert isinstance(disk, StoreDisk)
        return disk

    # Power cuts.

    def guarded(self, node: Node, action: Callable[[], None]) -> None:
        """The power may go at any file operation of ``action``."""
        try:
            action()
        except PowerCut:
            self.crash(node)
            life = node.life
            away_ms = self.random.choice([1, 50, 500])
            self.after(away_ms, lambda: node.life == life and self.start(node))

    def crash_soon(self, node: Node) -> None:
        """Let the power go at one of the next file operations."""
        self.store_disk(node).files.operations_left = self.random.randint(1, 40)

    def crash(self, node: Node) -> None:
        super().crash(node)
        self._judge_hint(node)

    def _judge_hint(self, node: Node) -> None:
        limit = self.store_disk(node).commit_hint
        hold(limit <= self.judge.committed_end, f"{node.name} takes for committed what is not")

    def start(self, node: Node) -> None:
        self.guarded(node, lambda: super(StoreGroup, self).start(node))
        life = node.life
        self.after(self.random.randint(1, _TICK_MS), lambda: self._upkeep(node, life))

    def _upkeep(self, node: Node, life: int) -> None:
        if node.life != life or node.member is None:
            return
        disk = self.store_disk(node)
        self.guarded(node, lambda: disk.tick(1_760_000_000_000 + self.now_ms))
        if node.life == life:
            if self.random.random() < 0.2:
                disk.look(self.random)
            self.after(_TICK_MS, lambda: self._upkeep(node, life))

    # Events.

    def act(
        self,
        node: Node,
        event: Callable[[Member, int], list[Effect]],
        batch: list[Unit] | None = None,
    ) -> None:
        self.guarded(node, lambda: super(StoreGroup, self).act(node, event, batch))

    def committed(self, node: Node, commit: int) -> None:
        self.store_disk(node).commit(commit)
        self._open_intake(node)

    def role_changed(self, node: Node, change: RoleChanged) -> None:
        super().role_changed(node, change)
        store = self.store_disk(node).store
        if change.role is not Role.LEADER and store.leads:
            store.stop_leading()

    def sync_ends(self, node: Node) -> None:
        self.guarded(node, lambda: self.store_disk(node).sync_ends())
        self._open_intake(node)

    def _open_intake(self, node: Node) -> None:
        store = self.store_disk(node).store
        if (
            node.member is not None
            and node.member.is_serving
            and not store.leads
            and store.dispatched_end == store.physical_end
        ):
            store.lead({})

    def is_open(self, node: Node) -> bool:
        """Whether a member takes sends: it serves, and its queues' next offsets are known."""
        member = node.member
        return member is not None and member.is_serving and self.store_disk(node).store.leads

    def cut(self, node: Node, physical_end: int) -> None:
        self.store_disk(node).cut(physical_end)

    def _take_raw(self, node: Node, effect: AppendRaw, batch: list[Unit]) -> None:
        assert node.member is not None
        units = [
            unit
            for unit in batch
            if isinstance(unit, StoredUnit) and unit.physical_start >= effect.physical_offset
        ]
        self.store_disk(node).take(effect.physical_offset, units)
        for unit in units:
            if unit.voters is not None:
                ms = node.now_ms(self.now_ms)
                self._more(node, node.member.voters_appended(unit.physical_end, unit.voters, ms))

    def _written(
        self,
        node: Node,
        epoch: int,
        *,
        is_marker: bool = False,
        voters: frozenset[str] | None = None,
    ) -> Unit:
        self._value += 1
        return self.store_disk(node).append(
            epoch, self._value, is_marker=is_marker, voters=voters, random=self.random
        )

    def _save_to_disk(self, node: Node, effect: SaveVote) -> None:
        disk = self.store_disk(node)
        self.guarded(node, lambda: disk.save_vote(effect.term, effect.voted_for))

    def produce(self) -> None:
        for node in self.nodes.values():
            if self.is_open(node) and self.now_ms >= node.paused_until_ms:
                self.guarded(node, partial(self._produce_at, node))

    def leader(self) -> Node | None:
        leader = super().leader()
        return leader if leader is not None and self.is_open(leader) else None

    def finish(self) -> None:
        """The last look at every store."""
        for node in self.nodes.values():
            disk = self.store_disk(node)
            disk.look(self.random)
            disk.close()


class StoreStory(Story):
    """As its parent, and the power goes at any file operation."""

    group: StoreGroup

    def __init__(self, seed: int, folder: Path, *, member_type: type[Member] = Member) -> None:
        super().__init__(
            seed, member_type=member_type, group_type=partial(StoreGroup, folder=folder)
        )

    def run(self, rough_ms: int = ROUGH_STORE_MS) -> Group:
        group = super().run(rough_ms)
        self.group.finish()
        return group

    def _faults(self) -> list[tuple[float, Callable[[], None]]]:
        return [*super()._faults(), (0.5, self._part)]

    def _part(self) -> None:
        """A leader goes on to append with a minority; what it appends is cut later."""
        group, leader = self.group, self.group.leader()
        if leader is None:
            return
        others = [name for name in group.names if name != leader.name]
        side = {leader.name, *self._random.sample(others, (len(others) - 1) // 2)}
        links = {
            pair for one in side for two in set(others) - side for pair in ((one, two), (two, one))
        }
        group.cut_links |= links
        group.after(3_000, lambda: group.cut_links.difference_update(links))

    def _crash(self) -> None:
        node = self._some_node()
        if node.member is not None and self._random.random() < 0.6:
            self.group.crash_soon(node)
        else:
            super()._crash()

    def _heal(self) -> None:
        for node in self.group.nodes.values():
            self.group.store_disk(node).files.operations_left = None
        super()._heal()

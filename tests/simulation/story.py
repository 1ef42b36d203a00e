"""One seed: faults under load, then healing, then the judge's last look."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from contrail.replication.state.member import Member
from tests.simulation.group import Group, Node
from tests.simulation.invariants import Violation

ROUGH_MS = 12_000
HEAL_MS = 40_000


class Story:
    """Drives one group through the faults that its seed draws."""

    def __init__(
        self,
        seed: int,
        *,
        member_type: type[Member] = Member,
        group_type: Callable[..., Group] = Group,
    ) -> None:
        self.group = group_type(seed, member_type=member_type)
        self._random = self.group.random

    def run(self, rough_ms: int = ROUGH_MS) -> Group:
        """Returns the group after a healed end; raises ``Violation``."""
        group, swarm = self.group, self.group.swarm
        for rate, fault in self._faults():
            if rate:
                self._repeat(rate, fault, rough_ms)
        self._repeat(swarm.send_per_s, group.produce, rough_ms)
        group.run_until(rough_ms)
        self._heal()
        return group

    def _faults(self) -> list[tuple[float, Callable[[], None]]]:
        """The faults, and how often each comes in a second."""
        swarm = self.group.swarm
        return [
            (swarm.crash_per_s, self._crash),
            (swarm.cut_off_per_s, self._cut_links),
            (swarm.pause_per_s, self._pause),
            (swarm.transfer_per_s, self._transfer),
            (swarm.change_per_s, self._change_voters),
        ]

    def _repeat(self, per_second: float, action: Callable[[], None], until_ms: int) -> None:
        def again() -> None:
            if self.group.now_ms < until_ms:
                action()
                self.group.after(self._random.expovariate(per_second) * 1_000, again)

        self.group.after(self._random.expovariate(per_second) * 1_000, again)

    def _some_node(self) -> Node:
        return self.group.nodes[self._random.choice(self.group.names)]

    def _crash(self) -> None:
        group = self.group
        if self._random.random() < 0.15:
            victims = list(group.nodes.values())
        else:
            victims = [self._some_node()]
        for node in victims:
            if node.member is None:
                continue
            group.crash(node)
            life = node.life
            away_ms = self._random.choice([1, 50, 500, 4_000])
            group.after(away_ms, lambda n=node, at=life: n.life == at and group.start(n))

    def _cut_links(self) -> None:
        group = self.group
        pairs = [
            pair for one, two in combinations(group.names, 2) for pair in ((one, two), (two, one))
        ]
        kind = self._random.choice(["alone", "one way", "some"])
        if kind == "alone":
            name = self._random.choice(group.names)
            chosen = [pair for pair in pairs if name in pair]
        elif kind == "one way":
            chosen = [self._random.choice(pairs)]
        else:
            chosen = self._random.sample(pairs, self._random.randint(1, len(pairs)))
        group.cut_links.update(chosen)
        lasts_ms = self._random.choice([300, 1_500, 4_000, 8_000])
        group.after(lasts_ms, lambda: group.cut_links.difference_update(chosen))

    def _pause(self) -> None:
        node = self._some_node()
        node.paused_until_ms = self.group.now_ms + self._random.choice([200, 1_200, 3_000, 6_000])

    def _transfer(self) -> None:
        group, leader = self.group, self.group.leader()
        if leader is not None:
            target = self._random.choice(group.names)
            group.act(leader, lambda member, ms: member.transfer(target, ms))
            group.after(
                1_000, lambda: group.act(leader, lambda member, ms: member.give_up_transfer())
            )

    def _change_voters(self) -> None:
        group, leader = self.group, self.group.leader()
        if leader is None or leader.member is None:
            return
        name = self._random.choice(group.names)
        now = leader.member.log.voters.now
        if name in now and len(now) <= 2:
            return
        group.act(leader, lambda member, ms: member.add_learner(name))
        group.act(leader, lambda member, ms: member.change_voters(now ^ {name}))

    def _heal(self) -> None:
        group = self.group
        group.is_healed = True
        group.cut_links.clear()
        for node in group.nodes.values():
            node.paused_until_ms = 0
            if node.member is None:
                group.start(node)
        group.produce()
        deadline_ms = group.now_ms + HEAL_MS
        while group.now_ms < deadline_ms and not self._is_whole():
            group.run_until(group.now_ms + 500)
        leader = group.leader()
        if leader is None or leader.member is None or not leader.member.is_serving:
            raise Violation("I12: no leader serves after healing")
        group.judge.all_is_well(leader.member.log.voters.now)

    def _is_whole(self) -> bool:
        """Whether a leader serves and every voter has committed the whole of one log."""
        leader = self.group.leader()
        if leader is None or leader.member is None or not leader.member.is_serving:
            return False
        voters = [self.group.nodes[name] for name in leader.member.log.voters.now]
        end = leader.disk.end
        return all(
            node.member is not None and node.member.log.commit == node.disk.end == end
            for node in voters
        )

"""The right that decides: Apache RocketMQ's own classes and ours are asked the same cases."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from contrail.access.state.rights import (
    Action,
    Decision,
    Entry,
    Need,
    PolicyType,
    ResourceType,
    deciding_entry,
)
from tests.interop.peers import java_peer

CASE_COUNT = 8000
SEED = 20250919
RUN_TIMEOUT_S = 120

TYPES = (ResourceType.CLUSTER, ResourceType.NAMESPACE, ResourceType.TOPIC, ResourceType.GROUP)
NAMES = ("a", "ab", "abc", "abd", "b", "ba", "%DLQ%ab", "a*b", "A")
PREFIXES = ("a", "ab", "abc", "b", "%", "A")
ACTIONS = tuple(Action)
NEEDED = tuple(action for action in Action if action is not Action.ALL)
SOURCES = ("10.0.0.1", "10.0.1.7", "192.168.3.4", "127.0.0.1")
RANGES = (
    "10.0.0.1",
    "10.0.0.0/24",
    "10.0.0.9/16",
    "0.0.0.0/0",
    "192.168.3.4/32",
    "127.0.0.0/8",
    "10.0.1.0/25",
)


class _Case:
    """A need, where it comes from, and some entries, of which two may have one resource."""

    def __init__(self, chance: random.Random) -> None:
        self.need = Need(
            chance.choice(TYPES[2:] if chance.random() < 0.9 else TYPES),
            chance.choice(NAMES),
            tuple(chance.sample(NEEDED, chance.choice((1, 1, 1, 2)))),
        )
        self.address = chance.choice(SOURCES)
        self.entries = [self._entry(chance) for _ in range(chance.randrange(9))]

    def _entry(self, chance: random.Random) -> tuple[PolicyType, Entry]:
        kind = self.need.kind if chance.random() < 0.7 else chance.choice(TYPES)
        resource = chance.choice(
            (
                "*",
                f"{kind.value}:*",
                f"{kind.value}:{chance.choice(PREFIXES)}*",
                f"{kind.value}:{chance.choice(PREFIXES)}*",
                f"{kind.value}:{self.need.name if chance.random() < 0.5 else chance.choice(NAMES)}",
            )
        )
        actions = chance.sample(ACTIONS, chance.choice((1, 2, 4)))
        ranges = chance.sample(RANGES, chance.choice((0, 0, 0, 1, 2)))
        entry = Entry.parse(
            resource,
            [action.value for action in actions],
            ranges,
            chance.choice(list(Decision)).value,
        )
        policy = PolicyType.CUSTOM if chance.random() < 0.6 else PolicyType.DEFAULT
        return policy, entry

    def line(self) -> str:
        fields = [
            self.need.kind.value,
            self.need.name,
            ",".join(action.value for action in self.need.actions),
            self.address,
        ]
        for policy, entry in self.entries:
            fields += [
                policy.value,
                str(entry.resource),
                ",".join(action.value for action in entry.actions),
                ",".join(entry.source_ips),
                entry.decision.value,
            ]
        return "\t".join(fields)

    def answer(self) -> str:
        policies = {
            policy: [entry for kind, entry in self.entries if kind is policy]
            for policy in PolicyType
        }
        entry = deciding_entry(policies, self.need, self.address)
        return "NONE" if entry is None else f"{entry.decision.value} {entry.resource}"


@pytest.mark.proves("access.rules.matching")
def test_the_same_right_decides_as_by_apaches_classes(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    cases = [_Case(chance) for _ in range(CASE_COUNT)]
    asked, told = tmp_path / "cases", tmp_path / "answers"
    asked.write_text("".join(case.line() + "\n" for case in cases))
    peer = java_peer("apache-5-server")
    peer.run(
        "RightsOracle", [str(asked), str(told)], home=tmp_path / "home", timeout_s=RUN_TIMEOUT_S
    )
    theirs = told.read_text().splitlines()
    ours = [case.answer() for case in cases]
    assert len(theirs) == len(ours)
    different = [
        (case.line(), their, our)
        for case, their, our in zip(cases, theirs, ours, strict=True)
        if their != our
    ]
    assert not different, different[:5]
    assert {answer.split()[0] for answer in ours} == {"NONE", "Allow", "Deny"}

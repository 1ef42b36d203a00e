"""The judge of simulated groups finds members with one rule left out."""

from __future__ import annotations

import pytest

from contrail.replication.state.member import Member
from tests.simulation.group import Group
from tests.simulation.mutants import GROUPS, MEMBERS
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.story import Story

# These die within the first seeds; each other one has a scenario of its own.
_SOON = (
    "ack_at_append",
    "ack_before_sync",
    "always_cut",
    "cut_not_durable",
    "double_vote",
    "majority_less_one",
    "no_marker",
    "own_unsynced_counted",
    "term_unsynced",
    "vote_unsynced",
    "vote_without_log_check",
)
_SOON_SEEDS = 30
_TORTURE_SEEDS = 4_000


@pytest.mark.proves("replication.groups.mutants")
@pytest.mark.parametrize("name", _SOON)
def test_a_member_with_a_rule_left_out_is_found_soon(name: str) -> None:
    assert _killing_seed(name, _SOON_SEEDS) is not None


@pytest.mark.proves("replication.groups.mutants")
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_member_with_a_rule_left_out_fails_where_the_rule_counts(name: str) -> None:
    SCENARIOS[name](Member)
    with pytest.raises(AssertionError):
        SCENARIOS[name](MEMBERS[name])


def test_every_rule_left_out_is_looked_for() -> None:
    assert {*_SOON, *SCENARIOS} == MEMBERS.keys() | GROUPS.keys()


@pytest.mark.torture
@pytest.mark.parametrize("name", sorted((MEMBERS.keys() | GROUPS.keys()) - set(_SOON)))
def test_a_member_with_a_rule_left_out_is_found(name: str) -> None:
    assert _killing_seed(name, _TORTURE_SEEDS) is not None


def _killing_seed(name: str, seed_count: int) -> int | None:
    """The first seed whose story breaks an invariant, or an assertion of the member itself."""
    for seed in range(seed_count):
        story = Story(
            seed, member_type=MEMBERS.get(name, Member), group_type=GROUPS.get(name, Group)
        )
        try:
            story.run()
        except AssertionError:
            return seed
    return None

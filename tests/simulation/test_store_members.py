"""Real stores in simulated groups: power cuts at any file operation, cuts of the log, restarts."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from contrail.errors import StoreError
from tests.simulation.group import Group
from tests.simulation.store_group import StoreStory
from tests.simulation.store_mutants import STORES

_QUICK_COUNT = 15
_CHUNK = 50
_TORTURE_COUNT = 2_000
# A seed by which each store with a rule left out was found.
_FOUND_BY = {
    "derive_all_at_close": 25,
    "derive_all_in_recovery": 2,
    "fresh_rows_kept": 13,
    "mark_above_cut": 113,
    "next_offsets_kept": 1,
    "sync_of_cut_bytes": 2,
}


@pytest.mark.proves("replication.groups.simulated")
def test_stores_of_a_group_keep_its_invariants_through_power_cuts(memory_path: Path) -> None:
    _judge(memory_path, range(_QUICK_COUNT))


@pytest.mark.torture
@pytest.mark.parametrize("first", range(_QUICK_COUNT, _TORTURE_COUNT, _CHUNK))
def test_stores_of_a_group_keep_its_invariants_through_power_cuts_of_many_seeds(
    memory_path: Path, first: int
) -> None:
    _judge(memory_path, range(first, first + _CHUNK))


def _judge(folder: Path, seeds: range) -> None:
    acknowledged = 0
    for seed in seeds:
        try:
            acknowledged += len(_run(folder / str(seed), seed).judge.acknowledged)
        except Exception as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
    assert acknowledged > 20 * len(seeds), "a group that acknowledges nothing proves nothing"


def _run(folder: Path, seed: int) -> Group:
    folder.mkdir()
    return StoreStory(seed, folder).run()


def test_a_seed_replays_exactly(memory_path: Path) -> None:
    one, two = (_run(memory_path / name, 13) for name in ("one", "two"))
    assert one.judge.acknowledged == two.judge.acknowledged != []
    assert one.now_ms == two.now_ms


def test_every_rule_left_out_has_a_seed() -> None:
    assert _FOUND_BY.keys() == STORES.keys()


@pytest.mark.proves("replication.groups.mutants")
@pytest.mark.parametrize("name", sorted(_FOUND_BY))
def test_a_store_with_a_rule_left_out_is_found(memory_path: Path, name: str) -> None:
    mutant = STORES[name]
    with (
        patch.object(mutant.owner, mutant.name, mutant.replacement),
        pytest.raises((AssertionError, StoreError)),
    ):
        _run(memory_path / name, _FOUND_BY[name])

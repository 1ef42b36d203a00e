"""The message kinds of simulated groups: one outcome each, over changes of leaders."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from contrail.clock import ManualClock
from contrail.errors import StoreError
from contrail.store.log import MessageStore
from tests.simulation.kinds_mutants import KINDS
from tests.simulation.kinds_replica import Replica
from tests.simulation.kinds_story import START_MS, KindsStory

_QUICK_COUNT = 12
_CHUNK = 50
_TORTURE_COUNT = 20_000
# A seed by which each kind with a rule left out was found.
_FOUND_BY = {
    "deletion_at_append": 4,
    "deliveries_unnoted": 54,
    "ledger_kept": 77,
    "memories_kept": 69,
    "numbers_kept": 1,
    "rolled_by_own_clock": 38,
    "timers_kept": 54,
    "tombstone_local": 1,
    "unmarked_forgotten": 18,
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is done to its end, so that a seed replays on a busy machine."""
    for module in ("timers", "timer_following"):
        monkeypatch.setattr(f"contrail.broker.services.{module}._WORK_MS_MAX", 60_000)


def _judge(folder: Path, seeds: range) -> None:
    acknowledged = 0
    for seed in seeds:
        path = folder / str(seed)
        path.mkdir()
        try:
            story = KindsStory(seed, path).run()
        except Exception as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
        acknowledged += sum(map(len, story.acknowledged.values())) + len(story.decided)
    assert acknowledged > 10 * len(seeds), "a group that acknowledges nothing proves nothing"


@pytest.mark.proves("replication.groups.simulated")
def test_kinds_of_a_group_have_one_outcome(memory_path: Path) -> None:
    _judge(memory_path, range(_QUICK_COUNT))


@pytest.mark.torture
@pytest.mark.parametrize("first", range(_QUICK_COUNT, _TORTURE_COUNT, _CHUNK))
def test_kinds_of_a_group_have_one_outcome_in_many_seeds(memory_path: Path, first: int) -> None:
    _judge(memory_path, range(first, first + _CHUNK))


@pytest.mark.proves("replication.failover.kinds")
def test_a_leader_takes_over_without_reading_the_messages_that_wait(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Replica("a", memory_path, ManualClock(START_MS))
    replica.append_marker(1)
    replica.commit_to(replica.end)
    for number in range(100_000):
        replica.timers._table.slots.add(START_MS + number % 3_600 * 1_000, number, START_MS)

    def read(store: MessageStore, physical_offset: int) -> bytes:
        raise AssertionError("a message that waits is read")

    monkeypatch.setattr(MessageStore, "record_bytes", read)
    monkeypatch.setattr(MessageStore, "record", read)
    replica.lead()
    replica.follow()
    assert replica.timers.pending_count == 100_000
    replica.close()


def test_every_rule_left_out_has_a_seed() -> None:
    assert _FOUND_BY.keys() == KINDS.keys()


@pytest.mark.proves("replication.groups.mutants")
@pytest.mark.parametrize("name", sorted(_FOUND_BY))
def test_a_kind_with_a_rule_left_out_is_found(memory_path: Path, name: str) -> None:
    mutant = KINDS[name]
    with (
        patch.object(mutant.owner, mutant.name, mutant.replacement),
        pytest.raises((AssertionError, StoreError)),
    ):
        KindsStory(_FOUND_BY[name], memory_path).run()

"""A power cut loses unsynced writes, but no message acknowledged under SYNC_FLUSH."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.campaigns.crash_states import materialise, nothing_survives
from tests.fault.campaigns.history import History
from tests.fault.campaigns.lost_writes import (
    forget_log_syncs,
    judge_state,
    record_run,
    replayed,
    run_campaign,
)
from tests.fault.campaigns.workload import small_config
from tests.seeds import seeds_asked_for


@pytest.mark.proves("store.crashes.lost-writes")
def test_a_power_cut_anywhere_in_a_workload_loses_no_acknowledged_message(
    memory_path: Path,
) -> None:
    figures = run_campaign(memory_path, seed=21, steps=60, states=100)
    assert figures.problems == []
    assert figures.states >= 99
    assert figures.nested_states >= 9
    assert figures.acknowledged > 1000


@pytest.mark.proves("store.crashes.lost-writes")
def test_the_campaign_notices_a_disk_that_lies_about_syncing_the_log(memory_path: Path) -> None:
    files = forget_log_syncs(record_run(memory_path / "recorded", seed=22, steps=30))
    noticed = 0
    for place, disk, history in replayed(files, seed=22, states=10):
        state = memory_path / f"state{place}"
        materialise(disk.crash(nothing_survives), source=files.root, target=state)
        noticed += _is_noticed(state, history)
    assert noticed >= 5


def _is_noticed(state: Path, history: History) -> bool:
    return bool(judge_state(small_config(state), history).problems)


@pytest.mark.torture
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", seeds_asked_for(range(500, 510)))
def test_power_cuts_anywhere_in_long_workloads_lose_no_acknowledged_message(
    seed: int, memory_path: Path
) -> None:
    figures = run_campaign(memory_path, seed=seed, steps=150, states=300)
    assert figures.problems == []

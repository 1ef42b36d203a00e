"""A failover group under fault after fault: nothing acknowledged is lost, invented or reordered.

``make torture CAMPAIGN=chaos SEED=n`` makes 200 failovers in ten cases; a case that passed is not
run again. Histories and figures of its cases stay in ``.torture/chaos``.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
from pathlib import Path

import pytest

from tests.chaos.campaign import ChaosCampaign, ChaosFigures, tell_times
from tests.chaos.group import ChaosGroup
from tests.seeds import seed_asked_for

_KEPT = Path(__file__).parents[2] / ".torture" / "chaos"
QUICK_FAULTS = 20
_CASES = 10
_FAILOVERS_PER_CASE = 20


def run(folder: Path, seed: int, *, faults: int = 0, failovers: int = 0) -> ChaosFigures:
    """One group under so many faults, or under faults until so many leaders have changed."""
    with ChaosGroup(folder) as group:
        campaign = ChaosCampaign(group, seed)

        async def story() -> None:
            try:
                await campaign.begin()
                if faults:
                    await campaign.strike_for(faults, gap_s=(1.5, 4.5))
                else:
                    await campaign.strike_until(failovers, gap_s=(3.0, 15.0))
                await campaign.end()
            except BaseException:
                await campaign.give_up()
                raise

        asyncio.run(story())
        struck = campaign.struck()
        print(tell_times(struck))
        return campaign.figures(campaign.judge(), struck)


@pytest.mark.proves("replication.failover-shown.chaos-short")
@pytest.mark.timeout(600)
def test_twenty_faults_lose_invent_and_reorder_nothing(tmp_path: Path) -> None:
    figures = run(tmp_path, seed_asked_for(21), faults=QUICK_FAULTS)
    assert figures.faults == QUICK_FAULTS
    assert figures.failovers >= QUICK_FAULTS // 4
    assert figures.acknowledged > 500


@pytest.mark.torture
@pytest.mark.parametrize("case", range(_CASES))
def test_many_failovers_lose_invent_and_reorder_nothing(case: int, tmp_path: Path) -> None:
    seed = seed_asked_for(2100)
    kept = _KEPT / f"seed-{seed}"
    try:
        run(tmp_path, 100 * seed + case, failovers=_FAILOVERS_PER_CASE).keep(
            kept / f"case-{case}.json"
        )
    finally:
        history = tmp_path / "history.jsonl"
        if history.exists():
            kept.mkdir(parents=True, exist_ok=True)
            with history.open("rb") as one, gzip.open(kept / f"case-{case}.jsonl.gz", "wb") as to:
                shutil.copyfileobj(one, to)

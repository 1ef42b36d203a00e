"""Transactions survive kills: one decision for each half message, and none forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.campaign import TIMEOUT_S, Campaign, kills_asked_for
from tests.history.violations import Bounds
from tests.history.workload_transactions import CHECK_COUNT_MAX, TransactionWorkload
from tests.seeds import seed_asked_for, seeds_asked_for

_PROPERTIES = {"transactionCheckMax": str(CHECK_COUNT_MAX)}
_BOUNDS = Bounds(check_count_max=CHECK_COUNT_MAX)


@pytest.mark.proves("kinds.shown.kills")
@pytest.mark.timeout(TIMEOUT_S)
def test_transactions_survive_kills(tmp_path: Path) -> None:
    with Campaign(tmp_path, seed_asked_for(41), _PROPERTIES) as campaign:
        TransactionWorkload(campaign).run(kills_asked_for())
        campaign.judge(_BOUNDS)


@pytest.mark.torture
@pytest.mark.parametrize("seed", seeds_asked_for(range(4000, 4005)))
def test_transactions_survive_many_kills(seed: int, tmp_path: Path) -> None:
    with Campaign(tmp_path, seed, _PROPERTIES) as campaign:
        TransactionWorkload(campaign).run(kills_asked_for(200))
        campaign.judge(_BOUNDS)

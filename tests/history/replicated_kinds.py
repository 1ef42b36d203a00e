"""The workloads of every kind of message, on a master and a slave that are killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.history.replicated import ReplicatedCampaign
from tests.history.violations import Bounds
from tests.history.workload_delay import run_delays
from tests.history.workload_delay import send_burst as send_delays
from tests.history.workload_plain import run_plain
from tests.history.workload_plain import send_burst as send_plain
from tests.history.workload_retry import RetryWorkload
from tests.history.workload_timer import TimerWorkload
from tests.history.workload_transactions import CHECK_COUNT_MAX, TransactionWorkload

_BURST_COUNT = 25


def _plain(campaign: ReplicatedCampaign, kill_count: int) -> None:
    campaign.burst = partial(send_plain, campaign)
    run_plain(campaign, kill_count)


def _delays(campaign: ReplicatedCampaign, kill_count: int) -> None:
    campaign.burst = partial(send_delays, campaign, _BURST_COUNT)
    run_delays(campaign, kill_count)


def _workload(
    kind: type[TimerWorkload | TransactionWorkload | RetryWorkload],
    campaign: ReplicatedCampaign,
    kill_count: int,
) -> None:
    workload = kind(campaign)
    campaign.burst = partial(workload.send_burst, _BURST_COUNT)
    workload.run(kill_count)


class KindOfCampaign(NamedTuple):
    """One kind of messages, the settings it needs and the limits it must keep."""

    run: Callable[[ReplicatedCampaign, int], None]
    properties: dict[str, str]
    bounds: Bounds


KINDS = {
    "plain": KindOfCampaign(_plain, {}, Bounds()),
    "delay": KindOfCampaign(_delays, {"flushDelayOffsetInterval": "100"}, Bounds()),
    "timer": KindOfCampaign(
        partial(_workload, TimerWorkload),
        {"timerRollWindowSlot": "1200", "mappedFileSizeTimerLog": "8192"},
        Bounds(),
    ),
    "transaction": KindOfCampaign(
        partial(_workload, TransactionWorkload),
        {"transactionCheckMax": str(CHECK_COUNT_MAX)},
        Bounds(check_count_max=CHECK_COUNT_MAX),
    ),
    "retry": KindOfCampaign(partial(_workload, RetryWorkload), {}, Bounds()),
}


def campaign_of(kind: str, folder: Path, seed: int, *, kill_count: int) -> ReplicatedCampaign:
    """A campaign that is not running yet."""
    return ReplicatedCampaign(folder, seed, KINDS[kind].properties, kill_count=kill_count)


def run_kind(kind: str, campaign: ReplicatedCampaign, kill_count: int) -> None:
    """Kills, lost disks, and a last reading of every queue; the verdict is left to the caller."""
    KINDS[kind].run(campaign, kill_count)
    print(f"{kind}: {campaign.figures()}", flush=True)

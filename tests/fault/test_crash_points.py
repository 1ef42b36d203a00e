"""kill -9 at every named crash point: nothing acknowledged is lost, nothing is invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.campaigns.crash_points import Case, crash_server, run_campaign, run_case
from tests.fault.campaigns.history import check_folder
from tests.fault.campaigns.workload import small_config
from tests.seeds import seed_asked_for

POINT_COUNT_MIN = 60


@pytest.mark.proves("store.crashes.kills")
def test_a_kill_at_any_crash_point_loses_no_acknowledged_message(memory_path: Path) -> None:
    figures = run_campaign(
        memory_path, seed=11, flushes=("sync", "async"), hits=(1,), every_life=False
    )
    assert figures.problems == []
    assert len(figures.points) >= POINT_COUNT_MIN
    assert figures.acknowledged > 0


@pytest.mark.torture
@pytest.mark.timeout(7200)
def test_every_crash_point_in_both_modes_at_several_passages_loses_nothing(
    memory_path: Path,
) -> None:
    figures = run_campaign(
        memory_path,
        seed=seed_asked_for(1000),
        flushes=("sync", "async"),
        hits=(1, 3),
        every_life=True,
    )
    assert figures.problems == []
    assert len(figures.points) >= POINT_COUNT_MIN


def test_a_mark_in_a_segment_that_retention_removed_since_does_not_end_the_log_there(
    memory_path: Path,
) -> None:
    folder = memory_path / "case"
    with crash_server() as server:
        case = Case("retention.segment_removed", 1, "sync")
        died, history = run_case(server, folder, case, seed=1044)
    assert died
    verdict = check_folder(small_config(folder / "store"), history, 900_000)
    assert verdict.problems == []
    assert 0 < verdict.expired_acks < verdict.checked_acks


@pytest.mark.parametrize(("after", "seed"), [("damaged", 940), ("torn", 538), ("damaged", 539)])
def test_a_kill_between_the_two_marks_of_a_checkpoint_believes_no_older_mark(
    memory_path: Path, after: str, seed: int
) -> None:
    folder = memory_path / "case"
    with crash_server() as server:
        case = Case("checkpoint.log_written", 1, "async", after)
        died, history = run_case(server, folder, case, seed)
    assert died
    config, scrubbed = small_config(folder / "store", "async"), after == "damaged"
    assert check_folder(config, history, 900_000, scrubbed=scrubbed).problems == []

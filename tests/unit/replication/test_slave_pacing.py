"""When the next push to slaves is due."""

from __future__ import annotations

import pytest

from contrail.replication.state.ha_master import SlaveProgress
from contrail.replication.state.slave_pacing import (
    AWAITED_INTERVAL_MS,
    UNAWAITED_INTERVAL_MS,
    SlavePacing,
)


def sent(*, acknowledged_end: int, is_behind: bool = False) -> SlaveProgress:
    """A slave that was sent the log up to 100, at 5 ms."""
    return SlaveProgress(
        1,
        "10.0.0.1:5",
        heard_ms=0,
        sent_ms=0,
        pushed_ms=5,
        next_offset=100,
        acknowledged_end=acknowledged_end,
        is_behind=is_behind,
    )


@pytest.mark.proves("replication.ground.push")
def test_a_push_that_answers_wait_for_is_due_with_the_slaves_report() -> None:
    pacing = SlavePacing(is_awaited=True)
    assert pacing.wait_ms(sent(acknowledged_end=99), 5) == AWAITED_INTERVAL_MS
    assert pacing.wait_ms(sent(acknowledged_end=100), 5) == 0


@pytest.mark.proves("replication.ground.push")
def test_a_slave_that_reports_late_gets_the_next_bytes_before() -> None:
    pacing = SlavePacing(is_awaited=True)
    assert pacing.wait_ms(sent(acknowledged_end=0), 5 + AWAITED_INTERVAL_MS) == 0


@pytest.mark.proves("replication.ground.push")
@pytest.mark.parametrize("acknowledged_end", [0, 100])
def test_a_push_that_nobody_waits_for_comes_an_interval_after_the_last_one(
    acknowledged_end: int,
) -> None:
    pacing = SlavePacing(is_awaited=False)
    slave = sent(acknowledged_end=acknowledged_end)
    assert pacing.wait_ms(slave, 5) == UNAWAITED_INTERVAL_MS
    assert pacing.wait_ms(slave, 5 + UNAWAITED_INTERVAL_MS - 1) == 1
    assert pacing.wait_ms(slave, 5 + UNAWAITED_INTERVAL_MS) == 0
    assert pacing.wait_ms(slave, 5_000) == 0


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_slave_that_is_behind_never_waits(is_awaited: bool) -> None:
    slave = sent(acknowledged_end=0, is_behind=True)
    assert SlavePacing(is_awaited=is_awaited).wait_ms(slave, 5) == 0

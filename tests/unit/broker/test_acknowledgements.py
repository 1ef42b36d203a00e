"""Answers that wait for a sync, and a wall clock that is set meanwhile."""

from __future__ import annotations

import pytest

from contrail.broker.services.acknowledgements import Acknowledgements, DurableAnswers
from contrail.clock import ManualClock
from contrail.protocol.codes import ResponseCode
from tests.fakes.peers import FakePeer

TIMEOUT_MS = 5000
HOUR_MS = 3_600_000


@pytest.mark.proves("broker.edges.monotonic-waits")
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_step_of_the_wall_clock_is_no_late_flush_and_hides_none(step_ms: int) -> None:
    clock, told = ManualClock(), list[ResponseCode]()
    acknowledgements = Acknowledgements(timeout_ms=TIMEOUT_MS)
    answers = DurableAnswers(acknowledgements, clock, waits_for_flush=True)
    answers.when_durable(FakePeer(), 100, told.append)
    clock.step(step_ms)
    acknowledgements.expire(clock.elapsed_ms())
    assert told == [] and acknowledgements.oldest_age_ms(clock.elapsed_ms()) == 0
    clock.advance(ms=TIMEOUT_MS + 1)
    acknowledgements.expire(clock.elapsed_ms())
    assert told == [ResponseCode.FLUSH_DISK_TIMEOUT]

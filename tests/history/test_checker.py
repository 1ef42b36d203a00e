"""The checker finds every planted fault, and none in histories without one."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.history.checker import check_history
from tests.history.editing import EditedHistory
from tests.history.events import BrokerStarted, Ended, Event, Outcome, write_history
from tests.history.good_histories import good_history
from tests.history.planted_faults import FAULTS, Fault
from tests.history.violations import Rule

_SEEDS = (1, 2, 4)
_STEPS = 300


@cache
def _good(seed: int) -> tuple[Event, ...]:
    return tuple(good_history(random.Random(seed), _STEPS))


@pytest.mark.proves("kinds.shown.history-checker")
@given(st.randoms(use_true_random=False), st.integers(0, 120))
def test_a_history_without_faults_passes(source: random.Random, step_count: int) -> None:
    assert check_history(good_history(source, step_count)) == []


@pytest.mark.parametrize("seed", _SEEDS)
def test_the_histories_that_faults_are_planted_into_pass(seed: int) -> None:
    assert check_history(_good(seed)) == []


@pytest.mark.proves("kinds.shown.history-checker")
@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Fault, seed: int) -> None:
    history = EditedHistory(list(_good(seed)))
    key = fault.plant(history)
    found = [each for each in check_history(history.events) if each.rule is fault.rule]
    assert any(key in violation.keys for violation in found), found


@pytest.mark.proves("kinds.shown.history-checker")
def test_every_rule_has_a_planted_fault() -> None:
    assert {fault.rule for fault in FAULTS} == set(Rule)


def test_an_end_without_a_beginning_is_no_history() -> None:
    with pytest.raises(ValueError, match="without being under way"):
        check_history([BrokerStarted(1), Ended(2, 7, Outcome.OK)])


def test_a_history_can_be_written_down(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(path, [BrokerStarted(5), Ended(6, 7, Outcome.OK, 1, 2)])
    assert path.read_text("utf-8").splitlines()[0] == '{"event": "BrokerStarted", "now_ms": 5}'

"""The checker finds every planted fault, and none in histories without one."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import BrokerRefused, CallTimedOut
from contrail.protocol.command import ReceivedResponse
from tests.history.campaign import outcome_of
from tests.history.checker import check_history
from tests.history.client_rules import Delivery, Queue, failover_cause, judge_repeats
from tests.history.client_senders import outcome_of_error
from tests.history.editing import EditedHistory
from tests.history.events import BrokerStarted, Ended, Event, Outcome, write_history
from tests.history.good_histories import good_history
from tests.history.planted_failover_faults import FAILOVER_FAULTS
from tests.history.planted_faults import FAULTS, Fault
from tests.history.violations import Rule

# Of histories with something to harm for every fault.
_SEEDS = (2, 4, 7)
_FAILOVER_SEEDS = (8, 27)
_STEPS = 300


@cache
def _good(seed: int) -> tuple[Event, ...]:
    return tuple(good_history(random.Random(seed), _STEPS))


@pytest.mark.proves("kinds.shown.history-checker")
@given(st.randoms(use_true_random=False), st.integers(0, 120))
def test_a_history_without_faults_passes(source: random.Random, step_count: int) -> None:
    assert check_history(good_history(source, step_count)) == []


@pytest.mark.parametrize("seed", [*_SEEDS, *_FAILOVER_SEEDS])
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


@pytest.mark.proves("replication.failover-shown.checker")
@pytest.mark.parametrize("seed", _FAILOVER_SEEDS)
@pytest.mark.parametrize("fault", FAILOVER_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_a_failover_is_found(fault: Fault, seed: int) -> None:
    history = EditedHistory(list(_good(seed)))
    key = fault.plant(history)
    found = [each for each in check_history(history.events) if each.rule is fault.rule]
    assert any(key in violation.keys for violation in found), found


@pytest.mark.proves("replication.failover-shown.checker")
def test_a_failover_explains_repeats_of_its_last_moments_alone() -> None:
    queue, second = Queue("orders", "a", 0), 1_000_000_000
    cause = failover_cause("g", [queue], 10 * second, 12 * second, in_flight_ns=second // 2)

    def delivered(at_ns: int, queue_offset: int) -> Delivery:
        return Delivery(at_ns, "g", "m", queue, queue_offset, f"k{queue_offset}", "b", 0, 0)

    first = [delivered(8 * second, 0), delivered(9 * second, 1), delivered(11 * second, 2)]
    again = [delivered(13 * second, queue_offset) for queue_offset in range(3)]
    repeats = judge_repeats([*first, *again], [cause])
    assert set(repeats.allowed) == set(again[1:]) and {*repeats.allowed.values()} == {"failover"}
    assert [each.keys for each in repeats.violations] == [("k0",)]


@pytest.mark.proves("replication.failover-shown.checker")
def test_a_send_in_doubt_is_an_unknown_outcome() -> None:
    def answered(code: int, **fields: str) -> Outcome:
        return outcome_of(ReceivedResponse(code, 1, "why", fields, b"", 479, "JAVA"))

    assert answered(1, contrailInDoubt="true") is Outcome.UNKNOWN
    assert answered(1) is answered(14, contrailLeader="a:1") is Outcome.FAILED
    doubtful = BrokerRefused("no majority", code=1, remark="", is_in_doubt=True)
    assert outcome_of_error(doubtful) is Outcome.UNKNOWN
    assert outcome_of_error(BrokerRefused("no", code=14, remark="")) is Outcome.FAILED
    assert outcome_of_error(CallTimedOut("silent")) is Outcome.UNKNOWN


@pytest.mark.proves("kinds.shown.history-checker")
def test_every_rule_has_a_planted_fault() -> None:
    assert {fault.rule for fault in (*FAULTS, *FAILOVER_FAULTS)} == set(Rule)


def test_an_end_without_a_beginning_is_no_history() -> None:
    with pytest.raises(ValueError, match="without being under way"):
        check_history([BrokerStarted(1), Ended(2, 7, Outcome.OK)])


def test_a_history_can_be_written_down(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(path, [BrokerStarted(5), Ended(6, 7, Outcome.OK, 1, 2)])
    assert path.read_text("utf-8").splitlines()[0] == '{"event": "BrokerStarted", "now_ms": 5}'

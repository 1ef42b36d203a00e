"""A broker that was registered and is gone is told of for an hour."""

from __future__ import annotations

import pytest

from contrail.console.state.absent import BROKERS_MAX, TOLD_FOR_MS, AbsentBrokers


@pytest.mark.proves("console.facts.missing")
def test_a_broker_that_is_gone_is_told_of_until_it_is_back_or_forgotten() -> None:
    absent = AbsentBrokers()
    assert absent.registered(["a", "b"], 1_000) == {}
    told = absent.registered(["a"], 13_000)
    assert list(told) == ["b"] and "for 12 s" in told["b"]
    assert absent.registered(["a", "b"], 20_000) == {}
    assert list(absent.registered(["a"], 19_999 + TOLD_FOR_MS)) == ["b"]
    assert absent.registered(["a"], 20_000 + TOLD_FOR_MS) == {}


def test_brokers_that_come_and_go_take_bounded_room() -> None:
    absent = AbsentBrokers()
    for number in range(BROKERS_MAX + 5):
        told = absent.registered([f"b{number}"], number)
    assert len(told) == BROKERS_MAX - 1 and "b4" not in told and "b5" in told

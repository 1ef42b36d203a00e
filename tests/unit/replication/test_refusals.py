"""The refusal of a master that an operator is told."""

from __future__ import annotations

import pytest

from contrail.replication.state.refusals import Refusal, Refusals

DIVERGED = Refusal("diverged", "the slave at a: it has other records", 1_000)


def stranger(at_ms: int, reason: str = "stranger") -> Refusal:
    return Refusal(reason, "the slave at b: it has no secret", at_ms)


@pytest.mark.proves("replication.pair.diverged", "replication.pair.refusals")
def test_a_stranger_does_not_hide_a_slave_that_has_diverged() -> None:
    refusals = Refusals()
    refusals.note(DIVERGED, is_slave=True)
    refusals.note(stranger(1_500), is_slave=False)
    refusals.note(stranger(1_600, "secret"), is_slave=False)
    assert refusals.told(2_000) == DIVERGED


@pytest.mark.proves("replication.pair.secret")
def test_other_strangers_do_not_hide_a_slave_with_another_secret() -> None:
    refusals = Refusals()
    refusals.note(stranger(1_000, "secret"), is_slave=False)
    refusals.note(stranger(1_500), is_slave=False)
    assert refusals.told(2_000) == stranger(1_000, "secret")


def test_the_newest_of_equals_is_told() -> None:
    refusals = Refusals()
    assert refusals.told(0) is None
    refusals.note(stranger(1_000), is_slave=False)
    refusals.note(stranger(1_500), is_slave=False)
    assert refusals.told(2_000) == stranger(1_500)


def test_a_slave_that_came_no_more_for_a_minute_is_news_no_longer() -> None:
    refusals = Refusals()
    refusals.note(DIVERGED, is_slave=True)
    refusals.note(stranger(61_001), is_slave=False)
    assert refusals.told(61_001) == stranger(61_001)
    assert refusals.told(200_000) == stranger(61_001)

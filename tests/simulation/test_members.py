"""Failover groups on a seeded clock keep every invariant; a failing seed replays exactly."""

from __future__ import annotations

import pytest

from tests.simulation.story import Story

_CHUNK = 50
_QUICK_COUNT = 200
_TORTURE_COUNT = 20_000


@pytest.mark.proves("replication.groups.simulated")
@pytest.mark.parametrize("first", range(0, _QUICK_COUNT, _CHUNK))
def test_a_group_keeps_its_invariants_under_faults(first: int) -> None:
    _judge(first)


@pytest.mark.torture
@pytest.mark.parametrize("first", range(_QUICK_COUNT, _TORTURE_COUNT, _CHUNK))
def test_a_group_keeps_its_invariants_under_faults_of_many_seeds(first: int) -> None:
    _judge(first)


def _judge(first: int) -> None:
    acknowledged = 0
    for seed in range(first, first + _CHUNK):
        try:
            acknowledged += len(Story(seed).run().judge.acknowledged)
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
    assert acknowledged > 50 * _CHUNK, "a group that acknowledges nothing proves nothing"

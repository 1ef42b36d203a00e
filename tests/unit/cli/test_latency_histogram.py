"""Latencies in fixed memory: percentiles are never far from the recorded latencies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.cli.latency_histogram import LatencyHistogram

LATENCIES = st.lists(st.integers(0, 1 << 39), min_size=1, max_size=200)


def filled(latencies: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for one in latencies:
        histogram.record(one)
    return histogram


@given(LATENCIES, st.floats(0.01, 1.0))
def test_a_percentile_is_at_most_one_step_above_the_true_one(
    latencies: list[int], share: float
) -> None:
    rank = next(n for n in range(1, len(latencies) + 1) if n >= share * len(latencies))
    exact_ms = sorted(latencies)[rank - 1] / 1000
    told_ms = filled(latencies).percentile_ms(share)
    assert exact_ms <= told_ms <= exact_ms * (1 + 1 / 64)


@given(LATENCIES, LATENCIES)
def test_two_added_are_as_one_of_both(first: list[int], second: list[int]) -> None:
    added = filled(first)
    added.add(filled(second))
    assert added.figures() == filled(first + second).figures()
    assert added.count == len(first) + len(second)


def test_an_empty_histogram_has_zeros() -> None:
    assert set(LatencyHistogram().figures().values()) == {0.0}


def test_a_clock_that_went_back_and_a_latency_without_end_are_counted() -> None:
    histogram = filled([-5, 1 << 50])
    assert (histogram.count, histogram.percentile_ms(0.5)) == (2, 0.0)
    assert histogram.max_ms == (1 << 50) / 1000

"""History: equal steps, gaps stay gaps, and the number of series is bounded."""

from __future__ import annotations

import pytest

from contrail.console.state.series import SHORT_COUNT, SHORT_STEP_MS, Ring, SeriesTable


@pytest.mark.proves("console.sampler.rings")
def test_a_step_that_nobody_noted_is_unknown_and_not_zero() -> None:
    ring = Ring(10, 4)
    ring.note(1.0, 5)
    ring.note(2.0, 12)
    ring.note(3.0, 38)
    assert ring.told(38) == (40, [1.0, 2.0, None, 3.0])
    assert ring.told(52) == (60, [None, 3.0, None, None])
    assert ring.told(999) == (1_000, [None] * 4)


def test_a_long_pause_leaves_nothing_of_before() -> None:
    ring = Ring(10, 3)
    for step in range(3):
        ring.note(float(step), step * 10)
    ring.note(9.0, 100)
    assert ring.told(100) == (110, [None, None, 9.0])


def test_the_last_value_of_a_step_counts() -> None:
    ring = Ring(10, 2)
    ring.note(1.0, 10)
    ring.note(2.0, 19)
    assert ring.told(19) == (20, [None, 2.0])


def test_a_clock_that_goes_back_does_not_disturb_the_ring() -> None:
    ring = Ring(10, 3)
    ring.note(1.0, 100)
    ring.note(5.0, 50)
    assert ring.told(100) == (110, [None, None, 1.0])


@pytest.mark.proves("console.sampler.rings")
def test_series_are_kept_short_and_long_and_are_bounded_in_number() -> None:
    table = SeriesTable(series_max=2)
    table.note({"a": 1.0, "b": None}, 0)
    table.note({"a": 2.0}, 70_000)
    table.note({"c": 3.0}, 70_000)
    assert len(table) == 2
    assert table.told("b", 70_000, is_long=False) is None, "it was noted longest ago"
    short = table.told("a", 70_000, is_long=False)
    assert short is not None and len(short.values) == SHORT_COUNT
    assert (short.step_ms, short.end_ms) == (SHORT_STEP_MS, 80_000)
    assert [one for one in short.values if one is not None] == [1.0, 2.0]
    long = table.told("a", 70_000, is_long=True)
    assert long is not None and long.values[-2:] == [1.0, 2.0] and len(long.values) == 1_440

"""The hours that a restore reads, and its steps."""

from __future__ import annotations

import pytest

from contrail.cli.times import parse_duration, parse_time
from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.archive_layout import Hour, Sized
from contrail.pipeline.jobs.restore import overlaps, plan_steps

TEN = Hour("orders", "2026-11-16", 10)
TEN_MS = 1_794_823_200_000


def test_an_hour_is_read_if_it_overlaps_the_chosen_time() -> None:
    assert parse_time("--since", "2026-11-16T10:00") == TEN_MS
    assert overlaps(TEN, None, None)
    assert overlaps(TEN, TEN_MS + 3_599_999, None)
    assert not overlaps(TEN, TEN_MS + 3_600_000, None)
    assert overlaps(TEN, None, TEN_MS + 1)
    assert not overlaps(TEN, None, TEN_MS)


def test_steps_are_in_order_of_time_and_never_divide_an_hour() -> None:
    other, eleven = Hour("stock", "2026-11-16", 10), Hour("orders", "2026-11-16", 11)
    nine = Hour("stock", "2026-11-16", 9)
    sizes = {hour: [Sized("x", 60)] for hour in (eleven, other, TEN, nine)}
    assert plan_steps(sizes, 100) == [[nine], [TEN, other], [eleven]]
    assert plan_steps(sizes, 1_000) == [[nine, TEN, other, eleven]]
    assert plan_steps({}, 100) == []


def test_hours_between_which_a_clock_went_back_are_one_step() -> None:
    hours = [Hour("orders", "2026-11-16", hour) for hour in range(8, 14)]
    sizes = {hour: [Sized("x", 60)] for hour in hours}
    at = [hour.starts_at for hour in hours]
    steps = plan_steps(sizes, 1, {at[3]: at[1], at[4]: at[3]})
    assert steps == [[hours[0]], hours[1:5], [hours[5]]]
    # And one that reaches further back takes all that was put together before.
    assert plan_steps(sizes, 1, {at[2]: at[1], at[5]: at[2]}) == [[hours[0]], hours[1:]]


def test_a_time_is_utc_unless_it_says_otherwise_or_is_in_milliseconds() -> None:
    assert parse_time("--since", "2026-11-16T12:00+02:00") == TEN_MS
    assert parse_time("--since", str(TEN_MS)) == TEN_MS
    assert parse_time("--since", None) is None
    with pytest.raises(OptionInvalid, match="--since 'yesterday' is no time"):
        parse_time("--since", "yesterday")


def test_a_duration_has_a_number_and_a_unit() -> None:
    assert parse_duration("--grace", "90m").total_seconds() == 5_400
    with pytest.raises(OptionInvalid, match="--grace '1 week' is no duration"):
        parse_duration("--grace", "1 week")

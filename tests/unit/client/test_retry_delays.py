"""Delays as the levels that brokers know."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from contrail.client.state.retry_delays import delay_level, delay_ms
from contrail.errors import ConfigError


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (None, 0),
        (3, 3),
        (18, 18),
        (0.0, 1),
        (1.0, 1),
        (1.5, 2),
        (timedelta(seconds=30), 4),
        (timedelta(seconds=31), 5),
        (timedelta(hours=2), 18),
    ],
)
def test_a_delay_is_the_next_level_that_is_not_shorter(
    delay: int | float | timedelta | None, level: int
) -> None:
    assert delay_level(delay) == level


@pytest.mark.parametrize(
    "delay",
    [0, -3, 19, 30, True, -1.0, float("nan"), float("inf"), 7200.5, timedelta(hours=3), "3"],
)
def test_a_delay_that_no_broker_has_is_refused(delay: Any) -> None:
    for judge in (delay_level, delay_ms):
        with pytest.raises(ConfigError):
            judge(delay)


def test_seconds_given_as_a_level_are_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"level of 1 to 18; seconds are a float, such as 30\.0"):
        delay_level(30)


def test_a_level_is_as_long_as_the_brokers_level() -> None:
    assert delay_ms(3) == 10_000
    assert delay_ms(0.25) == 250
    assert delay_ms(timedelta(minutes=1)) == 60_000

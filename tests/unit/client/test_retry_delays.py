"""Delays as the levels that brokers know."""

from __future__ import annotations

from datetime import timedelta

import pytest

from contrail.client.state.retry_delays import delay_level, delay_ms
from contrail.errors import ConfigError


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (None, 0),
        (3, 3),
        (25, 25),
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


@pytest.mark.parametrize("delay", [0, -3, -1.0, timedelta(hours=3)])
def test_a_delay_that_no_broker_has_is_refused(delay: int | float | timedelta) -> None:
    with pytest.raises(ConfigError):
        delay_level(delay)


def test_a_level_is_as_long_as_brokers_say() -> None:
    assert delay_ms(3) == 10_000
    assert delay_ms(0.25) == 250
    assert delay_ms(timedelta(minutes=1)) == 60_000

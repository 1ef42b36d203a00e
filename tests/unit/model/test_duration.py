"""Durations as a person writes them."""

from __future__ import annotations

import pytest

from contrail.model.duration import duration_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("15m", 900_000),
        ("15min", 900_000),
        ("2 H", 7_200_000),
        ("1d", 86_400_000),
        ("0s", 0),
    ],
)
def test_a_number_with_a_unit_is_a_duration(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "s", "5", "-5s", "1.5h", "\u0663s", "5w", "9" * 16 + "s"])
def test_any_other_text_is_no_duration(text: str) -> None:
    assert duration_ms(text) is None

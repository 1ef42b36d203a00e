"""Values in error texts: whole if they are short, cut if they are long."""

from __future__ import annotations

import pytest

from contrail.model.shown import shown


def test_a_short_value_is_its_repr() -> None:
    for value in ("orders", 7, None, ["a", 1], b"body"):
        assert shown(value) == repr(value)


@pytest.mark.proves("cli.small-rules.client-errors")
def test_a_long_value_is_cut_and_its_length_told() -> None:
    text = shown("x" * 20_000)
    assert text == "'" + "x" * 95 + "… (20002 characters)"


def test_a_value_that_cannot_be_shown_is_named() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert shown(Broken()) == "<Broken without a repr>"

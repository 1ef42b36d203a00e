"""``NAME=VALUE`` on the command line."""

from __future__ import annotations

import pytest

from contrail.cli.assignments import parse_pairs
from contrail.errors import OptionInvalid


@pytest.mark.proves("house.folded.assignments")
def test_assignments_are_taken_apart_at_their_first_sign() -> None:
    found = parse_pairs("--set", ["a=1", "b = x=y", "c=", "a=2"])
    assert found == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.proves("house.folded.assignments")
@pytest.mark.parametrize("text", ["a", "=1", " =1", ""])
def test_a_text_without_a_sign_is_refused_with_its_option(text: str) -> None:
    with pytest.raises(OptionInvalid, match=r"--conf .*NAME=VALUE"):
        parse_pairs("--conf", [text])

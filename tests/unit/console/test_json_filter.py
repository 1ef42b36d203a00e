"""Conditions on JSON bodies: what fits, what does not, what is no condition."""

from __future__ import annotations

import json

import pytest

from contrail.console.state.json_filter import ConditionInvalid, parse_condition

BODY = json.dumps(
    {"total": 120, "paid": True, "user": {"name": "ada"}, "tags": ["x", "y"]}
).encode()


@pytest.mark.parametrize(
    "text",
    [
        "$.total > 100",
        "$.total>=120",
        "$.total != 7",
        '$.user.name = "ada"',
        '$.user.name ~ "ad"',
        '$.tags[1] = "y"',
        '$.tags ~ "x"',
        "$.paid",
        "$.paid = true",
        '$.user = {"name": "ada"}',
    ],
)
def test_a_body_fits(text: str) -> None:
    assert parse_condition(text)(BODY)


@pytest.mark.parametrize(
    "text",
    ["$.total > 120", "$.missing", "$.missing != 1", '$.total < "x"', "$.paid = 1", "$.tags[9]"],
)
def test_a_body_does_not_fit(text: str) -> None:
    assert not parse_condition(text)(BODY)


@pytest.mark.parametrize("body", [b"", b"no json", b"\xff", b"[" * 5_000])
def test_a_body_that_is_no_json_never_fits(body: bytes) -> None:
    assert not parse_condition("$.total > 1")(body)


@pytest.mark.parametrize("text", ["total > 1", "$.a >", "$.a = b", "$.a[x]", "", "$.a == 1 2"])
def test_a_text_that_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConditionInvalid):
        parse_condition(text)

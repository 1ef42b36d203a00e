"""Properties text is read as Java reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.protocol.bodies.properties_text import parse_properties, render_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1\nb=2\n", {"a": "1", "b": "2"}),
        ("# note\n! note\n\n  \na=1", {"a": "1"}),
        ("a = 1\r\nb:2\rc 3", {"a": "1", "b": "2", "c": "3"}),
        ("a==1\nb = = 2", {"a": "=1", "b": "= 2"}),
        ("  a=1  ", {"a": "1  "}),
        ("a", {"a": ""}),
        ("=v", {"": "v"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x\\\n   y", {"a": "xy"}),
        ("a=x\\\\\nb=1", {"a": "x\\", "b": "1"}),
        ("a=x\\", {"a": "x"}),
        ("a\\=b\\ c=1", {"a=b c": "1"}),
        ("a=\\u4e2d\\t\\q", {"a": "中\tq"}),
    ],
)
def test_properties_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@given(st.dictionaries(st.from_regex(r"[a-zA-Z0-9.]+", fullmatch=True), st.text("ab=: 1;/,")))
def test_plain_settings_read_back(properties: dict[str, str]) -> None:
    kept = {name: value.lstrip() for name, value in properties.items()}
    assert parse_properties(render_properties(kept)) == kept


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    assert all(isinstance(value, str) for value in parse_properties(text).values())

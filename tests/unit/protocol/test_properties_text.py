"""Properties text is read as Java reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import RequestRejected
from contrail.protocol.bodies.properties_text import (
    SETTINGS_BYTES_MAX,
    decode_settings,
    parse_properties,
    render_properties,
)


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
        ("\\\n#a=1", {"#a": "1"}),
        ("a=\\\\\\\n\\\n1", {"a": "\\1"}),
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


def test_settings_of_a_request_are_bounded_and_utf_8() -> None:
    assert decode_settings(b"a=1") == {"a": "1"}
    assert decode_settings(b"#" * SETTINGS_BYTES_MAX) == {}
    with pytest.raises(RequestRejected, match="at most 65536"):
        decode_settings(b"#" * (SETTINGS_BYTES_MAX + 1))
    with pytest.raises(RequestRejected, match="byte 2"):
        decode_settings(b"a=\xff")

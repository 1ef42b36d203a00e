"""Java's string hash against values Java itself gives."""

from __future__ import annotations

import pytest

from contrail.kernels.java_hash import java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("*", 42),
        ("polygenelubricants", -2147483648),
        ("hello world", 1794106052),
        ("é", 233),
        ("订单", 1129459),
        ("😀", 1772899),
        ("tag-😀", -879519626),
    ],
)
def test_the_hash_is_the_one_java_gives(text: str, expected: int) -> None:
    assert java_hash(text.encode("utf-8")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\xff", 68540),
        (b"\xed\xa0\x80", 65533),
        (b"\xed\xbf", 65533),
        (b"\xed\xed\xa0A", 65008801),
        (b"\xa0A\xed\xa0", 63044761),
        (b"\xed\xbf\xf4\xf4\xc0", 2017367872),
    ],
)
def test_bytes_that_are_no_utf_8_hash_as_java_decodes_them(text: bytes, expected: int) -> None:
    assert java_hash(text) == expected

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
        ("tag-😀", -881288230),
    ],
)
def test_the_hash_is_the_one_java_gives(text: str, expected: int) -> None:
    assert java_hash(text.encode("utf-8")) == expected


def test_bytes_that_are_no_utf_8_hash_as_the_replacement_character() -> None:
    assert java_hash(b"a\xff") == 97 * 31 + 0xFFFD

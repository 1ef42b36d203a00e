"""Java's string hash: compiled equals pure, and both equal its definition."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernels.material import twins

KERNEL, PURE = twins("java_hash")


def hash_by_definition(text: str) -> int:
    encoded = text.encode("utf-16-be")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = 31 * value + unit
    return (value + 2**31) % 2**32 - 2**31


@given(st.text() | st.text(alphabet=st.characters(min_codepoint=0x10000)))
def test_the_hash_of_any_text_is_the_one_java_defines(text: str) -> None:
    assert KERNEL.java_hash(text.encode("utf-8")) == hash_by_definition(text)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_compiled_and_pure_agree_on_any_bytes(text: bytes) -> None:
    assert KERNEL.java_hash(text) == PURE.java_hash(text)

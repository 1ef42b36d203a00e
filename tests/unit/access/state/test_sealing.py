"""Sealed bytes: readable under their key and context alone, and never changed unseen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.access.state.sealing import SALT_BYTES, SealBroken, fingerprint, seal, unseal

KEY, CONTEXT, SALT = b"k" * 32, b"users", bytes(range(SALT_BYTES))


@given(st.binary(max_size=300), st.binary(min_size=SALT_BYTES, max_size=SALT_BYTES))
def test_sealed_bytes_come_back(data: bytes, salt: bytes) -> None:
    sealed = seal(KEY, CONTEXT, data, salt)
    assert unseal(KEY, CONTEXT, sealed) == data
    assert len(data) < 24 or data not in sealed


@given(st.data())
def test_a_changed_byte_breaks_the_seal(data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, CONTEXT, b"a table of users", SALT))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealBroken):
        unseal(KEY, CONTEXT, bytes(sealed))


@pytest.mark.parametrize(("key", "context"), [(b"K" * 32, CONTEXT), (KEY, b"user"), (KEY, b"")])
def test_another_key_or_context_opens_nothing(key: bytes, context: bytes) -> None:
    with pytest.raises(SealBroken):
        unseal(key, context, seal(KEY, CONTEXT, b"data", SALT))
    assert fingerprint(key, context, b"data") != fingerprint(KEY, CONTEXT, b"data")


@pytest.mark.parametrize("cut", [0, 10, 55])
def test_a_short_text_is_refused(cut: int) -> None:
    with pytest.raises(SealBroken):
        unseal(KEY, CONTEXT, seal(KEY, CONTEXT, b"", SALT)[:cut])

"""Compressed and inflated bodies, and bodies that inflate to too much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client import compression
from contrail.client.compression import Compression, compress, decompress
from contrail.errors import ClientError

KINDS = list(Compression)


@given(body=st.binary(min_size=1, max_size=5_000), kind=st.sampled_from(KINDS))
def test_a_compressed_body_is_inflated_again(body: bytes, kind: Compression) -> None:
    packed, flag = compress(body, kind)
    assert flag & 1
    assert decompress(packed, flag) == body


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_body_is_inflated_again(kind: Compression) -> None:
    body = b"".join(b"%d," % number for number in range(400_000))
    packed, flag = compress(body, kind)
    assert len(packed) < len(body)
    assert decompress(packed, flag) == body


@pytest.mark.proves("client.producer.compression")
@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_would_fill_the_memory_is_refused(
    kind: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, flag = compress(bytes(3 << 20), kind)
    assert decompress(packed, flag) == bytes(3 << 20)
    monkeypatch.setattr(compression, "_BODY_BYTES_MAX", 1 << 20)
    with pytest.raises(ClientError, match="larger than 1048576 bytes"):
        decompress(packed, flag)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_is_cut_short_is_refused(kind: Compression) -> None:
    packed, flag = compress(b"hello " * 1_000, kind)
    with pytest.raises(ClientError):
        decompress(packed[: len(packed) // 2], flag)


def test_compressed_without_a_kind_is_zlib() -> None:
    packed, _ = compress(b"hello " * 100, Compression.ZLIB)
    assert decompress(packed, 1) == b"hello " * 100


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ClientError, match="0x701"):
        decompress(b"x", 0x701)

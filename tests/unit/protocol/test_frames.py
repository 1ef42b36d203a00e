"""What a decoder holds on to after bytes that are no frames."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Iterator

import pytest

from contrail.protocol.frames import FrameDecoder


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def frame(header: bytes, kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header), kind << 24 | len(header)) + header


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(b'{"code":34,"flag":0,'), "header_malformed"),
        (frame(b"[]"), "header_malformed"),
        (frame(b"{}", kind=2), "header_type_unknown"),
        (frame(b"\0\0", kind=1), "header_malformed"),
        (struct.pack(">I", 3) + bytes(8), "frame_length"),
    ],
)
def test_a_failed_decoder_goes_with_its_connection_and_not_with_the_collector(
    data: bytes, reason: str
) -> None:
    decoder = FrameDecoder()
    decoder.feed(data)
    assert decoder.failure is not None
    assert decoder.failure.reason == reason
    watched = weakref.ref(decoder)
    del decoder
    assert watched() is None

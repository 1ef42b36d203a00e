"""Memory of a decoder after bytes that are no frames, and its frames without kernels."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Iterator

import pytest

from contrail.kernels.frame_scan import COUNT_MAX
from contrail.protocol.command import Request, encode_request
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


@pytest.mark.proves("broker.fast.switch")
def test_a_decoder_that_decodes_all_gives_requests_wherever_bytes_are_cut() -> None:
    pull = Request(11, 1, {"topic": "a", "queueId": "0"})
    send = Request(310, 2, {"b": "a", "i": "UNIQ_KEY\x011\x02"}, b"body")
    data = encode_request(pull) + encode_request(send)
    for end in range(1, len(data)):
        decoder = FrameDecoder(decodes_all=True)
        frames = decoder.feed(data[:end])
        assert [*frames, *decoder.feed(data[end:])] == [pull, send]
        assert not decoder.may_join


def test_a_decoder_that_decodes_all_gives_a_bounded_number_and_the_rest_later() -> None:
    requests = [Request(34, number, {}, b"x" * 100) for number in range(5)]
    data = b"".join(map(encode_request, requests))
    decoder = FrameDecoder(decodes_all=True)
    found = decoder.frames_of(data, 0, 2, COUNT_MAX)
    assert found == requests[:2] and decoder.has_rest
    one_frame = len(data) // len(requests)
    assert decoder.more(9, one_frame) == requests[2:3]
    assert decoder.more(9) == requests[3:] and not decoder.has_rest


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">II", 3, 0), "frame_length"),
        (struct.pack(">II", 1 << 30, 0), "frame_length"),
        (struct.pack(">II", 8, 100) + b"{}{}", "header_length"),
        (frame(b" " * (300 << 10)), "header_too_long"),
        (frame(b"[]"), "header_malformed"),
    ],
)
def test_both_decoders_refuse_the_same_bytes(data: bytes, reason: str) -> None:
    for decodes_all in (False, True):
        decoder = FrameDecoder(decodes_all=decodes_all)
        assert decoder.feed(data) == []
        assert decoder.failure is not None and decoder.failure.reason == reason

"""Sends as rows: which sends become rows, and that rows equal the decoder's sends."""

from __future__ import annotations

from contrail.broker.fast.rows import joined_rows, rows_of
from contrail.protocol.command import Request, encode_request
from contrail.protocol.frames import FrameDecoder
from contrail.wire.limits import Limits
from tests.e2e.raw_client import send_fields

LIMITS = Limits()
HOSTS = [bytes([127, 0, 0, number, 0, 0, 0, 9]) for number in range(1, 4)]
SUFFIX = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"


def send(opaque: int, properties: str = "UNIQ_KEY\x01AC0001\x02") -> bytes:
    fields = send_fields("t") | {"i": properties}
    return encode_request(Request(310, opaque, fields, b"body %d" % opaque))


def decoded(data: bytes, host: bytes = HOSTS[0]) -> list[object]:
    return list(FrameDecoder(born_host=host, property_suffix=SUFFIX).feed(data))


def test_rows_are_the_sends_that_the_decoder_finds() -> None:
    data = b"".join(map(send, range(5)))
    rows = rows_of(data, HOSTS[0], LIMITS, SUFFIX)
    assert rows is not None
    assert (rows.send_count, rows.end, rows.data) == (5, len(data), data)
    assert rows.frames() == decoded(data)


def test_an_unfinished_frame_at_the_end_is_left() -> None:
    whole = send(1) + send(2)
    rows = rows_of(whole + send(3)[:-1], HOSTS[0], LIMITS, SUFFIX)
    assert rows is not None
    assert (rows.send_count, rows.end, rows.data) == (2, len(whole), whole)
    assert rows.frames() == decoded(whole)


def test_rows_end_in_front_of_a_send_without_a_key() -> None:
    rows = rows_of(send(1) + send(2, "") + send(3), HOSTS[0], LIMITS, SUFFIX)
    assert rows is not None
    assert (rows.send_count, rows.data) == (1, send(1))
    assert rows.frames() == decoded(send(1))
    assert rows_of(send(2, "") + send(3), HOSTS[0], LIMITS, SUFFIX) is None


def test_other_requests_are_for_the_decoder() -> None:
    other = encode_request(Request(34, 1, {}, b"ping"))
    assert rows_of(other, HOSTS[0], LIMITS, SUFFIX) is None
    rows = rows_of(send(1) + other, HOSTS[0], LIMITS, SUFFIX)
    assert rows is not None and rows.data == send(1)


def test_sends_of_several_connections_keep_their_hosts() -> None:
    sends = [send(number) for number in range(3)]
    rows = joined_rows(sends, HOSTS, LIMITS, SUFFIX)
    assert rows is not None and rows.send_count == 3
    expected = [decoded(data, host)[0] for data, host in zip(sends, HOSTS, strict=True)]
    assert rows.frames() == expected


def test_one_of_several_that_is_no_fast_send_leaves_all_to_the_decoder() -> None:
    assert joined_rows([send(1), send(2, ""), send(3)], HOSTS, LIMITS, SUFFIX) is None

"""RocketMQ's HA stream: reports of slaves, transfers of masters, cut anywhere."""

from __future__ import annotations

import pytest

from contrail.errors import RemoteProtocolError
from contrail.protocol.ha_frames import (
    TRANSFER_BODY_BYTES_MAX,
    ReportReader,
    TransferReader,
    encode_report,
    encode_transfer_header,
)


def test_layouts_are_apaches() -> None:
    assert encode_report(0x0102) == bytes.fromhex("0000000000000102")
    assert encode_transfer_header(0x0102, 0x0304) == bytes.fromhex("000000000000010200000304")


def test_the_last_whole_report_counts() -> None:
    reader = ReportReader()
    data = encode_report(5) + encode_report(9) + encode_report(12)[:3]
    assert reader.feed(data) == 9
    assert reader.feed(encode_report(12)[3:7]) is None
    assert reader.feed(encode_report(12)[7:]) == 12


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        ReportReader().feed(encode_report(-1))


@pytest.mark.parametrize("step", [1, 2, 7, 12, 13, 1000])
def test_transfers_are_read_however_they_are_cut(step: int) -> None:
    data = (
        encode_transfer_header(100, 5)
        + b"hello"
        + encode_transfer_header(105, 0)
        + encode_transfer_header(105, 30)
        + b"w" * 30
    )
    reader = TransferReader()
    pieces = [
        (piece.physical_offset, bytes(piece.data))
        for at in range(0, len(data), step)
        for piece in reader.feed(data[at : at + step])
    ]
    log = bytearray()
    for physical_offset, piece in pieces:
        assert physical_offset == 100 + len(log)
        log += piece
    assert log == b"hello" + b"w" * 30
    assert [place for place, piece in pieces if not piece] == [105]


@pytest.mark.parametrize(
    ("physical_offset", "size"), [(0, -1), (-1, 0), (0, TRANSFER_BODY_BYTES_MAX + 1)]
)
def test_a_transfer_out_of_bounds_is_refused(physical_offset: int, size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        TransferReader().feed(encode_transfer_header(physical_offset, size))

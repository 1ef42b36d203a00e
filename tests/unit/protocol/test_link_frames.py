"""Frames between two Contrail brokers: cut anywhere, sealed, bounded."""

from __future__ import annotations

import pytest

from contrail.errors import RemoteProtocolError
from contrail.protocol.ha_frames import ReportReader
from contrail.protocol.link_frames import (
    FRAME_BYTES_MAX,
    PREFACE,
    TAIL_BYTES_MAX,
    Begin,
    Kind,
    LinkReader,
    LinkWriter,
    PlacedLinkReader,
    Seal,
    decode_report,
    decode_transfer,
    lone_report,
)

KEY = b"k" * 32
Reader = LinkReader | PlacedLinkReader
both = pytest.mark.parametrize("make", [LinkReader, PlacedLinkReader])


def sealed(make: type[Reader]) -> tuple[LinkWriter, Reader]:
    writer, reader = LinkWriter(), make()
    writer.seal, reader.seal = Seal(KEY), Seal(KEY)
    return writer, reader


def feed(reader: Reader, data: bytes) -> None:
    """Hand bytes to a reader as its link does."""
    if isinstance(reader, LinkReader):
        reader.feed(data)
        return
    room = reader.received.room(reader.wanted_bytes, written_end=0, derived_end=0)
    room[: len(data)] = data
    reader.received.filled(len(data))


def taken(reader: Reader) -> list[tuple[Kind, bytes]]:
    found = []
    while (frame := reader.take()) is not None:
        found.append((frame[0], bytes(frame[1])))
    return found


@pytest.mark.parametrize("step", [1, 3, 5, 21, 64, 10_000])
@pytest.mark.parametrize("is_sealed", [False, True])
@both
def test_frames_are_read_however_they_are_cut(
    step: int, is_sealed: bool, make: type[Reader]
) -> None:
    writer, reader = sealed(make) if is_sealed else (LinkWriter(), make())
    frames = [
        writer.transfer(7, b"log bytes" * 30),
        writer.transfer(277),
        writer.report(277),
        writer.frame(Kind.HELLO, b"{}"),
    ]
    data = b"".join(part for frame in frames for part in frame)
    found = []
    for at in range(0, len(data), step):
        feed(reader, data[at : at + step])
        found += taken(reader)
    assert [kind for kind, _ in found] == [Kind.TRANSFER, Kind.TRANSFER, Kind.REPORT, Kind.HELLO]
    assert decode_transfer(memoryview(found[0][1])) == (7, b"log bytes" * 30)
    assert decode_transfer(memoryview(found[1][1])) == (277, b"")
    assert decode_report(memoryview(found[2][1])) == 277


def test_a_lone_report_and_the_head_of_a_transfer_are_those_of_every_frame() -> None:
    writer = LinkWriter()
    report = b"".join(writer.report(277))
    assert report == b"".join(writer.frame(Kind.REPORT, (277).to_bytes(8, "big")))
    assert lone_report(report) == 277
    others = (report[:-1], report + report, b"".join(writer.transfer(277)))
    negative = b"".join(writer.frame(Kind.REPORT, b"\xff" * 8))
    longer = b"\0\0\0\x0a" + report[4:]
    assert [lone_report(data) for data in (*others, negative, longer)] == [None] * 5
    assert writer.transfer_head(7, 3) + b"log" == b"".join(writer.transfer(7, b"log"))


@pytest.mark.proves("replication.ground.push")
def test_a_body_is_not_copied_into_its_frame() -> None:
    body = memoryview(b"bytes of the log")
    assert any(part is body for part in LinkWriter().transfer(0, body))


@both
@pytest.mark.proves("replication.pair.seals")
def test_a_changed_repeated_or_missing_frame_breaks_the_seal(make: type[Reader]) -> None:
    for change in ("changed", "repeated", "missing"):
        writer, reader = sealed(make)
        first, second = (b"".join(writer.report(end)) for end in (1, 2))
        sent = {
            "changed": first[:-17] + b"\x09" + first[-16:],
            "repeated": first + first,
            "missing": second,
        }[change]
        feed(reader, sent)
        with pytest.raises(RemoteProtocolError) as refusal:
            taken(reader)
        assert refusal.value.reason == "seal"


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x01", b"\0\0\0\0\x01", b"\0\0\0\x05\x63aaaa"])
@both
def test_a_length_or_kind_out_of_range_is_refused(data: bytes, make: type[Reader]) -> None:
    reader = make()
    feed(reader, data)
    with pytest.raises(RemoteProtocolError):
        reader.take()


@both
def test_a_frame_longer_than_the_bound_is_refused_before_it_is_awaited(make: type[Reader]) -> None:
    reader = make()
    feed(reader, (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"\x08")
    with pytest.raises(RemoteProtocolError):
        reader.take()


def test_no_apache_slave_can_report_what_opens_a_link() -> None:
    """Read as a report the preface is an end of the log beyond any disk."""
    assert (ReportReader().feed(PREFACE) or 0) > 1 << 62


def test_a_request_names_the_end_of_the_slaves_log() -> None:
    begin = Begin.of(10_000, b"the last bytes")
    assert Begin.decode(memoryview(begin.encode())) == begin
    for wrong in (begin._replace(tail_bytes=TAIL_BYTES_MAX + 1), begin._replace(physical_end=-1)):
        with pytest.raises(RemoteProtocolError):
            Begin.decode(memoryview(wrong.encode()))


@pytest.mark.parametrize("payload", [b"", b"1234567", b"\xff" * 8])
def test_a_report_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_report(memoryview(payload))

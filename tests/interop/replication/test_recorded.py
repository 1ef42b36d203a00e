"""Both sides of ours understand recorded streams of Apache's master and slave.

``recording.py`` says how the streams were made. They hold chunks that cut records, segments ended
by a blank record and its filler, heartbeats of both sides, and a slave that comes back at the end
of its log. No Apache and no root is needed here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.protocol.ha_frames import ReportReader, TransferReader
from contrail.replication.state.ha_limits import HaLimits
from contrail.replication.state.ha_master import Frame, HaMasterState, LogRange, SlaveProgress
from contrail.replication.state.ha_slave import HaSlaveState, Phase
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore
from tests.interop.comparison import MAGIC_BLANK, log_end, read_files, read_log
from tests.interop.replication.recording import (
    CHUNK_BYTES,
    GOLDEN,
    MASTER,
    OPENED,
    SEGMENT_BYTES,
    SLAVE,
    Piece,
    decode,
)
from tests.interop.replication.replicas import APACHE_4, APACHE_5

KINDS = pytest.mark.parametrize("kind", [APACHE_5, APACHE_4])
HEARTBEAT_BYTES = 12

pytestmark = pytest.mark.proves("replication.shown.recorded-streams")


def links(kind: str) -> list[list[Piece]]:
    """The recorded connections of a release, each a list of pieces."""
    found: list[list[Piece]] = []
    for piece in decode((GOLDEN / f"{kind}.stream").read_bytes()):
        if piece.sender == OPENED:
            found.append([])
        else:
            found[-1].append(piece)
    return found


def said(link: list[Piece], sender: bytes) -> bytes:
    return b"".join(piece.data for piece in link if piece.sender == sender)


def transfers(link: list[Piece]) -> Iterator[tuple[int, bytes]]:
    """The master's frames, taken apart by nothing but the layout: offset and body."""
    data, position = said(link, MASTER), 0
    while position < len(data):
        physical_offset, size = struct.unpack_from(">qi", data, position)
        position += HEARTBEAT_BYTES
        yield physical_offset, data[position : position + size]
        position += size


def recorded_log(kind: str) -> bytes:
    """All bytes of the log that the master sent, from 0 on."""
    log = b""
    for link in links(kind):
        for physical_offset, body in transfers(link):
            assert physical_offset == len(log), "a hole in the recording"
            log += body
    return log


@KINDS
def test_the_recordings_hold_what_they_are_made_for(kind: str) -> None:
    """A recording made anew must not be poorer than the one it replaces."""
    first, second = links(kind)
    assert said(first, SLAVE)[:8] == bytes(8)
    (came_back_at,) = struct.unpack_from(">q", said(second, SLAVE))
    assert came_back_at == sum(len(body) for _, body in transfers(first)) > SEGMENT_BYTES
    log = recorded_log(kind)
    ends = range(SEGMENT_BYTES, len(log), SEGMENT_BYTES)
    assert len(ends) >= 2
    for link in (first, second):
        frames = list(transfers(link))
        assert max(len(body) for _, body in frames) == CHUNK_BYTES
        assert sum(not body for _, body in frames) >= 2
        for physical_offset, body in frames:
            assert physical_offset // SEGMENT_BYTES == (
                (physical_offset + max(len(body), 1) - 1) // SEGMENT_BYTES
            ), "a frame over the end of a segment"
    blank = struct.pack(">I", MAGIC_BLANK)
    assert all(blank in log[end - SEGMENT_BYTES : end] for end in ends)


@KINDS
@pytest.mark.parametrize("step", [1, 11, 12, 13, 4096, 1 << 20])
def test_a_masters_bytes_are_read_however_they_are_cut(kind: str, step: int) -> None:
    for link in links(kind):
        data, reader = said(link, MASTER), TransferReader()
        expected: int | None = None
        log = b""
        beats = 0
        for start in range(0, len(data), step):
            for piece in reader.feed(data[start : start + step]):
                assert expected in (None, piece.physical_offset)
                expected = piece.physical_offset + len(piece.data)
                log += piece.data
                beats += not piece.data
        assert log == b"".join(body for _, body in transfers(link))
        assert beats == sum(not body for _, body in transfers(link))


@KINDS
@pytest.mark.parametrize("step", [1, 100, 5000])
def test_our_slave_keeps_the_recorded_log(tmp_path: Path, kind: str, step: int) -> None:
    """The rules of our slave take every frame, and its store becomes the master's log."""
    store = MessageStore.open(store_config(tmp_path), follows=True)
    state = HaSlaveState(HaLimits(), segment_bytes=SEGMENT_BYTES, now_ms=0)
    try:
        for link in links(kind):
            follow(store, state, said(link, MASTER), step)
            state.lost("the recording ends", 0)
        store.dispatch()
        assert state.phase is Phase.READY and not state.problem
        assert (state.counts["mismatch"], state.received_bytes) == (0, store.physical_end)
    finally:
        store.close()
    records = read_log(tmp_path)
    log = recorded_log(kind)
    assert log_end(records) == len(log)
    kept = b"".join(path.read_bytes() for path in sorted((tmp_path / "commitlog").iterdir()))
    assert kept[: len(log)] == log
    queued = sum(record.fields.is_queued for record in records)
    rows = b"".join(read_files(tmp_path, "consumequeue").values())
    assert sum(size > 0 for _, size, _ in struct.iter_unpack(">qiq", rows)) == queued


def store_config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root,
        segment_bytes=SEGMENT_BYTES,
        queue_file_bytes=20_000,
        body_bytes_max=4096,
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
    )


def follow(store: MessageStore, state: HaSlaveState, data: bytes, step: int) -> None:
    """Receive a master's bytes as the slave's service does: whole records go to the log."""
    reader, held = TransferReader(), bytearray()
    state.begin(store.physical_end, 0, is_empty=store.is_empty)
    for start in range(0, len(data), step):
        for piece in reader.feed(data[start : start + step]):
            assert state.received(piece.physical_offset, len(piece.data), 0), state.problem
            held += piece.data
        if held:
            assert state.expected is not None
            taken = store.append_raw(state.expected - len(held), held)
            del held[:taken]
    assert not held, "the recording ends with a whole record"


@KINDS
@pytest.mark.parametrize("step", [1, 3, 8, 4096])
def test_a_slaves_reports_are_read_however_they_are_cut(kind: str, step: int) -> None:
    for link in links(kind):
        data, reader = said(link, SLAVE), ReportReader()
        pieces = [data[start : start + step] for start in range(0, len(data), step)]
        reports = [end for piece in pieces if (end := reader.feed(piece)) is not None]
        assert reports == sorted(reports)
        assert reports[-1] == struct.unpack(">q", data[-8:])[0]


@KINDS
def test_our_master_believes_a_recorded_slave(kind: str) -> None:
    """Our rules send what Apache sent, where it sent it, and take every report for true."""
    state = HaMasterState(HaLimits(transfer_batch_bytes=CHUNK_BYTES))
    for link in links(kind):
        slave = state.connected("198.18.0.2:10912", 0)
        assert isinstance(slave, SlaveProgress)
        frames = list(transfers(link))
        reader = ReportReader()
        sent_bytes = 0
        for piece in link:
            if piece.sender == MASTER:
                sent_bytes += len(piece.data)
                sent_bytes -= push_begun(state, slave, frames, sent_bytes)
            elif (end := reader.feed(piece.data)) is not None:
                if slave.is_receiving:
                    assert state.reported(slave, end, piece.elapsed_ms) is None
                    continue
                log = LogRange(0, end_of(frames) or slave.next_offset, SEGMENT_BYTES)
                assert state.begun(slave, end, log, piece.elapsed_ms) is None
        assert slave.acknowledged_end == slave.next_offset
        state.lost(slave.number)
    assert not state.counts, "a link was refused"


def end_of(frames: list[tuple[int, bytes]]) -> int:
    """The end of the next frame, where the master's log ends at that moment; 0 without one."""
    return frames[0][0] + len(frames[0][1]) if frames else 0


def push_begun(
    state: HaMasterState, slave: SlaveProgress, frames: list[tuple[int, bytes]], sent_bytes: int
) -> int:
    """Let our rules push the frames that begin in the bytes sent so far; returns their bytes."""
    pushed_bytes = 0
    while frames and pushed_bytes < sent_bytes:
        log = LogRange(0, end_of(frames), SEGMENT_BYTES)
        physical_offset, body = frames.pop(0)
        frame = state.next_frame(slave, log, body_bytes_max=CHUNK_BYTES)
        if body:
            assert frame == Frame(physical_offset, len(body))
            state.pushed(slave, len(body), 0)
        else:
            assert frame is None and physical_offset == slave.next_offset, "a heartbeat elsewhere"
        pushed_bytes += HEARTBEAT_BYTES + len(body)
    return pushed_bytes

"""Feeds fixed byte streams to a broker of this process, for callgrind to count instructions.

``python -m bench.compare_feed FOLDER MARKS_LIBRARY CHUNKS`` runs under
``valgrind --tool=callgrind`` with the source of one tree first on the path. Clients and broker
share one event loop and one standing clock, and each chunk is answered before the next one is
sent, so that neither time nor a neighbour decides how requests are grouped. The loop's timers go by
chunks. Prints the cases as JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import re
import socket
import sys
from pathlib import Path

import bench.steady_time  # noqa: F401  (it must come before the product)
from bench.compare_cases import (
    LOG_NUMBER,
    OFFSET_NUMBER,
    QUEUE_NUMBER,
    Case,
    cases,
    put_number,
)
from bench.steady_loop import SteadyLoop
from bench.wire_frames import BROKER_NAME, NUMBER
from contrail.broker.app import Broker
from contrail.broker.settings import read_broker_settings
from contrail.clock import ManualClock
from contrail.runtime.event_loop import set_collector_for_serving
from contrail.runtime.schedule import Schedule
from contrail.wire.limits import Limits

_WARM_CHUNKS = 120
# How long a chunk takes by the loop's timers: as long as one of 64 sends takes a busy broker.
_CHUNK_S = 0.001
_PUT_OFF_STEPS = 2
# Until every connection is accepted and read.
_ACCEPT_TURNS = 100
# Rows are derived a little later than records are stored: as many are counted as were sent.
_SETTLE_S = 0.02
# A read, a tick, and the write that follows it.
_TURNS = 4
_FIRST_NUMBER = 100_000_000
# A chunk fits into a socket's buffer, so that the broker finds it whole.
_CHUNK_BYTES_MAX = 48 << 10
_READ_BYTES = 256 << 10
_NEVER_MS = 10**9
# By the machine's time, which callgrind makes fifty times as long.
_PATIENT = Limits(first_frame_s=3600.0, partial_frame_s=3600.0, idle_s=3600.0)
_PLACE = rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})"'
_OFFSET = rb'"queueOffset":"([0-9]+)"'
_NEXT_OFFSET = re.compile(rb'"nextBeginOffset":"([0-9]+)"')


class Client:
    """One connection; sends the given bytes and reads a number of answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()

    def send(self, data: bytes) -> None:
        """All of it at once: the buffers are larger."""
        sent = self._socket.send(data)
        assert sent == len(data), f"{sent} of {len(data)} bytes fit into the socket"

    async def answers(self, count: int) -> bytes:
        """``count`` whole answers, as they came."""
        data, end = b"", 0
        while count:
            data += await self._loop.sock_recv(self._socket, _READ_BYTES)
            while count and len(data) >= end + 4:
                next_end = end + 4 + int.from_bytes(data[end : end + 4], "big")
                if next_end > len(data):
                    break
                end = next_end
                count -= 1
        assert end == len(data), "more was answered than was asked"
        return data

    def close(self) -> None:
        self._socket.close()


class Feed:
    """Sends the frames of one case, chunk by chunk.

    Frames are numbered before anything is counted, so that next to nothing but the broker's work
    is counted.
    """

    def __init__(self, case: Case, port: int, chunk_count: int) -> None:
        self._case = case
        self._number = _FIRST_NUMBER
        count = case.connections * (2 if case.protocol == "wake" else 1)
        self._clients = [Client(port) for _ in range(count)]
        self._depth = max(1, min(case.depth, _CHUNK_BYTES_MAX // len(case.frame)))
        # Each queue has one message already: the first pull waits for the second.
        self._offsets = [1] * case.connections
        frames = [self._frames(number) for _ in range(chunk_count) for number in range(count)]
        self._frames_left = iter(frames)

    @property
    def records_per_chunk(self) -> int:
        return self._case.connections * self._depth * self._case.records

    async def chunk(self) -> None:
        """Send one chunk on every connection and take the answers."""
        if self._case.protocol == "wake":
            await self._wake()
            return
        for client in self._clients:
            client.send(next(self._frames_left))
        for client in self._clients:
            answers = await client.answers(self._depth)
            if self._case.protocol == "transaction":
                client.send(self._ends_of(answers))
                answers = await client.answers(self._depth)
            assert answers.count(b'"code":0,') == self._depth, answers[:600]

    async def _wake(self) -> None:
        """Every pull is held, then every send goes out, then each pull is answered."""
        half = self._case.connections
        for index in range(half):
            pull = put_number(next(self._frames_left), OFFSET_NUMBER, self._offsets[index])
            self._clients[index].send(pull)
        # The broker holds every pull before anything is sent.
        await _turns()
        for index in range(half):
            self._clients[half + index].send(next(self._frames_left))
        # Deriving may be put off for a millisecond: it is not done for each send when many come.
        for _ in range(_PUT_OFF_STEPS):
            await _turns()
            _loop().set_forward(_CHUNK_S)
        for index in range(half):
            await self._clients[half + index].answers(1)
            answer = await self._clients[index].answers(1)
            found = _NEXT_OFFSET.search(answer)
            assert found is not None and int(found[1]) == self._offsets[index] + 1, answer[:600]
            self._offsets[index] += 1

    def _frames(self, client_number: int) -> bytes:
        case = self._case
        if case.protocol == "wake":
            is_sender = client_number >= case.connections
            frame = self._numbered(case.second if is_sender else case.frame)
            return put_number(frame, QUEUE_NUMBER, client_number % case.connections)
        return b"".join(self._numbered(case.frame) for _ in range(self._depth))

    def _numbered(self, frame: bytes) -> bytes:
        self._number += 1
        return frame.replace(NUMBER, b"%d" % self._number)

    def _ends_of(self, answers: bytes) -> bytes:
        """The ends of half messages, whose answers give their physical offsets."""
        frames = []
        places = zip(re.findall(_OFFSET, answers), re.findall(_PLACE, answers), strict=True)
        for queue_offset, place in places:
            frame = put_number(self._numbered(self._case.second), OFFSET_NUMBER, int(queue_offset))
            frames.append(put_number(frame, LOG_NUMBER, int(place, 16)))
        assert len(frames) == self._depth, answers[:600]
        return b"".join(frames)

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _loop() -> SteadyLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SteadyLoop)
    return loop


async def _turns() -> None:
    """Let the broker do what it can without waiting."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def _fed(case: Case, folder: Path, marks: ctypes.CDLL | None, chunk_count: int) -> int:
    """Run one case on its own broker; returns how many messages were counted, if marked."""
    loop = _loop()
    loop.hold()
    settings = read_broker_settings(
        {
            "brokerName": BROKER_NAME,
            "brokerIP1": "127.0.0.1",
            "listenAddress": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(folder),
            "flushDiskType": case.flush,
            "mappedFileSizeCommitLog": str(64 << 20),
            "contrailPrepareSegments": "false",
            "metricsExporterType": "DISABLE",
            "brokerFastFailureEnable": "false",
        }
    )
    broker = Broker(settings.broker, settings.store, clock=ManualClock(), limits=_PATIENT)
    await broker.start()
    try:
        for frame, count in case.before:
            before = Client(broker.port)
            for _ in range(count):
                before.send(frame)
                await before.answers(1)
            before.close()
        feed = Feed(case, broker.port, _WARM_CHUNKS + chunk_count)
        for _ in range(_ACCEPT_TURNS):
            await _turns()
        await _feed_chunks(feed, loop, _WARM_CHUNKS)
        if marks is not None:
            marks.marks_begin()
        await _feed_chunks(feed, loop, chunk_count)
        if marks is not None:
            marks.marks_end(case.name.encode())
        feed.close()
        return feed.records_per_chunk * chunk_count
    finally:
        loop.release()
        await broker.stop()


async def _feed_chunks(feed: Feed, loop: SteadyLoop, chunk_count: int) -> None:
    for _ in range(chunk_count):
        await feed.chunk()
        loop.set_forward(_CHUNK_S)
    loop.set_forward(_SETTLE_S)
    await _turns()


async def _main(folder: Path, library: str, chunk_count: int, names: list[str]) -> None:
    marks = ctypes.CDLL(library)
    # The broker's clock stands, so that no periodic job is due: looking for one costs by real time.
    Schedule.due_in_ms = lambda self, now_ms: _NEVER_MS  # type: ignore[method-assign]
    set_collector_for_serving()
    # Work that only the first broker of a process does (codecs, types) belongs to no case.
    await _fed(next(iter(cases())), folder / "first", None, _WARM_CHUNKS)
    counted = {
        case.name: await _fed(case, folder / f"case-{number}", marks, chunk_count)
        for number, case in enumerate(cases())
        if case.name in names
    }
    print(json.dumps(counted))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        runner.run(_main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]))

"""Two brokers that get the same bytes: one by the fast path, one by the general way.

Both run on one event loop, without sockets: this module decides in which order connections are
read and where ticks end. Time stands still between two steps, and random numbers are the same.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from contrail.broker.app import Broker
from contrail.broker.config import FastPath
from contrail.broker.fast.rows import SendRows
from contrail.broker.services import delay_levels, timers
from contrail.broker.settings import read_broker_settings
from contrail.clock import ManualClock
from contrail.protocol.frames import Frames
from contrail.store.log import Arrival
from contrail.wire.connection import Connection
from contrail.wire.connection import Read as ReadOnce
from contrail.wire.limits import Limits
from contrail.wire.server import Arrived
from tests.fakes.transports import FakeTransport

PORT = 10_911
_FIRST_CLIENT_PORT = 40_001
_TURNS = 6
# No work is delayed because the machine was slow.
_PATIENCE_MS = 3_600_000
# This module decides where a tick ends, not the number of bytes read.
_LIMITS = Limits(
    turn_requests_of_one_max=10_000,
    turn_requests_max=100_000,
    piece_bytes_max=1 << 30,
    piece_handling_s=3600.0,
    turn_handling_s=3600.0,
    costly_s=3600.0,
)
# The files of messages, topics, groups and consumers. Other files depend on when threads wrote, or
# say where they begin after a crash.
_COMPARED = ("commitlog", "consumequeue", "batchconsumequeue", "index")
_COMPARED_TABLES = frozenset(
    {"topics.json", "subscriptionGroup.json", "consumerOffset.json", "consumerFilter.json"}
)

Read = tuple[int, bytes]
"""The number of a connection, and the bytes read from it."""

Told = dict[int, list[bytes]]
"""The frames sent to connections, by their numbers; ``CLOSED`` last if one is closed."""

CLOSED = b"(closed)"


class Way:
    """One broker, and its connections."""

    def __init__(self, folder: Path, fast_path: FastPath, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self._now_s = 0.0
        read = read_broker_settings(
            {
                "brokerName": "broker-a",
                "listenPort": str(PORT),
                "storePathRootDir": str(folder),
                "contrailPrepareSegments": "false",
                "metricsExporterType": "DISABLE",
                "contrailFastPath": fast_path.value,
                **settings,
            }
        )
        self._syncs = read.store.syncs_before_ack
        self.broker = Broker(
            read.broker, read.store, clock=self.clock, limits=_LIMITS, access=read.access
        )
        self._peers: dict[int, tuple[Connection, FakeTransport]] = {}
        # The queues that have grown since held pulls were woken.
        self._arrivals: list[Arrival] = []
        # How many frames of which connection were handled one after the other in the last tick.
        self._handled: list[tuple[Connection, int]] = []

    async def open(self) -> None:
        broker, loop = self.broker, asyncio.get_running_loop()
        broker.port, broker.address, broker._loop = PORT, f"127.0.0.1:{PORT}", loop
        broker._open()
        broker._wire()
        broker._recall()
        broker._ticker = asyncio.create_task(asyncio.sleep(0))
        broker.server._loop = loop
        broker.server.monotonic_s = lambda: self._now_s
        # Held pulls are woken at the end of a tick with every message that it has stored.
        broker._deriving._now_s = lambda: self._now_s
        broker._deriving.after_tick = lambda: None  # type: ignore[method-assign]
        held = broker.pulls.held
        self._wake = held.arrived
        held.arrived = self._arrivals.extend  # type: ignore[method-assign]
        # A short hold ends when time passes here, and not by the machine's time.
        held._loop = _NoTimers(loop)
        for service in (broker.kinds.transactions, broker.kinds.checks):
            service._work_ms_max = _PATIENCE_MS
        self._watch()

    def _watch(self) -> None:
        """Note in which order the frames of several connections are handled."""
        intake, tickless = self.broker.intake, self.broker.fast.tickless
        take_runs, received = intake.take_runs, intake.received

        def watched_runs(arrived: list[Arrived], at: int) -> int:
            left_at = take_runs(arrived, at)
            self._handled += [(peer, _count(read)) for peer, read, _ in arrived[at:left_at]]
            return left_at

        def watched_frames(peer: Connection, frames: Frames, until_s: float) -> int:
            self._handled.append((peer, len(frames)))
            return received(peer, frames, until_s)

        def watched_sends(peer: Connection, data: bytes) -> int:
            end = take_sends(peer, data)
            self._handled += [(peer, len(frames_of(data[:end])))] if end else []
            return end

        intake.take_runs, intake.received = watched_runs, watched_frames  # type: ignore[method-assign]
        if tickless is not None:
            take_sends, tickless.take = tickless.take, watched_sends  # type: ignore[method-assign]

    async def close(self) -> None:
        await self.broker.stop()

    async def tick(self, reads: Sequence[Read]) -> Told:
        """Give these reads in order, end the tick, and return the frames of each connection."""
        self._now_s += 1.0
        self._handled.clear()
        for number in {number for number, _ in reads}:
            self._connect(number)
        for number, data in reads:
            # Nothing is read any more from a connection that this tick has closed.
            self._peers[number][0].data_received(data)
        return await self._told()

    def as_handled(self, reads: Sequence[Read]) -> list[Read]:
        """The whole frames of ``reads`` in the order in which the last tick has handled them.

        The order of several connections in a tick is not fixed; the other way gets the order that
        this one took.
        """
        numbers = {connection: number for number, (connection, _) in self._peers.items()}
        left: dict[int, list[bytes]] = {}
        for number, data in reads:
            left.setdefault(number, []).extend(frames_of(data))
        ordered = []
        for connection, count in self._handled:
            frames = left[numbers[connection]]
            if count:
                ordered.append((numbers[connection], b"".join(frames[:count])))
                del frames[:count]
        assert not any(left.values()), "every frame is handled in its tick"
        return ordered

    async def let_pass(self, ms: int) -> Told:
        """Let time pass, and run the jobs that are due."""
        self._now_s += ms / 1000
        self.clock.advance(ms=ms)
        self.broker.run_due(self.clock.now_ms())
        return await self._told()

    def lose(self, number: int) -> None:
        """End the connection of this number; the next read is a new connection's."""
        known = self._peers.pop(number, None)
        if known is not None and not known[1].is_closing():
            known[1].close()

    def _connect(self, number: int) -> None:
        known = self._peers.get(number)
        if known is None or known[1].is_closing():
            connection = Connection(self.broker.server)
            transport = FakeTransport(("127.0.0.1", _FIRST_CLIENT_PORT + number))
            transport.connect(connection)
            self._peers[number] = (connection, transport)

    def _derive(self) -> None:
        self.broker._deriving.catch_up()
        arrivals, self._arrivals[:] = self._arrivals.copy(), []
        self._wake(arrivals)

    async def _told(self) -> Told:
        # Woken pulls and written tables at the end of a tick may lead to further answers.
        for _ in range(2):
            await self._turn()
            if self._syncs:
                self.broker.store.wait_flushed(self.broker.store.physical_end, 30_000)
                self.broker.intake.take_flushed()
                self.broker.server.schedule_tick()
            self._derive()
            await self._turn()
            await self.broker.tables.persistence.settled()
        told: Told = {}
        for number, (_, transport) in self._peers.items():
            # The order of the answers of one tick is not fixed.
            told[number] = sorted(frames_of(b"".join(transport.written)))
            if transport.is_closing():
                told[number].append(CLOSED)
            transport.written.clear()
        return told

    async def _turn(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def stored(self) -> dict[str, bytes]:
        """The files that are compared, once the store is closed."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and _is_compared(path.relative_to(self.folder))
        }


class _NoTimers:
    """An event loop whose timers never fire."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call_soon = loop.call_soon

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        """``let_pass`` does what the callback would."""


def _is_compared(path: Path) -> bool:
    return path.parts[0] in _COMPARED or path.name in _COMPARED_TABLES


def _count(read: ReadOnce) -> int:
    if isinstance(read, bytes):
        return 1
    if isinstance(read, SendRows):
        return read.send_count
    assert isinstance(read, list)
    return len(read)


def frames_of(data: bytes) -> list[bytes]:
    """The whole frames in a connection's bytes, and the bytes left."""
    frames = []
    while len(data) >= 4 and 4 + (total := int.from_bytes(data[:4], "big")) <= len(data):
        frames.append(data[: 4 + total])
        data = data[4 + total :]
    return [*frames, data] if data else frames


@contextmanager
def same_chances() -> Iterator[None]:
    """Seed random numbers and delay no work, so that both ways behave the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", random.randbytes)
        patch.setattr(secrets, "randbits", random.getrandbits)
        patch.setattr(delay_levels, "_WORK_MS_MAX", _PATIENCE_MS)
        patch.setattr(timers, "_WORK_MS_MAX", _PATIENCE_MS)
        yield

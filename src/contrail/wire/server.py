"""Listening ports and their connections, driven in ticks.

A tick takes everything that arrived on all connections since the last one, lets the service work
on it as runs, and ends with one write per connection that has something to say. There is no task
per request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from typing import Protocol

from contrail.errors import ConfigError
from contrail.protocol.frames import FrameDecoder, Frames
from contrail.wire.connection import Connection, Intake, Read
from contrail.wire.limits import Limits
from contrail.wire.request_times import RequestTimes
from contrail.wire.tls import TlsFiles, TlsMode
from contrail.wire.turns import Turns

_log = logging.getLogger(__name__)

_SWEEP_S = 1.0
# A read this soon after a tick may have been waiting for the tick's end.
FOLLOWS_S = 0.005
_BACKLOG = 1024
_FREE_PAIR_TRIES = 100
FAST_PORT_DISTANCE = 2


Arrived = tuple[Connection, Read, bool]
"""A connection, its read, and whether the read may join a run with those of others."""


class Service(Protocol):
    """The requests' side of a server. All calls come from the event loop's thread."""

    def take_runs(self, arrived: list[Arrived], at: int) -> int:
        """Take entries from ``at`` on that may join a run; returns the first left alone.

        Entries that are bytes may be replaced by their frames.
        """
        ...

    def take_before_tick(self, peer: Connection, frames: Frames) -> Frames:
        """Take the first frames of a connection that need no tick; returns those behind them.

        Nothing else waits for the next tick. Taken frames are answered by ``send_parts``.
        """
        ...

    def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
        """Take frames of one connection, in order; returns how many.

        Behind a request that ends after ``until_s``, by the server's clock, the rest is left.
        """
        ...

    def end_of_tick(self) -> None:
        """Everything that arrived in this tick has been handed over."""
        ...

    def connection_opened(self, peer: Connection) -> None: ...
    def connection_closed(self, peer: Connection, reason: str) -> None: ...


class Server:
    """The ports of one service; the owner of its connections."""

    # With slots an attribute costs the same however many there are: beyond thirty of them Python
    # does not share the keys of instances any more.
    __slots__ = (
        "__weakref__",
        "_first_arrival_s",
        "_holding",
        "_is_stopping",
        "_listeners",
        "_loop",
        "_pending_bytes",
        "_per_address",
        "_piece_s",
        "_service",
        "_sweeper",
        "_to_flush",
        "_to_read_on",
        "_turns",
        "arrivals",
        "connections",
        "counts",
        "decodes_all",
        "ended_s",
        "intake",
        "language",
        "limits",
        "monotonic_s",
        "now_s",
        "pauses_slow_peers",
        "piece_bytes_max",
        "property_suffix",
        "read_bytes_max",
        "request_room",
        "tick_is_due",
        "times",
        "tls_files",
        "tls_mode",
        "took_s",
        "waited_s",
    )

    def __init__(
        self,
        service: Service,
        *,
        limits: Limits | None = None,
        property_suffix: bytes = b"",
        decodes_all: bool = False,
        tls_mode: TlsMode = TlsMode.DISABLED,
        tls_files: TlsFiles | None = None,
    ) -> None:
        """``property_suffix`` and ``decodes_all`` are told to each ``FrameDecoder``."""
        self._service = service
        self.limits = limits or Limits()
        self.language = "JAVA"
        self.pauses_slow_peers = True
        self.tls_mode = tls_mode
        self.tls_files = tls_files
        self.property_suffix = property_suffix
        self.decodes_all = decodes_all
        self.connections: set[Connection] = set()
        self.counts: Counter[str] = Counter()
        # An owner that wants requests timed sets it before the first connection comes.
        self.times: RequestTimes | None = None
        self.now_s = 0.0
        self._per_address: Counter[str] = Counter()
        # Reads that wait for the next tick.
        self.arrivals: list[Arrived] = []
        # Set by a service that looks at reads before they are decoded; see ``Hub``.
        self.intake: Intake | None = None
        # Connections with requests that wait for their turn.
        self._turns: Turns[Connection] = Turns(self.limits)
        self.request_room = self._turns.begin()
        self.piece_bytes_max = self.limits.piece_bytes_max
        self._piece_s = self.limits.piece_handling_s
        # Connections that are not read again in this turn.
        self.read_bytes_max = self.limits.turn_bytes_max
        self._to_read_on: list[Connection] = []
        self._to_flush: list[Connection] = []
        # Whether reads wait for the next tick, or may do so.
        self.tick_is_due = False
        self.monotonic_s = time.monotonic
        # When the last tick ended, and how long it took, while that matters to reads that arrive.
        self.ended_s = self.took_s = 0.0
        self._first_arrival_s = 0.0
        # How long the first frame of this tick has waited, as far as can be told.
        self.waited_s = 0.0
        self._is_stopping = False
        self._holding = False
        # The bytes of unfinished frames, or more: counted anew when this says too much.
        self._pending_bytes = 0
        self._listeners: list[asyncio.Server] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def listen(self, address: str, port: int, *, is_fast_port: bool = False) -> int:
        """Open a port and return its number, which matters when ``port`` is 0.

        Raises:
            ConfigError: the address cannot be bound.
        """
        bound = bind(address, port)
        await self.serve(bound, is_fast_port=is_fast_port)
        return int(bound.getsockname()[1])

    async def serve(self, bound: socket.socket, *, is_fast_port: bool = False) -> None:
        """Accept connections on a socket that ``bind`` made."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.now_s = loop.time()
        listener = await loop.create_server(
            lambda: Connection(self, is_fast_port=is_fast_port), sock=bound, backlog=_BACKLOG
        )
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = loop.create_task(self._sweep_forever(), name="wire-sweep")

    # The calls of connections.

    def decoder_for(self, packed_host: bytes) -> FrameDecoder:
        return FrameDecoder(
            born_host=packed_host,
            property_suffix=self.property_suffix,
            frame_bytes_max=self.limits.frame_bytes_max,
            header_bytes_max=self.limits.header_bytes_max,
            decodes_all=self.decodes_all,
        )

    def admit(self, connection: Connection) -> str | None:
        """Take a new connection, or say why not."""
        self.connections.add(connection)
        connection.times = self.times
        connection.opened_s = connection.received_s = connection.frame_s = self.now_s
        host = connection.address.rpartition(":")[0]
        self._per_address[host] += 1
        self.counts["opened"] += 1
        if len(self.connections) > self.limits.connection_count_max:
            return "too_many_connections"
        if (
            not connection.is_this_host
            and self._per_address[host] > self.limits.connections_per_address_max
        ):
            return "too_many_connections_of_one_address"
        if self._is_stopping:
            return "stopping"
        self._service.connection_opened(connection)
        return None

    def arrived(self, connection: Connection, read: Read, may_join: bool) -> None:
        if isinstance(read, list):
            self.request_room = self._turns.took(len(read))
        if not self.arrivals:
            self._first_arrives()
            if not may_join:
                read = self._taken_before_tick(connection, read)
                if not read:
                    return
            self.schedule_tick()
        self.arrivals.append((connection, read, may_join))

    def joins(self, connection: Connection, read: Read) -> None:
        """A read that was not decoded joins the run of this tick."""
        if not self.arrivals:
            self._first_arrives()
            self.schedule_tick()
        self.arrivals.append((connection, read, True))

    def _first_arrives(self) -> None:
        """The first read of a tick was sent half way through the last tick on average, if that
        has just ended.
        """
        now_s = self.monotonic_s()
        if now_s - self.ended_s >= FOLLOWS_S:
            self.took_s = 0.0
        self._first_arrival_s = now_s - self.took_s / 2

    def _taken_before_tick(self, connection: Connection, read: Read) -> Read:
        """Offer a read's first frames to the service; returns the frames left for the tick."""
        if not isinstance(read, list) or self._turns.is_over:
            return read
        arrived_s = self._first_arrival_s
        began_s = self.monotonic_s()
        self.waited_s = began_s - arrived_s
        if self.times is not None:
            self.times.arrived_s = arrived_s
        try:
            return self._service.take_before_tick(connection, read)
        except Exception:
            _log.exception("the frames of %s were not served", connection.address)
            connection.close("internal_error")
            return []
        finally:
            self._spend(connection, began_s)

    def _spend(self, connection: Connection, began_s: float) -> float:
        """Requests of a connection were handled since ``began_s``; returns the time now."""
        now_s = self.monotonic_s()
        self._turns.spend(now_s - began_s)
        connection.costs.note(now_s - began_s, now_s)
        return now_s

    def waits(self, connection: Connection) -> None:
        """Requests of a connection wait for its turn."""
        connection.in_line_since_s = now_s = self.monotonic_s()
        comes_first = connection.has_few and not connection.costs.exceed(
            self.limits.costly_s, now_s
        )
        self._turns.wait(connection, comes_first=comes_first)
        self.schedule_tick()

    def read_enough(self, connection: Connection) -> None:
        """A connection is read on in the next turn."""
        self._to_read_on.append(connection)
        self.schedule_tick()

    def wants_flush(self, connection: Connection) -> None:
        self._to_flush.append(connection)
        self.schedule_tick()

    def lost(self, connection: Connection, reason: str) -> None:
        self.connections.discard(connection)
        host = connection.address.rpartition(":")[0]
        self._per_address[host] -= 1
        if self._per_address[host] <= 0:
            del self._per_address[host]
        self.counts[f"closed_{reason}"] += 1
        self._service.connection_closed(connection, reason)

    # Ticks.

    def schedule_tick(self) -> None:
        """Have a tick as soon as everything that is ready now has been read."""
        if not self.tick_is_due and self._loop is not None:
            self.tick_is_due = True
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        """Work that is asked for during a tick is done in it; frames come between ticks only."""
        began_s = self.monotonic_s()
        self.waited_s = began_s - self._first_arrival_s if self.arrivals else 0.0
        if self.times is not None:
            self.times.arrived_s = began_s - self.waited_s
        arrived, self.arrivals = self.arrivals, []
        try:
            # Also of a peer that has gone meanwhile: its last requests may be one-way.
            if arrived:
                self._hand_over(arrived)
            if self._turns.waiting_count:
                self._serve_waiting(began_s)
            self._service.end_of_tick()
        finally:
            # After every failure, answers that are ready must leave.
            self.tick_is_due = False
            self.request_room = self._turns.begin()
            if self._to_read_on:
                self._read_on()
            if self._turns.waiting_count:
                self.schedule_tick()
            if self._to_flush:
                to_flush, self._to_flush = self._to_flush, []
                self._flush(to_flush)
            self.ended_s = ended_s = self.monotonic_s()
            self.took_s = ended_s - began_s

    def _hand_over(self, arrived: list[Arrived]) -> None:
        """A failure of one connection's frames must not take the others' answers along."""
        service, turns, at = self._service, self._turns, 0
        while at < len(arrived):
            connection, read, may_join = arrived[at]
            if may_join:
                try:
                    left_at = service.take_runs(arrived, at)
                except Exception:
                    # The service may have taken some of the frames: their connections end, because
                    # no outcome is certain.
                    _log.exception("the runs of %d reads were not served", len(arrived) - at)
                    for waiting, _, _ in arrived[at:]:
                        waiting.close("internal_error")
                    return
                if left_at > at:
                    at = left_at
                    continue
                # Its bytes may have been replaced by their frames.
                read = arrived[at][1]
            elif turns.is_over:
                arrived, at = self._put_off(arrived, at), 0
                continue
            at += 1
            began_s = self.monotonic_s()
            if not may_join and connection.costs.exceed(self.limits.costly_s, began_s):
                self._wait_with_later(connection, read, arrived, at)
                continue
            try:
                if isinstance(read, bytes):
                    read = connection.decoded(read)[0]
                elif not isinstance(read, list):
                    if self._wait_again(connection, read.data, arrived, at):
                        continue
                    read = read.frames()
                taken = service.received(connection, read, began_s + self._piece_s)
                if taken < len(read):
                    self._wait_with_later(connection, read[taken:], arrived, at)
            except Exception:
                _log.exception("the frames of %s were not served", connection.address)
                connection.close("internal_error")
            self._spend(connection, began_s)

    def _wait_with_later(
        self, connection: Connection, read: Read, arrived: list[Arrived], at: int
    ) -> None:
        """Let frames wait for a turn, and behind them all later ones of the same connection.

        Requests of this connection that were put off stand behind these runs in the line.
        """
        frames = connection.frames_of(read)
        for index in range(at, len(arrived)):
            if arrived[index][0] is connection and arrived[index][1]:
                frames = [*frames, *connection.frames_of(arrived[index][1])]
                arrived[index] = (connection, [], False)
        connection.wait_first(frames)
        connection.in_line_since_s = self._first_arrival_s

    def _put_off(self, arrived: list[Arrived], at: int) -> list[Arrived]:
        """Let requests from ``at`` on wait for another turn; returns the runs that need not.

        Runs of a connection that are behind its requests wait with them.
        """
        put_off: set[Connection] = set()
        others: list[Arrived] = []
        for entry in arrived[at:]:
            connection, read, may_join = entry
            if may_join and connection not in put_off:
                others.append(entry)
            elif read:
                put_off.add(connection)
                connection.wait_decoded(read)
                connection.in_line_since_s = self._first_arrival_s
        return others

    def _wait_again(
        self, connection: Connection, data: bytes, arrived: list[Arrived], at: int
    ) -> bool:
        """Let a run that the service did not take wait for turns, each a bounded number.

        Later reads of this connection, from ``at`` on, wait behind it. False when they
        were decoded already.
        """
        if connection.is_in_line:
            return False
        later = [index for index in range(at, len(arrived)) if arrived[index][0] is connection]
        for index in later:
            read = arrived[index][1]
            if isinstance(read, list):
                return False
            data += read if isinstance(read, bytes) else read.data
        for index in later:
            arrived[index] = (connection, [], False)
        connection.wait_again(data)
        return True

    def _serve_waiting(self, began_s: float) -> None:
        """A bounded number of requests of each connection that waits, in order."""
        turns = self._turns
        share = turns.call_up()
        while (connection := turns.next_one()) is not None:
            self.waited_s = began_s - connection.in_line_since_s
            if self.times is not None:
                self.times.arrived_s = connection.in_line_since_s
            try:
                self._serve_pieces(connection, share)
            except Exception:
                _log.exception("the frames of %s were not served", connection.address)
                connection.leave_line()
                connection.close("internal_error")
            if connection.end_turn():
                turns.wait_on(connection)
        self.waited_s = 0.0

    def _serve_pieces(self, connection: Connection, request_count: int) -> None:
        """The next requests of a connection, piece by piece until the turn is over."""
        began_s = self.monotonic_s()
        while True:
            frames = connection.take_turn(request_count)
            taken = 0
            if frames:
                taken = self._service.received(connection, frames, began_s + self._piece_s)
            began_s = self._spend(connection, began_s)
            if taken < len(frames):
                connection.wait_first(frames[taken:])
                return
            request_count -= len(frames)
            if request_count <= 0 or not connection.has_more or self._turns.is_over:
                return

    def _read_on(self) -> None:
        to_read_on, self._to_read_on = self._to_read_on, []
        for connection in to_read_on:
            connection.read_on()

    def _flush(self, connections: list[Connection]) -> None:
        """One connection that cannot be written to must not keep the others waiting for ever."""
        for connection in connections:
            try:
                connection.flush()
            except Exception:
                _log.exception("the answers to %s could not be sent", connection.address)
                connection.abort("internal_error")

    # Timeouts.

    async def _sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.now_s = loop.time()
            self.sweep()

    def sweep(self) -> None:
        """Close peers that are idle, slow or unfinished; stop reading when too much is pending."""
        pending = 0
        for connection in list(self.connections):
            pending += connection.pending_bytes
            reason = self._overdue(connection)
            if reason is not None:
                connection.abort(reason)
        self._pending_bytes = pending
        self._hold_back(pending > self.limits.pending_bytes_max)

    def grows(self, connection: Connection, byte_count: int) -> None:
        """An unfinished frame has grown: nothing more is read if all of them have too much.

        The next sweep looks whether there is less.
        """
        self._pending_bytes += byte_count
        if self._holding:
            connection.hold()
        elif self._pending_bytes > self.limits.pending_bytes_max:
            self._pending_bytes = sum(one.pending_bytes for one in self.connections)
            if self._pending_bytes > self.limits.pending_bytes_max:
                self._hold_back(True)

    def _overdue(self, connection: Connection) -> str | None:
        limits, now_s = self.limits, self.now_s
        if connection.slow_since_s is not None:
            return "slow_reader" if now_s - connection.slow_since_s > limits.slow_write_s else None
        if connection.is_shaking_hands and now_s - connection.opened_s > limits.tls_handshake_s:
            return "tls_handshake_timeout"
        if connection.is_in_line:
            # The connection is not read until its requests were served.
            return None
        if connection.pending_bytes and now_s - connection.frame_s > limits.partial_frame_s:
            return "partial_frame_timeout"
        if not connection.has_sent_a_frame and now_s - connection.opened_s > limits.first_frame_s:
            return "no_first_frame"
        if now_s - connection.received_s > limits.idle_s and not connection.is_waiting:
            return "idle"
        return None

    def _hold_back(self, too_much: bool) -> None:
        """A peer that begins a frame while others are held back is held at the next sweep, too."""
        if not too_much and not self._holding:
            return
        self.counts["held_back"] += too_much and not self._holding
        self._holding = too_much
        for connection in self.connections:
            if too_much and connection.pending_bytes:
                connection.hold()
            elif not too_much:
                connection.release()

    # The end.

    async def stop(self, *, grace_s: float = 3.0) -> None:
        """Accept nothing new, give answers under way their time, then close everything."""
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        self._tick()
        while self._turns.waiting_count:
            self._tick()
        for connection in list(self.connections):
            connection.close("stopping")
        deadline = asyncio.get_running_loop().time() + grace_s
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort("stopping")
        await asyncio.sleep(0)
        for listener in self._listeners:
            await listener.wait_closed()


def bind(address: str, port: int) -> socket.socket:
    """A socket bound to an address; peers are not accepted before a server serves it.

    Raises:
        ConfigError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise ConfigError(f"{address}:{port} cannot be listened on: {error}") from error
    return bound


def bind_pair(address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """The main port and the fast port two below it; ``port`` 0 finds a free pair.

    Raises:
        ConfigError: one of them cannot be bound.
    """
    main, fast = bind_together(address, port, (-FAST_PORT_DISTANCE,))
    return main, fast


def bind_together(address: str, port: int, distances: tuple[int, ...]) -> list[socket.socket]:
    """A port and those at ``distances`` from it; ``port`` 0 finds free ones.

    Raises:
        ConfigError: one of them cannot be bound.
    """
    if port:
        return _bind_beside(bind(address, port), address, distances)
    for _ in range(_FREE_PAIR_TRIES):
        main = bind(address, 0)
        try:
            return _bind_beside(main, address, distances)
        except ConfigError:
            continue
    raise ConfigError(f"{address} has no free ports that are {distances} apart from another")


def _bind_beside(
    main: socket.socket, address: str, distances: tuple[int, ...]
) -> list[socket.socket]:
    bound = [main]
    try:
        for distance in distances:
            bound.append(bind(address, main.getsockname()[1] + distance))
    except ConfigError:
        for one in bound:
            one.close()
        raise
    return bound

"""One TCP connection: bytes to frames, frames to bytes, and requests in both directions.

Frames are handed to the service as they arrive; bytes to be written collect in a list and
leaves with one write per tick, because a write per answer costs several times the rest of the
work. Everything runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Container, Mapping
from typing import Any, NamedTuple, Protocol, cast

from contrail.errors import (
    CallFailed,
    CallTimedOut,
    HostIllegal,
    LocalProtocolError,
    RemoteProtocolError,
)
from contrail.model.host import Host, pack_host
from contrail.protocol.command import (
    FLAG_ONE_WAY,
    ReceivedResponse,
    Request,
    Response,
    encode_request,
    encode_response,
)
from contrail.protocol.frames import FrameDecoder, Frames
from contrail.wire.limits import Limits
from contrail.wire.request_times import RequestTimes
from contrail.wire.tls import HANDSHAKE_BYTE, TlsFiles, TlsMode, TlsSession
from contrail.wire.turns import Costs

_log = logging.getLogger(__name__)

_OPAQUE_MASK = 0x7FFFFFFF
# From this size on handing over several pieces costs less than joining them.
_LARGE_PART_BYTES = 16 << 10
_TIMER_RESOLUTION_S = 0.001
# More than a connection may have waiting at a time.
_PUT_OFF_MAX = 32_768
_FEW = 2


Intake = Callable[["Connection", bytes], int]
"""Takes whole frames at the front of a connection's bytes; returns where the first other begins."""


class Run(Protocol):
    """Whole frames of one connection that the service has taken apart by itself."""

    @property
    def data(self) -> bytes:
        """The frames as they were received."""
        ...

    def frames(self) -> Frames:
        """The same frames as the decoder takes them apart."""
        ...


Read = Frames | Run | bytes
"""One read of a connection; bytes are whole frames that are not decoded yet."""


class Hub(Protocol):
    """The owner of a connection, a server or a caller, as the connection sees it."""

    limits: Limits
    now_s: float
    # The language that our own requests carry.
    language: str
    # Whether a peer that does not read is not read either. Only a server may do this: were both
    # ends to wait for the other to read, neither would.
    pauses_slow_peers: bool
    tls_mode: TlsMode
    tls_files: TlsFiles | None
    # Is given every read that begins with a frame, before it is decoded.
    intake: Intake | None
    # How many requests may be taken from a read now; the others wait for the turn of this
    # connection. See ``wire.turns``.
    request_room: int
    # How many bytes such requests may have, unless the first alone has more.
    piece_bytes_max: int
    # A connection that gave as much is not read again before the next turn.
    read_bytes_max: int
    # Whether a tick follows the reads of this turn.
    tick_is_due: bool

    def decoder_for(self, packed_host: bytes) -> FrameDecoder: ...
    def admit(self, connection: Connection) -> str | None: ...
    def arrived(self, connection: Connection, read: Read, may_join: bool) -> None: ...
    def waits(self, connection: Connection) -> None: ...
    def read_enough(self, connection: Connection) -> None: ...
    def grows(self, connection: Connection, byte_count: int) -> None:
        """``byte_count`` bytes came that complete no frame."""
        ...

    def wants_flush(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection, reason: str) -> None: ...


class _Call(NamedTuple):
    """The caller that waits for an answer, and until when."""

    future: asyncio.Future[ReceivedResponse]
    deadline_s: float
    code: int
    timeout_ms: int

    @property
    def began_s(self) -> float:
        return self.deadline_s - self.timeout_ms / 1000


class Connection(asyncio.Protocol):
    """A peer at the other end of a socket; implements ``wire.peer.Peer``."""

    # With slots an attribute costs the same however many there are: beyond thirty of them Python
    # does not share the keys of instances any more.
    __slots__ = (
        "__weakref__",
        "_calls",
        "_decoder",
        "_first_byte_seen",
        "_has_read_enough",
        "_hub",
        "_is_held",
        "_is_in_line",
        "_is_retired",
        "_loop",
        "_next_opaque",
        "_out",
        "_out_bytes",
        "_put_off_s",
        "_reading_paused",
        "_sweep",
        "_sweep_s",
        "_tls",
        "_transport",
        "_until_writable",
        "address",
        "at_hand",
        "close_reason",
        "costs",
        "frame_s",
        "has_sent_a_frame",
        "in_flight_count",
        "in_hand",
        "in_line_since_s",
        "is_closed",
        "is_fast_port",
        "is_this_host",
        "opened_s",
        "packed_host",
        "received_s",
        "slow_since_s",
        "times",
    )

    def __init__(self, hub: Hub, *, is_fast_port: bool = False) -> None:
        self._hub = hub
        self.is_fast_port = is_fast_port
        self.address = "?"
        self.packed_host = b""
        self.is_this_host = False
        self.is_closed = True
        self.close_reason = ""
        self.in_flight_count = 0
        self.opened_s = self.received_s = self.frame_s = hub.now_s
        self.slow_since_s: float | None = None
        self.has_sent_a_frame = False
        self._transport: asyncio.Transport | None = None
        self._decoder: FrameDecoder | None = None
        self._tls: TlsSession | None = None
        self._first_byte_seen = False
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: dict[int, _Call] = {}
        # One timer for all calls: it is set for the one that ends first.
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_s = math.inf
        self._next_opaque = 0
        self._is_retired = False
        self._until_writable: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._is_held = False
        # Whether requests of this peer wait for their turn, and since when.
        self._is_in_line = False
        self.in_line_since_s = 0.0
        self.costs = Costs()
        # Whether the event loop has read as much as it may in this turn.
        self._has_read_enough = False
        self.times: RequestTimes | None = None
        # When requests came in that are not answered yet, by their numbers; only if timed.
        self._put_off_s: dict[int, float] = {}
        # The number of the request that a handler has now, until it is answered.
        self.in_hand: int | None = None
        # The service's own data of this peer; wire itself never looks at it.
        self.at_hand: Any = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods without descending from them.
        self._transport = transport = cast(asyncio.Transport, transport)
        self.is_closed = False
        transport.set_write_buffer_limits(self._hub.limits.write_bytes_max)
        host = _end(transport, "peername")
        self.address = str(host)
        self.packed_host = _packed(host)
        self.is_this_host = _is_this_host(host.address, _end(transport, "sockname").address)
        self._decoder = self._hub.decoder_for(self.packed_host)
        refusal = self._hub.admit(self)
        if refusal is not None:
            self.close(refusal)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        hub = self._hub
        self.received_s = now_s = hub.now_s
        byte_count = len(data)
        if byte_count >= hub.read_bytes_max:
            self._read_enough()
        if not self._first_byte_seen:
            self._first_byte_seen = True
            if not self._choose_tls(data[0]):
                return
        if self._tls is not None:
            plain = self._decrypted(data)
            if not plain:
                return
            data = plain
            byte_count = len(data)
        decoder = self._decoder
        assert decoder is not None
        if self._is_in_line:
            # The connection is not read meanwhile, but for bytes that the event loop had already.
            decoder.put_behind(data)
            return
        has_begun = False
        if decoder.pending:
            has_begun = True
            whole = decoder.joined(data)
            if not whole:
                hub.grows(self, byte_count)
                return
            data = whole
            byte_count = len(data)
        consumed = 0
        intake = hub.intake
        if intake is not None:
            try:
                consumed = intake(self, data)
            except Exception:
                # Whether they were carried out cannot be told: the peer learns that nothing is.
                _log.exception("the frames of %s were not served", self.address)
                self.close("internal_error")
                return
            if consumed:
                # A frame that is pending now, if any, has just begun.
                self.frame_s = now_s
                self.has_sent_a_frame = True
                if consumed == byte_count or self.is_closed:
                    return
        frames = decoder.frames_of(data, consumed, hub.request_room, hub.piece_bytes_max)
        if frames:
            self.frame_s = now_s
            self.has_sent_a_frame = True
            hub.arrived(self, frames, decoder.may_join)
        elif not consumed:
            if not has_begun:
                self.frame_s = now_s
            hub.grows(self, byte_count)
        if decoder.has_rest:
            self._wait_in_line(b"")
        if decoder.failure is not None:
            self.close(decoder.failure.reason)

    # Taking turns with other connections.

    @property
    def is_in_line(self) -> bool:
        """Whether requests that were received wait for the turn of this connection."""
        return self._is_in_line

    def _wait_in_line(self, data: bytes) -> None:
        """Let ``data`` wait, and read no more meanwhile."""
        assert self._decoder is not None
        if data:
            self._decoder.put_back(data)
        if not self._is_in_line:
            self._is_in_line = True
            self._pause_reading()
            self._hub.waits(self)

    def wait_again(self, data: bytes) -> None:
        """Let requests that were handed over wait for another turn, in front of later reads."""
        self._wait_in_line(data)

    def frames_of(self, read: Read) -> Frames:
        """The frames of what was handed over in whichever form."""
        assert self._decoder is not None
        if isinstance(read, bytes):
            read = self._decoder.whole(read)
        return read if isinstance(read, list) else read.frames()

    def wait_decoded(self, read: Read) -> None:
        """Let frames that were handed over wait for another turn, in front of the others."""
        assert self._decoder is not None
        self._decoder.wait_again(self.frames_of(read))
        self._wait_in_line(b"")

    def wait_first(self, frames: Frames) -> None:
        """Let the last frames that were handed over wait, in front of all others that wait."""
        assert self._decoder is not None
        self._decoder.wait_first(frames)
        self._wait_in_line(b"")

    def take_turn(self, count_max: int) -> Frames:
        """The next piece of the requests that wait, at most ``count_max``.

        Also of a peer that is gone: its last requests count.
        """
        decoder = self._decoder
        assert decoder is not None
        frames = decoder.more(count_max, self._hub.piece_bytes_max)
        if frames:
            self.frame_s = self._hub.now_s
            self.has_sent_a_frame = True
        if decoder.failure is not None:
            self.close(decoder.failure.reason)
        return frames

    @property
    def has_few(self) -> bool:
        """Whether one or two requests wait for the turn of this connection, no more."""
        return self._decoder is not None and self._decoder.waiting_count(_FEW + 1) <= _FEW

    @property
    def has_more(self) -> bool:
        """Whether requests that were received were not taken yet."""
        return self._decoder is not None and self._decoder.has_rest

    def end_turn(self) -> bool:
        """Whether more waits; otherwise the peer is read again."""
        assert self._decoder is not None
        self._is_in_line = self._decoder.has_rest
        if not self._is_in_line:
            self._resume_reading()
        return self._is_in_line

    def leave_line(self) -> None:
        """Drop all requests that wait: none of them is served."""
        assert self._decoder is not None
        self._decoder.forget_rest()

    def _read_enough(self) -> None:
        if not self._has_read_enough:
            self._has_read_enough = True
            self._pause_reading()
            self._hub.read_enough(self)

    def read_on(self) -> None:
        """A new turn has begun."""
        self._has_read_enough = False
        self._resume_reading()

    def decoded(self, data: bytes) -> tuple[Frames, bool]:
        """Whole frames that were handed over as they came, and whether they may join a run."""
        assert self._decoder is not None
        frames = self._decoder.whole(data)
        if self._decoder.failure is not None:
            self.close(self._decoder.failure.reason)
        return frames, self._decoder.may_join

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The peer reads too slowly: nothing more is read from it until it has caught up."""
        self.slow_since_s = self._hub.now_s
        if self._hub.pauses_slow_peers:
            self._pause_reading()

    def resume_writing(self) -> None:
        self.slow_since_s = None
        self._wake_writers()
        self._resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        was_open = not self.is_closed
        self.is_closed = True
        self._out.clear()
        if self._sweep is not None:
            self._sweep.cancel()
        for call in self._calls.values():
            if not call.future.done():
                # The request may have been carried out, as with one that is not answered in time.
                call.future.set_exception(
                    CallTimedOut(f"{self.address} closed the connection before it answered")
                )
        self._calls.clear()
        self._wake_writers()
        reason = self.close_reason or ("reset" if error is not None else "peer_closed")
        if was_open or self.close_reason:
            self._hub.lost(self, reason)

    # TLS.

    def _choose_tls(self, first_byte: int) -> bool:
        """Whether to go on reading; decides between plain frames and a handshake."""
        mode = self._hub.tls_mode
        begins_handshake = first_byte == HANDSHAKE_BYTE
        if begins_handshake and mode is not TlsMode.DISABLED and self._hub.tls_files is not None:
            self._tls = TlsSession(self._hub.tls_files.context)
            return True
        if begins_handshake or mode is TlsMode.ENFORCING:
            self.close("tls_refused" if begins_handshake else "plaintext_refused")
            return False
        return True

    @property
    def is_shaking_hands(self) -> bool:
        return self._tls is not None and not self._tls.is_established

    def _decrypted(self, data: bytes) -> bytes | None:
        assert self._tls is not None
        try:
            plain = self._tls.feed(data)
        except RemoteProtocolError as error:
            self._write_raw(self._tls.to_send())
            # The session is over: nothing can be encrypted any more.
            self._out.clear()
            self.close(error.reason)
            return None
        self._write_raw(self._tls.to_send())
        return plain

    def _write_raw(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # Sending.

    def put_off(self, request: Request) -> None:
        """The request is going to be answered later, unless its handler has answered it already."""
        times = self.times
        if times is None or self.in_hand != request.opaque or not times.follows(request):
            return
        if len(self._put_off_s) < _PUT_OFF_MAX:
            self._put_off_s.setdefault(request.opaque, times.arrived_s)

    def put_off_fast(self, opaque: int) -> None:
        """As ``put_off``, for a request that no handler has had."""
        if self.times is not None and len(self._put_off_s) < _PUT_OFF_MAX:
            self._put_off_s.setdefault(opaque, self.times.arrived_s)

    def note_answered(self, request: Request, code: int) -> None:
        """A request that was put off was answered by other means: the time it took is noted."""
        if self.times is not None:
            since_s = self._put_off_s.pop(request.opaque, None)
            self.times.answered(request, Response(code), since_s)

    def reply(self, request: Request, response: Response) -> None:
        if self.times is not None:
            if request.opaque == self.in_hand:
                self.in_hand = None
            self.times.answered(request, response, self._put_off_s.pop(request.opaque, None))
        if not request.flag & FLAG_ONE_WAY:
            self.answer(request.opaque, response)

    def answer(self, opaque: int, response: Response) -> None:
        """Queue the answer to a request that was not one-way."""
        if not self.is_closed:
            try:
                parts = encode_response(response, opaque)
            except LocalProtocolError as error:
                parts = encode_response(Response(1, str(error)), opaque)
            self.send(parts)

    def send(self, parts: list[bytes | memoryview]) -> None:
        """Queue parts of frames; they leave at the end of the tick."""
        if not self.is_closed:
            if not self._out:
                self._hub.wants_flush(self)
            self._out += parts
            for part in parts:
                self._out_bytes += len(part)

    def send_whole(self, frames: bytes) -> None:
        """Queue whole frames that lie in one piece."""
        if not self.is_closed:
            if not self._out:
                self._hub.wants_flush(self)
            self._out.append(frames)
            self._out_bytes += len(frames)

    def send_now(self, frames: bytes) -> None:
        """Write whole frames now, unless others wait to leave before them.

        For the one answer of a tick: the end of the tick has nothing to join it with.
        """
        if self._out or self._tls is not None:
            self.send_whole(frames)
            return
        transport = self._transport
        if self.is_closed or transport is None or transport.is_closing():
            return
        try:
            transport.write(frames)
        except Exception:
            # A handler that answers many peers must not stop at one.
            _log.exception("the answer to %s could not be sent", self.address)
            self.abort("internal_error")

    def send_parts(self, parts: list[bytes | memoryview]) -> None:
        """Write parts of frames now, unless others wait to leave before them.

        For answers that were given together: there is nothing else to join them with.
        """
        if self._out or self.is_closed:
            self.send(parts)
            return
        self._out = parts
        try:
            self.flush()
        except Exception:
            # A handler that answers many peers must not stop at one.
            _log.exception("the answers to %s could not be sent", self.address)
            self.abort("internal_error")

    def write_parts(self, parts: list[bytes | memoryview]) -> None:
        """As ``send_parts``, for a few large parts."""
        if self._out or self._tls is not None or self.is_closed:
            self.send_parts(parts)
            return
        try:
            self._transport.writelines(parts)  # type: ignore[union-attr]
        except Exception:
            # A handler that answers many peers must not stop at one.
            _log.exception("the answers to %s could not be sent", self.address)
            self.abort("internal_error")

    @property
    def room_bytes(self) -> int:
        """How much may be sent to the peer before it counts as choked."""
        return self._hub.limits.write_bytes_max - self._out_bytes

    @property
    def is_choked(self) -> bool:
        """Whether the peer has left too many bytes unread to ask for more."""
        return self._out_bytes > self._hub.limits.write_bytes_max or self.slow_since_s is not None

    def flush(self) -> None:
        """Hand everything queued to the transport in one write."""
        parts = self._out
        if not parts or self._transport is None or self._transport.is_closing():
            parts.clear()
            return
        self._out = []
        self._out_bytes = 0
        if self._tls is not None:
            self._transport.write(self._tls.encrypt(b"".join(parts)))
        elif len(parts) == 1:
            self._transport.write(parts[0])
        elif max(map(len, parts)) >= _LARGE_PART_BYTES:
            # Views of the log go out as they are: it is never overwritten, and a map that is still
            # being sent outlives its file.
            self._transport.writelines(parts)
        else:
            self._transport.write(b"".join(parts))

    @property
    def put_off_count(self) -> int:
        """How many requests are remembered until they are answered."""
        return len(self._put_off_s)

    @property
    def queued_bytes(self) -> int:
        """The bytes that wait for the end of the tick."""
        return self._out_bytes

    async def writable(self) -> None:
        """Return once the peer has read enough of its answers, or is gone."""
        if self.slow_since_s is None or self.is_closed:
            return
        if self._until_writable is None:
            self._until_writable = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._until_writable)

    def _wake_writers(self) -> None:
        waiting, self._until_writable = self._until_writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # Asking.

    def notify(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        if not self.is_closed:
            opaque, language = self.take_opaque(), self._hub.language
            request = Request(code, opaque, dict(fields), body, FLAG_ONE_WAY, language=language)
            self.send([encode_request(request)])

    async def call(
        self, code: int, fields: Mapping[str, str], body: bytes = b"", *, timeout_ms: int
    ) -> ReceivedResponse:
        opaque = self.take_opaque()
        request = Request(code, opaque, dict(fields), body, language=self._hub.language)
        future = self.ask(opaque, encode_request(request), code, timeout_ms)
        try:
            return await future
        finally:
            self._calls.pop(opaque, None)

    def ask(
        self, opaque: int, frame: bytes, code: int, timeout_ms: int
    ) -> asyncio.Future[ReceivedResponse]:
        """Send a request that was encoded with ``opaque``; its answer, or ``CallFailed``."""
        if self.is_closed:
            raise CallFailed(f"{self.address} is not connected")
        # Asking for the running loop is a system call each time.
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[ReceivedResponse] = loop.create_future()
        deadline_s = loop.time() + timeout_ms / 1000
        is_alone = not self._calls and not self._out
        self._calls[opaque] = _Call(future, deadline_s, code, timeout_ms)
        if deadline_s < self._sweep_s:
            self._sweep_at(deadline_s, loop)
        if is_alone:
            # Nothing to be joined with: waiting for the end of the tick would only cost time.
            self._out.append(frame)
            self.flush()
        else:
            self.send_whole(frame)
        return future

    def _sweep_at(self, deadline_s: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = loop.call_at(deadline_s, self._end_overdue)
        self._sweep_s = deadline_s

    def _end_overdue(self) -> None:
        """End calls whose time is over; those that were answered are not here any more."""
        self._sweep = None
        self._sweep_s = math.inf
        loop = asyncio.get_running_loop()
        # A loop's timers may be early by its clock's resolution.
        now_s = loop.time() + _TIMER_RESOLUTION_S
        overdue = [opaque for opaque, call in self._calls.items() if call.deadline_s <= now_s]
        for opaque in overdue:
            call = self._calls.pop(opaque)
            if not call.future.done():
                call.future.set_exception(
                    CallTimedOut(
                        f"{self.address} did not answer request {call.code} within "
                        f"{call.timeout_ms} ms"
                    )
                )
        if self._calls:
            self._sweep_at(min(call.deadline_s for call in self._calls.values()), loop)
        self._close_if_retired()

    def oldest_call_s(self, *, besides: Container[int]) -> float | None:
        """When the oldest call of other codes began that is not answered yet, by the loop."""
        waiting = [call for call in self._calls.values() if not call.future.done()]
        return min((call.began_s for call in waiting if call.code not in besides), default=None)

    def give_up_calls(self, began_until_s: float, reason: str) -> None:
        """Fail the calls that began by then and are not answered yet."""
        for opaque, call in list(self._calls.items()):
            if call.began_s <= began_until_s:
                del self._calls[opaque]
                if not call.future.done():
                    call.future.set_exception(CallTimedOut(reason))
        self._close_if_retired()

    def answered(self, response: ReceivedResponse) -> bool:
        """Wake the caller that waits for this answer; False when no caller does any more."""
        call = self._calls.pop(response.opaque, None)
        if self._is_retired:
            self._close_if_retired()
        if call is None or call.future.done():
            return False
        call.future.set_result(response)
        return True

    def take_opaque(self) -> int:
        """The number of the next request."""
        self._next_opaque = (self._next_opaque + 1) & _OPAQUE_MASK
        return self._next_opaque

    def retire(self, reason: str) -> None:
        """Close as soon as no caller waits for an answer any more; nothing new is to be asked."""
        self._is_retired = True
        self.close_reason = reason
        self._close_if_retired()

    def _close_if_retired(self) -> None:
        if self._is_retired and not self._calls:
            self.close(self.close_reason)

    # Flow and end.

    @property
    def socket_number(self) -> int | None:
        """The file number of the socket while it is open."""
        socket = None if self._transport is None else self._transport.get_extra_info("socket")
        number = -1 if socket is None else int(socket.fileno())
        return None if number < 0 else number

    @property
    def pending_bytes(self) -> int:
        return self._decoder.pending_bytes if self._decoder is not None else 0

    @property
    def is_waiting(self) -> bool:
        """Whether we have asked the peer something."""
        return bool(self._calls)

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused and not self.is_closed:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Read again, unless there is another reason not to."""
        is_slow = self.slow_since_s is not None and self._hub.pauses_slow_peers
        if self._is_held or self._is_in_line or self._has_read_enough or is_slow:
            return
        if self._transport is not None and self._reading_paused and not self.is_closed:
            self._reading_paused = False
            self._transport.resume_reading()

    def hold(self) -> None:
        """Stop reading for now: the server has too much in hand."""
        self._is_held = True
        self._pause_reading()

    def release(self) -> None:
        self._is_held = False
        self._resume_reading()

    def close(self, reason: str) -> None:
        if self.is_closed:
            return
        self.flush()
        self.close_reason = reason
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close without waiting for bytes that could not be sent."""
        self.close_reason = self.close_reason or reason
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()


def _is_this_host(address: str, local: str) -> bool:
    """Whether the peer is on this host.

    Two ends of one address are: the system takes no packet from outside that comes from an address
    of its own.
    """
    return address in ("::1", "") or address.startswith("127.") or address == local


def _end(transport: asyncio.BaseTransport, which: str) -> Host:
    name = transport.get_extra_info(which)
    if isinstance(name, tuple) and len(name) >= 2:
        return Host(str(name[0]).removeprefix("::ffff:"), int(name[1]))
    return Host("", 0)


def _packed(host: Host) -> bytes:
    try:
        return pack_host(host.address or "127.0.0.1", host.port)
    except HostIllegal:
        return pack_host("0.0.0.0", 0)

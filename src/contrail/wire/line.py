"""Lines: connections that a thread uses by itself, one request at a time, without an event loop.

A thread that wants one answer loses more time by waking the loop and being woken by it than the
rest of the call takes. A line belongs to one thread while it asks, so nothing can get between its
frames; whatever happens to it but a plain answer ends it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
import time

from contrail.errors import CallFailed, CallTimedOut
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.frames import FrameDecoder
from contrail.wire.addresses import split_address

_log = logging.getLogger(__name__)

_OPAQUE_MASK = 0x7FFFFFFF
_READ_BYTES = 64 << 10
# There is a connection to the same address already: this one is made at once, or not at all.
_CONNECT_TIMEOUT_S = 0.25
# A program that asks a few times needs none.
_WISHES_MIN = 8
# Servers close connections that are idle, and firewalls forget them: long before that it ends.
_IDLE_S_MAX = 30.0
_TIMEOUT_S_MAX = 1e6


class Line:
    """One connection, used by who took it from its ``Lines``."""

    def __init__(self, address: str, connected: socket.socket, decoder: FrameDecoder) -> None:
        self.address = address
        self.is_broken = False
        self._socket = connected
        self._decoder = decoder
        self._opaques = itertools.count(1)
        self._used_s = time.monotonic()

    def take_opaque(self) -> int:
        """The number of the next request."""
        return next(self._opaques) & _OPAQUE_MASK

    @property
    def is_sound(self) -> bool:
        """Whether it was used lately, and the peer has neither closed it nor said anything."""
        if self.is_broken or time.monotonic() - self._used_s > _IDLE_S_MAX:
            return False
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def ask(
        self, opaque: int, frame: bytes, code: int, timeout_ms: int
    ) -> ReceivedResponse | CallFailed | None:
        """The answer, or why there is none; None when the request did not get through.

        After anything but an answer the line is broken.
        """
        # An interrupt, too, leaves an answer behind that nobody is to read.
        self.is_broken = True
        timeout_s = min(timeout_ms / 1000, _TIMEOUT_S_MAX)
        deadline_s = time.monotonic() + timeout_s
        try:
            if not self._write(frame, timeout_s):
                return None
            answer = self._read(opaque, deadline_s)
        except TimeoutError:
            return CallTimedOut(
                f"{self.address} did not answer request {code} within {timeout_ms} ms"
            )
        except OSError:
            return CallTimedOut(f"{self.address} closed the connection before it answered")
        self.is_broken = False
        self._used_s = time.monotonic()
        return answer

    def _write(self, frame: bytes, timeout_s: float) -> bool:
        """Whether the whole frame is written; half a frame is nothing to a peer."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(frame)
        except TimeoutError:
            raise
        except OSError:
            return False
        return True

    def _read(self, opaque: int, deadline_s: float) -> ReceivedResponse:
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError
            for frame in self._decoder.feed(data):
                if isinstance(frame, ReceivedResponse) and frame.opaque == opaque:
                    return frame
            if self._decoder.failure is not None:
                raise ConnectionResetError
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)

    @property
    def socket_number(self) -> int:
        return self._socket.fileno()

    def hang_up(self) -> None:
        """By any thread: who waits for an answer gets none."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.is_broken = True
        self._socket.close()


class Lines:
    """The lines of a caller, at most one per address. Threads make and use them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[str, Line] = {}
        # Those in use as well; None where one is being made, or could not be.
        self._known: dict[str, Line | None] = {}
        self._wishes: dict[str, int] = {}
        self._is_closed = False

    def take(self, address: str) -> Line | None:
        """The line to an address if it is open and nobody else uses it; ``give_back`` it."""
        line = self._free.pop(address, None)
        if line is None or line.is_sound:
            return line
        line.is_broken = True
        self.give_back(line)
        return None

    def make(self, address: str, peer: str, decoder: FrameDecoder) -> Line | None:
        """A new line for who found none; ``peer`` is the address with its name resolved.

        None for the first wishes, and after an attempt that failed or is under way.
        """
        with self._lock:
            if self._is_closed or address in self._known:
                return None
            self._wishes[address] = wish_count = self._wishes.get(address, 0) + 1
            if wish_count < _WISHES_MIN:
                return None
            self._known[address] = None
        connected = _connect(peer)
        if connected is None:
            return None
        line = Line(address, connected, decoder)
        with self._lock:
            if not self._is_closed and address in self._known:
                self._known[address] = line
                return line
        line.close()
        return None

    def give_back(self, line: Line) -> None:
        with self._lock:
            is_known = self._known.get(line.address) is line
            if is_known and not line.is_broken:
                self._free[line.address] = line
                return
            if is_known:
                del self._known[line.address]
            line.close()

    def forget(self, address: str) -> None:
        """The connection to an address ended: a line is not worth more."""
        with self._lock:
            self._known.pop(address, None)
            self._wishes.pop(address, None)
            line = self._free.pop(address, None)
        if line is not None:
            line.close()

    def socket_numbers(self) -> list[int]:
        """The file numbers of the open ones."""
        numbers = (line.socket_number for line in self._known.values() if line is not None)
        return [number for number in numbers if number >= 0]

    def close(self) -> None:
        """End all lines; whoever waits on one hears that it was closed."""
        with self._lock:
            self._is_closed = True
            known = list(self._known)
            for line in self._known.values():
                if line is not None:
                    line.hang_up()
        for address in known:
            self.forget(address)


def _connect(peer: str) -> socket.socket | None:
    try:
        connected = socket.create_connection(split_address(peer), timeout=_CONNECT_TIMEOUT_S)
    except (OSError, ValueError) as error:
        # The loop's connection serves as well.
        _log.debug("no line to %s could be made: %s", peer, error)
        return None
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected

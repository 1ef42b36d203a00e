"""The bounds of one connection and of one server: every bound has a name here."""

from __future__ import annotations

from dataclasses import dataclass, field

from contrail.protocol.command import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from contrail.runtime.memory import memory_bytes

_PENDING_BYTES_MAX = 1 << 30
_PENDING_PART = 8


def pending_share() -> int:
    """The bytes that unfinished frames may take: an eighth of our memory, at most a gigabyte."""
    return min(_PENDING_BYTES_MAX, memory_bytes() // _PENDING_PART)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server. Those that break framing close a connection; the others answer."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    connection_count_max: int = 20_000
    connections_per_address_max: int = 2_000
    in_flight_count_max: int = 1_024
    # Of all connections together: unfinished frames beyond it are not read on.
    pending_bytes_max: int = field(default_factory=pending_share)
    write_bytes_max: int = 8 << 20
    # In one turn of the event loop: requests of one connection, and of all connections that wait.
    # Most cost some 3 to 40 µs, so a turn of all takes some 3 to 40 ms.
    turn_requests_of_one_max: int = 64
    turn_requests_max: int = 1024
    # Others cost milliseconds: an SQL92 expression of 2.8 kB some 6 ms, a lock of 1,024 queues 7.
    # Requests are handed over in pieces of this many bytes; a larger request is a piece of its own.
    piece_bytes_max: int = 4096
    # A piece ends by time as well, behind the request that took too long. The requests that one
    # connection may have in a turn take 1.5 to 3 ms when they are ordinary: to cut them in two
    # costs a second tick and a second write, 5 % of a transaction.
    piece_handling_s: float = 0.004
    # After this time the requests that are left wait for the next turn; rows of sends do not count.
    turn_handling_s: float = 0.01
    # A connection whose requests took as long lately is served after those that take little.
    costly_s: float = 0.005
    # A connection that sent this many bytes is not read again in the same turn. The loop reads as
    # many in one go; unbounded, it reads a busy connection 32 times before it reads another.
    turn_bytes_max: int = 256_000

    first_frame_s: float = 10.0
    partial_frame_s: float = 30.0
    idle_s: float = 120.0
    tls_handshake_s: float = 5.0
    slow_write_s: float = 30.0

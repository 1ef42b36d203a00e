"""What one connection and one server may take: every bound has a name here."""

from __future__ import annotations

from dataclasses import dataclass

from contrail.protocol.command import FRAME_BYTES_MAX, HEADER_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server. Those that break framing close a connection; the others answer."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    connection_count_max: int = 20_000
    connections_per_address_max: int = 2_000
    in_flight_count_max: int = 1_024
    # Of all connections together: unfinished frames beyond it are not read on.
    pending_bytes_max: int = 1 << 30
    write_bytes_max: int = 8 << 20

    first_frame_s: float = 10.0
    partial_frame_s: float = 30.0
    idle_s: float = 120.0
    tls_handshake_s: float = 5.0
    slow_write_s: float = 30.0

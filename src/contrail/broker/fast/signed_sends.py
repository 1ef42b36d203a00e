"""Sends of signed clients: judged by their bytes, then served the fast way.

With access control every request is judged before any guard or handler sees it. The general way
judges decoded requests; this file judges the sends that a read begins with, by the same gate, and
hands on those that pass. Everything else is left to the decoder and the general way, which judges
it again and says why a request is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from contrail.access.state.gate import AccessGate
from contrail.broker.fast.rows import SEND_BEGINS
from contrail.broker.guards import ROW_CODE
from contrail.kernels.signed_values import join_signed
from contrail.protocol.codes import RequestCode
from contrail.protocol.frames import FRAME_PREFIX_BYTES, FrameDecoder, SendRequest
from contrail.wire.connection import Connection
from contrail.wire.server import Server

_SEND_BEGINS = SEND_BEGINS[0]
_BATCH_BEGINS = b'{"code":320,'
_BATCH_CODE = int(RequestCode.SEND_BATCH_MESSAGE)
_TOPIC = b"b"

TakeRows = Callable[[Connection, bytes], int]
"""Takes the fast sends that bytes begin with; returns where they end."""


class SignedSends:
    """The gate before the fast path; belongs to the event loop's thread."""

    def __init__(self, gate: AccessGate, server: Server, take_rows: TakeRows) -> None:
        self._passes = gate.passes
        self._server = server
        self._take_rows = take_rows

    def take(self, peer: Connection, data: bytes) -> int:
        """Take the sends that ``data`` begins with and whose signers may send them.

        Returns where the first other frame begins.
        """
        if data.startswith(_SEND_BEGINS, FRAME_PREFIX_BYTES):
            end = self._end_of_passing(peer, data, 0, _SEND_BEGINS, ROW_CODE)
            if not end:
                return 0
            return self._take_rows(peer, data if end == len(data) else data[:end])
        if data.startswith(_BATCH_BEGINS, FRAME_PREFIX_BYTES):
            end = self._end_of_passing(peer, data, 0, _BATCH_BEGINS, _BATCH_CODE)
            return end and self._take_decoded(peer, data[:end])
        return 0

    def _end_of_passing(
        self, peer: Connection, data: bytes, at: int, begins: bytes, code: int
    ) -> int:
        """Where the sends from ``at`` on end that are of this code and pass."""
        passes, address = self._passes, peer.address
        while data.startswith(begins, at + FRAME_PREFIX_BYTES):
            signed = join_signed(data, at, _TOPIC)
            if signed is None or not passes(code, signed, address):
                break
            at = signed[0]
        return at

    def _take_decoded(self, peer: Connection, data: bytes) -> int:
        """Let judged batches go to the tick, taken apart by the frame kernel."""
        server = self._server
        decoder = FrameDecoder(
            born_host=peer.packed_host,
            property_suffix=server.property_suffix,
            frame_bytes_max=server.limits.frame_bytes_max,
            header_bytes_max=server.limits.header_bytes_max,
        )
        frames = decoder.whole(data)
        if decoder.failure is not None or not all(isinstance(one, SendRequest) for one in frames):
            return 0
        server.arrived(peer, frames, True)
        return len(data)

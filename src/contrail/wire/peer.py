"""A request's connection, as handlers see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from contrail.protocol.command import ReceivedResponse, Request, Response


class _Later:
    """The type of ``LATER``."""

    def __repr__(self) -> str:
        return "LATER"


LATER: Final = _Later()
"""Returned by a handler that has parked the request and will call ``peer.reply`` itself."""

Answer = Response | _Later


class Peer(Protocol):
    """One connected peer. All calls are made on the event loop's thread."""

    @property
    def address(self) -> str:
        """``ip:port`` of the other end, as RocketMQ prints it."""
        ...

    @property
    def packed_host(self) -> bytes:
        """The other end as records hold it: 8 bytes (IPv4) or 20 (IPv6)."""
        ...

    @property
    def is_this_host(self) -> bool:
        """Whether the other end is on this host: a loopback address, or the same as our end."""
        ...

    @property
    def is_closed(self) -> bool: ...

    in_flight_count: int
    """How many of its requests will be answered later."""

    @property
    def is_choked(self) -> bool:
        """Whether the peer has left too many bytes unread to get more now."""
        ...

    def reply(self, request: Request, response: Response) -> None:
        """Answer a parked request; dropped when it was one-way or the peer is gone."""
        ...

    def notify(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Send a one-way request to the peer; dropped when it is gone."""
        ...

    async def call(
        self, code: int, fields: Mapping[str, str], body: bytes = b"", *, timeout_ms: int
    ) -> ReceivedResponse:
        """Ask the peer something over its own connection.

        Raises:
            CallFailed: it went away or did not answer in time.
        """
        ...

    def close(self, reason: str) -> None:
        """Close the connection; ``reason`` is counted."""
        ...


class Handler(Protocol):
    """Answers one request code; raises ``RequestRejected`` to refuse a request."""

    def __call__(self, request: Request, peer: Peer) -> Answer: ...

"""A client's connection as the tables of producers and consumers hold it."""

from __future__ import annotations

from dataclasses import dataclass

from contrail.broker.state.shares import THIS_HOST
from contrail.wire.peer import Peer

EXPIRED_AFTER_MS = 120_000
MEMBERS_MAX = 200_000
"""How many connections there may be, each counted for each of its groups; a quarter of one address.

This holds for producers and for consumers.
"""


@dataclass(slots=True)
class ClientChannel:
    """One client on one connection; the tables know a client by its connection."""

    peer: Peer
    client_id: str
    language: str
    version: int
    last_heartbeat_ms: int
    # The address that it counts for where tables are shared by addresses.
    owner: str = THIS_HOST
    # How long the client handles messages without its broker; 0: it has not said.
    goes_on_ms: int = 0
    # The user that signs its heartbeats; checked while there is access control.
    user: str = ""

    def refresh(self, newer: ClientChannel) -> None:
        """Take the facts of a later heartbeat on the same connection."""
        self.client_id = newer.client_id
        self.last_heartbeat_ms = newer.last_heartbeat_ms
        self.goes_on_ms = newer.goes_on_ms
        self.user = newer.user

    def expired(self, now_ms: int, after_ms: int) -> bool:
        return now_ms - self.last_heartbeat_ms > after_ms

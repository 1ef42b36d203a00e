"""RocketMQ's hash ring: the same clients make the same ring in every member of a group."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import md5


class HashRing:
    """A ring with several points for each client; a key belongs to the next point from it on."""

    def __init__(self, client_ids: Sequence[str], places_per_client: int) -> None:
        clients: dict[int, str] = {}
        seen: set[str] = set()
        for client_id in client_ids:
            # A client that is named twice gets further points, numbered after its first ones.
            taken = list(clients.values()).count(client_id) if client_id in seen else 0
            seen.add(client_id)
            for number in range(taken, taken + places_per_client):
                clients[place(f"{client_id}-{number}")] = client_id
        self._clients = clients
        self._places = sorted(clients)

    def client_for(self, key: str) -> str | None:
        """The client that owns ``key``; None when the ring is empty."""
        if not self._places:
            return None
        index = bisect_left(self._places, place(key))
        return self._clients[self._places[index % len(self._places)]]


def place(key: str) -> int:
    """A key's position on the ring: the first four bytes of its MD5."""
    digest = md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")

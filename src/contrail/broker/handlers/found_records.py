"""The rights on a record that a request has found by its place.

Such a request names a number, and its topic is only known once the record is read: the gate cannot
judge it before.
"""

from __future__ import annotations

from collections.abc import Callable

from contrail.access.state.needs import PUB, SUB, SUB_OR_GET
from contrail.access.state.rights import Action
from contrail.protocol.command import Request
from contrail.wire.peer import Peer

MayUse = Callable[[Request, Peer, str, tuple[Action, ...]], None]
"""Raises ``RequestRejected`` if a request's user has none of the rights on a topic."""


def _anybody(request: Request, peer: Peer, topic: str, actions: tuple[Action, ...]) -> None:
    """A broker without access control."""


class FoundRecords:
    """Asked by handlers before they answer or act; each method raises ``RequestRejected``."""

    def __init__(self, may_use: MayUse = _anybody) -> None:
        self._may_use = may_use

    def require_viewable(self, request: Request, peer: Peer, topic: str) -> None:
        """The record is shown to its asker."""
        self._may_use(request, peer, topic, SUB_OR_GET)

    def require_consumable(self, request: Request, peer: Peer, topic: str) -> None:
        """The record is delivered to a group."""
        self._may_use(request, peer, topic, SUB)

    def require_publishable(self, request: Request, peer: Peer, topic: str) -> None:
        """The record is half of a transaction that the asker ends."""
        self._may_use(request, peer, topic, PUB)

"""Where the child of a cluster runs: its address, its network, its clock and its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from contrail.clock import SharedClock
from contrail.testing.caller import BlockingCaller

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """The usual place is this host's loopback."""

    host: str = LOOPBACK
    # The beginning of the command, such as ``ip netns exec name``; it must become the server.
    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    # Of this server alone; without one it has the cluster's.
    clock: SharedClock | None = None
    # From where operators reach it; without one the cluster's reaches it.
    caller: BlockingCaller | None = None

"""A broker's part in replication, as the rest of the broker sees it.

A broker has one side: ``pair_side`` has those of fixed roles (a master, a slave, a broker without
peers), and ``replica_wiring.replica_side`` chooses. A side whose role changes while the broker runs
gives the same answers by the role of the moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from contrail.broker.guards import Guards
from contrail.broker.message_kinds import MessageKinds
from contrail.broker.replicas import ReplicasNeed
from contrail.broker.services.acknowledgements import Acknowledgements, FlushNews
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.registration import Registration
from contrail.broker.services.send_dedupe import SendDedupe
from contrail.broker.state.read_redirects import Redirect
from contrail.broker.tables import Tables
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.runtime.files import FileSystem
from contrail.runtime.schedule import Schedule
from contrail.wire.caller import Caller
from contrail.wire.peer import Handler

Redirecting = Callable[[str, int, bool], Redirect]
"""Of a group, the code of an answer to its pull, and whether the messages have left memory."""


class ReplicaSide(Protocol):
    """The calls come in the order of the methods; all on the event loop's thread."""

    begins_anew: bool
    """Whether the broker, having failed, is to be started again: its folder is to be emptied."""

    # Building.

    @property
    def redirect(self) -> Redirecting | None:
        """Where clients pull from next; None while no other broker has this log."""
        ...

    def table(self) -> dict[int, Handler]:
        """The handlers of requests between brokers of one name, and of operators' questions."""
        ...

    def gated(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The gate of the role: these handlers, refusing what this broker may not do."""
        ...

    def guard(self, guards: Guards) -> None:
        """The gate of the role where requests pass beside the handlers."""
        ...

    def register(self, schedule: Schedule) -> None: ...

    @property
    def wants_flushes(self) -> bool:
        """Whether ``flushed`` is to be called; asked once."""
        ...

    # Starting.

    async def listen(self) -> None:
        """Let peers come, and take back what they did meanwhile; nothing is recalled yet."""
        ...

    async def begin(self) -> None:
        """Take part: log and tables are recalled, and clients come after this call."""
        ...

    # Running.

    def flushed(self) -> None:
        """More of the log is durable."""
        ...

    def lacks_slaves(self) -> bool:
        """Whether answers wait for slaves and there is none."""
        ...

    def take_master(self, ha_address: str, address: str) -> None:
        """A NameServer says where the master of this broker's name is."""
        ...

    def leader_of_users(self) -> str | None:
        """The address of the broker whose users and rights count here, empty while it is unknown;
        None when they are this broker's own.
        """
        ...

    def delete_queues(self, topic: bytes) -> None:
        """The settings of a topic are deleted: so are its queues."""
        ...

    def delete_unused(self, topic: bytes) -> None:
        """Delete the queues of a topic that has no settings."""
        ...

    def status(self) -> HaStatus | None:
        """None without replication."""
        ...

    # Stopping; each call may be the first one after ``listen``.

    async def leave(self) -> None:
        """Clients are still served: let another broker serve them, if one can."""
        ...

    async def rest(self) -> None:
        """Change neither log nor tables any more."""
        ...

    async def close(self) -> None:
        """Leave the peers: no answer waits for them any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SideNeed(ReplicasNeed):
    """The parts of the broker that a side works on."""

    ha_address: str
    tables: Tables
    kinds: MessageKinds
    deliveries: Deliveries
    caller: Caller
    registration: Registration
    dedupe: SendDedupe
    acknowledgements: Acknowledgements
    flushes: FlushNews
    # Has another tick come.
    tick: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    # Derives the queues of everything that is visible: now, or together with what comes next.
    derive: Callable[[], None]
    derive_soon: Callable[[], None]
    # Has the broker stop: it cannot keep its promises.
    fail: Callable[[], None]
    files: FileSystem

"""The sides of brokers whose role is fixed: without peers, a master, a slave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contrail.broker.acting_side import ActingSide
from contrail.broker.guards import Guards
from contrail.broker.handlers.replication import HaFacts, ReplicationHandlers
from contrail.broker.handlers.role_gate import SlaveGate, slave_handlers
from contrail.broker.handlers.unknown_here import nothing_made_up
from contrail.broker.replica_side import Redirecting, SideNeed
from contrail.broker.replicas import MasterSide, SlaveSide
from contrail.broker.services.escape_bridge import EscapeBridge
from contrail.broker.services.slave_tables import SlaveTables
from contrail.broker.state.read_redirects import Redirect, redirect_at_master, redirect_at_slave
from contrail.model.group import SubscriptionGroupConfig
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.runtime.schedule import Schedule
from contrail.wire.peer import Handler


class AloneSide:
    """A broker that admits no peers; what a master and a slave add is in their own classes."""

    begins_anew = False
    wants_flushes = False
    leads = True

    def __init__(self, need: SideNeed) -> None:
        self._need = need
        self.link: MasterSide | SlaveSide | None = None
        self.acting: ActingSide | None = None

    def _begin_acting(self) -> None:
        """In acting-master mode; after ``link`` is there."""
        need = self._need
        if not need.replication.acting_master:
            return
        self.acting = ActingSide(
            need.config,
            need.replication,
            need.caller,
            need.registration,
            need.tables,
            need.kinds,
            self.link,
        )

    @property
    def redirect(self) -> Redirecting | None:
        return None

    def table(self) -> dict[int, Handler]:
        need = self._need
        facts = HaFacts(
            leads=self.leads,
            address=need.address,
            ha_address=need.ha_address,
            first_end=need.store.physical_end,
            status=self.status,
            request_modes=need.tables.request_modes.body,
            take_master=self._told_by_master,
            escaped=self.acting.escaped if self.acting is not None else None,
        )
        return ReplicationHandlers(facts).table()

    def _told_by_master(self, ha_address: str, address: str) -> None:
        """Nobody is followed."""

    def gated(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        return dict(handlers)

    def guard(self, guards: Guards) -> None:
        """The role of this broker is that of its start: handlers are gate enough."""

    def register(self, schedule: Schedule) -> None:
        if self.link is not None:
            self.link.register(schedule)
        if self.acting is not None:
            self.acting.register(schedule)

    async def listen(self) -> None:
        """No port is opened."""

    async def begin(self) -> None:
        """Nothing follows."""

    def flushed(self) -> None:
        if self.link is not None:
            self.link.ha.flushed()

    def lacks_slaves(self) -> bool:
        return False

    def take_master(self, ha_address: str, address: str) -> None:
        """Nobody is followed."""

    def leader_of_users(self) -> str | None:
        return None

    def delete_queues(self, topic: bytes) -> None:
        self._need.store.delete_topic(topic)

    def delete_unused(self, topic: bytes) -> None:
        self._need.store.delete_topic(topic)

    def status(self) -> HaStatus | None:
        return None if self.link is None else self.link.status()

    async def leave(self) -> None:
        """Slaves do not take over from a master that stops."""

    async def rest(self) -> None:
        if self.acting is not None:
            await self.acting.stop()

    async def close(self) -> None:
        """No port was opened."""


class MasterOfPair(AloneSide):
    """A master that slaves may follow."""

    wants_flushes = True
    link: MasterSide

    def __init__(self, need: SideNeed) -> None:
        super().__init__(need)
        self.link = MasterSide(need, on_progress=self._slaves_moved)
        if self.link.required_count > 1:
            need.acknowledgements.on_held = self._answer_held
        self._begin_acting()

    @property
    def redirect(self) -> Redirecting | None:
        return self._redirect

    def _redirect(self, group: str, code: int, is_slow: bool) -> Redirect:
        tables = self._need.tables
        return redirect_at_master(
            code,
            is_slow=is_slow,
            group=tables.groups.table.get(group) or SubscriptionGroupConfig(group),
            reads_enabled=tables.settings.config.slave_read_enabled,
        )

    async def listen(self) -> None:
        """Slaves may connect; what they did for this master is taken back before it serves."""
        need = self._need
        await self.link.start()
        if self.acting is not None:
            await self.acting.take_back(need.address, need.ha_address, need.store.go_on)

    def lacks_slaves(self) -> bool:
        return self.link.lacks_slaves

    def _slaves_moved(self) -> None:
        """Slaves have more of the log, or came or went: answers may be due."""
        if self._need.acknowledgements:
            self._need.flushes.is_noted = True
            self._need.tick()

    def _answer_held(self) -> None:
        """Answers were held for slaves: without one they are given with the next tick."""
        if self.link.lacks_slaves:
            self._need.flushes.is_noted = True
            self._need.loop.call_soon(self._need.tick)

    async def close(self) -> None:
        await self.link.stop()


class SlaveOfPair(AloneSide):
    """A slave that follows its master, and answers for it while that is away and it is told to."""

    wants_flushes = True
    leads = False
    link: SlaveSide

    def __init__(self, need: SideNeed) -> None:
        super().__init__(need)
        self._tables = tables = SlaveTables(
            need.caller,
            need.tables.topics,
            need.tables.groups,
            need.tables.consumer_offsets,
            need.kinds.delays,
            need.kinds.timers,
            need.tables.request_modes,
            need.store,
            elapsed_ms=need.clock.elapsed_ms,
            on_topic_gone=self._topic_gone,
        )
        self.link = SlaveSide(need, tables, need.caller, on_appended=need.derive_soon)
        self._begin_acting()
        if self.acting is not None and isinstance(need.deliveries, EscapeBridge):
            self.acting.act_by(need.deliveries, need.store, need.clock)

    def _topic_gone(self, topic: str) -> None:
        """The master deleted a topic: its queues go here, too."""
        need = self._need
        if need.store.has_topic(topic.encode()):
            need.derive()
            need.store.delete_topic(topic.encode())

    @property
    def _is_prime(self) -> bool:
        """Whether this slave answers for its master."""
        return self.acting is not None and self.acting.is_prime

    def _sends_readers_back(self) -> bool:
        return self.link.sends_readers_back and not self._is_prime

    def gated(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        need = self._need
        settings, topics = need.tables.settings, need.tables.topics
        gate = SlaveGate(
            reads_enabled=lambda: settings.config.slave_read_enabled,
            may_act=need.replication.acting_master,
            is_prime=lambda: self._is_prime,
        )
        return nothing_made_up(
            slave_handlers(handlers, gate),
            knows_topic=lambda topic: topics.table.get(topic) is not None,
            sends_readers_back=self._sends_readers_back,
        )

    @property
    def redirect(self) -> Redirecting | None:
        return self._redirect

    def _redirect(self, group: str, code: int, is_slow: bool) -> Redirect:
        tables = self._need.tables
        settings = tables.groups.table.get(group) or SubscriptionGroupConfig(group)
        own_id = tables.settings.config.broker_id
        return redirect_at_slave(
            code,
            is_slow=is_slow,
            group=settings,
            # Routes show a slave that answers for its master under the master's id.
            own_id=settings.broker_id if self._is_prime else own_id,
            master_is_alive=self._sends_readers_back(),
        )

    async def begin(self) -> None:
        await self.link.start()

    def leader_of_users(self) -> str | None:
        return self._tables.contrail_master

    def status(self) -> HaStatus:
        acting = "" if self.acting is None else self.acting.stage
        return replace(self.link.status(), acting=acting)

    def take_master(self, ha_address: str, address: str) -> None:
        self.link.take_master(ha_address, address)

    def _told_by_master(self, ha_address: str, address: str) -> None:
        self.link.take_master(ha_address, address)
        self.link.ha.hurry()

    async def rest(self) -> None:
        await super().rest()
        await self.link.stop()

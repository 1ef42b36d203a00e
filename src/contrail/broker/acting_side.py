"""Acting-master mode, put together: beats, the brokers of this name, and the work of either role.

With ``enableSlaveActingMaster`` a slave does its master's work while that is away, and a master
takes it back before it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contrail.broker.config import BrokerConfig
from contrail.broker.message_kinds import MessageKinds
from contrail.broker.replicas import MasterSide, SlaveSide
from contrail.broker.replication_config import ReplicationConfig
from contrail.broker.services.acting import Acting
from contrail.broker.services.escape_bridge import EscapeBridge
from contrail.broker.services.members import Members
from contrail.broker.services.persistence import NoPersistence
from contrail.broker.services.pre_online import PreOnline
from contrail.broker.services.registration import Registration
from contrail.broker.state.acting_master import ActingMaster
from contrail.broker.state.escaped import Escaped
from contrail.broker.tables import Tables
from contrail.clock import Clock
from contrail.runtime.schedule import Schedule
from contrail.store import MessageStore
from contrail.wire.caller import Caller


def registration_terms(replication: ReplicationConfig) -> dict[str, str]:
    """The fields that a broker in acting-master mode adds to its registrations."""
    if not replication.acting_master:
        return {}
    return {
        "enableActingMaster": "true",
        "heartbeatTimeoutMillis": str(replication.silence_ms_max),
    }


class ActingSide:
    """One broker in acting-master mode."""

    def __init__(
        self,
        config: BrokerConfig,
        replication: ReplicationConfig,
        caller: Caller,
        registration: Registration,
        tables: Tables,
        kinds: MessageKinds,
        replicas: MasterSide | SlaveSide | None,
    ) -> None:
        self._replication = replication
        self._caller = caller
        self._tables = tables
        self._kinds = kinds
        self._state = ActingMaster(config.broker_id)
        self._replicas = replicas
        self._on_change: Callable[[], None] = registration.register_soon
        self._acting: Acting | None = None
        self.members = Members(
            caller,
            registration,
            data_version=lambda: tables.topics.table.data_version,
            asks_old_way=replication.old_name_servers,
            on_members=self._members_seen,
        )

    def act_by(self, bridge: EscapeBridge, store: MessageStore, clock: Clock) -> None:
        """Have a slave do its master's work through ``bridge``."""
        replicas, kinds = self._replicas, self._kinds
        assert isinstance(replicas, SlaveSide), "only a slave acts as master"
        settings = self._tables.settings
        replicas.tables_rest = lambda: self.is_prime
        self._acting = Acting(
            self._state,
            store,
            bridge,
            kinds.delays,
            kinds.escaped,
            new_timers=lambda: kinds.new_timers(NoPersistence()),
            clock=clock,
            # A diverged slave has another log than its master: it acts for nobody.
            master_sends=lambda: replicas.sends_readers_back,
            check_interval_ms=lambda: settings.config.transaction_check_interval_ms,
        )

    @property
    def is_prime(self) -> bool:
        """Whether this slave answers for its master."""
        return self._acting is not None and self._state.is_prime

    @property
    def stage(self) -> str:
        """How far this slave is with its master's work; empty if it does none."""
        return "" if self._acting is None else self._acting.stage

    async def escaped(self) -> Escaped | None:
        """The messages handed to other brokers; None while this slave has to go on with it."""
        return self._kinds.escaped if self._acting is None else await self._acting.handed_back()

    def _members_seen(self, members: Mapping[int, str]) -> None:
        if self._state.members_seen(members) and self._acting is not None:
            # NameServers take topics from the lowest broker of a name.
            self._on_change()
            self._acting.check()

    async def take_back(self, address: str, ha_address: str, check: Callable[[], None]) -> None:
        """A master takes over what slaves did for it; before it learns what was delivered."""
        if not self._replication.starts_isolated or not isinstance(self._replicas, MasterSide):
            return
        pre_online = PreOnline(
            self._caller,
            alive=self.members.alive,
            address=address,
            ha_address=ha_address,
            status=self._replicas.status,
            offsets=self._tables.consumer_offsets,
            delays=self._kinds.delays,
            escaped=self._kinds.escaped,
            check=check,
        )
        await pre_online.run()

    def register(self, schedule: Schedule) -> None:
        interval_ms = self._replication.member_interval_ms
        self.members.register(
            schedule,
            beat_interval_ms=self._replication.beat_interval_ms,
            member_interval_ms=None if self._acting is None else interval_ms,
        )
        if self._acting is not None:
            self._acting.register(schedule)

    async def stop(self) -> None:
        """Hand over and ask nothing any more."""
        await self.members.close()
        if self._acting is not None:
            await self._acting.close()

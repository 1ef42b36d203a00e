"""The one place that knows every role: what a role means for the parts made before its side.

A third role is added here, and as one more ``ReplicaSide``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from contrail.broker.acting_side import registration_terms
from contrail.broker.config import BrokerConfig
from contrail.broker.group_side import GroupSide
from contrail.broker.pair_side import AloneSide, MasterOfPair, SlaveOfPair
from contrail.broker.replica_side import ReplicaSide, SideNeed
from contrail.broker.replication_config import HA_PORT_DISTANCE, ReplicationConfig
from contrail.broker.services.acknowledgements import Acknowledgements, HoldReason
from contrail.broker.services.cluster_secret import read_cluster_secret
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.escape_bridge import EscapeBridge
from contrail.broker.state.escaped import Escaped
from contrail.broker.state.recall_seal import RecallKey
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.model.host import Host
from contrail.replication.services.member_folder import prepare_folder
from contrail.runtime.files import FileSystem
from contrail.store import MessageStore, StoreConfig
from contrail.wire.caller import Caller


@dataclass(frozen=True, slots=True)
class RoleTerms:
    """The decisions of a role's settings before store and services are there."""

    config: BrokerConfig
    replication: ReplicationConfig

    @property
    def leads(self) -> bool:
        """Whether this broker takes messages from its start on."""
        return self.config.role.leads

    @property
    def in_group(self) -> bool:
        """Whether this broker is a member of a failover group: its role changes while it runs."""
        return self.replication.in_group

    @property
    def delivers(self) -> bool:
        """Whether this broker delivers delayed messages and the like from its start on."""
        return self.leads and not self.in_group

    @property
    def may_go_fast(self) -> bool:
        """Whether requests may take the fast path: a slave's gate is before the general way."""
        return self.leads

    @property
    def port_distances(self) -> tuple[int, ...]:
        """The ports beside the main port that peers connect to, where that is chosen freely."""
        return (HA_PORT_DISTANCE,) if self._listens_for_slaves else ()

    @property
    def _listens_for_slaves(self) -> bool:
        return self.leads and self.replication.admits_peers and not self.in_group

    def ha_address(self, main_port: int) -> str:
        """Where slaves connect to; empty if nothing listens for them."""
        if not self._listens_for_slaves:
            return ""
        return str(Host(self.config.broker_ip, self.replication.ha_port(main_port)))

    @property
    def registration_terms(self) -> Mapping[str, str]:
        """Further fields of this broker's registrations."""
        return registration_terms(self.replication)

    def recall_key(self, own: RecallKey) -> RecallKey:
        """The key of recall handles: members of a failover group take each other's handles."""
        if not self.in_group:
            return own
        secret = read_cluster_secret(Path(self.replication.cluster_secret_path))
        name = self.replication.group or self.config.broker_name
        return own._replace(
            secret=hmac.digest(secret, f"recall handles of {name}".encode(), hashlib.sha256)
        )

    def acknowledgements(self, store_config: StoreConfig, clock: Clock) -> Acknowledgements:
        """Answers held for the disk or for slaves, whichever this role waits for."""
        if self.in_group:
            return Acknowledgements(
                clock,
                waits=True,
                disk_timeout_ms=store_config.sync_flush_timeout_ms,
                reason=HoldReason.GROUP,
            )
        waits_for_slaves = self.replication.required_replicas(self.config.role) > 1
        return Acknowledgements(
            clock,
            waits=store_config.syncs_before_ack or waits_for_slaves,
            disk_timeout_ms=store_config.sync_flush_timeout_ms,
            slave_timeout_ms=self.replication.slave_timeout_ms,
            reason=HoldReason.SLAVE if waits_for_slaves else HoldReason.DISK,
        )

    def prepare_folder(self, files: FileSystem, store_config: StoreConfig) -> None:
        """Before tables and store are read: empty the folder of a member that begins anew."""
        if self.in_group:
            prepare_folder(files, store_config.root, store_config.log_folders)

    def deliveries(
        self,
        store: MessageStore,
        stats: BrokerStats,
        escaped: Escaped,
        clock: Clock,
        *,
        on_appended: Callable[[], None],
        caller: Callable[[], Caller],
        name_servers: Callable[[], list[str]],
    ) -> Deliveries:
        """The broker's own messages go into its log; those of an acting slave to other brokers."""
        if self.leads or not self.replication.acting_master:
            return Deliveries(store, stats, on_appended=on_appended)
        return EscapeBridge(
            store,
            stats,
            caller,
            escaped,
            broker_name=self.config.broker_name,
            name_servers=name_servers,
            clock=clock,
            is_enabled=self.replication.remote_escape,
        )


def replica_side(need: SideNeed) -> ReplicaSide:
    """The side of this broker's role."""
    if need.replication.in_group:
        return GroupSide(need)
    if not need.config.role.leads:
        return SlaveOfPair(need)
    return MasterOfPair(need) if need.replication.admits_peers else AloneSide(need)

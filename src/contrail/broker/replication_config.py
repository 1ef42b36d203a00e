"""The settings of replication: one frozen value, under RocketMQ's own property names too.

``contrailClusterSecretFile`` and ``contrailHaCompat`` say which peers may take part: brokers that
know the secret of that file, and Apache brokers of this host or ``contrailClusterAllowList``, which
prove nothing. A master listens for slaves only if one of them is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.group_members import GroupMembers, read_group_members
from contrail.errors import ConfigError
from contrail.model.settings import read_settings, require_sound, setting
from contrail.wire.addresses import require_addresses

# The HA port of a broker whose ``haListenPort`` is 0, counted from its main port.
HA_PORT_DISTANCE = 1
_MASTER_AND_ONE_SLAVE = 2
# RocketMQ takes a shorter text for none.
_ADDRESS_LENGTH_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Every setting of replication. Each field names its RocketMQ property."""

    listen_port: int = setting("haListenPort", 0, lowest=0, highest=65535)
    master_address: str = setting("haMasterAddress", "")
    heartbeat_interval_ms: int = setting("haSendHeartbeatInterval", 5000, lowest=100)
    housekeeping_interval_ms: int = setting("haHousekeepingInterval", 20_000, lowest=200)
    transfer_bytes_max: int = setting("haTransferBatchSize", 32_768, lowest=1024, highest=4 << 20)
    gap_bytes_max: int = setting("haMaxGapNotInSync", 256 << 20, lowest=1)
    slave_timeout_ms: int = setting("slaveTimeout", 3000, lowest=1)
    in_sync_replicas: int = setting("inSyncReplicas", 0, lowest=0, highest=64)
    in_sync_replicas_min: int = setting("minInSyncReplicas", 1, lowest=1, highest=64)
    in_sync_replicas_auto: bool = setting("enableAutoInSyncReplicas", False)
    total_replicas: int = setting("totalReplicas", 1, lowest=1, highest=64)
    acting_master: bool = setting("enableSlaveActingMaster", False)
    remote_escape: bool = setting("enableRemoteEscape", False)
    pre_online_skipped: bool = setting("skipPreOnline", False)
    beat_interval_ms: int = setting("brokerHeartbeatInterval", 1000, lowest=100)
    silence_ms_max: int = setting("brokerNotActiveTimeoutMillis", 10_000, lowest=1000)
    member_interval_ms: int = setting("syncBrokerMemberGroupPeriod", 1000, lowest=100)
    old_name_servers: bool = setting("compatibleWithOldNameSrv", True)
    cluster_secret_path: str = setting("contrailClusterSecretFile", "")
    compat: bool = setting("contrailHaCompat", False)
    unsealed_accepted: bool = setting("contrailHaUnsealed", False)

    in_group: bool = setting("enableDLegerCommitLog", False)
    group: str = setting("dLegerGroup", "")
    group_peers: str = setting("dLegerPeers", "")
    group_self_id: str = setting("dLegerSelfId", "")
    preferred_leader: str = setting("preferredLeaderId", "")

    def __post_init__(self) -> None:
        require_sound(self)
        if len(self.master_address) >= _ADDRESS_LENGTH_MIN:
            require_addresses("haMasterAddress", self.master_address)
        if self.heartbeat_interval_ms >= self.housekeeping_interval_ms:
            raise ConfigError(
                f"haSendHeartbeatInterval={self.heartbeat_interval_ms} is refused: it must be "
                f"below haHousekeepingInterval={self.housekeeping_interval_ms}, or every idle "
                "connection is closed"
            )
        if self.beat_interval_ms >= self.silence_ms_max:
            raise ConfigError(
                f"brokerHeartbeatInterval={self.beat_interval_ms} is refused: it must be below "
                f"brokerNotActiveTimeoutMillis={self.silence_ms_max}, or NameServers drop a "
                "broker that is alive"
            )

    @property
    def group_members(self) -> GroupMembers:
        """The members of the failover group by the settings, which were checked."""
        return read_group_members(
            self.group_peers, self.group_self_id, preferred=self.preferred_leader
        )

    @property
    def has_secret(self) -> bool:
        return bool(self.cluster_secret_path)

    @property
    def admits_peers(self) -> bool:
        """Whether any broker could be a peer of this one."""
        return bool(self.cluster_secret_path) or self.compat

    @property
    def starts_isolated(self) -> bool:
        """Whether a master takes back what a slave did for it before clients may see it."""
        return self.acting_master and self.total_replicas > 1 and not self.pre_online_skipped

    @property
    def follows_plainly(self) -> bool:
        """Whether a slave speaks Apache's HA protocol: with a secret it proves that it knows it."""
        return self.compat and not self.cluster_secret_path

    @property
    def fixed_master_address(self) -> str | None:
        """The HA address of the master, if this broker is told; else it asks."""
        is_told = len(self.master_address) >= _ADDRESS_LENGTH_MIN
        return self.master_address if is_told else None

    def required_replicas(self, role: BrokerRole) -> int:
        """How many brokers, the master among them, must have a record before its answer."""
        if role is not BrokerRole.SYNC_MASTER:
            return 1
        return self.in_sync_replicas or _MASTER_AND_ONE_SLAVE

    def ha_port(self, main_port: int) -> int:
        return self.listen_port or main_port + HA_PORT_DISTANCE


def read_replication_settings(
    properties: Mapping[str, str], broker: BrokerConfig
) -> ReplicationConfig:
    """The settings of replication, and whether they fit the broker's role.

    Raises:
        ConfigError: a value is wrong or contradicts the role; the message names the fix.
    """
    config = read_settings(ReplicationConfig, properties)
    if config.in_group:
        _require_group(config, broker, properties)
        return config
    _require_no_group(config)
    if broker.role is not BrokerRole.ASYNC_MASTER and not config.admits_peers:
        raise ConfigError(
            f"brokerRole={broker.role} is refused without contrailClusterSecretFile: replicas "
            "prove to each other that they know its secret. `contrail replication secret` makes "
            "one; for peers of Apache set contrailHaCompat=true"
        )
    _require_reachable_count(config, broker.role)
    return config


def _require_group(
    config: ReplicationConfig, broker: BrokerConfig, properties: Mapping[str, str]
) -> None:
    """Refuse settings under which a member of a failover group would not keep its promise."""
    if broker.role is not BrokerRole.ASYNC_MASTER:
        raise ConfigError(
            f"brokerRole={broker.role} with enableDLegerCommitLog is refused: members of a "
            "failover group elect their leader; leave brokerRole and brokerId out"
        )
    if config.acting_master or config.compat:
        name = "enableSlaveActingMaster" if config.acting_master else "contrailHaCompat"
        raise ConfigError(
            f"{name}=true with enableDLegerCommitLog is refused: it is of masters and slaves; "
            "leave it out"
        )
    if not config.cluster_secret_path:
        raise ConfigError(
            "enableDLegerCommitLog=true is refused without contrailClusterSecretFile: members "
            "prove to each other that they know its secret. `contrail replication secret` makes one"
        )
    if properties.get("flushDiskType", "SYNC_FLUSH") != "SYNC_FLUSH":
        raise ConfigError(
            f"flushDiskType={properties['flushDiskType']} with enableDLegerCommitLog is refused: "
            "a majority has a message on the disk before it is acknowledged; leave flushDiskType "
            "out"
        )
    if properties.get("transientStorePoolEnable", "false") == "true":
        raise ConfigError(
            "transientStorePoolEnable=true with enableDLegerCommitLog is refused: a majority has "
            "a message on the disk before it is acknowledged; leave it out"
        )
    assert config.group_members


def _require_no_group(config: ReplicationConfig) -> None:
    named = {
        "dLegerGroup": config.group,
        "dLegerPeers": config.group_peers,
        "dLegerSelfId": config.group_self_id,
        "preferredLeaderId": config.preferred_leader,
    }
    for name, text in named.items():
        if text:
            raise ConfigError(
                f"{name}={text} without enableDLegerCommitLog=true is refused: this broker would "
                "be alone; set enableDLegerCommitLog=true, or leave it out"
            )


def _require_reachable_count(config: ReplicationConfig, role: BrokerRole) -> None:
    if role is not BrokerRole.SYNC_MASTER:
        return
    required = config.required_replicas(role)
    if config.total_replicas > 1 and required > config.total_replicas:
        raise ConfigError(
            f"inSyncReplicas={required} is refused: totalReplicas={config.total_replicas} is less, "
            "so no message would ever be acknowledged; raise totalReplicas or lower inSyncReplicas"
        )
    if config.in_sync_replicas_min > required:
        raise ConfigError(
            f"minInSyncReplicas={config.in_sync_replicas_min} is refused: it is more than "
            f"inSyncReplicas={required}; raise inSyncReplicas or lower minInSyncReplicas"
        )


def replication_warnings(config: ReplicationConfig, role: BrokerRole) -> list[str]:
    """Warnings for the operator of a replicated broker before it starts."""
    found = []
    if config.in_group and (size := len(config.group_members.addresses)) % 2 == 0:
        found.append(
            f"a failover group of {size} survives no more than one of {size - 1}: take "
            f"{size - 1} or {size + 1} members"
        )
    if role is BrokerRole.SYNC_MASTER and config.in_sync_replicas == 1:
        found.append(
            "inSyncReplicas=1 counts the master alone: no send waits for a slave although "
            "brokerRole=SYNC_MASTER; set inSyncReplicas=2 to wait for one"
        )
    if config.compat:
        found.append(
            "contrailHaCompat=true: brokers of this host and of contrailClusterAllowList may "
            "replicate without proving who they are; set it for peers of Apache only"
        )
    if config.unsealed_accepted:
        found.append(
            "contrailHaUnsealed=true: without TLS, a host between master and slave can change the "
            "replicated log after the handshake"
        )
    return found

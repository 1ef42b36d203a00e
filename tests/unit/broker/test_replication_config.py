"""The settings of replication: what fits a role, and what a contradiction is told."""

from __future__ import annotations

import pytest

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.replication_config import (
    ReplicationConfig,
    read_replication_settings,
    replication_warnings,
)
from contrail.errors import ConfigError

SECRET = {"contrailClusterSecretFile": "secret"}
SYNC = BrokerConfig(role=BrokerRole.SYNC_MASTER)


def test_unset_in_sync_replicas_mean_the_master_and_one_slave_for_a_sync_master() -> None:
    config = ReplicationConfig()
    assert config.required_replicas(BrokerRole.SYNC_MASTER) == 2
    assert config.required_replicas(BrokerRole.ASYNC_MASTER) == 1
    assert config.required_replicas(BrokerRole.SLAVE) == 1


def test_a_master_starts_isolated_only_if_a_slave_may_have_acted_for_it() -> None:
    acting = {"acting_master": True, "total_replicas": 2}
    assert ReplicationConfig(**acting).starts_isolated
    assert not ReplicationConfig(**{**acting, "acting_master": False}).starts_isolated
    assert not ReplicationConfig(**{**acting, "total_replicas": 1}).starts_isolated
    assert not ReplicationConfig(**acting, pre_online_skipped=True).starts_isolated


def test_in_sync_replicas_of_one_are_honoured_and_warned_about() -> None:
    config = ReplicationConfig(in_sync_replicas=1)
    assert config.required_replicas(BrokerRole.SYNC_MASTER) == 1
    assert any("inSyncReplicas=1" in one for one in warnings_of(config))
    assert warnings_of(ReplicationConfig()) == []


def warnings_of(config: ReplicationConfig) -> list[str]:
    return replication_warnings(config, BrokerRole.SYNC_MASTER)


def test_settings_that_weaken_a_link_are_warned_about() -> None:
    assert "contrailHaCompat=true" in warnings_of(ReplicationConfig(compat=True))[0]
    assert "contrailHaUnsealed=true" in warnings_of(ReplicationConfig(unsealed_accepted=True))[0]


def test_a_slave_speaks_plain_ha_only_without_a_secret() -> None:
    assert ReplicationConfig(compat=True).follows_plainly
    assert not ReplicationConfig(compat=True, cluster_secret_path="secret").follows_plainly
    assert not ReplicationConfig().follows_plainly


def test_the_ha_port_is_the_one_behind_the_main_port_unless_named() -> None:
    assert ReplicationConfig().ha_port(10911) == 10912
    assert ReplicationConfig(listen_port=7).ha_port(10911) == 7


def test_a_master_address_shorter_than_an_address_is_none() -> None:
    assert ReplicationConfig().fixed_master_address is None
    assert ReplicationConfig(master_address="none").fixed_master_address is None
    told = ReplicationConfig(master_address="10.0.0.1:10912")
    assert told.fixed_master_address == "10.0.0.1:10912"
    with pytest.raises(ConfigError, match="haMasterAddress"):
        ReplicationConfig(master_address="no address")


@pytest.mark.parametrize("role", [BrokerRole.SYNC_MASTER, BrokerRole.SLAVE])
def test_a_replica_without_secret_or_compat_is_refused_with_the_fix(role: BrokerRole) -> None:
    broker = BrokerConfig(role=role, broker_id=int(role is BrokerRole.SLAVE))
    with pytest.raises(ConfigError, match=rf"brokerRole={role}.*contrail replication secret"):
        read_replication_settings({}, broker)
    assert read_replication_settings(SECRET, broker).admits_peers
    assert read_replication_settings({"contrailHaCompat": "true"}, broker).admits_peers


def test_a_single_master_needs_neither_and_listens_for_nobody() -> None:
    assert not read_replication_settings({}, BrokerConfig()).admits_peers


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"totalReplicas": "2", "inSyncReplicas": "3"}, "inSyncReplicas=3.*totalReplicas=2"),
        ({"minInSyncReplicas": "3"}, "minInSyncReplicas=3.*inSyncReplicas=2"),
        ({"contrailHaCompat": "10.0.0.0"}, "contrailHaCompat"),
        ({"brokerHeartbeatInterval": "10000"}, "brokerHeartbeatInterval=10000.*NotActive"),
        ({"haSendHeartbeatInterval": "20000"}, "haSendHeartbeatInterval=20000.*Housekeeping"),
    ],
)
def test_contradictions_are_refused_by_name(asked: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_replication_settings({**SECRET, **asked}, SYNC)


@pytest.mark.parametrize(
    ("role", "broker_id", "fix"),
    [
        (BrokerRole.SLAVE, 0, "from 1 on"),
        (BrokerRole.SYNC_MASTER, 1, "set brokerRole=SLAVE"),
        (BrokerRole.ASYNC_MASTER, 2, "set brokerRole=SLAVE"),
    ],
)
def test_an_id_that_is_not_of_the_role_is_refused(
    role: BrokerRole, broker_id: int, fix: str
) -> None:
    with pytest.raises(ConfigError, match=rf"brokerId={broker_id} with brokerRole={role}.*{fix}"):
        BrokerConfig(role=role, broker_id=broker_id)


GROUP = {
    "enableDLegerCommitLog": "true",
    "dLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3",
    "dLegerSelfId": "n1",
    "contrailClusterSecretFile": "/secret",
}


@pytest.mark.proves("replication.failover.settings")
def test_a_member_of_a_group_is_set_up_by_the_names_of_apaches_dledger() -> None:
    found = read_replication_settings(
        {**GROUP, "dLegerGroup": "g", "preferredLeaderId": "n2"}, BrokerConfig()
    )
    members = found.group_members
    assert (found.in_group, found.group, members.preferred) == (True, "g", "n2")
    assert (members.self_id, members.port, members.broker_id) == ("n1", 2, 2)
    assert replication_warnings(found, BrokerRole.ASYNC_MASTER) == []


@pytest.mark.proves("replication.failover.settings")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"contrailClusterSecretFile": ""}, "contrailClusterSecretFile"),
        ({"flushDiskType": "ASYNC_FLUSH"}, "leave flushDiskType out"),
        ({"transientStorePoolEnable": "true"}, "transientStorePoolEnable"),
        ({"enableSlaveActingMaster": "true"}, "enableSlaveActingMaster"),
        ({"contrailHaCompat": "true"}, "contrailHaCompat"),
        ({"dLegerSelfId": "n7"}, "dLegerSelfId=n7"),
        ({"enableDLegerCommitLog": "false"}, "set enableDLegerCommitLog=true"),
    ],
)
def test_settings_that_do_not_fit_a_group_are_refused_with_the_fix(
    change: dict[str, str], text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_replication_settings({**GROUP, **change}, BrokerConfig())
    assert text in str(caught.value)


@pytest.mark.proves("replication.failover.settings")
def test_a_group_elects_its_leader_so_that_no_member_is_given_a_role() -> None:
    with pytest.raises(ConfigError, match="leave brokerRole and brokerId out"):
        read_replication_settings(GROUP, BrokerConfig(role=BrokerRole.SYNC_MASTER))


@pytest.mark.proves("replication.failover.sizes")
@pytest.mark.parametrize(("size", "is_warned"), [(1, False), (2, True), (4, True), (5, False)])
def test_groups_of_even_sizes_are_warned_of(size: int, is_warned: bool) -> None:
    peers = ";".join(f"n{number}-127.0.0.1:{number + 1}" for number in range(size))
    found = read_replication_settings(
        {**GROUP, "dLegerPeers": peers, "dLegerSelfId": "n0"}, BrokerConfig()
    )
    warnings = replication_warnings(found, BrokerRole.ASYNC_MASTER)
    assert bool(warnings) == is_warned

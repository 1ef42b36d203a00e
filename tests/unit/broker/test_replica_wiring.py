"""The terms of a role before store and services are there, and the side that it gets."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.replica_wiring import RoleTerms
from contrail.broker.replication_config import HA_PORT_DISTANCE, ReplicationConfig
from contrail.broker.services.acknowledgements import HoldReason
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.escape_bridge import EscapeBridge
from contrail.broker.state.escaped import Escaped
from contrail.broker.state.stats import BrokerStats
from contrail.clock import ManualClock
from contrail.store import MessageStore, StoreConfig
from contrail.store.config import FlushDiskType
from contrail.wire.caller import Caller

PEERS = ReplicationConfig(cluster_secret_path="/etc/contrail/secret")
SLAVE = BrokerConfig(role=BrokerRole.SLAVE, broker_id=1)
SYNCHRONOUS = BrokerConfig(role=BrokerRole.SYNC_MASTER)


def test_a_master_takes_messages_from_its_start_on_and_a_slave_does_not() -> None:
    assert RoleTerms(BrokerConfig(), PEERS).leads
    assert not RoleTerms(SLAVE, PEERS).leads
    assert not RoleTerms(SLAVE, PEERS).may_go_fast


def test_only_a_master_that_admits_peers_keeps_a_port_for_slaves() -> None:
    master = RoleTerms(BrokerConfig(broker_ip="10.0.0.1"), PEERS)
    assert master.port_distances == (HA_PORT_DISTANCE,)
    assert master.ha_address(10911) == f"10.0.0.1:{10911 + HA_PORT_DISTANCE}"
    for terms in (RoleTerms(BrokerConfig(), ReplicationConfig()), RoleTerms(SLAVE, PEERS)):
        assert terms.port_distances == ()
        assert terms.ha_address(10911) == ""


@pytest.mark.parametrize(
    ("config", "flush", "waits", "reason"),
    [
        (BrokerConfig(), FlushDiskType.ASYNC_FLUSH, False, HoldReason.DISK),
        (BrokerConfig(), FlushDiskType.SYNC_FLUSH, True, HoldReason.DISK),
        (SYNCHRONOUS, FlushDiskType.ASYNC_FLUSH, True, HoldReason.SLAVE),
        (SYNCHRONOUS, FlushDiskType.SYNC_FLUSH, True, HoldReason.SLAVE),
    ],
)
def test_answers_wait_for_the_disk_or_for_slaves(
    config: BrokerConfig, flush: FlushDiskType, waits: bool, reason: HoldReason
) -> None:
    held = RoleTerms(config, PEERS).acknowledgements(
        StoreConfig(root=Path("store"), flush_disk_type=flush), ManualClock()
    )
    assert (held.waits, held._reason) == (waits, reason)


@pytest.mark.parametrize(
    ("config", "acting_master", "kind"),
    [
        (SLAVE, True, EscapeBridge),
        (SLAVE, False, Deliveries),
        (BrokerConfig(), True, Deliveries),
    ],
)
def test_only_an_acting_slave_delivers_to_other_brokers(
    config: BrokerConfig, acting_master: bool, kind: type[Deliveries]
) -> None:
    clock = ManualClock()
    replication = ReplicationConfig(cluster_secret_path="secret", acting_master=acting_master)
    found = RoleTerms(config, replication).deliveries(
        cast(MessageStore, None),
        BrokerStats("cluster", started_ms=0, utc_offset_ms=0),
        Escaped(),
        clock,
        on_appended=lambda: None,
        caller=lambda: cast(Caller, None),
        name_servers=list,
    )
    assert type(found) is kind

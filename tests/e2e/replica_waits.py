"""Waiting for slaves: until they have the log, the topics and the groups of their master."""

from __future__ import annotations

from contrail.protocol.bodies.ha_status import decode_ha_status
from contrail.protocol.codes import RequestCode
from contrail.testing import BlockingCaller, LocalBroker, LocalCluster, eventually

_TABLES = (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)


def has_tables(caller: BlockingCaller, master: LocalBroker, slave: LocalBroker) -> bool:
    """Whether the slave has the topics and groups of its master."""
    return all(
        caller.call(master.address, code).body == caller.call(slave.address, code).body
        for code in _TABLES
    )


def wait_for_slave(cluster: LocalCluster) -> None:
    """Wait until the one slave has everything that its master has."""
    master, slave = cluster.brokers[0], cluster.slaves[0]

    def is_level() -> bool:
        answer = cluster.caller.call(master.address, RequestCode.GET_BROKER_HA_STATUS)
        lags = [link.lag_bytes for link in decode_ha_status(answer.body).slaves]
        return lags == [0] and has_tables(cluster.caller, master, slave)

    eventually(is_level, "the slave has everything")

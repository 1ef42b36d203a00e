"""The NameServer put together, without its socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.errors import ConfigError
from contrail.nameserver.app import NameServer
from contrail.nameserver.config import NameServerConfig
from contrail.protocol.bodies.registration import RegisterBrokerBody
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request
from tests.fakes.peers import FakePeer

FIELDS = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C",
    "haServerAddr": "10.0.0.1:10912",
    "brokerId": "0",
}


def config(**settings: str) -> NameServerConfig:
    files = {"kvConfigPath": "/kv", "configStorePath": "/config"}
    return NameServerConfig.from_properties(files | settings)


def register(nameserver: NameServer, peer: FakePeer) -> None:
    request = Request(RequestCode.REGISTER_BROKER, 1, FIELDS, RegisterBrokerBody().encode())
    nameserver.handlers[RequestCode.REGISTER_BROKER](request, peer)
    assert set(nameserver.tables.cluster_info().brokers) == {"broker-a"}


@pytest.mark.proves("nameserver.routes.eviction")
def test_a_silent_broker_is_evicted_by_the_clock_and_its_connection_closed() -> None:
    clock, peer = ManualClock(), FakePeer()
    nameserver = NameServer(config(), clock=clock)
    register(nameserver, peer)
    clock.advance(ms=120_000)
    nameserver.schedule.run_due(clock.now_ms())
    assert not peer.is_closed
    clock.advance(ms=5_000)
    nameserver.schedule.run_due(clock.now_ms())
    assert peer.close_reasons == ["heartbeat_missing"]
    assert nameserver.tables.cluster_info().brokers == {}


@pytest.mark.proves("nameserver.routes.closed-connection")
def test_a_broker_whose_connection_closes_leaves_all_routes_at_once() -> None:
    peer = FakePeer()
    nameserver = NameServer(config(), clock=ManualClock())
    register(nameserver, peer)
    nameserver.connection_closed(FakePeer(), "peer_closed")
    assert nameserver.tables.cluster_info().brokers != {}
    nameserver.connection_closed(peer, "peer_closed")
    assert nameserver.tables.cluster_info().brokers == {}


def test_an_invalid_network_is_refused_before_the_server_listens() -> None:
    with pytest.raises(ConfigError, match="contrailClusterAllowList"):
        NameServer(config(contrailClusterAllowList="10.0.0.0/99"), clock=ManualClock())


def test_the_shown_settings_are_in_force() -> None:
    nameserver = NameServer(config(listenPort="0"), clock=ManualClock())
    assert nameserver.config.listen_port == 0
    assert nameserver.config.kv_config_path == Path("/kv")

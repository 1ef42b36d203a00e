"""Reads a broker's properties by RocketMQ's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contrail.broker.access_config import AccessConfig, read_access_settings
from contrail.broker.config import BrokerConfig
from contrail.broker.replication_config import ReplicationConfig, read_replication_settings
from contrail.errors import ConfigError
from contrail.model.settings import moved_notes, names_of, read_settings
from contrail.store import StoreConfig, apache_names
from contrail.wire.addresses import require_addresses
from contrail.wire.router import parse_networks
from contrail.wire.server import FAST_PORT_DISTANCE
from contrail.wire.settings import (
    TLS_NAMES,
    Refusals,
    read_tls,
    require_allowed,
    unknown_notes,
    with_listen_address,
)
from contrail.wire.tls import TlsFiles, TlsMode

# Starting without the protection that these settings ask for would be worse than not starting.
_REFUSED: Refusals = {
    "aclEnable": (
        frozenset({"true"}),
        "access control 1.0 is not there; set authenticationEnabled=true and "
        "authorizationEnabled=true, which take the signatures of its clients",
    ),
    "enableControllerMode": (frozenset({"true"}), "there is no controller"),
    "haFlowControlEnable": (frozenset({"true"}), "replication is sent as fast as slaves take it"),
    "storeType": (
        frozenset({"defaultrocksdb", "rocksdb"}),
        "the RocksDB store cannot be read here; use the default store",
    ),
    "duplicationEnable": (
        frozenset({"true"}),
        "brokers do not copy logs by themselves; set brokerRole=SLAVE",
    ),
}

_KNOWN = (
    names_of(BrokerConfig)
    | names_of(ReplicationConfig)
    | names_of(AccessConfig)
    | apache_names()
    | TLS_NAMES
    | frozenset(_REFUSED)
)


class BrokerSettings(NamedTuple):
    """Everything a broker is started with.

    The operator reads ``notes``, about names that mean nothing here, and ``moved``, about numbers
    that are taken as other ones.
    """

    broker: BrokerConfig
    store: StoreConfig
    replication: ReplicationConfig
    access: AccessConfig
    tls_mode: TlsMode
    tls_files: TlsFiles | None
    notes: list[str]
    moved: list[str]


def read_broker_settings(properties: Mapping[str, str]) -> BrokerSettings:
    """Settings from a properties file or the command line.

    Raises:
        ConfigError: a value is wrong, or asks for something that is not there.
    """
    properties = with_listen_address(properties)
    require_allowed(properties, _REFUSED)
    mode, files = read_tls(properties)
    broker = read_settings(BrokerConfig, properties)
    _require_fast_port(broker)
    require_addresses("namesrvAddr", broker.name_servers)
    parse_networks(broker.cluster_allow_list)
    store = StoreConfig.from_properties(properties)
    replication = read_replication_settings(properties, broker)
    return BrokerSettings(
        broker=broker,
        store=store,
        replication=replication,
        access=read_access_settings(properties, broker, mode),
        tls_mode=mode,
        tls_files=files,
        notes=unknown_notes(properties, _KNOWN),
        moved=[
            *moved_notes(broker, properties),
            *moved_notes(store, properties),
            *moved_notes(replication, properties),
        ],
    )


def _require_fast_port(config: BrokerConfig) -> None:
    if 0 < config.listen_port <= FAST_PORT_DISTANCE:
        raise ConfigError(
            f"listenPort={config.listen_port} is refused: the fast port is "
            f"{FAST_PORT_DISTANCE} below it, so take a higher one"
        )

"""Reads a NameServer's properties: used, refused and ignored names of RocketMQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from contrail.model.settings import names_of
from contrail.nameserver.config import NameServerConfig
from contrail.wire.router import parse_networks
from contrail.wire.settings import (
    TLS_NAMES,
    Refusals,
    read_tls,
    require_allowed,
    unknown_notes,
    with_listen_address,
)
from contrail.wire.tls import TlsFiles, TlsMode

# A NameServer that cannot do what these settings ask for does not start.
_REFUSED: Refusals = {
    "enableControllerInNamesrv": (frozenset({"true"}), "there is no controller"),
}
# Properties of RocketMQ without an effect here, with the reason for the log.
_IGNORED: Mapping[str, str] = {
    "rocketmqHome": "no file is read from an installation folder",
    "configBlackList": "the settings that may be changed while it runs are a closed list",
}
_KNOWN = names_of(NameServerConfig) | TLS_NAMES | frozenset(_REFUSED) | frozenset(_IGNORED)


class NameServerSettings(NamedTuple):
    """All settings that a NameServer is started with; ``notes`` are for the operator."""

    config: NameServerConfig
    tls_mode: TlsMode
    tls_files: TlsFiles | None
    notes: list[str]


def read_nameserver_settings(properties: Mapping[str, str]) -> NameServerSettings:
    """Settings from a properties file or the command line.

    Raises:
        ConfigError: a value is wrong, or asks for a feature that does not exist.
    """
    properties = with_listen_address(properties)
    require_allowed(properties, _REFUSED)
    mode, files = read_tls(properties)
    config = NameServerConfig.from_properties(properties)
    parse_networks(config.cluster_allow_list)
    ignored = [f"{name} is ignored: {_IGNORED[name]}" for name in properties if name in _IGNORED]
    return NameServerSettings(
        config=config,
        tls_mode=mode,
        tls_files=files,
        notes=[*ignored, *unknown_notes(properties, _KNOWN)],
    )

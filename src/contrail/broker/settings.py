"""Reads a broker's properties: RocketMQ's names, told apart by what they mean here."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from contrail.broker.config import BrokerConfig
from contrail.errors import ConfigError
from contrail.model.settings import names_of, read_settings
from contrail.store.config import StoreConfig, apache_names
from contrail.wire.tls import TlsFiles, TlsMode

TLS_MODE = "tls.server.mode"
TLS_CERTIFICATE = "tls.server.certPath"
TLS_KEY = "tls.server.keyPath"
TLS_CLIENT_AUTHORITY = "tls.server.trustCertPath"
TLS_NAMES = frozenset({TLS_MODE, TLS_CERTIFICATE, TLS_KEY, TLS_CLIENT_AUTHORITY})

# Starting without what these ask for would be worse than not starting.
_REFUSED: Mapping[str, tuple[frozenset[str], str]] = {
    "brokerRole": (frozenset({"slave", "sync_master"}), "there is no replication; run a master"),
    "aclEnable": (frozenset({"true"}), "there is no access control; bind to loopback instead"),
    "authenticationEnabled": (frozenset({"true"}), "there is no access control"),
    "authorizationEnabled": (frozenset({"true"}), "there is no access control"),
    "enableDLegerCommitLog": (frozenset({"true"}), "there are no Raft groups"),
    "enableControllerMode": (frozenset({"true"}), "there is no controller"),
    "enableSlaveActingMaster": (frozenset({"true"}), "there is no replication"),
    "storeType": (
        frozenset({"defaultrocksdb", "rocksdb"}),
        "the RocksDB store cannot be read here; use the default store",
    ),
    "duplicationEnable": (frozenset({"true"}), "there is no replication"),
}


class BrokerSettings(NamedTuple):
    """Everything a broker is started with; ``notes`` are for the operator to read."""

    broker: BrokerConfig
    store: StoreConfig
    tls_mode: TlsMode
    tls_files: TlsFiles | None
    notes: list[str]


def read_broker_settings(properties: Mapping[str, str]) -> BrokerSettings:
    """Settings from a properties file or the command line.

    Raises:
        ConfigError: a value is wrong, or asks for something that is not there.
    """
    for name, text in properties.items():
        values, reason = _REFUSED.get(name, (frozenset(), ""))
        if text.strip().lower() in values:
            raise ConfigError(f"{name}={text} is refused: {reason}")
    mode, files = read_tls(properties)
    return BrokerSettings(
        broker=read_settings(BrokerConfig, properties),
        store=StoreConfig.from_properties(properties),
        tls_mode=mode,
        tls_files=files,
        notes=unknown_notes(properties, names_of(BrokerConfig) | apache_names() | TLS_NAMES),
    )


def read_tls(properties: Mapping[str, str]) -> tuple[TlsMode, TlsFiles | None]:
    """Without a certificate TLS is off; with one it is permissive unless said otherwise.

    Raises:
        ConfigError: the mode is unknown, or a file is missing or unusable.
    """
    certificate = properties.get(TLS_CERTIFICATE, "")
    text = properties.get(TLS_MODE, "permissive" if certificate else "disabled").strip().lower()
    if text not in list(TlsMode):
        raise ConfigError(f"{TLS_MODE}={text!r} must be one of {', '.join(TlsMode)}")
    mode = TlsMode(text)
    if mode is TlsMode.DISABLED:
        return mode, None
    key = properties.get(TLS_KEY, "")
    if not certificate or not key:
        raise ConfigError(f"{TLS_MODE}={text} needs {TLS_CERTIFICATE} and {TLS_KEY}")
    authority = properties.get(TLS_CLIENT_AUTHORITY)
    files = TlsFiles(
        Path(certificate), Path(key), client_authority=Path(authority) if authority else None
    )
    return mode, files


def unknown_notes(properties: Mapping[str, str], known: frozenset[str]) -> list[str]:
    """A line for each name that has no effect here."""
    notes = []
    for name in properties:
        if name in known or name in _REFUSED:
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f"; did you mean {near[0]}?" if near else ""
        notes.append(f"{name} is unknown here and has no effect{hint}")
    return notes

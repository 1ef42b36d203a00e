"""The settings of access control: one frozen value, under RocketMQ's own property names too.

``authenticationEnabled`` and ``authorizationEnabled`` are one switch: they must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contrail.access.state.gate import Whitelists
from contrail.access.state.quotas import QuotaRates, Rates
from contrail.broker.config import BrokerConfig
from contrail.broker.services.cluster_secret import read_cluster_secret
from contrail.errors import ConfigError
from contrail.model.settings import properties_of, read_settings, require_sound, setting
from contrail.protocol.codes import CodeClass
from contrail.protocol.prometheus_text import MetricsExporter
from contrail.protocol.signing import Credentials
from contrail.wire.addresses import is_loopback
from contrail.wire.router import code_class, parse_networks
from contrail.wire.tls import TlsMode

_INIT_USER = "initAuthenticationUser"
_INNER_CREDENTIALS = "innerClientAuthenticationCredentials"
_ANONYMOUS = "authenticationWhitelist"
_FREE = "authorizationWhitelist"
_ADMIN_NETWORKS = "contrailAdminNetworks"
_TRUSTED_NETWORKS = "contrailTrustedNetworks"
_SECRET_NAMES = frozenset({_INIT_USER, _INNER_CREDENTIALS})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AccessConfig:
    """Every setting of access control. Each field names its RocketMQ property."""

    authentication: bool = setting("authenticationEnabled", False)
    authorization: bool = setting("authorizationEnabled", False)
    init_user: str = setting(_INIT_USER, "")
    inner_credentials: str = setting(_INNER_CREDENTIALS, "")
    authentication_whitelist: str = setting(_ANONYMOUS, "")
    authorization_whitelist: str = setting(_FREE, "")
    admin_networks: str = setting(_ADMIN_NETWORKS, "")
    trusted_networks: str = setting(_TRUSTED_NETWORKS, "")
    key_path: str = setting("contrailAclKeyFile", "")
    failed_log_ins_per_s: int = setting("contrailFailedLogInsPerSecond", 10, lowest=0)
    user_messages: int = setting("contrailQuotaUserMessages", 0, lowest=0)
    user_bytes: int = setting("contrailQuotaUserBytes", 0, lowest=0)
    topic_messages: int = setting("contrailQuotaTopicMessages", 0, lowest=0)
    topic_bytes: int = setting("contrailQuotaTopicBytes", 0, lowest=0)
    address_messages: int = setting("contrailQuotaAddressMessages", 0, lowest=0)
    address_bytes: int = setting("contrailQuotaAddressBytes", 0, lowest=0)
    stale_ms: int = setting("contrailAccessStaleMillis", 10_000, lowest=0)

    def __post_init__(self) -> None:
        require_sound(self)
        if self.authentication != self.authorization:
            raise ConfigError(
                f"authenticationEnabled={str(self.authentication).lower()} with "
                f"authorizationEnabled={str(self.authorization).lower()} is refused: rights mean "
                "nothing without signatures, nor signatures without rights; set both alike"
            )
        if self.admin_networks and not self.is_on:
            raise ConfigError(
                f"{_ADMIN_NETWORKS} is refused without access control: set "
                "authenticationEnabled=true and authorizationEnabled=true, too"
            )
        if any(self.quotas.user) and not self.is_on:
            raise ConfigError(
                "contrailQuotaUserMessages and contrailQuotaUserBytes are refused without access "
                "control, for nothing tells the users: set authenticationEnabled=true and "
                "authorizationEnabled=true, too"
            )
        for name, text in (
            (_ADMIN_NETWORKS, self.admin_networks),
            (_TRUSTED_NETWORKS, self.trusted_networks),
        ):
            parse_networks(text, name)
        # Read now, so that a mistake is told before the start.
        _ = self.first_user, self.inner, self.whitelists

    @property
    def is_on(self) -> bool:
        return self.authentication

    @property
    def first_user(self) -> Credentials | None:
        """The Super user that a new table begins with."""
        return _credentials(_INIT_USER, self.init_user, "username", "password")

    @property
    def inner(self) -> Credentials | None:
        """The Super user by which brokers sign among themselves."""
        return _credentials(_INNER_CREDENTIALS, self.inner_credentials, "accessKey", "secretKey")

    def wrapping_key(self) -> bytes | None:
        """The key of the table's file, from a file of its own; None for a plain table.

        Raises:
            ConfigError: the file of the key cannot be used.
        """
        path = self.key_path
        return read_cluster_secret(Path(path), "contrailAclKeyFile") if path else None

    @property
    def quotas(self) -> QuotaRates:
        return QuotaRates(
            user=Rates(self.user_messages, self.user_bytes),
            topic=Rates(self.topic_messages, self.topic_bytes),
            address=Rates(self.address_messages, self.address_bytes),
        )

    @property
    def whitelists(self) -> Whitelists:
        return Whitelists(
            _codes(_ANONYMOUS, self.authentication_whitelist),
            _codes(_FREE, self.authorization_whitelist),
        )


def read_access_settings(
    properties: Mapping[str, str], broker: BrokerConfig, tls_mode: TlsMode
) -> AccessConfig:
    """The settings of access control, and whether they fit the listener.

    Raises:
        ConfigError: a value is wrong, or would open administration over an open wire.
    """
    config = read_settings(AccessConfig, properties)
    trusted = parse_networks(config.trusted_networks, _TRUSTED_NETWORKS)
    for network in parse_networks(config.admin_networks, _ADMIN_NETWORKS):
        is_trusted = any(
            network.version == one.version and network.subnet_of(one)  # type: ignore[arg-type]
            for one in trusted
        )
        if tls_mode is not TlsMode.ENFORCING and not is_trusted:
            raise ConfigError(
                f"{_ADMIN_NETWORKS}={config.admin_networks} is refused: a signed request that is "
                "read on the way can be sent again; set tls.server.mode=enforcing, or name "
                f"{network} in {_TRUSTED_NETWORKS} if nobody else reads there"
            )
    return config


def shown_properties(config: AccessConfig) -> dict[str, str]:
    """The settings that may be printed: credentials are left out."""
    return {name: text for name, text in properties_of(config).items() if name not in _SECRET_NAMES}


def access_warnings(config: AccessConfig, broker: BrokerConfig, tls_mode: TlsMode) -> list[str]:
    """Warnings for the operator before the start."""
    found = []
    if config.is_on and not is_loopback(broker.listen_address) and tls_mode is TlsMode.DISABLED:
        found.append(
            f"{broker.listen_address} is reached from other hosts without TLS: whoever reads a "
            "signed request on the way can send it again; set tls.server.certPath and "
            "tls.server.mode=enforcing"
        )
    has_metrics = broker.metrics_exporter is MetricsExporter.PROM
    if config.is_on and has_metrics and not is_loopback(broker.metrics_address):
        found.append(
            f"metricsPromExporterHost={broker.metrics_address}: metrics have no sign-in, and name "
            "topics and groups"
        )
    return found


def _credentials(setting_name: str, text: str, key: str, secret: str) -> Credentials | None:
    if not text.strip():
        return None
    try:
        document = json.loads(text)
        return Credentials(str(document[key]), str(document[secret]))
    except (ValueError, KeyError, TypeError, ConfigError):
        # Without the value, and without a cause that shows it.
        problem = f'{setting_name} is refused: write {{"{key}":"...","{secret}":"..."}}'
    raise ConfigError(problem)


def _codes(setting_name: str, text: str) -> frozenset[int]:
    codes = set()
    for piece in text.split(","):
        if not piece.strip():
            continue
        if not piece.strip().isdecimal() or code_class(int(piece)) is None:
            raise ConfigError(f"{setting_name}={text!r} is refused: {piece!r} is no request code")
        if code_class(int(piece)) is not CodeClass.DATA:
            raise ConfigError(
                f"{setting_name}={text!r} is refused: request {piece.strip()} is administration, "
                "which always needs a signature and rights"
            )
        codes.add(int(piece))
    return frozenset(codes)

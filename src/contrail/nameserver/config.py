"""The NameServer's settings: one frozen value, under RocketMQ's own property names too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from contrail.model.settings import properties_of, read_settings, require_sound, setting
from contrail.protocol.prometheus_text import MetricsExporter, parse_labels

_INT_MAX = (1 << 31) - 1


def _kv_config_path() -> Path:
    return Path.home() / "namesrv" / "kvConfig.json"


def _config_store_path() -> Path:
    return Path.home() / "namesrv" / "namesrv.properties"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """All settings of the NameServer room. Each field names its RocketMQ property.

    ``cluster_allow_list`` holds the networks, besides this host, whose brokers may register.
    """

    listen_address: str = setting("listenAddress", "127.0.0.1")
    listen_port: int = setting("listenPort", 9876, lowest=0, highest=65_535)
    # A setting is a dataclass field, not a shared default.
    kv_config_path: Path = setting("kvConfigPath", make_default=_kv_config_path)  # noqa: RUF009
    config_store_path: Path = setting(  # noqa: RUF009
        "configStorePath", make_default=_config_store_path
    )
    cluster_allow_list: str = setting("contrailClusterAllowList", "")

    order_config_in_routes: bool = setting("orderMessageEnable", False)
    order_config_to_brokers: bool = setting("returnOrderTopicConfigToBroker", True)
    all_topic_list_enabled: bool = setting("enableAllTopicList", True)
    topic_list_enabled: bool = setting("enableTopicList", True)
    acting_master_supported: bool = setting("supportActingMaster", False)
    wait_for_service: bool = setting("needWaitForService", False)
    wait_for_service_seconds: int = setting("waitSecondsForService", 45, lowest=0, highest=86_400)
    delete_topics_with_registration: bool = setting("deleteTopicWithBrokerRegistration", False)
    scan_interval_ms: int = setting(
        "scanNotActiveBrokerInterval", 5000, lowest=10, highest=_INT_MAX
    )
    # Apache's NameServer has no such settings; the names are those of Apache's broker.
    metrics_exporter: MetricsExporter = setting(  # noqa: RUF009
        "metricsExporterType", MetricsExporter.PROM
    )
    metrics_address: str = setting("metricsPromExporterHost", "127.0.0.1")
    metrics_port: int = setting("metricsPromExporterPort", 5558, lowest=0, highest=65_535)
    metrics_labels: str = setting("metricsLabel", "")

    def __post_init__(self) -> None:
        require_sound(self)
        parse_labels("metricsLabel", self.metrics_labels)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Read RocketMQ's property names; names of no NameServer setting are skipped.

        Raises:
            ConfigError: a value is not valid for its setting.
        """
        return read_settings(cls, properties)

    def to_properties(self) -> dict[str, str]:
        """All settings by RocketMQ's names, as texts that ``from_properties`` reads back."""
        return properties_of(self)

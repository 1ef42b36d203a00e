"""The NameServer's settings: one frozen value, under RocketMQ's own property names too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from contrail.errors import ConfigError

_INT_MAX = (1 << 31) - 1
# The lowest and highest value of each number.
_RANGES: dict[str, tuple[int, int]] = {
    "listen_port": (0, 65_535),
    "scan_interval_ms": (10, _INT_MAX),
    "wait_for_service_seconds": (0, 86_400),
}


def _setting(apache_name: str, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"apache": apache_name})


def _home_file(name: str) -> Callable[[], Path]:
    """A file where RocketMQ's NameServer keeps it by default."""
    return lambda: Path.home() / "namesrv" / name


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """Everything the NameServer room can be told. Each field names its RocketMQ property.

    ``cluster_allow_list`` holds the networks, besides this host, whose brokers may register.
    """

    listen_address: str = _setting("listenAddress", "127.0.0.1")
    listen_port: int = _setting("listenPort", 9876)
    kv_config_path: Path = dataclasses.field(
        default_factory=_home_file("kvConfig.json"), metadata={"apache": "kvConfigPath"}
    )
    config_store_path: Path = dataclasses.field(
        default_factory=_home_file("namesrv.properties"), metadata={"apache": "configStorePath"}
    )
    cluster_allow_list: str = _setting("contrailClusterAllowList", "")

    order_config_in_routes: bool = _setting("orderMessageEnable", False)
    order_config_to_brokers: bool = _setting("returnOrderTopicConfigToBroker", True)
    all_topic_list_enabled: bool = _setting("enableAllTopicList", True)
    topic_list_enabled: bool = _setting("enableTopicList", True)
    acting_master_supported: bool = _setting("supportActingMaster", False)
    wait_for_service: bool = _setting("needWaitForService", False)
    wait_for_service_seconds: int = _setting("waitSecondsForService", 45)
    delete_topics_with_registration: bool = _setting("deleteTopicWithBrokerRegistration", False)
    scan_interval_ms: int = _setting("scanNotActiveBrokerInterval", 5000)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _require_sound(field, getattr(self, field.name))
        object.__setattr__(self, "kv_config_path", Path(self.kv_config_path))
        object.__setattr__(self, "config_store_path", Path(self.config_store_path))

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Read RocketMQ's property names; names that are not the NameServer's are left alone.

        Raises:
            ConfigError: a value is not one of its setting's.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = properties.get(field.metadata["apache"])
            if text is not None:
                values[field.name] = _parsed(field, text.strip())
        return cls(**values)

    def to_properties(self) -> dict[str, str]:
        """All settings by RocketMQ's names, as texts that ``from_properties`` reads back."""
        return {
            str(field.metadata["apache"]): _text(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }


def _text(value: object) -> str:
    """A setting's value as RocketMQ's properties files write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(field: dataclasses.Field[Any], text: str) -> Any:
    name = field.metadata["apache"]
    if field.type == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}={text!r} is refused: it must be true or false")
        return text.lower() == "true"
    if field.type == "int":
        if not text.isascii() or not text.isdecimal():
            raise ConfigError(f"{name}={text!r} is refused: it must be a whole number")
        return int(text)
    return text


def _require_sound(field: dataclasses.Field[Any], value: Any) -> None:
    name = field.metadata["apache"]
    sound = {
        "bool": isinstance(value, bool),
        "int": type(value) is int,
        "Path": isinstance(value, str | Path),
        "str": isinstance(value, str),
    }
    if not sound[str(field.type)]:
        raise ConfigError(f"{name}={value!r} is refused: it must be of the kind {field.type}")
    if field.name in _RANGES:
        lowest, highest = _RANGES[field.name]
        if not lowest <= value <= highest:
            raise ConfigError(f"{name}={value} is out of range: it must be {lowest} to {highest}")

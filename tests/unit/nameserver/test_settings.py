"""Settings of the properties file, and the closed list that may change at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.errors import ConfigError, RequestRejected
from contrail.nameserver.config import NameServerConfig
from contrail.nameserver.state.settings import CHANGEABLE, RuntimeSettings
from contrail.protocol.codes import ResponseCode


def test_settings_read_back_from_their_own_properties() -> None:
    config = NameServerConfig(
        listen_port=0, kv_config_path=Path("/k"), wait_for_service=True, scan_interval_ms=100
    )
    assert NameServerConfig.from_properties(config.to_properties()) == config


def test_names_of_no_nameserver_setting_are_skipped() -> None:
    found = NameServerConfig.from_properties({"brokerName": "b", "orderMessageEnable": " True "})
    assert found.order_config_in_routes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listenPort", "x"),
        ("listenPort", "70000"),
        ("orderMessageEnable", "yes"),
        ("waitSecondsForService", "-1"),
        ("scanNotActiveBrokerInterval", "0"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        NameServerConfig.from_properties({name: value})


def test_a_value_of_another_kind_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="listenPort"):
        NameServerConfig(listen_port=True)
    with pytest.raises(ConfigError, match="orderMessageEnable"):
        NameServerConfig(order_config_in_routes="true")  # type: ignore[arg-type]


@pytest.fixture
def settings() -> RuntimeSettings:
    return RuntimeSettings(
        NameServerConfig(kv_config_path=Path("/k"), config_store_path=Path("/c"))
    )


@pytest.mark.proves("nameserver.routes.settings")
@pytest.mark.parametrize("name", sorted(CHANGEABLE))
def test_every_changeable_setting_changes(settings: RuntimeSettings, name: str) -> None:
    old = settings.config.to_properties()[name]
    new = {"true": "false", "false": "true"}.get(old, "7")
    assert settings.change({name: new}) == {name: (old, new)}
    assert settings.config.to_properties()[name] == new


@pytest.mark.proves("nameserver.routes.settings")
@pytest.mark.parametrize(
    "name",
    [
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
        "configBlackList",
        "listenPort",
        "listenAddress",
        "bindAddress",
        "contrailClusterAllowList",
        "scanNotActiveBrokerInterval",
        "tlsServerKeyPath",
        "serverIP1",
        "storePathRootDir",
    ],
)
def test_settings_of_files_and_connections_cannot_be_changed(
    settings: RuntimeSettings, name: str
) -> None:
    before = settings.config
    with pytest.raises(RequestRejected, match=name) as caught:
        settings.change({"orderMessageEnable": "true", name: "x"})
    assert caught.value.code == ResponseCode.NO_PERMISSION
    assert settings.config is before


def test_no_changeable_setting_is_a_path_an_address_or_a_port() -> None:
    text = "|".join(CHANGEABLE).lower()
    assert not any(word in text for word in ("path", "addr", "listen", "home", "allow"))


def test_an_unknown_setting_is_refused_by_name(settings: RuntimeSettings) -> None:
    with pytest.raises(RequestRejected, match="orderMessageEnabled") as caught:
        settings.change({"orderMessageEnabled": "true"})
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_one_wrong_value_leaves_all_settings_unchanged(settings: RuntimeSettings) -> None:
    before = settings.config
    with pytest.raises(RequestRejected, match="waitSecondsForService"):
        settings.change({"orderMessageEnable": "true", "waitSecondsForService": "99999999"})
    assert settings.config is before

"""Settings that may change while the broker runs, and those that may not."""

from __future__ import annotations

import dataclasses

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.state.runtime_settings import CHANGEABLE, RuntimeSettings
from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode

NOW_MS = 1_760_000_000_000


def refusal_of(settings: RuntimeSettings, properties: dict[str, str]) -> RequestRejected:
    with pytest.raises(RequestRejected) as refusal:
        settings.change(properties, NOW_MS)
    return refusal.value


def test_a_listed_setting_changes_and_says_what_it_was() -> None:
    settings = RuntimeSettings(BrokerConfig())
    changed = settings.change({"brokerPermission": "4", "traceOn": "FALSE"}, NOW_MS)
    assert changed == {"brokerPermission": ("6", "4"), "traceOn": ("true", "false")}
    assert settings.config.permission == 4
    assert settings.config.trace_on is False
    assert settings.epoch == 1
    assert settings.data_version.counter == 1
    assert settings.changed == {"brokerPermission": "4", "traceOn": "false"}


def test_one_refused_setting_leaves_all_as_they_were() -> None:
    settings = RuntimeSettings(BrokerConfig())
    refusal = refusal_of(settings, {"brokerPermission": "4", "nonsense": "1"})
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    assert "nonsense" in refusal.remark
    assert settings.config == BrokerConfig()
    assert settings.epoch == 0


@pytest.mark.parametrize(
    "name",
    [
        "brokerConfigPath", "rocketmqHome", "configBlackList", "namesrvAddr", "listenPort",
        "listenAddress", "brokerIP1", "storePathRootDir", "storePathCommitLog", "brokerName",
        "messageStorePlugIn", "filterServerNums_command", "haListenPort", "aclFile",
        "authenticationProvider_class", "tlsServerKeyPath", "haMasterAddress", "fetchNamesrvAddr",
    ],
)  # fmt: skip
def test_paths_addresses_ports_classes_and_commands_are_not_permitted(name: str) -> None:
    settings = RuntimeSettings(BrokerConfig())
    refusal = refusal_of(settings, {name: "x"})
    assert refusal.code == ResponseCode.NO_PERMISSION
    assert name in refusal.remark


def test_settings_of_other_rooms_are_known_but_fixed() -> None:
    settings = RuntimeSettings(BrokerConfig(), fixed_names=frozenset({"flushDiskType"}))
    assert refusal_of(settings, {"flushDiskType": "x"}).code == ResponseCode.NO_PERMISSION
    assert refusal_of(settings, {"flushDiskTyp": "x"}).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("brokerPermission", "8"),
        ("brokerPermission", "-1"),
        ("brokerPermission", "six"),
        ("brokerPermission", ""),
        ("shortPollingTimeMills", "0"),
        ("traceOn", "yes"),
        ("startAcceptSendRequestTimeStamp", "9" * 30),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused(name: str, text: str) -> None:
    settings = RuntimeSettings(BrokerConfig())
    assert name in refusal_of(settings, {name: text}).remark


def test_every_listed_setting_is_one_of_the_brokers_and_its_default_is_in_range() -> None:
    fields = {field.metadata["apache"]: field for field in dataclasses.fields(BrokerConfig)}
    for name, setting in CHANGEABLE.items():
        assert fields[name].name == setting.field
        default = getattr(BrokerConfig(), setting.field)
        if setting.highest is None:
            assert isinstance(default, bool), name
        else:
            assert not isinstance(default, bool), name
            assert setting.lowest <= default <= setting.highest, name


@pytest.mark.parametrize("value", ["1", "5", "7", "-2", "rw"])
def test_a_permission_of_dead_letters_that_means_nothing_is_refused(value: str) -> None:
    settings = RuntimeSettings(BrokerConfig())
    refusal = refusal_of(settings, {"contrailDeadLetterPerm": value})
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    assert "contrailDeadLetterPerm" in refusal.remark
    assert settings.config == BrokerConfig()

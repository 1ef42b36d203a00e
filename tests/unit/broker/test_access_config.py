"""The settings of access control."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.broker.access_config import (
    AccessConfig,
    access_warnings,
    read_access_settings,
    shown_properties,
)
from contrail.broker.config import BrokerConfig
from contrail.broker.settings import read_broker_settings
from contrail.errors import ConfigError
from contrail.protocol.codes import RequestCode
from contrail.protocol.signing import Credentials
from contrail.wire.tls import TlsMode

ON = {"authenticationEnabled": "true", "authorizationEnabled": "true"}
SECRET = "do-not-show-this"


def read(tls: TlsMode = TlsMode.DISABLED, **more: str) -> AccessConfig:
    return read_access_settings({**ON, **more}, BrokerConfig(), tls)


@pytest.mark.proves("access.settings.switch")
@pytest.mark.parametrize("name", ["authenticationEnabled", "authorizationEnabled"])
def test_one_switch_without_the_other_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="set both alike"):
        read_broker_settings({name: "true", "storePathRootDir": "/s"})


@pytest.mark.proves("access.settings.switch")
def test_access_control_of_old_stays_refused_and_names_the_new_one() -> None:
    with pytest.raises(ConfigError, match="authenticationEnabled=true"):
        read_broker_settings({"aclEnable": "true", "storePathRootDir": "/s"})
    assert not read_broker_settings({"storePathRootDir": "/s"}).access.is_on
    assert read_broker_settings({**ON, "storePathRootDir": "/s"}).access.is_on


def test_credentials_are_read_in_apaches_forms_and_never_shown() -> None:
    config = read(
        initAuthenticationUser=f'{{"username":"a","password":"{SECRET}"}}',
        innerClientAuthenticationCredentials=f'{{"accessKey":"b","secretKey":"{SECRET}"}}',
    )
    assert config.first_user == Credentials("a", SECRET)
    assert config.inner == Credentials("b", SECRET)
    assert SECRET not in repr(config) + repr(shown_properties(config))
    for text in (f'{{"username":"{SECRET}"}}', SECRET, f'["{SECRET}"]'):
        with pytest.raises(ConfigError) as refused:
            read(initAuthenticationUser=text)
        assert SECRET not in str(refused.value) and refused.value.__cause__ is None


@pytest.mark.proves("access.settings.whitelists")
def test_codes_of_administration_are_refused_in_whitelists() -> None:
    allowed = read(authenticationWhitelist="34, 105", authorizationWhitelist="34")
    assert allowed.whitelists.anonymous == {34, 105} and allowed.whitelists.free == {34}
    for text in (str(int(RequestCode.AUTH_CREATE_USER)), "25", "21", "999", "PULL", "-1"):
        for name in ("authenticationWhitelist", "authorizationWhitelist"):
            with pytest.raises(ConfigError):
                read(**{name: text})


@pytest.mark.proves("access.settings.admin-networks")
def test_administration_is_opened_over_a_safe_wire_only() -> None:
    with pytest.raises(ConfigError, match="without access control"):
        AccessConfig(admin_networks="10.0.0.0/8")
    networks = {"contrailAdminNetworks": "10.1.0.0/16"}
    for mode in (TlsMode.DISABLED, TlsMode.PERMISSIVE):
        with pytest.raises(ConfigError, match="enforcing"):
            read(mode, **networks)
        with pytest.raises(ConfigError, match="enforcing"):
            read(mode, **networks, contrailTrustedNetworks="10.1.1.0/24,fd00::/8")
        assert read(mode, **networks, contrailTrustedNetworks="10.0.0.0/8").admin_networks
    assert read(TlsMode.ENFORCING, **networks).admin_networks
    with pytest.raises(ConfigError, match="contrailAdminNetworks"):
        read(TlsMode.ENFORCING, contrailAdminNetworks="everywhere")


@pytest.mark.proves("access.settings.warnings")
def test_an_open_listener_is_warned_about() -> None:
    outside = BrokerConfig(listen_address="0.0.0.0", metrics_address="0.0.0.0")
    found = access_warnings(read(), outside, TlsMode.DISABLED)
    assert len(found) == 2 and "TLS" in found[0] and "metrics" in found[1]
    assert access_warnings(read(), BrokerConfig(), TlsMode.DISABLED) == []
    assert access_warnings(AccessConfig(), outside, TlsMode.DISABLED) == []


@pytest.mark.proves("access.settings.wrapped")
def test_the_key_of_the_table_is_read_from_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    assert AccessConfig().wrapping_key() is None
    path = tmp_path / "key"
    config = AccessConfig(key_path=str(path))
    with pytest.raises(ConfigError, match="contrailAclKeyFile"):
        config.wrapping_key()
    path.write_text("ab" * 32)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others than its owner"):
        config.wrapping_key()
    path.chmod(0o600)
    assert config.wrapping_key() == b"\xab" * 32


@pytest.mark.proves("access.guards.quotas")
def test_quotas_of_users_need_users() -> None:
    with pytest.raises(ConfigError, match="nothing tells the users"):
        AccessConfig(user_bytes=1)
    assert not AccessConfig().quotas.is_on
    assert AccessConfig(topic_messages=5).quotas.is_on

"""How a cluster is named, and the errors when it is not."""

from __future__ import annotations

from typing import Any

import pytest

from contrail.client.settings import NAMESRV_VARIABLE, ClientSettings
from contrail.errors import ConfigError


@pytest.mark.parametrize(
    "given", ["a:9876;b:9876", "a:9876,b:9876", " a:9876 ; b:9876 ;", ["a:9876", "b:9876"]]
)
def test_addresses_are_read_in_every_spelling(given: str | list[str]) -> None:
    assert ClientSettings.of(given).namesrv == ("a:9876", "b:9876")


def test_an_address_given_twice_counts_once() -> None:
    assert ClientSettings.of("a:1;a:1").namesrv == ("a:1",)


def test_the_environment_names_the_cluster_when_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(NAMESRV_VARIABLE, "n:9876")
    assert ClientSettings.of().namesrv == ("n:9876",)


def test_no_address_at_all_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAMESRV_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="namesrv='host:9876'"):
        ClientSettings.of()


@pytest.mark.parametrize("given", ["localhost", "host:port", "host:70000"])
def test_an_invalid_address_is_refused_by_name(given: str) -> None:
    with pytest.raises(ConfigError, match=given):
        ClientSettings.of(given)


def test_equal_settings_are_one_key() -> None:
    assert {ClientSettings.of("a:1"): 1} == {ClientSettings.of(["a:1"]): 1}


@pytest.mark.parametrize("given", [9876, [9876], ["a:1", None]])
def test_addresses_that_are_no_text_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"namesrv=.*'host:9876'"):
        ClientSettings.of(given)


@pytest.mark.parametrize(
    "given",
    [
        {"instance_name": 7},
        {"unit_name": 7},
        {"client_ip": 7},
        {"tls": "yes"},
        {"api_timeout_ms": "3"},
        {"api_timeout_ms": 0},
        {"poll_name_server_interval_ms": 1.5},
        {"heartbeat_broker_interval_ms": False},
        {"unitname": "u"},
    ],
)
def test_an_invalid_setting_is_named(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ConfigError, match=f"^{name}="):
        ClientSettings.of("a:1", **given)

"""How a cluster is named, and what is said when it is not."""

from __future__ import annotations

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
def test_what_is_no_address_is_refused_by_name(given: str) -> None:
    with pytest.raises(ConfigError, match=given):
        ClientSettings.of(given)


def test_equal_settings_are_one_key() -> None:
    assert {ClientSettings.of("a:1"): 1} == {ClientSettings.of(["a:1"]): 1}

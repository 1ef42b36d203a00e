"""A console listens in the open only behind TLS, and under a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrail.console.config import ConsoleConfig
from contrail.errors import ConfigError

PUBLIC = "https://console.example"


def config(**settings: Any) -> ConsoleConfig:
    return ConsoleConfig(folder=Path("state"), **settings)


@pytest.mark.proves("console.security.host")
@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"listen_address": "0.0.0.0"}, "--behind-proxy"),
        ({"listen_address": "10.0.0.1", "public_url": PUBLIC}, "--behind-proxy"),
        ({"listen_address": "10.0.0.1", "behind_proxy": True}, "--public-url"),
        ({"tls_key": Path("key.pem")}, "--tls-cert"),
        ({"public_url": "console.example"}, "--public-url"),
    ],
)
def test_an_open_address_without_tls_or_name_is_refused(
    settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        config(**settings).check()


def test_the_console_answers_to_its_own_addresses_alone() -> None:
    config().check()
    assert config().origins(80) == {
        "http://127.0.0.1:80",
        "http://localhost:80",
        "http://[::1]:80",
    }
    files = {"tls_certificate": Path("c"), "tls_key": Path("k")}
    open_one = config(listen_address="0.0.0.0", public_url=PUBLIC, **files)
    open_one.check()
    assert open_one.is_secure and PUBLIC in open_one.origins(443)

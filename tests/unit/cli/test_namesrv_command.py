"""Decisions of ``contrail namesrv`` before the start: refusals, notes, warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.cli.namesrv import opening_lines, warnings
from contrail.errors import ConfigError
from contrail.nameserver.settings import read_nameserver_settings


def warned(**properties: str) -> str:
    return "\n".join(warnings(read_nameserver_settings(properties)))


@pytest.mark.proves("broker.running.unknown-keys")
def test_settings_without_a_meaning_here_are_logged_and_change_nothing() -> None:
    assert "rocketmqHome is ignored" in warned(rocketmqHome="/opt/rocketmq")
    assert "listenPrt is unknown here and has no effect; did you mean listenPort?" in warned(
        listenPrt="1"
    )
    assert warned(listenPort="0") == ""


def test_a_controller_is_refused_by_name_and_its_absence_is_fine() -> None:
    with pytest.raises(ConfigError, match="enableControllerInNamesrv=true is refused"):
        read_nameserver_settings({"enableControllerInNamesrv": "true"})
    assert warned(enableControllerInNamesrv="false") == ""


def test_networks_are_checked_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="contrailClusterAllowList"):
        read_nameserver_settings({"contrailClusterAllowList": "10.0.0.0/99"})


@pytest.mark.proves("broker.running.apaches-files")
def test_rocketmqs_name_of_the_listening_address_is_understood() -> None:
    assert read_nameserver_settings({"bindAddress": "0.0.0.0"}).config.listen_address == "0.0.0.0"
    both = {"bindAddress": "0.0.0.0", "listenAddress": "127.0.0.1"}
    assert read_nameserver_settings(both).config.listen_address == "127.0.0.1"


def test_an_open_address_logs_which_hosts_may_register() -> None:
    assert warned(listenAddress="127.0.0.1") == ""
    assert "from this host only" in warned(listenAddress="0.0.0.0")
    listed = warned(listenAddress="0.0.0.0", contrailClusterAllowList="10.0.0.0/8")
    assert "from this host and from 10.0.0.0/8" in listed


def test_the_opening_lines_name_address_port_and_files() -> None:
    read = read_nameserver_settings({"listenPort": "0", "kvConfigPath": "/data/kv.json"})
    text = "\n".join(opening_lines(read, Path("namesrv.properties")))
    assert "127.0.0.1, port any free one" in text
    assert "/data/kv.json" in text
    assert "settings: namesrv.properties" in text

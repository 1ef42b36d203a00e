"""Decisions of ``contrail broker`` before the start: addresses, defaults, warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrail.broker.settings import read_broker_settings
from contrail.cli.broker import (
    Advertised,
    advertise,
    all_properties,
    default_properties,
    opening_lines,
    read_with_address,
    warnings,
)
from contrail.errors import ConfigError

ROOT = {"storePathRootDir": "data/store"}


def outgoing(listen_address: str) -> str | None:
    return "fd00::7" if ":" in listen_address else "10.0.0.7"


def nowhere(listen_address: str) -> str | None:
    return None


@pytest.mark.proves("broker.running.advertised-address")
@pytest.mark.parametrize(
    ("properties", "address", "reason"),
    [
        ({}, "127.0.0.1", "only this host"),
        ({"listenAddress": "localhost"}, "127.0.0.1", "only this host"),
        ({"listenAddress": "0.0.0.0"}, "10.0.0.7", "outgoing traffic"),
        ({"bindAddress": "0.0.0.0"}, "10.0.0.7", "outgoing traffic"),
        ({"listenAddress": "::"}, "fd00::7", "outgoing traffic"),
        ({"listenAddress": "10.1.1.1"}, "10.1.1.1", "listened on"),
        ({"listenAddress": "0.0.0.0", "brokerIP1": "10.9.9.9"}, "10.9.9.9", "brokerIP1 is set"),
        ({"brokerIP1": "127.0.0.1"}, "127.0.0.1", "brokerIP1 is set"),
    ],
)
def test_the_advertised_address_and_the_reason_for_it(
    properties: dict[str, str], address: str, reason: str
) -> None:
    read, advertised = read_with_address({**ROOT, **properties}, outgoing)
    assert advertised.address == address
    assert reason in advertised.reason
    assert read.broker.broker_ip == address
    assert any(address in line and reason in line for line in opening_lines(read, advertised, None))


def test_a_host_without_a_route_out_is_asked_for_brokerip1() -> None:
    with pytest.raises(ConfigError, match="brokerIP1"):
        advertise("0.0.0.0", "127.0.0.1", False, nowhere)
    assert advertise("0.0.0.0", "10.0.0.1", True, nowhere) == Advertised(
        "10.0.0.1", "brokerIP1 is set"
    )


def test_a_name_is_not_advertised() -> None:
    with pytest.raises(ConfigError, match=r"broker\.example.*brokerIP1"):
        read_with_address({**ROOT, "brokerIP1": "broker.example"}, outgoing)


def test_the_defaults_are_rocketmqs_folder_and_environment() -> None:
    assert default_properties({}) == {"storePathRootDir": str(Path.home() / "store")}
    found = default_properties({"NAMESRV_ADDR": "10.0.0.1:9876"})
    assert found["namesrvAddr"] == "10.0.0.1:9876"


def warned(**properties: Any) -> str:
    return "\n".join(warnings(read_broker_settings({**ROOT, **properties})))


def test_an_open_address_without_access_control_is_warned_about() -> None:
    assert "access control" not in warned()
    assert "no access control" in warned(listenAddress="0.0.0.0")
    assert "administration is refused" in warned(listenAddress="10.0.0.1")


def test_an_advertised_address_without_a_listener_is_warned_about() -> None:
    assert "listened on" not in warned(brokerIP1="127.0.0.1")
    assert "10.0.0.1 but only 127.0.0.1" in warned(brokerIP1="10.0.0.1")


def test_a_broker_without_nameservers_and_unknown_names_are_warned_about() -> None:
    assert "no NameServer" in warned()
    assert "no NameServer" not in warned(namesrvAddr="127.0.0.1:9876")
    assert "brokerNam is unknown here and has no effect; did you mean brokerName?" in warned(
        brokerNam="x"
    )


@pytest.mark.parametrize("text", ["a..b:9876", "host:99999", "nonsense", "a:9876,b:9876"])
def test_unreachable_name_server_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"namesrvAddr={text} is refused.*host:port;host:port"):
        read_with_address({**ROOT, "namesrvAddr": text}, outgoing)


def test_all_printed_settings_read_back_as_they_are() -> None:
    read, _ = read_with_address(
        {**ROOT, "brokerName": "b", "flushDiskType": "ASYNC_FLUSH"}, outgoing
    )
    again = read_broker_settings(all_properties(read))
    assert (again.broker, again.store, again.notes) == (read.broker, read.store, [])


def test_the_opening_line_names_the_promise_of_the_flush_mode() -> None:
    read, advertised = read_with_address(ROOT, outgoing)
    text = "\n".join(opening_lines(read, advertised, Path("broker.conf")))
    assert "SYNC_FLUSH (a message is acknowledged once it is on the disk)" in text
    assert "port 10911, fast port 10909" in text
    assert "settings: broker.conf" in text


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        ({}, "port for slaves: 10912"),
        ({"haListenPort": "7000"}, "port for slaves: 7000"),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, "master: the NameServers name it"),
        (
            {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "10.0.0.1:10912"},
            "master: 10.0.0.1:10912 (haMasterAddress)",
        ),
    ],
)
def test_the_opening_lines_name_the_other_half_of_a_pair(
    properties: dict[str, str], line: str
) -> None:
    secret = {"contrailClusterSecretFile": "cluster.secret"}
    read, advertised = read_with_address({**ROOT, **secret, **properties}, outgoing)
    assert line in opening_lines(read, advertised, None)
    read, advertised = read_with_address(ROOT, outgoing)
    assert not any("slave" in one for one in opening_lines(read, advertised, None))


@pytest.mark.proves("wire.server.two-ports")
@pytest.mark.parametrize("port", ["1", "2"])
def test_a_port_without_room_for_the_fast_port_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match=f"listenPort={port}.*fast port"):
        read_broker_settings({**ROOT, "listenPort": port})
    assert read_broker_settings({**ROOT, "listenPort": "3"}).broker.listen_port == 3


@pytest.mark.proves("broker.running.dangerous-keys")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("brokerRole", "SLAVE"),
        ("aclEnable", "true"),
        ("enableControllerMode", "True"),
        ("storeType", "defaultRocksDB"),
        ("contrailClusterAllowList", "10.0.0.0/99"),
    ],
)
def test_settings_that_contrail_lacks_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        read_broker_settings({**ROOT, name: value})


@pytest.mark.proves("broker.small-rules.broker-id")
@pytest.mark.parametrize(
    "asked",
    [{"brokerId": "1"}, {"brokerId": "7", "brokerRole": "ASYNC_MASTER"}],
)
def test_a_master_with_the_id_of_a_slave_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        read_broker_settings({**ROOT, **asked})
    assert f"brokerId={asked['brokerId']} with brokerRole=ASYNC_MASTER" in str(refusal.value)
    assert read_broker_settings({**ROOT, "brokerId": "0"}).broker.broker_id == 0


@pytest.mark.proves("broker.small-rules.broker-id")
@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("diskMaxUsedSpaceRatio", "5", "10"),
        ("diskMaxUsedSpaceRatio", "96", "95"),
        ("diskSpaceCleanForciblyRatio", "29", "30"),
        ("diskSpaceCleanForciblyRatio", "86", "85"),
        ("diskSpaceWarningLevelRatio", "34", "35"),
        ("diskSpaceWarningLevelRatio", "95", "90"),
        ("timerRollWindowSlot", "700000", "604740"),
        ("mappedFileSizeConsumeQueue", "6000001", "6000020"),
    ],
)
def test_a_clamped_number_is_logged_and_shown_as_it_counts(
    name: str, given: str, taken: str
) -> None:
    read, _ = read_with_address({**ROOT, name: given}, outgoing)
    (note,) = [line for line in warnings(read) if name in line]
    assert note.startswith(f"{name}={given} is taken as {taken}")
    assert all_properties(read)[name] == taken


def test_numbers_in_their_ranges_log_nothing() -> None:
    asked = {"diskMaxUsedSpaceRatio": "95", "diskSpaceCleanForciblyRatio": "30", "listenPort": "9"}
    assert read_broker_settings({**ROOT, **asked}).moved == []


@pytest.mark.proves("replication.failover.settings")
def test_a_member_of_a_failover_group_says_so_before_it_starts() -> None:
    group = {
        "enableDLegerCommitLog": "true",
        "dLegerPeers": "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913",
        "dLegerSelfId": "n1",
        "contrailClusterSecretFile": "secret",
    }
    read, advertised = read_with_address({**ROOT, **group}, lambda address: None)
    lines = opening_lines(read, advertised, None)
    assert "role: member n1 of a failover group of 3" in lines
    assert "port for members: 40912" in lines
    assert any("id 2, or 0 while it leads" in line for line in lines)
    assert not any("slaves" in line for line in lines)

"""Addresses that only this host reaches, that stand for all, and that are none."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from contrail.errors import ConfigError
from contrail.wire import addresses
from contrail.wire.addresses import (
    _LISTS,
    host_of,
    is_loopback,
    is_this_host,
    is_wildcard,
    outgoing_address,
    require_addresses,
    split_address,
    split_addresses,
)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_only_this_host_reaches_a_loopback_address(address: str) -> None:
    assert is_loopback(address)
    assert not is_wildcard(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", ""])
def test_a_wildcard_is_no_loopback(address: str) -> None:
    assert is_wildcard(address)
    assert not is_loopback(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "broker.example"])
def test_any_other_address_is_neither(address: str) -> None:
    assert not is_loopback(address)
    assert not is_wildcard(address)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        ("ns-1.example.:1", "ns-1.example.", 1),
        ("name_server:65535", "name_server", 65_535),
        ("[::1]:9876", "::1", 9876),
        ("fd00::1:9876", "fd00::1", 9876),
        ("b\u00fccher.example:9876", "b\u00fccher.example", 9876),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


BAD = [
    "", "nonsense", "host:", ":9876", "host:0", "host:65536", "host:99999", "host:-1", "host:x",
    "host:1\u0662", "a..b:9876", ".a:9876", "a b:9876", "a:1,b:2", "http://a:9876", "[::1:9876",
    "[]:9876", "x" * 64 + ":9876", "x." * 200 + "x:9876", "host:" + "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("address", BAD)
def test_a_text_that_nobody_can_connect_to_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)


def test_a_list_is_separated_by_semicolons() -> None:
    assert split_addresses(" a:1; b:2 ;;") == ["a:1", "b:2"]
    assert split_addresses("") == []
    require_addresses("namesrvAddr", "a:1; b:2 ;;")


def test_a_list_with_a_bad_piece_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"namesrvAddr=.*'b\.\.c:2'.*host:port;host:port"):
        require_addresses("namesrvAddr", "a:1;b..c:2")


def test_this_host_is_loopback_and_what_its_interfaces_have() -> None:
    assert all(map(is_this_host, ("127.0.0.1", "127.8.9.10", "::1", "localhost")))
    own = outgoing_address()
    assert own is None or is_this_host(own)
    strangers = ("192.0.2.77", "2001:db8::77", "0.0.0.0", "::", "", "somewhere.example")
    assert not any(map(is_this_host, strangers))


@pytest.mark.proves("broker.edges.unknown-clients")
def test_an_address_that_may_be_bound_is_not_this_hosts_for_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where net.ipv4.ip_nonlocal_bind and net.ipv6.ip_nonlocal_bind are 1."""

    class Granting(socket.socket):
        def bind(self, address: object) -> None:
            """The system refuses none."""

    own = outgoing_address()
    monkeypatch.setattr(socket, "socket", Granting)
    assert not is_this_host("198.51.100.77") and not is_this_host("2001:db8::77")
    assert own is None or is_this_host(own)
    lists = {version: (tmp_path / f"v{version}", form) for version, (_, form) in _LISTS.items()}
    monkeypatch.setattr(addresses, "_LISTS", lists)
    # A system without such a list is asked by binding alone.
    assert is_this_host("10.0.0.9") and is_this_host("fd00::2")
    (tmp_path / "v4").write_text(
        "Local:\n  +-- 10.0.0.0/24 2 0 2\n     |-- 10.0.0.8\n        /32 link UNICAST\n"
        "     |-- 10.0.0.9\n        /32 host LOCAL\n     |-- 10.0.0.255\n"
        "        /32 link BROADCAST\n"
    )
    (tmp_path / "v6").write_text("fd000000000000000000000000000002 04 40 00 82     eth0\n")
    assert is_this_host("10.0.0.9") and is_this_host("fd00::2")
    assert not any(map(is_this_host, ("10.0.0.8", "10.0.0.255", "10.0.0.0", "fd00::3")))


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.9:1", "10.0.0.9"), ("[::1]:5", "::1"), ("somewhere", "somewhere"), ("", "")],
)
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_of(address) == host

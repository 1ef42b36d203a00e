"""Packed hosts."""

from __future__ import annotations

import pytest

from contrail.errors import HostIllegal
from contrail.model.host import Host, pack_host, unpack_host


def test_an_ipv4_host_takes_eight_bytes() -> None:
    packed = pack_host("10.0.0.1", 10_911)
    assert packed == bytes.fromhex("0A00000100002A9F")
    assert unpack_host(packed) == Host("10.0.0.1", 10_911)
    assert str(unpack_host(packed)) == "10.0.0.1:10911"


def test_an_ipv6_host_takes_twenty_bytes() -> None:
    packed = pack_host("2001:db8::1", 9876)
    assert packed == bytes.fromhex("20010DB8" + "00" * 11 + "01" + "00002694")
    assert str(unpack_host(packed)) == "[2001:db8::1]:9876"


def test_a_zone_is_left_out_and_a_mapped_address_becomes_ipv4() -> None:
    assert pack_host("fe80::1%eth0", 1) == pack_host("fe80::1", 1)
    assert pack_host("::ffff:10.0.0.1", 1) == pack_host("10.0.0.1", 1)


@pytest.mark.parametrize("address", ["", "localhost", "10.0.0", "10.0.0.256", "::g"])
def test_a_text_that_is_no_address_is_refused_by_name(address: str) -> None:
    with pytest.raises(HostIllegal, match=repr(address)):
        pack_host(address, 1)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(HostIllegal, match=str(port)):
        pack_host("10.0.0.1", port)


@pytest.mark.parametrize("length", [0, 4, 7, 9, 16, 19, 21])
def test_a_packed_host_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(HostIllegal, match=f"has {length}$"):
        unpack_host(bytes(length))

"""Hosts as records and message ids hold them: the IP (4 or 16 bytes), then the port (4 bytes)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import NamedTuple

from contrail.errors import HostIllegal

IPV4_HOST_BYTES = 8
IPV6_HOST_BYTES = 20

_PORT = Struct(">i")


class Host(NamedTuple):
    """An IP address in text form and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


def pack_host(address: str, port: int) -> bytes:
    """The packed form: 8 bytes for IPv4, 20 for IPv6.

    Raises:
        HostIllegal: ``address`` is no IP address, or ``port`` is outside 0 to 65535.
    """
    if not 0 <= port <= 65_535:
        raise HostIllegal(f"port {port} of host {address!r} is outside 0 to 65535")
    return _parse_address(address).packed + _PORT.pack(port)


def unpack_host(packed: bytes) -> Host:
    """The host in ``packed``.

    Raises:
        HostIllegal: ``packed`` is neither 8 nor 20 bytes.
    """
    if len(packed) not in (IPV4_HOST_BYTES, IPV6_HOST_BYTES):
        raise HostIllegal(
            f"a packed host has 8 bytes (IPv4) or 20 (IPv6); {packed.hex()!r} has {len(packed)}"
        )
    (port,) = _PORT.unpack(packed[-_PORT.size :])
    return Host(str(ip_address(packed[: -_PORT.size])), port)


def _parse_address(address: str) -> IPv4Address | IPv6Address:
    try:
        # A zone ("fe80::1%eth0") is valid on one machine only and does not belong into a record.
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        raise HostIllegal(f"{address!r} is not an IPv4 or IPv6 address") from None
    # Java turns ::ffff:10.0.0.1 into 10.0.0.1 as well.
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed

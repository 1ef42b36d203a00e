"""Finds the address by which others reach this host, without sending anything."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path

from contrail.errors import ConfigError

# Reserved for documentation: no host answers there, but the way there is the default route.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_ANY_PORT = 9
_PORT_MAX = 65_535
_HOST_BYTES_MAX = 253
# Where Linux lists the addresses of its interfaces, and how they stand there.
_LISTS = {
    4: (Path("/proc/net/fib_trie"), re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")),
    6: (Path("/proc/net/if_inet6"), re.compile(r"^[0-9a-f]{32}", re.MULTILINE)),
}
_HOST_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*\.?")


def is_loopback(address: str) -> bool:
    """Whether only this host reaches a socket that is bound to ``address``."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def is_this_host(address: str) -> bool:
    """Whether ``address`` is one of this host's own: a loopback address, or one of an interface.

    The system grants a socket no other address to be bound to, unless ``ip_nonlocal_bind`` is set.
    Where the kernel lists the addresses of the interfaces, the list has the last word.
    """
    if is_loopback(address):
        return True
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    family = socket.AF_INET6 if known.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return not known.is_unspecified and _is_listed(known)


def _is_listed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether the kernel lists the address as its own; True where it has no such list."""
    path, listed = _LISTS[address.version]
    shown = str(address) if address.version == 4 else address.packed.hex()
    try:
        return shown in listed.findall(path.read_text())
    except OSError:
        return True


def host_of(address: str) -> str:
    """The host of ``host:port`` as peers are named; a text without a port is a host itself."""
    host, separator, _ = address.rpartition(":")
    return host.strip("[]") if separator else address


def is_wildcard(address: str) -> bool:
    """Whether a socket that is bound to ``address`` is reached by all of this host's addresses."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return address == ""


def outgoing_address(listen_address: str = "0.0.0.0") -> str | None:
    """The address of the interface that traffic to other networks leaves by; None without one."""
    family = socket.AF_INET6 if ":" in listen_address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket only chooses the route.
            probe.connect((_ELSEWHERE[family], _ANY_PORT))
        except OSError:
            return None
        found = str(probe.getsockname()[0])
    return None if is_wildcard(found) else found


def split_address(address: str) -> tuple[str, int]:
    """The host and port of ``host:port``; IPv6 addresses may stand in brackets.

    Raises:
        ValueError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) <= _PORT_MAX:
        raise ValueError(f"{address!r} is no address: write host:port, the port from 1 to 65535")
    if not _is_host(bare):
        raise ValueError(f"{address!r} is no address: write host:port, the host by name or IP")
    return bare, int(port)


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None and _encoded_bytes(host) <= _HOST_BYTES_MAX
    return True


def _encoded_bytes(host: str) -> int:
    """How long a name is to a resolver, which refuses a name that it cannot encode."""
    try:
        return len(host.encode("idna"))
    except UnicodeError:
        return _HOST_BYTES_MAX + 1


def split_addresses(text: str) -> list[str]:
    """The addresses of a list like ``host:port;host:port``; empty pieces do not count."""
    return [piece.strip() for piece in text.split(";") if piece.strip()]


def require_addresses(name: str, text: str) -> None:
    """Refuse a list of addresses that nobody could connect to.

    Raises:
        ConfigError: a piece of it is not ``host:port``.
    """
    for address in split_addresses(text):
        try:
            split_address(address)
        except ValueError as error:
            raise ConfigError(
                f"{name}={text} is refused: {error}; several are separated by semicolons, as in "
                "host:port;host:port"
            ) from None

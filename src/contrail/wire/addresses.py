"""Which of a host's addresses others reach it by. Nothing is sent to find out."""

from __future__ import annotations

import ipaddress
import socket

# Reserved for documentation: no host answers there, but the way there is the default route.
_ELSEWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_ANY_PORT = 9


def is_loopback(address: str) -> bool:
    """Whether only this host reaches a socket that is bound to ``address``."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


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

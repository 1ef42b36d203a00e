"""The address that a client's entries count for in tables shared by addresses."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from contrail.broker.state.shares import THIS_HOST
from contrail.wire.addresses import host_of, is_this_host
from contrail.wire.peer import Peer

_IPV6_PREFIX = 64


def owner_of(peer: Peer) -> str:
    """The key that a peer's entries count for: this host, its address, or its IPv6 /64 network.

    One host has all addresses of an IPv6 /64 network.
    """
    return THIS_HOST if peer.is_this_host else owner_at(peer.address)


def owner_at(address: str) -> str:
    """As ``owner_of``, for the ``ip:port`` of a peer."""
    return network_of(host_of(address)) or THIS_HOST


@lru_cache(maxsize=1024)
def network_of(host: str) -> str | None:
    """The address, or of IPv6 the network, that has a share; None for this host."""
    if is_this_host(host):
        return None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))

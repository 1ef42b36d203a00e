"""The members of a failover group, as Apache's DLedger settings name them.

``dLegerPeers`` is ``n0-host:port;n1-host:port;n2-host:port``: the ids of all members and the ports
at which they reach each other; ``dLegerSelfId`` is the id of this one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from contrail.errors import ConfigError
from contrail.wire.addresses import split_address

MEMBERS_MAX = 9
_SELF_ID = re.compile(r"n[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """Addresses by member, in the order of ``dLegerPeers``."""

    addresses: Mapping[str, str]
    self_id: str
    preferred: str = ""

    @property
    def port(self) -> int:
        """The port at which this member is reached by the others."""
        return split_address(self.addresses[self.self_id])[1]

    @property
    def broker_id(self) -> int:
        """The id under which this member registers while it does not lead, as in RocketMQ."""
        return int(self.self_id[1:]) + 1


def read_group_members(peers: str, self_id: str, *, preferred: str = "") -> GroupMembers:
    """The members that the settings name.

    Raises:
        ConfigError: they contradict each other; the message names the fix.
    """
    addresses: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in peers.split(";"))):
        member, dash, address = part.partition("-")
        if not dash or not _SELF_ID.fullmatch(member):
            raise ConfigError(
                f"dLegerPeers={peers} is refused: {part!r} is no member; name each as "
                "n0-host:port, separated by semicolons"
            )
        _require_address(peers, address)
        if member in addresses or address in addresses.values():
            raise ConfigError(
                f"dLegerPeers={peers} is refused: {part!r} stands there twice; each member has "
                "an id and a port of its own"
            )
        addresses[member] = address
    if len(addresses) > MEMBERS_MAX:
        raise ConfigError(f"dLegerPeers names {len(addresses)} members: {MEMBERS_MAX} at most")
    if self_id not in addresses:
        raise ConfigError(
            f"dLegerSelfId={self_id or '(nothing)'} is refused: dLegerPeers names "
            f"{', '.join(addresses) or 'nobody'}; set it to the id of this broker's own entry"
        )
    if preferred and preferred not in addresses:
        raise ConfigError(
            f"preferredLeaderId={preferred} is refused: dLegerPeers names {', '.join(addresses)}; "
            "name one of them, or leave it out"
        )
    return GroupMembers(addresses, self_id, preferred)


def _require_address(peers: str, address: str) -> None:
    try:
        split_address(address)
    except ValueError:
        raise ConfigError(f"dLegerPeers={peers} is refused: {address!r} is no host:port") from None

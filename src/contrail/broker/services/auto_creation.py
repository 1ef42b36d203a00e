"""The limits of topics and groups that requests create without an operator.

Every way that creates one asks ``AutoCreation.admit``: sends, pulls, heartbeats, messages sent
back, questions for a group's settings. A limit is counted by the address that a connection comes
from, without the port, and one address gets a share of it (``contrailAutoCreateShare``); of IPv6
the network of 64 bits counts, because one host has all of its addresses.

Connections from this host count one by one and may use a whole limit: on a developer's machine
everything comes from there, and nothing else on such a host is kept from the broker either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from contrail.broker.services.address_shares import network_of
from contrail.broker.state.creators import CreationRate, Creators
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.runtime.sparse_log import SparseLog
from contrail.wire.addresses import host_of

_log = logging.getLogger(__name__)

SHARE_SETTING = "contrailAutoCreateShare"


class Refusal(NamedTuple):
    """Why nothing is created; ``is_momentary`` if it may be in the next second."""

    reason: str
    is_momentary: bool = False


class Creator(NamedTuple):
    """The key that creations count by: an address, or one connection of this host."""

    key: str
    is_this_host: bool


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of creation, and the settings that limit it."""

    plural: str
    count_setting: str
    rate_setting: str
    count_max: Callable[[], int]
    rate_max: Callable[[], int]


class AutoCreation:
    """Admits one creation after the other."""

    def __init__(
        self,
        kind: Kind,
        settings: RuntimeSettings,
        creators: Creators,
        count: Callable[[], int],
    ) -> None:
        """``count`` tells how many there are that count towards the limit."""
        self._kind = kind
        self._settings = settings
        self._creators = creators
        self._count = count
        self._rate = CreationRate()
        self._refusals = SparseLog(_log)

    def admit(self, name: str, client: str, now_ms: int) -> Refusal | None:
        """Count one more creation for ``client``, an ``ip:port``; or say why there is none.

        A client that is not known by an address shares one with all others of that kind.
        """
        creator = creator_of(client)
        refusal = self._refusal(creator, now_ms)
        if refusal is not None:
            self._refusals.warning(
                now_ms,
                "%s %r is not created for %s: %s",
                self._kind.plural[:-1],
                name,
                client or "a client",
                refusal.reason,
            )
        elif not creator.is_this_host:
            self._creators.add(name, creator.key)
        return refusal

    def _refusal(self, creator: Creator, now_ms: int) -> Refusal | None:
        kind, key = self._kind, creator.key
        if self._creators.too_long is not None:
            return Refusal(f"it could not be saved: {self._creators.too_long}")
        count_max = kind.count_max()
        if self._count() >= count_max:
            return Refusal(
                f"there are {self._count()} {kind.plural} of {kind.count_setting}={count_max}, and "
                "no more are created automatically"
            )
        if not creator.is_this_host and self._creators.count(key) >= self._share(count_max):
            return Refusal(
                f"{self._creators.count(key)} {kind.plural} were created for address "
                f"{key} already, its share ({SHARE_SETTING}={self._percent} percent) of "
                f"{kind.count_setting}={count_max}"
            )
        rate_max = kind.rate_max()
        if not self._rate.admit(key, now_ms=now_ms, count_max=rate_max):
            return Refusal(
                f"{rate_max} {kind.plural} were created for {key or 'it'} in this second "
                f"({kind.rate_setting}={rate_max})",
                is_momentary=True,
            )
        return None

    @property
    def _percent(self) -> int:
        return self._settings.config.auto_create_share

    def _share(self, count_max: int) -> int:
        """At least one, unless the limit itself is zero."""
        return max(1, count_max * self._percent // 100)


def creator_of(client: str) -> Creator:
    """The key that a client's creations are counted by."""
    host = host_of(client)
    network = network_of(host)
    return Creator(client, True) if network is None else Creator(network, False)

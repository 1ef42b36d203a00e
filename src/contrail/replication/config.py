"""The settings of replication: the identity of this broker, and the peers that it trusts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from contrail.protocol.handshake import SEALED, Introduction, fingerprint_of
from contrail.replication.state.ha_limits import HaLimits
from contrail.replication.state.in_sync import InSyncRules
from contrail.wire.router import Networks


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The identity of a broker; both ends of a link have one cluster, name and group."""

    cluster: str
    broker_name: str
    broker_id: int
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTrust:
    """The peers that a link is made with, and its protection.

    A Contrail peer proves ``secret``. A peer that speaks plain HA, as Apache's brokers do, is taken
    only with ``takes_plain`` and from this host or ``networks``. A link to another host without TLS
    has its frames sealed, unless ``takes_unsealed``.
    """

    secret: bytes | None = None
    takes_plain: bool = False
    networks: Networks = ()
    takes_unsealed: bool = False
    server_tls: ssl.SSLContext | None = None
    server_certificate: bytes = b""
    client_tls: ssl.SSLContext | None = None

    def introduction(
        self,
        identity: BrokerIdentity,
        role: str,
        nonce: bytes,
        *,
        is_protected: bool,
        member: str = "",
    ) -> Introduction:
        """How a broker introduces itself on a link; ``is_protected`` by TLS or by its host.

        ``member`` is the id of a member within its failover group.
        """
        assert self.secret is not None, "a handshake proves a secret"
        return Introduction(
            needs=() if is_protected or self.takes_unsealed else (SEALED,),
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            role=role,
            group=identity.group,
            nonce=nonce,
            fingerprint=fingerprint_of(self.secret),
            member=member,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HaMasterConfig:
    """``facts`` go to Contrail slaves with the welcome: what they need to know of their master."""

    identity: BrokerIdentity
    trust: LinkTrust = field(default_factory=LinkTrust)
    limits: HaLimits = field(default_factory=HaLimits)
    in_sync: InSyncRules = field(default_factory=InSyncRules)
    listen_address: str = "0.0.0.0"
    listen_port: int = 10912
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HaSlaveConfig:
    """``is_plain``: the master is Apache's, or told us to speak plain HA."""

    identity: BrokerIdentity
    trust: LinkTrust = field(default_factory=LinkTrust)
    limits: HaLimits = field(default_factory=HaLimits)
    is_plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """A member of a failover group; ``peers`` are the addresses of all members, this one's too.

    ``facts`` are settings that shape the log's bytes: all members need the same. ``address`` is
    where clients reach this member.
    """

    identity: BrokerIdentity
    self_id: str
    peers: Mapping[str, str]
    trust: LinkTrust
    listen_address: str = "0.0.0.0"
    listen_port: int
    address: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

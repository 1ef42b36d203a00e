"""The handshake of two Contrail brokers: both prove the cluster secret, and agree on a version.

1. The slave says ``HELLO``: an introduction with a fresh nonce.
2. The master says ``ANSWER``: its proof and its introduction, with a fresh nonce of its own.
3. The slave says ``PROOF``. Then the master says ``WELCOME``, and the link is open.

A proof is an HMAC-SHA256 by the secret over both introductions as they were sent (version, broker
name, id, role, group and nonces with them) and over the TLS channel, if there is one: a proof is
of no use in another handshake, in the other direction or on another channel. Keys for the seals of
later frames come from the same bytes.

Peers of different versions use the lower one, if both know it. Unknown fields and features of an
introduction are ignored.

Two members of a failover group are equals: the one that dials takes the slave's part.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from contrail.errors import RemoteProtocolError

VERSION = 1
VERSION_MIN = 1
SEALED = "sealed"
"""The feature of a peer that can seal frames; in ``needs`` it insists on it."""
FEATURES = (SEALED,)
NONCE_BYTES = 32
PROOF_BYTES = 32
INTRODUCTION_BYTES_MAX = 8192
_NAME_CHARS_MAX = 255
MASTER, SLAVE, MEMBER = "master", "slave", "member"
_OPPOSITE = {MASTER: SLAVE, SLAVE: MASTER, MEMBER: MEMBER}


class HandshakeRefused(RemoteProtocolError):
    """The peer may not join; ``reason`` is counted and sent to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """The claims of a broker about itself, before anything is proven."""

    version: int = VERSION
    version_min: int = VERSION_MIN
    features: tuple[str, ...] = FEATURES
    needs: tuple[str, ...] = ()
    cluster: str
    broker_name: str
    broker_id: int
    role: str
    group: str = ""
    nonce: bytes
    fingerprint: str
    member: str = ""
    """The id of a member within its failover group."""

    def encode(self) -> bytes:
        member = {"member": self.member} if self.member else {}
        return json.dumps(
            {
                "version": self.version,
                "versionMin": self.version_min,
                "features": self.features,
                "needs": self.needs,
                "cluster": self.cluster,
                "brokerName": self.broker_name,
                "brokerId": self.broker_id,
                "role": self.role,
                "group": self.group,
                "nonce": self.nonce.hex(),
                "secret": self.fingerprint,
                **member,
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Introduction:
        """Raises ``RemoteProtocolError`` for bytes that are no introduction."""
        if len(data) > INTRODUCTION_BYTES_MAX:
            raise RemoteProtocolError("handshake", f"an introduction of {len(data)} bytes")
        try:
            return cls._of(json.loads(data))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RemoteProtocolError("handshake", f"no introduction: {error!r}") from error

    @classmethod
    def _of(cls, fields: Any) -> Introduction:
        found = cls(
            version=_typed(fields["version"], int),
            version_min=_typed(fields["versionMin"], int),
            features=tuple(_typed(name, str) for name in fields["features"]),
            needs=tuple(_typed(name, str) for name in fields["needs"]),
            cluster=_name(fields["cluster"]),
            broker_name=_name(fields["brokerName"]),
            broker_id=_typed(fields["brokerId"], int),
            role=_name(fields["role"]),
            group=_name(fields["group"]),
            nonce=bytes.fromhex(fields["nonce"]),
            fingerprint=_name(fields["secret"]),
            member=_name(fields.get("member", "")),
        )
        if len(found.nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce of {len(found.nonce)} bytes")
        return found


class Agreement(NamedTuple):
    """The outcome of a handshake, as one of the two sees it."""

    version: int
    features: frozenset[str]
    peer: Introduction
    is_sealed: bool
    sending_key: bytes
    receiving_key: bytes


class SlaveHandshake:
    """The slave's side: ``hello``, then ``answered``."""

    def __init__(self, own: Introduction, secret: bytes, *, channel: bytes = b"") -> None:
        self._own = own
        self._secret = secret
        self._channel = channel
        self.hello = own.encode()

    def answered(self, payload: bytes) -> tuple[bytes, Agreement]:
        """Check the master's answer; returns our proof and what was agreed on.

        Raises:
            HandshakeRefused: the master has another secret, or is not the one we look for.
        """
        proof, answer = payload[:PROOF_BYTES], payload[PROOF_BYTES:]
        peer = Introduction.decode(answer)
        _require_matching(self._own, peer)
        transcript = _transcript(self.hello, answer, self._channel)
        _require_proof(self._secret, MASTER, transcript, proof, peer)
        agreement = _agree(self._own, peer, self._secret, transcript, is_dialer=True)
        return _proof(self._secret, SLAVE, transcript), agreement


class MasterHandshake:
    """The master's side: ``greeted``, then ``proved``."""

    def __init__(self, own: Introduction, secret: bytes, *, channel: bytes = b"") -> None:
        self._own = own
        self._secret = secret
        self._channel = channel
        self._transcript = b""
        self._peer: Introduction | None = None

    def greeted(self, payload: bytes) -> bytes:
        """Check a slave's introduction; returns the payload of our answer.

        Raises:
            HandshakeRefused: the slave is of another cluster, broker or secret.
        """
        self._peer = Introduction.decode(payload)
        _require_matching(self._own, self._peer)
        answer = self._own.encode()
        self._transcript = _transcript(payload, answer, self._channel)
        return _proof(self._secret, MASTER, self._transcript) + answer

    def proved(self, payload: bytes) -> Agreement:
        """Check the slave's proof.

        Raises:
            HandshakeRefused: it does not know the secret.
        """
        if self._peer is None:
            raise RemoteProtocolError("handshake", "a proof before the introduction")
        _require_proof(self._secret, SLAVE, self._transcript, payload, self._peer)
        return _agree(self._own, self._peer, self._secret, self._transcript, is_dialer=False)


def fingerprint_of(secret: bytes) -> str:
    """A short name of a secret, which does not tell it: for logs and for the other side."""
    return hashlib.sha256(b"contrail fingerprint\0" + secret).hexdigest()[:16]


def _require_matching(own: Introduction, peer: Introduction) -> None:
    """Refuse a peer that cannot be the other half of this pair, by its own words already."""
    if peer.fingerprint != own.fingerprint:
        raise HandshakeRefused(
            "secret",
            f"{_named(peer)} has the cluster secret {peer.fingerprint}, {_named(own)} has "
            f"{own.fingerprint}: give both the same contrailClusterSecretFile",
        )
    if min(own.version, peer.version) < max(own.version_min, peer.version_min):
        raise HandshakeRefused(
            "version",
            f"{_named(peer)} speaks versions {peer.version_min} to {peer.version}, {_named(own)} "
            f"{own.version_min} to {own.version}: upgrade the older one",
        )
    wanted = (own.cluster, own.broker_name, own.group, _OPPOSITE[own.role])
    if (peer.cluster, peer.broker_name, peer.group, peer.role) != wanted:
        raise HandshakeRefused("stranger", f"{_named(peer)} is no peer of {_named(own)}")
    if peer.role == MEMBER:
        if not peer.member or peer.member == own.member:
            raise HandshakeRefused(
                "member", f"{_named(peer)} cannot be beside {_named(own)}: dLegerSelfId must differ"
            )
    elif peer.broker_id == own.broker_id or (peer.broker_id == 0) != (peer.role == MASTER):
        raise HandshakeRefused(
            "broker_id", f"{_named(peer)} cannot be beside {_named(own)}: a master has id 0"
        )
    missing = {*own.needs} - {*peer.features} | {*peer.needs} - {*own.features}
    if missing:
        raise HandshakeRefused(
            "features", f"{_named(peer)} and {_named(own)} do not both know {sorted(missing)}"
        )


def _agree(
    own: Introduction, peer: Introduction, secret: bytes, transcript: bytes, *, is_dialer: bool
) -> Agreement:
    to_slave = _derived(secret, b"contrail ha to slave\0", transcript)
    to_master = _derived(secret, b"contrail ha to master\0", transcript)
    return Agreement(
        min(own.version, peer.version),
        frozenset(own.features) & frozenset(peer.features),
        peer,
        SEALED in (*own.needs, *peer.needs),
        to_master if is_dialer else to_slave,
        to_slave if is_dialer else to_master,
    )


def _transcript(hello: bytes, answer: bytes, channel: bytes) -> bytes:
    return b"".join(hashlib.sha256(part).digest() for part in (hello, answer, channel))


def _proof(secret: bytes, role: str, transcript: bytes) -> bytes:
    return _derived(secret, b"contrail ha proof of " + role.encode() + b"\0", transcript)


def _derived(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, label + transcript, "sha256")


def _require_proof(
    secret: bytes, role: str, transcript: bytes, proof: bytes, peer: Introduction
) -> None:
    if not hmac.compare_digest(_proof(secret, role, transcript), proof):
        raise HandshakeRefused("proof", f"{_named(peer)} does not prove the cluster secret")


def _named(broker: Introduction) -> str:
    number = broker.member or broker.broker_id
    return f"{broker.role} {broker.cluster}/{broker.broker_name}:{number}"


def _name(value: Any) -> str:
    """A word that is told in logs and answers before it is proven: one short line."""
    name: str = _typed(value, str)
    if len(name) > _NAME_CHARS_MAX or not name.isprintable():
        raise ValueError(f"a name of {len(name)} characters")
    return name


def _typed(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value

"""The handshake of two Contrail brokers: mutual, fresh, bound to what both said, versioned."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from contrail.errors import RemoteProtocolError
from contrail.protocol.handshake import (
    FEATURES,
    MASTER,
    MEMBER,
    NONCE_BYTES,
    SEALED,
    SLAVE,
    Agreement,
    HandshakeRefused,
    Introduction,
    MasterHandshake,
    SlaveHandshake,
    fingerprint_of,
)

SECRET, OTHER = b"secret one", b"secret two"


def introduction(role: str, secret: bytes = SECRET, **changes: Any) -> Introduction:
    fields: dict[str, Any] = {
        "cluster": "c",
        "broker_name": "b",
        "broker_id": 0 if role == MASTER else 1,
        "role": role,
        "nonce": (b"m" if role == MASTER else b"s") * NONCE_BYTES,
        "fingerprint": fingerprint_of(secret),
    }
    return Introduction(**{**fields, **changes})


def meet(
    slave: Introduction,
    master: Introduction,
    *,
    slave_channel: bytes = b"",
    master_channel: bytes = b"",
) -> tuple[Agreement, Agreement]:
    slave_side = SlaveHandshake(slave, SECRET, channel=slave_channel)
    master_side = MasterHandshake(master, SECRET, channel=master_channel)
    proof, slave_agreed = slave_side.answered(master_side.greeted(slave_side.hello))
    return slave_agreed, master_side.proved(proof)


@pytest.mark.proves("replication.pair.handshake")
def test_both_sides_agree_on_keys_that_differ_by_direction() -> None:
    slave, master = meet(introduction(SLAVE), introduction(MASTER))
    assert slave.sending_key == master.receiving_key
    assert slave.receiving_key == master.sending_key
    assert slave.sending_key != slave.receiving_key
    assert (slave.peer.role, master.peer.role) == (MASTER, SLAVE)


@pytest.mark.proves("replication.pair.handshake")
def test_fresh_nonces_give_fresh_keys_and_old_proofs_are_worth_nothing() -> None:
    slave_side = SlaveHandshake(introduction(SLAVE), SECRET)
    first = MasterHandshake(introduction(MASTER), SECRET)
    proof, agreed = slave_side.answered(first.greeted(slave_side.hello))
    again = MasterHandshake(introduction(MASTER, nonce=b"n" * NONCE_BYTES), SECRET)
    again.greeted(slave_side.hello)
    with pytest.raises(HandshakeRefused) as refusal:
        again.proved(proof)
    assert refusal.value.reason == "proof"
    assert first.proved(proof).sending_key == agreed.receiving_key


@pytest.mark.proves("replication.pair.secret")
def test_another_secret_is_told_by_both_fingerprints() -> None:
    slave_side = SlaveHandshake(introduction(SLAVE, OTHER), OTHER)
    with pytest.raises(HandshakeRefused) as refusal:
        MasterHandshake(introduction(MASTER), SECRET).greeted(slave_side.hello)
    assert refusal.value.reason == "secret"
    assert fingerprint_of(SECRET) in str(refusal.value) and fingerprint_of(OTHER) in str(
        refusal.value
    )
    with pytest.raises(HandshakeRefused, match=fingerprint_of(SECRET)):
        slave_side.answered(b"\0" * 32 + introduction(MASTER).encode())


def test_a_peer_that_only_claims_the_secret_fails_at_the_proof() -> None:
    liar = SlaveHandshake(introduction(SLAVE, SECRET), OTHER)
    master_side = MasterHandshake(introduction(MASTER), SECRET)
    answer = master_side.greeted(liar.hello)
    with pytest.raises(HandshakeRefused) as refusal:
        liar.answered(answer)
    assert refusal.value.reason == "proof"
    for proof in (b"", b"\0" * 32, answer[:32]):
        with pytest.raises(HandshakeRefused):
            master_side.proved(proof)


@pytest.mark.proves("replication.pair.handshake")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster": "other"}, "stranger"),
        ({"broker_name": "other"}, "stranger"),
        ({"group": "other"}, "stranger"),
        ({"role": MASTER, "broker_id": 0}, "stranger"),
        ({"broker_id": 0}, "broker_id"),
    ],
)
def test_a_peer_of_another_name_role_or_group_is_refused(
    changes: dict[str, Any], reason: str
) -> None:
    hello = replace(introduction(SLAVE), **changes).encode()
    with pytest.raises(HandshakeRefused) as refusal:
        MasterHandshake(introduction(MASTER), SECRET).greeted(hello)
    assert refusal.value.reason == reason


@pytest.mark.proves("replication.pair.handshake")
def test_a_handshake_cannot_be_changed_on_the_way() -> None:
    slave_side = SlaveHandshake(introduction(SLAVE), SECRET)
    master_side = MasterHandshake(introduction(MASTER), SECRET)
    answer = master_side.greeted(slave_side.hello.replace(b'"brokerId": 1', b'"brokerId": 2'))
    with pytest.raises(HandshakeRefused):
        slave_side.answered(answer)


@pytest.mark.proves("replication.pair.handshake")
def test_a_handshake_is_bound_to_its_tls_channel() -> None:
    with pytest.raises(HandshakeRefused):
        meet(introduction(SLAVE), introduction(MASTER), slave_channel=b"one", master_channel=b"two")
    meet(introduction(SLAVE), introduction(MASTER), slave_channel=b"one", master_channel=b"one")


@pytest.mark.proves("replication.ground.versions")
@pytest.mark.parametrize("newer", [SLAVE, MASTER])
def test_peers_one_version_apart_speak_the_older_one(newer: str) -> None:
    older = MASTER if newer == SLAVE else SLAVE
    sides = {
        newer: introduction(newer, version=2, features=(*FEATURES, "of-version-2")),
        older: introduction(older),
    }
    slave, master = meet(sides[SLAVE], sides[MASTER])
    assert (slave.version, master.version) == (1, 1)
    assert slave.features == master.features == frozenset(FEATURES)


@pytest.mark.proves("replication.ground.versions")
def test_peers_too_far_apart_are_told_so() -> None:
    with pytest.raises(HandshakeRefused, match="upgrade the older one"):
        meet(introduction(SLAVE), introduction(MASTER, version=3, version_min=2))


@pytest.mark.proves("replication.ground.versions")
def test_unknown_fields_of_a_later_version_are_ignored() -> None:
    known = introduction(SLAVE)
    fields = json.loads(known.encode()) | {"of": ["a", "later", "version"]}
    assert Introduction.decode(json.dumps(fields).encode()) == known


@pytest.mark.proves("replication.pair.seals")
def test_one_side_that_needs_seals_has_both_seal() -> None:
    slave, master = meet(introduction(SLAVE), introduction(MASTER, needs=(SEALED,)))
    assert slave.is_sealed and master.is_sealed
    assert not any(side.is_sealed for side in meet(introduction(SLAVE), introduction(MASTER)))
    with pytest.raises(HandshakeRefused) as refusal:
        meet(introduction(SLAVE, features=()), introduction(MASTER, needs=(SEALED,)))
    assert refusal.value.reason == "features"


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'"text"', b"\xff", b"[" * 5000, b"{" + b" " * 9000 + b"}"],
)
def test_bytes_that_are_no_introduction_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Introduction.decode(data)


@pytest.mark.parametrize(
    "changes", [{"brokerId": "1"}, {"nonce": "00"}, {"nonce": "zz"}, {"features": 1}]
)
def test_a_field_of_another_kind_is_refused(changes: dict[str, Any]) -> None:
    fields = json.loads(introduction(SLAVE).encode()) | changes
    with pytest.raises(RemoteProtocolError):
        Introduction.decode(json.dumps(fields).encode())


def test_a_proof_before_the_introduction_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        MasterHandshake(introduction(MASTER), SECRET).proved(b"\0" * 32)


def member(number: int, **changes: Any) -> Introduction:
    nonce = bytes([number]) * NONCE_BYTES
    return introduction(MEMBER, **{"nonce": nonce, "member": f"n{number}", **changes})


@pytest.mark.proves("replication.failover.link")
def test_members_of_a_group_meet_as_equals() -> None:
    dialer, acceptor = meet(member(0, group="g"), member(1, group="g"))
    assert dialer.sending_key == acceptor.receiving_key
    assert dialer.receiving_key == acceptor.sending_key
    assert dialer.sending_key != dialer.receiving_key
    assert (dialer.peer.member, acceptor.peer.member) == ("n1", "n0")


@pytest.mark.proves("replication.failover.link")
@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (member(0), "member"),
        (member(2, member=""), "member"),
        (member(2, group="other"), "stranger"),
        (introduction(SLAVE), "stranger"),
        (introduction(MASTER), "stranger"),
    ],
)
def test_a_member_takes_only_another_member_of_its_group(peer: Introduction, reason: str) -> None:
    with pytest.raises(HandshakeRefused) as refusal:
        MasterHandshake(member(0), SECRET).greeted(peer.encode())
    assert refusal.value.reason == reason


def test_an_introduction_without_a_member_is_as_it_was() -> None:
    assert b"member" not in introduction(SLAVE).encode()
    assert Introduction.decode(member(3).encode()).member == "n3"

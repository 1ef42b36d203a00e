"""Sends judged by their bytes: the ones that pass are handed on, everything else is left."""

from __future__ import annotations

import json

import pytest

from contrail.access.state.gate import AccessGate, Whitelists
from contrail.access.state.rights import Entry, PolicyType
from contrail.access.state.users import UserStatus, UserTable
from contrail.broker.fast.signed_sends import SignedSends
from contrail.protocol.signing import SIGNATURE, Credentials, signed_fields
from tests.unit.kernels.frame_material import frame

USER = Credentials("user", "secret")
OTHER = Credentials("other", "another secret")


class _Facts:
    cluster_name = "c"

    def has_topic(self, topic: str) -> bool:
        return True

    def sink_topics(self, sink_id: str) -> tuple[str, ...]:
        return ()


@pytest.fixture
def table() -> UserTable:
    table = UserTable()
    for one in (USER, OTHER):
        table.create_user(one.access_key, one.secret_key)
    row = Entry.parse("Topic:mine", ["Pub"], ["10.0.0.1"], "Allow")
    table.merge("user", {PolicyType.CUSTOM: [row]})
    return table


class _Peer:
    def __init__(self, address: str = "10.0.0.1:5000") -> None:
        self.address = address


def send(topic: str = "mine", credentials: Credentials | None = USER, **changes: str) -> bytes:
    fields = {"a": "group", "b": topic, "e": "0", "i": "TAGS\x01x\x02"}
    if credentials is not None:
        fields = signed_fields(fields, b"body", credentials)
    document = {"code": 310, "extFields": fields | changes, "flag": 0, "opaque": 1, "version": 479}
    return frame(json.dumps(document, separators=(",", ":")).encode(), b"body")


def taken(table: UserTable, data: bytes, address: str = "10.0.0.1:5000", **white: object) -> int:
    gate = AccessGate(table, _Facts(), whitelists=Whitelists(**white))  # type: ignore[arg-type]
    return taken_by(gate, data, address)


def taken_by(gate: AccessGate, data: bytes, address: str = "10.0.0.1:5000") -> int:
    sends = SignedSends(gate, None, lambda peer, rows: len(rows))  # type: ignore[arg-type]
    return sends.take(_Peer(address), data)  # type: ignore[arg-type]


def test_sends_up_to_the_first_that_does_not_pass_are_handed_on(table: UserTable) -> None:
    good = send()
    assert taken(table, good * 3) == 3 * len(good)
    assert taken(table, good * 2 + send("other")) == 2 * len(good)
    assert taken(table, good + good[:-1]) == len(good)


@pytest.mark.parametrize(
    "data",
    [
        send(credentials=None),
        send("other"),
        send(credentials=OTHER),
        send(credentials=Credentials("user", "wrong")),
        send(credentials=Credentials("nobody", "wrong")),
        send(**{SIGNATURE: ""}),
        send(a="changed"),
        send(z="added"),
        send()[:-1] + b"Y",
    ],
    ids=["unsigned", "topic", "rights", "secret", "nobody", "blank", "field", "more", "body"],
)
def test_a_send_that_does_not_pass_is_left_to_the_general_way(
    table: UserTable, data: bytes
) -> None:
    gate = AccessGate(table, _Facts())
    assert taken_by(gate, data) == 0
    # Also when a good one of the same user and topic came before.
    assert taken_by(gate, send()) == len(send())
    assert taken_by(gate, data) == 0


def test_the_address_counts(table: UserTable) -> None:
    assert taken(table, send(), "10.0.0.2:5000") == 0


def test_a_change_takes_effect_with_the_next_send(table: UserTable) -> None:
    gate = AccessGate(table, _Facts())
    assert taken_by(gate, send())
    table.update_user("user", status=UserStatus.DISABLE)
    assert not taken_by(gate, send())
    table.update_user("user", status=UserStatus.ENABLE, password="changed")
    assert not taken_by(gate, send())
    assert taken_by(gate, send(credentials=Credentials("user", "changed")))
    table.remove("user")
    assert not taken_by(gate, send(credentials=Credentials("user", "changed")))


def test_a_code_without_signatures_is_left_to_the_general_way(table: UserTable) -> None:
    assert not taken(table, send(), anonymous=frozenset({310}))
    free = send("other")
    assert taken(table, free, free=frozenset({310})) == len(free)

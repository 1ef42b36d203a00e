"""Finding a producer's connection by its client id."""

from __future__ import annotations

import pytest

from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.producers import ProducerTable
from tests.fakes.peers import FakePeer


def _join(table: ProducerTable, peer: FakePeer, client_id: str, *, group: str = "p") -> None:
    table.register(group, ClientChannel(peer, client_id, "JAVA", 479, 0))


def _peer_of(table: ProducerTable, client_id: str) -> object:
    found = table.channel_of(client_id)
    return None if found is None else found.peer


def test_a_client_is_found_where_it_was_heard_from_last() -> None:
    table, old, new = ProducerTable(), FakePeer(), FakePeer()
    assert _peer_of(table, "c") is None
    _join(table, old, "c")
    _join(table, new, "c")
    assert _peer_of(table, "c") is new
    _join(table, old, "c")
    assert _peer_of(table, "c") is old
    table.close(old)
    assert _peer_of(table, "c") is new
    table.close(new)
    assert _peer_of(table, "c") is None


def test_a_client_that_leaves_one_group_is_found_by_the_other() -> None:
    table, peer = ProducerTable(), FakePeer()
    _join(table, peer, "c", group="p")
    _join(table, peer, "c", group="q")
    table.unregister("q", peer)
    assert _peer_of(table, "c") is peer
    table.unregister("p", peer)
    assert _peer_of(table, "c") is None


def test_a_connection_that_changes_its_client_id_is_found_by_the_new_one() -> None:
    table, peer = ProducerTable(), FakePeer()
    _join(table, peer, "before")
    _join(table, peer, "after")
    assert _peer_of(table, "before") is None
    assert _peer_of(table, "after") is peer


def test_a_client_whose_heartbeats_have_stopped_is_not_found() -> None:
    table, peer = ProducerTable(), FakePeer()
    _join(table, peer, "c")
    table.expire(121_000)
    assert _peer_of(table, "c") is None


@pytest.mark.proves("access.gate.claims")
def test_a_client_id_belongs_to_the_user_that_connected_with_it_first() -> None:
    table, alice, mallory = ProducerTable(), FakePeer(), FakePeer()

    def join(peer: FakePeer, user: str) -> None:
        channel = ClientChannel(peer, "c", "JAVA", 479, 0)
        channel.user = user
        table.register("p", channel)

    join(alice, "alice")
    join(mallory, "mallory")
    assert _peer_of(table, "c") is alice
    join(alice, "alice")
    join(mallory, "mallory")
    assert _peer_of(table, "c") is alice
    table.close(alice)
    # A reply to alice goes to nobody else while the other connection lasts.
    assert _peer_of(table, "c") is None
    table.close(mallory)
    join(mallory, "mallory")
    assert _peer_of(table, "c") is mallory

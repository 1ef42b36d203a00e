"""When a slave does its master's work, and its ledger of what it handed over."""

from __future__ import annotations

import pytest

from contrail.broker.state.acting_master import ActingMaster
from contrail.broker.state.escaped import COUNT_MAX, Escaped
from contrail.errors import RemoteProtocolError


def test_a_slave_acts_while_it_is_the_lowest_alive_and_its_master_sends_nothing() -> None:
    state = ActingMaster(own_id=1)
    assert state.members_seen({0, 1, 2})
    assert not state.is_prime
    assert state.members_seen({1, 2})
    assert state.is_prime and state.acts(master_sends=False)
    assert not state.acts(master_sends=True)
    assert state.members_seen({0, 1, 2})
    assert not state.is_prime and not state.acts(master_sends=False)


def test_a_slave_with_a_lower_one_alive_does_not_act() -> None:
    state = ActingMaster(own_id=2)
    state.members_seen({1, 2})
    assert not state.is_prime
    state.members_seen({2})
    assert state.is_prime


def test_no_answer_and_an_empty_one_are_no_news() -> None:
    state = ActingMaster(own_id=1)
    assert not state.is_prime
    assert not state.members_seen(())
    assert not state.is_prime
    state.members_seen({0, 1})
    assert not state.members_seen(())
    assert not state.is_prime


def test_a_slave_that_no_name_server_lists_yet_counts_itself() -> None:
    state = ActingMaster(own_id=1)
    state.members_seen({2})
    assert state.is_prime


def test_the_same_lowest_broker_is_told_as_news_once() -> None:
    state = ActingMaster(own_id=1)
    assert state.members_seen({1})
    assert not state.members_seen({1, 2})
    assert state.members_seen({0, 1, 2})


def ledger() -> Escaped:
    return Escaped([7, 1 << 40, 0], [12, 3])


def test_a_ledger_is_read_as_it_was_written() -> None:
    for one in (Escaped(), ledger()):
        found = Escaped.decode(one.encode())
        assert (found.waited, found.halves) == (one.waited, one.halves)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 15,
        ledger().encode()[:-1],
        ledger().encode() + b"\0" * 8,
        b"\xff" * 8 + b"\0" * 7 + b"\1",
    ],
)
def test_other_bytes_are_no_ledger(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="ledger"):
        Escaped.decode(data)


def test_a_ledger_notices_what_changes_it() -> None:
    one = ledger()
    one.add(Escaped([7], [3]))
    assert not one.changed
    one.add(Escaped([8], []))
    assert one.changed and 8 in one.waited
    for add in (one.add_waited, one.add_half):
        one.changed = False
        add(99)
        assert one.changed


def test_retention_shortens_a_ledger() -> None:
    one = ledger()
    one.forget_before(7)
    assert (one.waited, one.halves) == ({7, 1 << 40}, {12})


def test_a_ledger_is_full_at_its_bound() -> None:
    one = Escaped(range(COUNT_MAX - 1))
    assert not one.is_full
    one.add_half(5)
    assert one.is_full

"""Queue locks: granted when free, own or expired; released only by their owner."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.state.queue_locks import QueueLocks
from contrail.protocol.json_style import MessageQueue

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


def test_a_free_queue_is_granted_and_another_client_is_refused() -> None:
    locks = QueueLocks()
    assert locks.lock("g", [Q0, Q1], "c1", 0) == [Q0, Q1]
    assert locks.lock("g", [Q0], "c2", 1) == []
    assert locks.lock("h", [Q0], "c2", 1) == [Q0], "another group has its own locks"
    assert locks.holder("g", Q0, 1) == "c1"


@pytest.mark.proves("broker.clients.lock-expiry")
def test_a_lock_expires_a_minute_after_its_last_refresh() -> None:
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    assert locks.lock("g", [Q0], "c1", 20_000) == [Q0]
    assert locks.lock("g", [Q0], "c2", 80_000) == []
    assert locks.holder("g", Q0, 80_001) is None
    assert locks.lock("g", [Q0], "c2", 80_001) == [Q0]
    assert locks.holder("g", Q0, 80_001) == "c2"


def test_only_the_owner_releases_a_lock() -> None:
    locks = QueueLocks()
    locks.lock("g", [Q0, Q1], "c1", 0)
    assert locks.unlock("g", [Q0], "c2") == []
    assert locks.unlock("g", [Q0], "c1") == [Q0]
    assert locks.lock("g", [Q0], "c2", 1) == [Q0]
    assert locks.unlock("nobody", [Q0], "c1") == []


def test_expired_locks_are_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("g", [Q0], "c1", 0)
    locks.lock("h", [Q1], "c1", 50_000)
    assert locks.expire(60_000) == 0
    assert locks.expire(60_001) == 1
    assert locks.holder("h", Q1, 60_001) == "c1"


def test_asking_for_nothing_leaves_nothing_behind() -> None:
    locks = QueueLocks()
    assert locks.lock("g", [], "c1", 0) == []
    assert locks.expire(1_000_000) == 0


# Clients that are gone.


@dataclass
class Announced:
    goes_on_ms: int = 0


class Connected:
    """The clients of the group that are connected now."""

    def __init__(self, **clients: int) -> None:
        self.clients = {name: Announced(goes_on_ms) for name, goes_on_ms in clients.items()}

    def channel_of(self, group: str, client_id: str) -> Announced | None:
        return self.clients.get(client_id)

    def client_ids(self, group: str) -> set[str]:
        return set(self.clients)


@pytest.mark.proves("client.failover.lock-end")
@pytest.mark.parametrize(
    ("goes_on_ms", "ends_ms"), [(0, 30_000), (5_000, 5_000), (1_000, 1_000), (60_000, 60_000)]
)
def test_the_lock_of_a_client_that_is_gone_ends_when_that_client_stops(
    goes_on_ms: int, ends_ms: int
) -> None:
    connected = Connected(c1=goes_on_ms)
    locks = QueueLocks(connected)
    locks.lock("g", [Q0], "c1", 1_000)
    connected.clients.clear()
    locks.client_left("g")
    assert locks.lock("g", [Q0], "c2", 1_000 + ends_ms) == []
    assert locks.end_of_gone(1_000 + ends_ms) == []
    assert locks.holder("g", Q0, 1_000 + ends_ms) == "c1"
    assert locks.holder("g", Q0, 1_001 + ends_ms) is None
    assert not locks.has_unexpired("g", 1_001 + ends_ms)
    assert locks.end_of_gone(1_001 + ends_ms) == ["g"], "the group is told once"
    assert locks.end_of_gone(1_002 + ends_ms) == []
    assert locks.lock("g", [Q0], "c2", 1_003 + ends_ms) == [Q0]


def test_a_client_that_comes_back_keeps_its_lock() -> None:
    connected = Connected(c1=5_000)
    locks = QueueLocks(connected)
    locks.lock("g", [Q0], "c1", 0)
    del connected.clients["c1"]
    locks.client_left("g")
    assert locks.end_of_gone(4_000) == []
    connected.clients["c1"] = Announced(5_000)
    assert locks.end_of_gone(6_000) == []
    assert locks.lock("g", [Q0], "c2", 60_000) == []
    assert locks.lock("g", [Q0], "c2", 60_001) == [Q0]


def test_a_client_that_renews_before_its_heartbeat_keeps_what_it_announced() -> None:
    connected = Connected(c1=5_000)
    locks = QueueLocks(connected)
    locks.lock("g", [Q0], "c1", 0)
    connected.clients.clear()
    locks.client_left("g")
    assert locks.lock("g", [Q0], "c1", 4_000) == [Q0]
    assert locks.lock("g", [Q0], "c2", 9_000) == []
    assert locks.lock("g", [Q0], "c2", 9_001) == [Q0]


def test_a_clients_announcement_counts_from_its_next_renewal_on() -> None:
    """It renewed the lock before it said so, and may still go on for 30 s."""
    connected = Connected(c1=0)
    locks = QueueLocks(connected)
    locks.lock("g", [Q0], "c1", 0)
    connected.clients["c1"] = Announced(5_000)
    connected.clients.clear()
    assert locks.lock("g", [Q0], "c2", 30_000) == []
    assert locks.lock("g", [Q0], "c2", 30_001) == [Q0]


def test_a_client_that_was_never_seen_is_gone() -> None:
    locks = QueueLocks(Connected())
    locks.lock("g", [Q0], "c1", 0)
    assert locks.end_of_gone(30_001) == ["g"]


@pytest.mark.proves("client.failover.lock-end")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lock", "cut", "beat", "tick"]),
            st.sampled_from(["java", "own"]),
            st.integers(0, 9_000),
        ),
        max_size=40,
    )
)
def test_no_client_gets_a_queue_while_another_may_handle_it(
    steps: list[tuple[str, str, int]],
) -> None:
    """A client handles until so long after its last granted request, whatever becomes of it."""
    goes_on = {"java": 30_000, "own": 5_000}
    announced = {"java": 0, "own": 5_000}
    connected = Connected(**announced)
    locks = QueueLocks(connected)
    now_ms, handles_until = 0, {"java": -1, "own": -1}
    for what, client, passed_ms in steps:
        now_ms += passed_ms
        if what == "lock":
            if locks.lock("g", [Q0], client, now_ms):
                assert all(
                    until < now_ms for other, until in handles_until.items() if other != client
                )
                handles_until[client] = now_ms + goes_on[client]
        elif what == "cut":
            connected.clients.pop(client, None)
            locks.client_left("g")
        elif what == "beat":
            connected.clients[client] = Announced(announced[client])
        else:
            locks.end_of_gone(now_ms)
            locks.expire(now_ms)


def test_a_broker_that_leads_no_more_forgets_its_locks_and_their_shares() -> None:
    locks = QueueLocks(count_max=1)
    assert locks.lock("g", [Q0], "a", 0) == [Q0]
    locks.forget_all()
    assert locks.holder("g", Q0, 0) is None
    assert locks.lock("h", [Q0], "b", 0) == [Q0]

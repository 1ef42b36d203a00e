"""Queue locks: granted when free, own or expired; released only by their owner."""

from __future__ import annotations

from contrail.broker.state.queue_locks import QueueLocks
from contrail.protocol.json_style import MessageQueue

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


def test_a_free_queue_is_granted_and_another_client_is_refused() -> None:
    locks = QueueLocks()
    assert locks.lock("g", [Q0, Q1], "c1", 0) == [Q0, Q1]
    assert locks.lock("g", [Q0], "c2", 1) == []
    assert locks.lock("h", [Q0], "c2", 1) == [Q0], "another group has its own locks"
    assert locks.holder("g", Q0, 1) == "c1"


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

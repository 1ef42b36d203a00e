from __future__ import annotations

import pytest

from contrail.replication.state.peer_memory import PeerMemory

pytestmark = pytest.mark.proves("replication.failover.restored")


def test_a_member_with_less_than_it_had_is_recognised() -> None:
    memory = PeerMemory()
    memory.acknowledged("n1@u", 4, 900)
    assert "term is 3" in memory.problem("n1@u", 3, 2_000)
    assert "ends at 800" in memory.problem("n1@u", 4, 800)
    assert memory.problem("n1@u", 4, 900) == ""
    # A later leader may have cut what was not committed.
    assert memory.problem("n1@u", 5, 100) == ""
    assert memory.problem("n1@other", 0, 0) == ""


def test_only_more_is_remembered() -> None:
    memory = PeerMemory()
    memory.acknowledged("n1@u", 4, 900)
    memory.encode()
    memory.acknowledged("n1@u", 4, 0)
    memory.acknowledged("n1@u", 3, 5_000)
    assert not memory.is_changed
    memory.acknowledged("n1@u", 5, 0)
    assert memory.is_changed and memory.problem("n1@u", 5, 0) == ""


def test_it_is_read_back_and_nothing_else_is() -> None:
    memory = PeerMemory()
    memory.acknowledged("n1@u", 4, 900)
    assert PeerMemory.decode(memory.encode()).problem("n1@u", 4, 899)
    for data in (b"[]", b"{", b'{"a": 1}', b'{"a": [1]}', b'{"a": [1, -1]}', b'{"a": [1, "x"]}'):
        with pytest.raises(ValueError):
            PeerMemory.decode(data)

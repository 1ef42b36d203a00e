"""The queues that a broker assigns to the members of a group."""

from __future__ import annotations

import pytest

from contrail.broker.state.assignments import popped_queues, pulled_queues
from contrail.protocol.json_style import MessageQueue

QUEUES = [MessageQueue("t", name, number) for name in ("b", "a") for number in (1, 0)]
MEMBERS = ["c3", "c1", "c2"]


def ids(found: list[MessageQueue] | None) -> list[str]:
    assert found is not None
    return [f"{queue.broker_name}{queue.queue_id}" for queue in found]


@pytest.mark.proves("kinds.pop.assignments")
def test_pulled_queues_are_shared_by_the_strategy() -> None:
    shares = [ids(pulled_queues(one, MEMBERS, QUEUES, "AVG")) for one in sorted(MEMBERS)]
    assert shares == [["a0", "a1"], ["b0"], ["b1"]]
    circle = [ids(pulled_queues(one, MEMBERS, QUEUES, "AVG_BY_CIRCLE")) for one in sorted(MEMBERS)]
    assert circle == [["a0", "b1"], ["a1"], ["b0"]]
    assert pulled_queues("c1", MEMBERS, QUEUES, "MACHINE_ROOM") is None
    assert pulled_queues("stranger", MEMBERS, QUEUES, "AVG") == []


@pytest.mark.proves("kinds.pop.assignments")
@pytest.mark.parametrize("share_count", [-1, 0, 2, 9])
def test_members_that_share_with_all_pop_every_broker(share_count: int) -> None:
    found = popped_queues("stranger", MEMBERS, QUEUES, "AVG", share_count)
    assert ids(found) == ["a-1", "b-1"]


@pytest.mark.proves("kinds.pop.assignments")
def test_members_pop_their_own_queues_and_those_of_the_next() -> None:
    shares = [ids(popped_queues(one, MEMBERS, QUEUES, "AVG", 1)) for one in sorted(MEMBERS)]
    assert shares == [["a0", "a1", "b0"], ["b0", "b1"], ["b1", "a0", "a1"]]
    assert popped_queues("stranger", MEMBERS, QUEUES, "AVG", 1) == []
    assert popped_queues("c1", MEMBERS, QUEUES, "NONE", 1) is None


@pytest.mark.proves("kinds.pop.assignments")
def test_more_members_than_queues_have_one_each() -> None:
    members = [f"c{number}" for number in range(6)]
    shares = [ids(popped_queues(one, members, QUEUES, "AVG", 1)) for one in members]
    assert shares == [["a0"], ["a1"], ["b0"], ["b1"], ["a0"], ["a1"]]

"""Allocation: every queue has one owner, the same that RocketMQ's members compute."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.state.allocation import (
    AllocationStrategy,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    sorted_client_ids,
    sorted_queues,
    strategy_named,
)
from contrail.client.state.consistent_hash import HashRing, place
from contrail.errors import ClientError, ConfigError
from contrail.protocol.json_style import MessageQueue

NAMES = st.text(min_size=1, max_size=8)
QUEUES = st.lists(
    st.builds(MessageQueue, st.just("orders"), NAMES, st.integers(0, 20)),
    min_size=1,
    max_size=40,
    unique=True,
)
CLIENT_IDS = st.lists(NAMES, min_size=1, max_size=12, unique=True)


def by_first_character() -> AllocationStrategy:
    return MachineRoomNearby(
        strategy_named("AVG"),
        queue_room=lambda queue: queue.broker_name[0],
        client_room=lambda client_id: client_id[0],
    )


COMPLETE = [
    *(strategy_named(name) for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")),
    by_first_character(),
]


def queues_of(*broker_names: str, count: int = 4) -> list[MessageQueue]:
    return [MessageQueue("t", name, number) for name in broker_names for number in range(count)]


@pytest.mark.parametrize("strategy", COMPLETE, ids=lambda strategy: strategy.name)
@given(queues=QUEUES, client_ids=CLIENT_IDS)
def test_every_queue_has_exactly_one_owner(
    strategy: AllocationStrategy, queues: list[MessageQueue], client_ids: list[str]
) -> None:
    queues, client_ids = sorted_queues(queues), sorted_client_ids(client_ids)
    shares = [strategy.allocate("g", client_id, queues, client_ids) for client_id in client_ids]
    assert Counter(queue for share in shares for queue in share) == Counter(queues)


@given(queues=QUEUES, client_ids=CLIENT_IDS)
def test_averages_differ_by_one_at_most(queues: list[MessageQueue], client_ids: list[str]) -> None:
    for name in ("AVG", "AVG_BY_CIRCLE"):
        strategy = strategy_named(name)
        sizes = {len(strategy.allocate("g", client, queues, client_ids)) for client in client_ids}
        assert max(sizes) - min(sizes) <= 1


def test_averages_are_runs_and_circles_are_dealt() -> None:
    queues, members = queues_of("b", count=5), ["x", "y"]
    assert strategy_named("AVG").allocate("g", "x", queues, members) == queues[:3]
    assert strategy_named("AVG_BY_CIRCLE").allocate("g", "x", queues, members) == queues[::2]


def test_a_member_that_leaves_a_ring_moves_only_its_own_queues() -> None:
    queues, members = queues_of("a", "b", count=64), [f"m{number}" for number in range(5)]
    strategy = ConsistentHash()
    before = {m: set(strategy.allocate("g", m, queues, members)) for m in members}
    after = {m: set(strategy.allocate("g", m, queues, members[1:])) for m in members[1:]}
    assert all(before[member] <= after[member] for member in members[1:])


def test_a_client_named_twice_has_twice_the_points_on_the_ring() -> None:
    ring = HashRing(["a", "b", "a"], 10)
    assert ring.client_for("k") in ("a", "b")
    # Points 10 to 19 of "a" are on the ring because it was named twice.
    owners = {number: HashRing(["b", "a", "a"], 10).client_for(f"a-{number}") for number in (3, 15)}
    assert owners == {3: "a", 15: "a"}
    assert place("a-3") < 1 << 32


def test_a_ring_without_points_gives_no_queue() -> None:
    assert ConsistentHash(0).allocate("g", "a", queues_of("b"), ["a"]) == []
    with pytest.raises(ConfigError):
        ConsistentHash(-1)


def test_machine_rooms_are_read_from_broker_names() -> None:
    queues = queues_of("hz@a", "sh@a", "plain", "hz@b@c", "hz@d@", count=1)
    near = ByMachineRoom(["hz"]).allocate("g", "x", queues, ["x"])
    assert [queue.broker_name for queue in near] == ["hz@a", "hz@d@"]


def test_rooms_without_members_are_shared_by_all() -> None:
    queues, members = queues_of("a1", "b1", "c1", count=2), ["a-x", "b-x", "b-y"]
    strategy = by_first_character()
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"
    assert strategy.allocate("g", "a-x", queues, members) == [*queues[:2], queues[4]]
    assert strategy.allocate("g", "b-y", queues, members) == [queues[3]]


def test_no_machine_room_is_refused_with_the_fix() -> None:
    nowhere = MachineRoomNearby(
        strategy_named("AVG"), queue_room=lambda _: "", client_room=lambda _: "r"
    )
    with pytest.raises(ClientError, match="queue_room must name one"):
        nowhere.allocate("g", "x", queues_of("b"), ["x"])


def test_configured_queues_are_returned_as_given() -> None:
    queues = queues_of("b")
    assert ByConfig(queues[:2]).allocate("g", "anybody", [], []) == queues[:2]


@pytest.mark.parametrize("strategy", COMPLETE, ids=lambda strategy: strategy.name)
def test_an_unknown_client_gets_no_queue_and_empty_lists_are_refused(
    strategy: AllocationStrategy,
) -> None:
    queues = queues_of("b")
    assert strategy.allocate("g", "stranger", queues, ["x"]) == []
    for client_id, given_queues, members in (
        ("", queues, ["x"]),
        ("x", [], ["x"]),
        ("x", queues, []),
    ):
        with pytest.raises(ClientError, match="'g' cannot be shared"):
            strategy.allocate("g", client_id, given_queues, members)


def test_text_is_sorted_by_utf_16_units_as_java_does() -> None:
    # By code points the full-width tilde would come first.
    assert sorted_client_ids(["\uff5e", "\U0001f4e6"]) == ["\U0001f4e6", "\uff5e"]
    queues = [MessageQueue("t", "b", 10), MessageQueue("t", "b", 9), MessageQueue("t", "a", 11)]
    assert [queue.queue_id for queue in sorted_queues(queues)] == [11, 9, 10]


@pytest.mark.parametrize("name", ["MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONFIG", "AVERAGE"])
def test_strategy_names_that_need_arguments_are_refused_with_the_fix(name: str) -> None:
    with pytest.raises(ConfigError, match=r"pass \w+\(|AVG_BY_CIRCLE"):
        strategy_named(name)

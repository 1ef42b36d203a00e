"""The tables of producers and consumers: clients join and leave, groups subscribe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.producers import ProducerTable
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel
from tests.fakes.peers import FakePeer


def _channel(peer: FakePeer, client_id: str = "c1", now_ms: int = 0) -> ClientChannel:
    return ClientChannel(peer, client_id, "JAVA", 479, now_ms)


def _data(group: str = "g", **topics: int) -> ConsumerData:
    return ConsumerData(
        group,
        subscriptions=tuple(
            SubscriptionData(topic, sub_version=version) for topic, version in topics.items()
        ),
    )


def test_a_producer_is_known_by_its_connection() -> None:
    table, peer = ProducerTable(), FakePeer()
    assert table.register("p", _channel(peer))
    assert not table.register("p", _channel(peer, now_ms=5))
    assert [channel.last_heartbeat_ms for channel in table.channels("p")] == [5]
    assert table.channels("other") == []


def test_the_last_producer_takes_its_group_along() -> None:
    table, peer = ProducerTable(), FakePeer()
    table.register("p", _channel(peer))
    assert not table.unregister("p", FakePeer())
    assert not table.unregister("q", peer)
    assert table.unregister("p", peer)
    assert dict(table.groups) == {}


def test_a_closed_connection_leaves_all_its_producer_groups() -> None:
    table, gone, stays = ProducerTable(), FakePeer(), FakePeer()
    for group in ("p", "q"):
        table.register(group, _channel(gone))
    table.register("q", _channel(stays))
    assert table.close(gone) == ["p", "q"]
    assert list(table.groups) == ["q"]
    assert table.close(gone) == []


def test_a_producer_expires_two_minutes_after_its_last_heartbeat() -> None:
    table, peer = ProducerTable(), FakePeer()
    channel = _channel(peer, now_ms=1000)
    table.register("p", channel)
    assert table.expire(121_000) == []
    assert table.expire(121_001) == [channel]
    assert dict(table.groups) == {}
    assert table.close(peer) == []


def test_the_first_heartbeat_makes_the_group_and_says_that_it_changed() -> None:
    table, peer = ConsumerTable(), FakePeer()
    assert table.register(_data(orders=1), _channel(peer))
    assert not table.register(_data(orders=1), _channel(peer, now_ms=9))
    group = table.find("g")
    assert group is not None
    assert group.client_ids() == ["c1"]
    assert group.channels[peer].last_heartbeat_ms == 9
    assert group.subscription("orders") == SubscriptionData("orders", sub_version=1)
    assert table.find("other") is None


def test_a_second_client_changes_the_group_and_is_listed_beside_the_first() -> None:
    table = ConsumerTable()
    table.register(_data(orders=1), _channel(FakePeer(), "c1"))
    assert table.register(_data(orders=1), _channel(FakePeer(), "c2"))
    assert table.groups["g"].client_ids() == ["c1", "c2"]
    found = table.channel_of("g", "c2")
    assert found is not None
    assert found.client_id == "c2"
    assert table.channel_of("g", "c3") is None
    assert table.channel_of("other", "c2") is None


def test_a_group_takes_its_settings_from_the_last_heartbeat() -> None:
    table, peer = ConsumerTable(), FakePeer()
    table.register(_data(), _channel(peer))
    table.register(
        ConsumerData("g", ConsumeType.CONSUME_ACTIVELY, MessageModel.BROADCASTING), _channel(peer)
    )
    group = table.groups["g"]
    assert group.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert group.broadcasts


def test_a_topic_is_replaced_only_by_a_newer_subscription() -> None:
    table, peer = ConsumerTable(), FakePeer()
    table.register(_data(orders=5), _channel(peer))
    for version, kept in ((4, 5), (5, 5), (6, 6)):
        assert not table.register(_data(orders=version), _channel(peer))
        subscription = table.subscription("g", "orders")
        assert subscription is not None
        assert subscription.sub_version == kept


def test_topics_missing_from_a_heartbeat_are_removed_and_the_group_changed() -> None:
    table, peer = ConsumerTable(), FakePeer()
    table.register(_data(orders=1, bills=1), _channel(peer))
    assert table.register(_data(orders=1), _channel(peer))
    assert list(table.groups["g"].subscriptions) == ["orders"]
    assert table.register(_data(orders=1, bills=0), _channel(peer))
    assert set(table.groups["g"].subscriptions) == {"orders", "bills"}


def test_a_heartbeat_without_subscriptions_keeps_them() -> None:
    table, peer = ConsumerTable(), FakePeer()
    table.register(_data(orders=1), _channel(peer))
    assert not table.register(_data(), _channel(peer, now_ms=7), with_subscriptions=False)
    assert list(table.groups["g"].subscriptions) == ["orders"]
    assert table.register(_data(), _channel(FakePeer()), with_subscriptions=False)


def test_a_group_subscribes_to_what_it_says_or_to_anything_while_nothing_is_known() -> None:
    table = ConsumerTable()
    assert table.subscribes("g", "orders")
    assert table.subscription("g", "orders") is None
    table.register(_data(), _channel(FakePeer()))
    assert table.subscribes("g", "orders")
    table.register(_data(bills=1), _channel(FakePeer()))
    assert not table.subscribes("g", "orders")
    assert table.subscribes("g", "bills")
    assert table.groups_of_topic("bills") == {"g"}
    assert table.groups_of_topic("orders") == set()


def test_the_last_client_takes_its_group_along() -> None:
    table, peer = ConsumerTable(), FakePeer()
    table.register(_data(orders=1), _channel(peer))
    table.take_fingerprint("g", 5)
    left = table.unregister("g", peer)
    assert left is not None
    assert left.channels == {}
    assert table.find("g") is None
    assert table.unregister("g", peer) is None
    assert table.take_fingerprint("g", 6), "whoever comes back is asked for its subscriptions"


def test_a_closed_connection_leaves_all_its_consumer_groups() -> None:
    table, gone, stays = ConsumerTable(), FakePeer(), FakePeer()
    table.register(_data("g"), _channel(gone))
    table.register(_data("h"), _channel(gone))
    table.register(_data("h"), _channel(stays, "c2"))
    assert [(group.name, group.client_ids()) for group in table.close(gone)] == [
        ("g", []),
        ("h", ["c2"]),
    ]
    assert list(table.groups) == ["h"]
    assert table.close(gone) == []


def test_a_consumer_expires_two_minutes_after_its_last_heartbeat() -> None:
    table, silent, alive = ConsumerTable(), FakePeer(), FakePeer()
    table.register(_data(), _channel(silent, "c1", now_ms=0))
    table.register(_data(), _channel(alive, "c2", now_ms=60_000))
    assert table.expire(120_000) == []
    ((group, channel),) = table.expire(120_001)
    assert (group.name, channel.client_id) == ("g", "c1")
    assert group.client_ids() == ["c2"]


def test_a_fingerprint_differs_only_from_one_that_is_known() -> None:
    table = ConsumerTable()
    assert not table.take_fingerprint("g", 5)
    assert not table.take_fingerprint("g", 5)
    assert table.take_fingerprint("g", 6)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "close"]),
        st.integers(0, 2),
        st.sampled_from(["g", "h"]),
    ),
    max_size=30,
)


@given(_STEPS)
def test_both_tables_agree_with_a_simple_model(steps: list[tuple[str, int, str]]) -> None:
    peers = [FakePeer() for _ in range(3)]
    producers, consumers = ProducerTable(), ConsumerTable()
    model: dict[str, set[int]] = {"g": set(), "h": set()}
    for action, number, name in steps:
        peer = peers[number]
        if action == "join":
            producers.register(name, _channel(peer))
            consumers.register(_data(name), _channel(peer))
            model[name].add(number)
        elif action == "leave":
            producers.unregister(name, peer)
            consumers.unregister(name, peer)
            model[name].discard(number)
        else:
            producers.close(peer)
            consumers.close(peer)
            for members in model.values():
                members.discard(number)
        expected = {
            group: {peers[member] for member in members}
            for group, members in model.items()
            if members
        }
        assert {group: set(found) for group, found in producers.groups.items()} == expected
        assert {g: set(found.channels) for g, found in consumers.groups.items()} == expected


def test_a_subscription_that_came_with_a_pull_is_shown_until_ten_minutes_later() -> None:
    table = ConsumerTable()
    table.remember_pulled("g", "orders", SubscriptionData("orders", "old"), 1_000)
    table.remember_pulled("g", "orders", SubscriptionData("orders", "new"), 2_000)
    shown = table.subscription("g", "orders")
    assert shown is not None and (shown.sub_string, shown.sub_version) == ("new", 2_000)
    assert table.find("g") is None
    table.expire(602_000)
    assert table.subscription("g", "orders") is not None
    table.expire(602_001)
    assert table.subscription("g", "orders") is None


def test_a_heartbeat_counts_more_than_a_pull() -> None:
    table = ConsumerTable()
    table.register(_data(orders=7), _channel(FakePeer()))
    table.remember_pulled("g", "orders", SubscriptionData("orders", "pulled"), 1_000)
    shown = table.subscription("g", "orders")
    assert shown is not None and shown.sub_version == 7


def test_a_group_subscribes_to_what_it_pulls_beside_its_heartbeats() -> None:
    table = ConsumerTable()
    table.register(_data(orders=1), _channel(FakePeer()))
    assert not table.subscribes("g", "bills")
    table.remember_pulled("g", "bills", SubscriptionData("bills"), 1_000)
    assert table.subscribes("g", "bills")

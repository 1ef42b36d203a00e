"""The routing tables: which brokers may register, whose topics count, when brokers are removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.topic import TopicConfig
from contrail.nameserver.state import routes
from contrail.nameserver.state.routes import (
    BrokerKey,
    Registration,
    RouteTables,
    in_one_go,
    keep_zone,
    present_acting_masters,
)
from contrail.protocol.bodies.registration import RegisterBrokerBody
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicQueueMapping
from contrail.protocol.codes import ResponseCode
from tests.fakes.peers import FakePeer

NOW = 1_760_000_000_000
VERSION = DataVersion(0, 1, NOW)


def body(*topics: str, version: DataVersion = VERSION, perm: int = 6) -> RegisterBrokerBody:
    return RegisterBrokerBody({t: TopicConfig(t, 4, 4, perm) for t in topics}, version)


def broker(
    broker_id: int = 0, address: str = "10.0.0.1:10911", name: str = "broker-a"
) -> Registration:
    key = BrokerKey("C", address)
    return Registration(key, name, broker_id, ha_address="ha", body=body("t1", "t2"))


@pytest.fixture
def tables() -> RouteTables:
    return RouteTables()


@pytest.fixture
def peer() -> FakePeer:
    return FakePeer()


@pytest.mark.proves("nameserver.routes.tables")
def test_a_registered_broker_is_in_routes_and_in_its_cluster(
    tables: RouteTables, peer: FakePeer
) -> None:
    assert tables.register(broker(), peer, NOW).is_new
    route = tables.route("t1")
    assert route is not None
    assert route.queues == (QueueData("broker-a", 4, 4, 6),)
    assert route.brokers == (BrokerData("broker-a", "C", {0: "10.0.0.1:10911"}),)
    info = tables.cluster_info()
    assert info.clusters == {"C": frozenset({"broker-a"})}
    assert info.brokers["broker-a"].addresses == {0: "10.0.0.1:10911"}
    assert tables.member_group("C", "broker-a").addresses == {0: "10.0.0.1:10911"}
    assert tables.member_group("C", "nobody").addresses == {}


def test_a_topic_without_registration_has_no_route(tables: RouteTables) -> None:
    assert tables.route("t1") is None


def test_a_slave_learns_its_master_and_its_topics_do_not_count(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    slave = replace(broker(1, "10.0.0.2:10911"), body=body("only-on-slave", "t1"))
    result = tables.register(slave, FakePeer(), NOW)
    assert (result.master_address, result.ha_address) == ("10.0.0.1:10911", "ha")
    assert tables.route("only-on-slave") is None
    route = tables.route("t1")
    assert route is not None and set(route.brokers[0].addresses) == {0, 1}


def test_a_slave_without_a_master_learns_nothing(tables: RouteTables, peer: FakePeer) -> None:
    result = tables.register(broker(1), peer, NOW)
    assert (result.master_address, result.ha_address) == (None, None)


def test_a_broker_under_a_new_id_leaves_its_old_one(tables: RouteTables, peer: FakePeer) -> None:
    tables.register(broker(1), peer, NOW)
    tables.register(broker(0), peer, NOW)
    assert tables.member_group("C", "broker-a").addresses == {0: "10.0.0.1:10911"}


def test_a_newcomer_that_takes_a_live_brokers_id_displaces_it(
    tables: RouteTables, peer: FakePeer
) -> None:
    assert tables.register(broker(), peer, NOW).displaced is None
    assert tables.register(broker(), peer, NOW).displaced is None, "it is the same one"
    other = broker(address="10.0.0.9:10911")
    assert tables.register(other, FakePeer(), NOW).displaced == "10.0.0.1:10911"
    tables.disconnect(peer)
    assert tables.register(other, FakePeer(), NOW).displaced is None


def test_a_newcomer_with_an_older_state_is_ignored(tables: RouteTables, peer: FakePeer) -> None:
    owner = replace(broker(), body=body("t1", "t2", version=DataVersion(5, 1, NOW)))
    tables.register(owner, peer, NOW)
    newcomer = replace(
        broker(address="10.0.0.9:10911"), body=body("x", "y", version=DataVersion(4, 9, NOW))
    )
    assert tables.register(newcomer, FakePeer(), NOW).is_ignored
    assert tables.member_group("C", "broker-a").addresses == {0: "10.0.0.1:10911"}
    assert tables.data_version(newcomer.key) is None
    assert tables.route("x") is None


def test_a_newcomer_with_an_equal_state_takes_the_id_over(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    tables.register(broker(address="10.0.0.9:10911"), FakePeer(), NOW)
    assert tables.member_group("C", "broker-a").addresses == {0: "10.0.0.9:10911"}


def test_a_single_topic_cannot_be_a_brokers_first_registration(
    tables: RouteTables, peer: FakePeer
) -> None:
    single = replace(broker(), body=body("t3", version=DataVersion(0, 2, NOW)))
    with pytest.raises(RequestRejected, match="single topic") as caught:
        tables.register(single, peer, NOW)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert tables.cluster_info().brokers == {}
    tables.register(broker(), peer, NOW)
    tables.register(single, peer, NOW)
    assert tables.topics.topics() == {"t1", "t2", "t3"}


def test_a_full_table_accepts_only_known_brokers(
    tables: RouteTables, peer: FakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "BROKER_COUNT_MAX", 1)
    tables.register(broker(), peer, NOW)
    tables.register(broker(), peer, NOW)
    with pytest.raises(RequestRejected, match="accepts no more"):
        tables.register(broker(name="broker-b", address="10.0.0.2:1"), peer, NOW)


@pytest.mark.proves("nameserver.routes.data-version")
def test_unchanged_topics_are_not_applied_again_so_a_wiped_permission_stays(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    assert in_one_go(tables.topics.wiping_write("broker-a")) == 2
    tables.register(broker(), peer, NOW)
    assert tables.topics.of_topic("t1")[0].perm == 4
    changed = replace(broker(), body=body("t1", "t2", version=DataVersion(0, 2, NOW)))
    tables.register(changed, peer, NOW)
    assert tables.topics.of_topic("t1")[0].perm == 6


@pytest.mark.proves("nameserver.routes.write-permission")
def test_write_permission_is_given_as_read_and_write(tables: RouteTables, peer: FakePeer) -> None:
    tables.register(replace(broker(), body=body("t1", "t2", perm=1)), peer, NOW)
    assert in_one_go(tables.topics.adding_write("broker-a")) == 2
    assert tables.topics.of_topic("t1")[0].perm == 6
    assert (
        in_one_go(tables.topics.adding_write("nobody"))
        == in_one_go(tables.topics.wiping_write("nobody"))
        == 0
    )


def test_a_topic_the_table_lost_comes_back_with_an_unchanged_version(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    tables.delete_topic("t1")
    assert tables.route("t1") is None
    tables.register(broker(), peer, NOW)
    assert tables.route("t1") is not None


def test_topics_missing_from_a_registration_stay_unless_the_setting_is_on(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    fewer = replace(broker(), body=body("t2", "t9", version=DataVersion(0, 2, NOW)))
    tables.register(fewer, peer, NOW)
    assert tables.topics.topics() == {"t1", "t2", "t9"}
    tables.register(fewer, peer, NOW, delete_missing_topics=True)
    assert tables.topics.topics() == {"t2", "t9"}


@pytest.mark.proves("nameserver.routes.eviction")
def test_a_silent_broker_is_evicted_after_the_time_it_announced(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    quick = replace(broker(name="broker-b", address="10.0.0.2:1"), heartbeat_timeout_ms=10_000)
    tables.register(quick, FakePeer(), NOW)
    assert tables.expire(NOW + 10_000) == []
    assert [evicted.key for evicted in tables.expire(NOW + 10_001)] == [quick.key]
    assert tables.expire(NOW + 120_000) == []
    (evicted,) = tables.expire(NOW + 120_001)
    assert evicted.connection is peer
    assert tables.cluster_info().brokers == {} and tables.cluster_info().clusters == {}
    assert tables.topics.topics() == frozenset()


@pytest.mark.proves("nameserver.routes.eviction")
def test_a_heartbeat_postpones_the_eviction(tables: RouteTables, peer: FakePeer) -> None:
    tables.register(broker(), peer, NOW)
    tables.heard(broker().key, NOW + 60_000)
    tables.heard(BrokerKey("C", "nobody"), NOW)
    assert tables.expire(NOW + 180_000) == []
    assert len(tables.expire(NOW + 180_001)) == 1


def test_a_closed_connection_takes_all_brokers_that_registered_over_it(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    tables.register(broker(name="broker-b", address="10.0.0.2:1"), peer, NOW)
    tables.register(broker(name="broker-c", address="10.0.0.3:1"), FakePeer(), NOW)
    assert len(tables.disconnect(peer)) == 2
    assert set(tables.cluster_info().brokers) == {"broker-c"}


def test_closing_an_old_connection_leaves_a_broker_that_came_back_over_a_new_one(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    tables.register(broker(), FakePeer(), NOW)
    assert tables.disconnect(peer) == []
    assert tables.route("t1") is not None


def test_a_displaced_address_is_forgotten_without_touching_its_successor(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    tables.register(broker(address="10.0.0.9:10911"), FakePeer(), NOW)
    assert tables.disconnect(peer) == [broker().key]
    assert tables.data_version(broker().key) is None
    assert tables.route("t1") is not None


def test_unregistering_the_last_address_of_a_name_removes_its_queues(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    tables.register(broker(1, "10.0.0.2:10911"), FakePeer(), NOW)
    assert tables.unregister(broker().key, "broker-a")
    route = tables.route("t1")
    assert route is not None and route.brokers[0].addresses == {1: "10.0.0.2:10911"}
    assert tables.unregister(BrokerKey("C", "10.0.0.2:10911"), "broker-a")
    assert tables.route("t1") is None
    assert not tables.unregister(broker().key, "broker-a")


@pytest.mark.proves("nameserver.routes.tables")
def test_two_brokers_share_a_topic_and_one_leaving_keeps_the_other(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    tables.register(broker(name="broker-b", address="10.0.0.2:1"), FakePeer(), NOW)
    route = tables.route("t1")
    assert route is not None and [q.broker_name for q in route.queues] == ["broker-a", "broker-b"]
    tables.disconnect(peer)
    route = tables.route("t1")
    assert route is not None and [b.broker_name for b in route.brokers] == ["broker-b"]


def test_a_topic_is_deleted_everywhere_or_on_one_cluster_only(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    other = replace(broker(name="broker-b"), key=BrokerKey("D", "10.0.0.2:1"))
    tables.register(other, FakePeer(), NOW)
    tables.delete_topic("t1", "D")
    assert [q.broker_name for q in tables.topics.of_topic("t1")] == ["broker-a"]
    tables.delete_topic("t1", "no such cluster")
    tables.delete_topic("t1")
    assert tables.route("t1") is None


def test_a_topic_is_added_only_for_known_brokers(tables: RouteTables, peer: FakePeer) -> None:
    tables.register(broker(), peer, NOW)
    assert not tables.register_topic(
        "new", [QueueData("broker-a", 1, 1, 6), QueueData("nobody", 1, 1, 6)]
    )
    assert tables.route("new") is None
    assert tables.register_topic("new", [QueueData("broker-a", 1, 1, 6)])
    assert tables.route("new") is not None


@pytest.mark.proves("nameserver.routes.queue-mapping")
def test_mappings_of_static_topics_and_filter_servers_are_part_of_the_route(
    tables: RouteTables, peer: FakePeer
) -> None:
    mapping = TopicQueueMapping("t1", "broker-a", 4)
    full = replace(body("t1", "t2"), mappings={"t1": mapping}, filter_servers=("f:1",))
    tables.register(replace(broker(), body=full), peer, NOW)
    route = tables.route("t1")
    assert route is not None
    assert route.queue_mappings == {"broker-a": mapping}
    assert route.filter_servers == {"10.0.0.1:10911": ("f:1",)}
    tables.register(broker(), peer, NOW)
    route = tables.route("t1")
    assert route is not None and route.filter_servers == {}


def acting(broker_id: int, address: str) -> Registration:
    return replace(broker(broker_id, address), acting_master=True)


def test_the_smallest_slave_gives_read_only_topics_when_it_may_act_as_master(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(acting(2, "10.0.0.3:1"), FakePeer(), NOW)
    assert tables.topics.of_topic("t1")[0].perm == 4
    route = tables.route("t1")
    assert route is not None
    assert set(route.brokers[0].addresses) == {2}
    assert present_acting_masters(route).brokers[0].addresses == {0: "10.0.0.3:1"}


def test_losing_the_master_makes_queues_read_only_when_a_slave_acts(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(acting(0, "10.0.0.1:1"), peer, NOW)
    tables.register(acting(1, "10.0.0.2:1"), FakePeer(), NOW)
    assert tables.topics.of_topic("t1")[0].perm == 6
    tables.disconnect(peer)
    assert tables.topics.of_topic("t1")[0].perm == 4


def test_no_slave_is_shown_as_master_while_queues_are_writable_or_brokers_disallow_it(
    tables: RouteTables, peer: FakePeer
) -> None:
    tables.register(broker(), peer, NOW)
    tables.register(broker(1, "10.0.0.2:1"), FakePeer(), NOW)
    tables.disconnect(peer)
    route = tables.route("t1")
    assert route is not None
    assert present_acting_masters(route) == route


@pytest.mark.proves("nameserver.routes.zones")
def test_a_zone_keeps_its_own_brokers_and_those_without_a_master(
    tables: RouteTables, peer: FakePeer
) -> None:
    here = replace(broker(), zone="Z1")
    there = replace(broker(name="broker-b", address="10.0.0.2:1"), zone="Z2")
    slave = replace(broker(1, "10.0.0.3:1", "broker-c"), zone="Z2", acting_master=False)
    for each in (here, there, slave):
        tables.register(each, FakePeer(), NOW)
    route = tables.route("t1")
    assert route is not None
    kept = keep_zone(route, "z1")
    assert [b.broker_name for b in kept.brokers] == ["broker-a", "broker-c"]
    assert [q.broker_name for q in kept.queues] == ["broker-a", "broker-c"]

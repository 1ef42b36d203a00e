"""Brokers under NameServers: they register, leave and come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.clock import ManualClock
from contrail.protocol.bodies.routes import ClusterInfo
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, route

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, nameservers=2, clock=ManualClock()) as running:
        yield running


def brokers_known(cluster: LocalCluster, number: int) -> set[str]:
    """The broker names one NameServer knows."""
    address = cluster.nameservers[number].address
    answer = cluster.caller.call(address, RequestCode.GET_BROKER_CLUSTER_INFO)
    return set(ClusterInfo.decode(answer.body).brokers)


def brokers_of(cluster: LocalCluster, topic: str, number: int) -> set[str]:
    found = route(cluster, topic, number)
    return {queues.broker_name for queues in found.queues} if found is not None else set()


@pytest.mark.proves("nameserver.routes.registration", "broker.running.several-brokers")
def test_every_nameserver_knows_every_broker_from_its_start(cluster: LocalCluster) -> None:
    for number in (0, 1):
        assert brokers_known(cluster, number) == {"broker-a", "broker-b"}
    for broker in (0, 1):
        Asker(cluster, broker).make_topic("shared")
    for number in (0, 1):
        eventually(
            lambda number=number: brokers_of(cluster, "shared", number) == {"broker-a", "broker-b"},
            "both NameServers route to both brokers",
        )


@pytest.mark.proves("nameserver.routes.every-30-seconds")
def test_a_restarted_nameserver_learns_of_every_broker_within_half_a_minute(
    cluster: LocalCluster,
) -> None:
    cluster.nameservers[1].stop()
    cluster.nameservers[1].start()
    assert brokers_known(cluster, 1) == set()
    cluster.advance(ms=30_000)
    eventually(
        lambda: brokers_known(cluster, 1) == {"broker-a", "broker-b"},
        "the brokers register again",
    )
    assert brokers_known(cluster, 0) == {"broker-a", "broker-b"}


@pytest.mark.proves("nameserver.routes.body-forms", "nameserver.routes.data-version")
@pytest.mark.parametrize("compressed", ["true", "false"])
def test_a_broker_registers_in_the_form_and_at_the_pace_it_is_told(compressed: str) -> None:
    properties = {"compressedRegister": compressed, "forceRegister": "false"}
    with LocalCluster(clock=ManualClock(), properties=properties) as cluster:
        asker = Asker(cluster)
        asker.make_topic("announced", read=5, write=6)
        eventually(
            lambda: brokers_of(cluster, "announced", 0) == {"broker-a"}, "the topic is known"
        )
        found = route(cluster, "announced")
        assert found is not None
        assert (found.queues[0].read_queue_count, found.queues[0].write_queue_count) == (5, 6)
        # With nothing new the broker only asks whether it is outdated; that keeps it alive.
        for _ in range(8):
            cluster.advance(ms=30_000)
            eventually(lambda: not _is_registering(cluster), "the question is answered")
        assert brokers_of(cluster, "announced", 0) == {"broker-a"}


def _is_registering(cluster: LocalCluster) -> bool:
    app = cluster.brokers[0].app
    assert app is not None
    return app.registration.is_registering


@pytest.mark.proves("nameserver.routes.no-gossip")
def test_a_value_set_on_one_nameserver_is_not_known_to_the_other(cluster: LocalCluster) -> None:
    fields = {"namespace": "notes", "key": "colour", "value": "blue"}
    first, second = (server.address for server in cluster.nameservers)
    assert cluster.caller.call(first, RequestCode.PUT_KV_CONFIG, fields).code == 0
    code = RequestCode.GET_KV_CONFIG
    assert cluster.caller.call(first, code, fields).fields["value"] == "blue"
    assert cluster.caller.call(second, code, fields).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.proves("nameserver.routes.unregister", "broker.running.leave-and-return")
def test_a_broker_that_leaves_is_in_no_route_and_comes_back(cluster: LocalCluster) -> None:
    for broker in (0, 1):
        asker = Asker(cluster, broker)
        asker.make_topic("shared")
        asker.stored("shared", b"before")
    both = {"broker-a", "broker-b"}
    eventually(
        lambda: all(brokers_of(cluster, "shared", number) == both for number in (0, 1)),
        "both are in the routes",
    )
    cluster.brokers[1].stop()
    for number in (0, 1):
        assert brokers_of(cluster, "shared", number) == {"broker-a"}
    Asker(cluster, 0).stored("shared", b"meanwhile")
    cluster.brokers[1].start()
    eventually(lambda: brokers_of(cluster, "shared", 0) == both, "it is back")
    assert Asker(cluster, 1).bodies("shared") == [b"before"]
    assert Asker(cluster, 0).bodies("shared") == [b"before", b"meanwhile"]


@pytest.mark.proves(
    "nameserver.routes.closed-connection",
    "broker.running.leave-and-return",
    "broker.running.local-cluster-children",
)
def test_a_killed_broker_is_gone_and_comes_back_with_all_its_messages(tmp_path: Path) -> None:
    # Real processes, killed without warning; every answer came after its sync.
    properties = {"flushDiskType": "SYNC_FLUSH"}
    with LocalCluster(
        brokers=2, folder=tmp_path, in_children=True, properties=properties
    ) as cluster:
        asker = Asker(cluster, 1)
        asker.make_topic("promised")
        sent = [b"%d" % number for number in range(50)]
        for body in sent:
            asker.stored("promised", body)
        cluster.brokers[1].kill()
        eventually(
            lambda: brokers_known(cluster, 0) == {"broker-a"}, "its connection's end is noticed"
        )
        cluster.brokers[1].start()
        assert asker.bodies("promised") == sent
        assert asker.stored("promised", b"next") == 50


@pytest.mark.proves("broker.topics.order-config")
def test_an_order_configuration_reaches_the_brokers(cluster: LocalCluster) -> None:
    Asker(cluster).make_topic("sequence")
    fields = {"namespace": ORDER_NAMESPACE, "key": "sequence", "value": "broker-a:4"}
    for server in cluster.nameservers:
        assert cluster.caller.call(server.address, RequestCode.PUT_KV_CONFIG, fields).code == 0
    cluster.advance(ms=30_000)
    app = cluster.brokers[0].app
    assert app is not None

    def is_ordered() -> bool:
        topic = app.tables.topics.table.get("sequence")
        return topic is not None and topic.order

    eventually(is_ordered, "the broker marks the topic")

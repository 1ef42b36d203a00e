"""Route, cluster and member-group answers, and the two plain tables."""

from __future__ import annotations

import pytest

from contrail.errors import RequestRejected
from contrail.protocol.bodies.routes import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicQueueMapping,
    TopicRouteData,
)
from contrail.protocol.bodies.tables import KVTable, TopicList

ROUTE = TopicRouteData(
    queues=(QueueData("broker-a", 8, 4, 6),),
    brokers=(BrokerData("broker-a", "C", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),),
)
QUEUES = (
    b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":0,'
    b'"writeQueueNums":4}]}'
)


@pytest.mark.proves("wire.frames.old-java")
def test_a_route_has_unquoted_ids_for_old_clients_and_quoted_ones_for_new() -> None:
    common = (
        b'"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],'
        b'"filterServerTable":{},'
    )
    assert ROUTE.encode() == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},' + common + QUEUES
    )
    assert ROUTE.encode(strict=True) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
        + common
        + QUEUES
    )


@pytest.mark.parametrize("strict", [False, True])
def test_a_route_with_everything_in_it_reads_back(strict: bool) -> None:
    route = TopicRouteData(
        queues=(QueueData("b", 1, 2, 4, 3),),
        brokers=(BrokerData("b", "C", {1: "h:1"}, True, "zone-1"),),
        filter_servers={"h:1": ("f:1", "f:2")},
        order_config="b:4",
        queue_mappings={"b": TopicQueueMapping("t", "b", 2, 7, "s", True, {0: 1})},
    )
    assert TopicRouteData.decode(route.encode(strict=strict)) == route


def test_a_cluster_and_a_member_group_read_back_and_have_unquoted_ids() -> None:
    info = ClusterInfo({"b": BrokerData("b", "C", {0: "h:1"})}, {"C": frozenset({"b"})})
    assert b'{0:"h:1"}' in info.encode()
    assert ClusterInfo.decode(info.encode()) == info
    group = BrokerMemberGroup("C", "b", {0: "h:1", 2: "h:2"})
    assert group.encode() == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"h:1",2:"h:2"},"brokerName":"b","cluster":"C"}}'
    )
    assert BrokerMemberGroup.decode(group.encode()) == group


def test_tables_and_topic_lists_read_back() -> None:
    table = KVTable({"k": "v"})
    assert table.encode() == b'{"table":{"k":"v"}}'
    assert KVTable.decode(table.encode()) == table
    topics = TopicList.of(["b", "a"], "h:1")
    assert topics.encode() == b'{"brokerAddr":"h:1","topicList":["a","b"]}'
    assert TopicList.decode(topics.encode()) == topics
    assert TopicList.of([]).encode() == b'{"topicList":[]}'


@pytest.mark.parametrize("kind", [TopicRouteData, ClusterInfo, BrokerMemberGroup, KVTable])
def test_a_body_of_another_shape_is_refused(kind: type[TopicRouteData]) -> None:
    with pytest.raises(RequestRejected):
        kind.decode(b"[]")
    with pytest.raises(RequestRejected):
        kind.decode(
            b'{"queueDatas":[1],"brokerAddrTable":1,"brokerMemberGroup":{"brokerAddrs":{"x":"h"}},'
            b'"table":[1]}'
        )

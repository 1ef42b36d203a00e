"""Topics, groups and progress of a failover group outlive the leader that wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrail import Admin, Message, Producer, PullConsumer
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.store import CONSUMER_OFFSETS, GROUPS, TOPICS
from contrail.testing import LocalBroker, LocalCluster, eventually

pytestmark = pytest.mark.proves("replication.failover.tables")

TOPIC, GROUP = "orders", "billing"


def ask(cluster: LocalCluster, member: LocalBroker, code: RequestCode, **fields: str) -> bytes:
    answer = cluster.caller.call(member.address, code, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.body


def offsets_at(cluster: LocalCluster, member: LocalBroker) -> dict[int, int]:
    body = ask(cluster, member, RequestCode.GET_ALL_CONSUMER_OFFSET)
    return dict(CONSUMER_OFFSETS.parse(body).offsets.get(f"{TOPIC}@{GROUP}", {}))


def tables_at(cluster: LocalCluster, member: LocalBroker) -> tuple[Any, Any]:
    topics = TOPICS.parse(ask(cluster, member, RequestCode.GET_ALL_TOPIC_CONFIG))
    groups = GROUPS.parse(ask(cluster, member, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    return topics.topics, groups.groups


def test_topics_groups_and_offsets_are_at_the_next_leader(tmp_path: Path) -> None:
    with LocalCluster(members=3, folder=tmp_path) as cluster:
        leader = cluster.wait_for_leader()
        with Admin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=3)
            admin.create_group(GROUP, retry_count_max=7)
        with (
            Producer("writers", cluster.namesrv) as producer,
            PullConsumer(GROUP, cluster.namesrv, consume_from_where="first") as consumer,
        ):
            eventually(lambda: len(producer.publish_queues(TOPIC)) == 3, "the topic has 3 queues")
            consumer.subscribe(TOPIC)
            for number in range(12):
                producer.send(Message(TOPIC, b"%d" % number))
            read: list[bytes] = []
            read_on(consumer, read, 12)
            consumer.commit()
            committed = offsets_at(cluster, leader)
            assert sum(committed.values()) == 12
            # They go to the other members once a second.
            rest = [one for one in cluster.brokers if one is not leader]
            eventually(
                lambda: all(offsets_at(cluster, one) == committed for one in rest),
                "the followers have them",
            )
            known = tables_at(cluster, leader)
            assert [tables_at(cluster, one) for one in rest] == [known, known]
            cluster.kill_leader()
            then = cluster.wait_for_leader(besides=leader)
            assert offsets_at(cluster, then) == committed
            assert tables_at(cluster, then)[1][GROUP].retry_count_max == 7
            producer.send(Message(TOPIC, b"after"), timeout_ms=20_000)
            read_on(consumer, read, 13)
            # Nothing came again.
            assert sorted(read) == sorted([b"after", *(b"%d" % number for number in range(12))])
            consumer.commit()
            leader.start()
            eventually(
                lambda: sum(offsets_at(cluster, leader).values()) == 13, "the former leader has it"
            )


def read_on(consumer: PullConsumer, read: list[bytes], count: int) -> None:
    def has_read() -> bool:
        read.extend(one.body for one in consumer.poll(timeout_ms=200))
        return len(read) >= count

    eventually(has_read, f"{count} messages were read")

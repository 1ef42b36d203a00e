"""Apache's Java consumer goes on at our slave while its master is gone, and then returns to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.replica_waits import wait_for_slave
from tests.interop.clients.session import JavaSession
from tests.interop.clients.topics import create_group, create_topic
from tests.interop.clients.traffic import numbered

TOPIC, GROUP = "orders", "billing"
FIRST, WAITING, LATER = 10, 30, 5
PROPERTIES = {"slaveReadEnable": "true"}


def committed(cluster: LocalCluster, address: str) -> int:
    """The group's progress as one broker knows it, over all queues."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "setZeroIfNotFound": "false"}
    answers = (
        cluster.caller.call(
            address, RequestCode.QUERY_CONSUMER_OFFSET, {**fields, "queueId": str(queue_id)}
        )
        for queue_id in range(4)
    )
    return sum(int(answer.fields["offset"]) for answer in answers if answer.code == 0)


class Story:
    """The pair, and one Java process with a producer and consumers."""

    def __init__(self, cluster: LocalCluster, session: JavaSession) -> None:
        self.cluster = cluster
        self._session = session
        self._at = {"namesrv": cluster.namesrv}
        self._sent = 0
        session.do("producer", name="slave-reads", group="senders_slave_reads", **self._at)

    def send(self, count: int) -> None:
        keys = numbered(self._sent + 1, count)
        self._session.send("slave-reads", TOPIC, keys)
        self._sent += count

    def consume(self, name: str) -> None:
        wanted = {"fail_times": {}, "orderly": False, "suspend_ms": 100}
        self._session.do(
            "consumer",
            name=name,
            group=GROUP,
            topic=TOPIC,
            **{"from": "first"},
            **wanted,
            **self._at,
        )

    def wait_for(self, name: str, first: int, count: int) -> None:
        """Until the consumer has had these messages, and none besides."""
        wanted = sorted(numbered(first, count))
        eventually(
            lambda: sorted({*self._session.received(name)}) == wanted,
            lambda: f"{wanted}, {self._session.received(name)}",
        )

    def wait_committed(self, count: int, *addresses: str) -> None:
        eventually(
            lambda: [committed(self.cluster, one) for one in addresses] == [count] * len(addresses),
            f"{count} are committed",
        )

    def close(self, *names: str) -> None:
        self._session.close(*names)


@pytest.mark.proves("replication.pair.slave-reads")
def test_java_goes_on_at_the_slave_and_returns_to_the_master(
    sessions: Callable[[str], JavaSession], tmp_path: Path
) -> None:
    with LocalCluster(slaves=1, folder=tmp_path, properties=PROPERTIES) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        create_topic(cluster, TOPIC)
        create_group(cluster, GROUP)
        story = Story(cluster, sessions("java5"))
        story.send(FIRST)
        story.consume("at-the-master")
        story.wait_for("at-the-master", 1, FIRST)
        story.wait_committed(FIRST, master.address, slave.address)
        story.close("at-the-master")

        story.send(WAITING)
        wait_for_slave(cluster)
        master.kill()
        # It begins where the group was, which only the slave can tell now.
        story.consume("at-the-slave")
        story.wait_for("at-the-slave", FIRST + 1, WAITING)
        master.start()
        story.send(LATER)
        story.wait_for("at-the-slave", FIRST + 1, WAITING + LATER)
        # Messages that were read at the slave count at the master.
        story.wait_committed(FIRST + WAITING + LATER, master.address)
        # Without a slave only the master can serve the rest.
        slave.stop()
        story.send(LATER)
        story.wait_for("at-the-slave", FIRST + 1, WAITING + 2 * LATER)
        story.close("at-the-slave", "slave-reads")

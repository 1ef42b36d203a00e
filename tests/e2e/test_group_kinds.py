"""Message kinds of a failover group of real processes, whose leader is killed in between."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from contrail import (
    Admin,
    ConsumedMessage,
    Message,
    Producer,
    PushConsumer,
    TransactionState,
)
from contrail.client.message import ReceivedMessage
from contrail.client.transactions import HalfMessage
from contrail.errors import ClientError
from contrail.store.reader import StoreReader
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e import sink_asking
from tests.e2e.asking import Asker

pytestmark = pytest.mark.proves("replication.failover.kinds")
PROPERTIES = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("group")
    with LocalCluster(members=3, in_children=True, folder=folder, properties=PROPERTIES) as running:
        running.wait_for_voters()
        yield running


class Reading:
    """A consumer of one topic, and how often it got each body."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.bodies: Counter[bytes] = Counter()
        self._consumer = PushConsumer(f"of-{topic}", cluster.namesrv, consume_from_where="first")
        self._consumer.subscribe(topic)
        self._consumer.on_message(self._take)

    def _take(self, message: ConsumedMessage) -> None:
        self.bodies[message.body] += 1

    def __enter__(self) -> Reading:
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def change_leader(cluster: LocalCluster) -> LocalBroker:
    """Kill the leader, wait for the next one, and take the killed one back."""
    killed = cluster.kill_leader()
    leader = cluster.wait_for_leader(besides=killed)
    killed.start()
    return leader


def stored_bodies(member: LocalBroker, topic: str) -> Counter[bytes]:
    reader = StoreReader.open(member.folder / "store")
    return Counter(one.body for one in reader.messages(topic=topic))


def test_timed_messages_come_once_and_recalled_ones_never(cluster: LocalCluster) -> None:
    with (
        Producer("timing", cluster.namesrv, send_timeout_ms=30_000) as producer,
        Reading(cluster, "timed") as reading,
    ):
        now_ms = int(time.time() * 1000)
        receipts = [
            producer.send(Message("timed", b"%d" % number, deliver_at=now_ms + 300 * number))
            for number in range(1, 25)
        ]
        far = producer.send(Message("timed", b"far", deliver_at=now_ms + 9_000))
        # Recalled at the leader that took it, and at the next one: that knows its handles.
        producer.recall(receipts[20])
        leader = change_leader(cluster)
        producer.recall(far)
        wanted = {b"%d" % number for number in range(1, 25) if number != 21}
        eventually(lambda: wanted <= reading.bodies.keys(), "all timed messages came")
        time.sleep(max(0.0, now_ms / 1000 + 11 - time.time()))
        assert stored_bodies(leader, "timed") == Counter(wanted)


@pytest.mark.proves("replication.failover.tables")
def test_a_deleted_topic_begins_anew_at_every_member(cluster: LocalCluster) -> None:
    with (
        Producer("writers", cluster.namesrv, send_timeout_ms=30_000) as producer,
        Admin(cluster.namesrv) as admin,
    ):
        admin.create_topic("news", queues=1)
        for number in range(5):
            producer.send(Message("news", b"old-%d" % number))
        admin.delete_topic("news")
        admin.create_topic("news", queues=1)
        eventually(lambda: _sent(producer, b"new-0"), "the topic is there again")
        leader = change_leader(cluster)
        receipt = producer.send(Message("news", b"new-1"))
        # The old messages count no more, at the former leader nor at the next one.
        assert receipt.queue_offset == 1
        for member in cluster.brokers:
            eventually(
                lambda at=member: stored_bodies(at, "news") == Counter([b"new-0", b"new-1"]),
                f"member {member.self_id} has the new messages alone",
            )
        assert leader in cluster.brokers


def test_rows_of_sinks_and_repeated_sends_are_stored_once(cluster: LocalCluster) -> None:
    asker = Asker(cluster)
    asker.broker = cluster.wait_for_leader()
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("rows", queues=1)
        admin.create_topic("once", queues=1, attributes={"contrail.dedupe.window.count": "100"})
    assert sink_asking.send(asker, "rows", sink_asking.rows("s/1/0", range(3))) == (3, 0, 0)
    assert sink_asking.prepare(asker, "rows", "s/2/0", range(2), "a1") == 2
    properties = {"UNIQ_KEY": "AC1E0001000012345678000000000001"}
    place = asker.send("once", b"first", properties=properties).fields
    asker.broker = change_leader(cluster)
    # Rows and keys that the former leader stored are known, prepared rows are committed here.
    assert sink_asking.send(asker, "rows", sink_asking.rows("s/1/0", range(5)))[:2] == (2, 3)
    assert (
        asker.send("once", b"again", properties=properties).fields["queueOffset"]
        == (place["queueOffset"])
    )
    assert sink_asking.commit(asker, "s", 2, {"0": "a1"}, decide=True) == (0, 0)
    assert sink_asking.commit(asker, "s", 2, {"0": "a1"}) == (2, 0)
    wanted = [b"s/1/0#%d" % seq for seq in range(5)] + [b"s/2/0#%d" % seq for seq in range(2)]
    eventually(
        lambda: stored_bodies(asker.broker, "rows") == Counter(wanted), "each row is stored once"
    )
    assert stored_bodies(asker.broker, "once") == Counter([b"first"])


def _sent(producer: Producer, body: bytes) -> bool:
    try:
        return producer.send(Message("news", body)).queue_offset == 0
    except ClientError:
        # The producer has the route from before the deletion.
        return False


class Payments:
    """Local transactions end as the body says; one that is asked for is committed."""

    def __init__(self) -> None:
        self.asked: set[bytes] = set()

    def execute(self, message: HalfMessage, arg: object) -> TransactionState:
        return TransactionState[message.body.decode().partition("-")[0]]

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked.add(message.body)
        return TransactionState.COMMIT


def test_transactions_get_one_fate_and_open_ones_are_asked_for(cluster: LocalCluster) -> None:
    listener = Payments()
    with (
        Producer(
            "payers", cluster.namesrv, send_timeout_ms=30_000, transaction_listener=listener
        ) as producer,
        Reading(cluster, "payments") as reading,
    ):

        def pay(number: int) -> None:
            for state in ("COMMIT", "ROLLBACK", "UNKNOWN"):
                body = f"{state}-{number}".encode()
                producer.send_in_transaction(Message("payments", body))

        for number in range(5):
            pay(number)
        leader = change_leader(cluster)
        for number in range(5, 8):
            pay(number)
        wanted = {f"{state}-{n}".encode() for state in ("COMMIT", "UNKNOWN") for n in range(8)}
        eventually(lambda: wanted <= reading.bodies.keys(), "all payments came", timeout_s=60)
        assert listener.asked >= {f"UNKNOWN-{number}".encode() for number in range(8)}
        assert not any(body.startswith(b"ROLLBACK") for body in reading.bodies)
        eventually(
            lambda: stored_bodies(leader, "payments") == Counter(wanted), "each is stored once"
        )

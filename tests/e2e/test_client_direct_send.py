"""Blocking sends over lines of their own, beside everything else that goes over the connection."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import contrail
from contrail.client.message import SendReceipt
from contrail.testing import LocalCluster
from contrail.wire.line import Line
from tests.e2e.asking import Asker, route
from tests.e2e.raw_client import poll

ROUNDS = 60
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"direct-{next(_numbers)}"
    Asker(cluster, 0).make_topic(name, read=2, write=2)
    poll(lambda: route(cluster, name), "the NameServer knows the topic")
    return name


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were asked over a line, one by one."""
    asked: list[str] = []
    ask = Line.ask

    def noting(self: Line, *arguments: object) -> object:
        asked.append(self.address)
        return ask(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Line, "ask", noting)
    return asked


def _broker_count(cluster: LocalCluster, topic: str) -> int:
    known = route(cluster, topic)
    return 0 if known is None else len(known.brokers)


def stored(cluster: LocalCluster, topic: str) -> list[bytes]:
    return [body for at in (0, 1) for body in Asker(cluster, 0).bodies(topic, at)]


def test_one_thread_gets_its_receipts_over_a_line(
    cluster: LocalCluster, topic: str, direct: list[str]
) -> None:
    with contrail.Producer("direct", cluster.namesrv) as producer:
        bodies = [b"body %d" % number for number in range(ROUNDS)]
        receipts = [producer.send(contrail.Message(topic, body)) for body in bodies]
    assert len(direct) > ROUNDS // 2
    assert Counter(stored(cluster, topic)) == Counter(bodies)
    # Queues take turns, whichever way a message goes.
    ids = [receipt.queue.queue_id for receipt in receipts]
    assert all(one != next_one for one, next_one in itertools.pairwise(ids))
    for queue_id in (0, 1):
        told = [one.queue_offset for one in receipts if one.queue.queue_id == queue_id]
        assert told == list(range(len(told)))


def test_one_way_sends_are_not_overtaken(cluster: LocalCluster, direct: list[str]) -> None:
    topic = f"direct-{next(_numbers)}"
    Asker(cluster, 0).make_topic(topic, read=1, write=1)
    poll(lambda: route(cluster, topic), "the NameServer knows the topic")
    sent: list[bytes] = []
    with contrail.Producer("direct", cluster.namesrv) as producer:
        for number in range(ROUNDS):
            sent.append(b"%d" % number)
            message = contrail.Message(topic, sent[-1])
            if number > ROUNDS // 2 and number % 5 == 0:
                producer.send_oneway(message)
            else:
                producer.send(message)
        producer.send(contrail.Message(topic, b"end"))
    assert direct
    assert Asker(cluster, 0).bodies(topic, 0) == [*sent, b"end"]


def test_threads_with_small_and_large_messages_batches_and_consumers_mix(
    cluster: LocalCluster, topic: str
) -> None:
    count, threads = 25, 6
    received: Counter[bytes] = Counter()
    consumer = contrail.PushConsumer("direct-mixed", cluster.namesrv, consume_from_where="first")

    @consumer.on_message
    def take(message: contrail.ReceivedMessage) -> None:
        received[message.body] += 1

    with contrail.Producer("direct", cluster.namesrv) as producer, consumer:
        consumer.subscribe(topic)

        def work(number: int) -> list[bytes]:
            sent: list[bytes] = []
            for at in range(count):
                body = b"%d:%d:" % (number, at)
                sent += [body, body + os.urandom(200_000 if at % 5 == 0 else 2_000)]
                for one in sent[-2:]:
                    producer.send(contrail.Message(topic, one))
                batch = [body + b"batch %d" % part for part in range(3)]
                sent += batch
                producer.send_batch([contrail.Message(topic, one) for one in batch])
            return sent

        with ThreadPoolExecutor(threads) as pool:
            bodies = [body for sent in pool.map(work, range(threads)) for body in sent]
        poll(lambda: len(received) == len(bodies), "everything is consumed")
    assert set(received) == set(bodies)
    assert Counter(stored(cluster, topic)) == Counter(bodies)


def test_a_broker_killed_in_mid_send_is_replaced_by_the_other(direct: list[str]) -> None:
    with LocalCluster(brokers=2, in_children=True) as cluster:
        topic = "direct-killed"
        for at in (0, 1):
            Asker(cluster, at).make_topic(topic, read=2, write=2)
        poll(lambda: _broker_count(cluster, topic) == 2, "both brokers are known")
        receipts: list[SendReceipt] = []
        with contrail.Producer("direct", cluster.namesrv) as producer:
            for number in range(40):
                receipts.append(producer.send(contrail.Message(topic, b"before %d" % number)))
            assert len(set(direct)) == 2
            killer = threading.Timer(0.05, cluster.brokers[0].kill)
            killer.start()
            for number in range(400):
                receipts.append(producer.send(contrail.Message(topic, b"during %d" % number)))
            killer.join()
            for number in range(40):
                receipts.append(producer.send(contrail.Message(topic, b"after %d" % number)))
        assert len({receipt.queue.broker_name for receipt in receipts[:40]}) == 2
        assert len({receipt.queue.broker_name for receipt in receipts[-20:]}) == 1


def test_a_line_that_the_broker_closed_is_replaced_without_a_failure(
    topic: str, cluster: LocalCluster, direct: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with contrail.Producer("direct", cluster.namesrv) as producer:
        for number in range(ROUNDS):
            producer.send(contrail.Message(topic, b"%d" % number))
        known_count = len(direct)
        assert known_count
        monkeypatch.setattr("contrail.wire.line._IDLE_S_MAX", -1.0)
        producer.send(contrail.Message(topic, b"idle"))
        monkeypatch.setattr("contrail.wire.line._IDLE_S_MAX", 30.0)
        for number in range(ROUNDS):
            producer.send(contrail.Message(topic, b"more %d" % number))
        assert len(direct) > known_count
    assert len(stored(cluster, topic)) == 2 * ROUNDS + 1

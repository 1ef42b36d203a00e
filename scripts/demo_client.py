"""The part of the demo about the Python client: an application's calls and their results."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from contrail import Admin, Message, Producer, PushConsumer, TransactionState
from contrail.testing import LocalCluster

ORDERS, KEYS = 300, 10
PATIENCE_S = 60.0
Row = tuple[str, str, bool]


class Basket:
    """The messages that handlers got, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enough = threading.Condition(self._lock)
        self.bodies: list[bytes] = []
        self.steps: dict[str, list[int]] = defaultdict(list)

    def put(self, message: Any) -> None:
        with self._enough:
            self.bodies.append(message.body)
            if message.properties.get("step"):
                self.steps[message.keys[0]].append(int(message.properties["step"]))
            self._enough.notify_all()

    def wait_for(self, count: int) -> bool:
        with self._enough:
            return self._enough.wait_for(lambda: len(self.bodies) >= count, PATIENCE_S)

    def wait_for_all(self, bodies: set[bytes]) -> bool:
        """Wait for these bodies; others, and some of them twice, may come as well."""
        with self._enough:
            return self._enough.wait_for(lambda: bodies <= set(self.bodies), PATIENCE_S)

    def wait_for_different(self, count: int) -> bool:
        """A send that was repeated after a kill may be stored twice."""
        with self._enough:
            return self._enough.wait_for(lambda: len(set(self.bodies)) >= count, PATIENCE_S)


def show_client(cluster: LocalCluster) -> Iterable[Row]:
    """Send, consume, reply, commit and count with the blocking client."""
    with Producer("demo-shop", cluster.namesrv, send_timeout_ms=20_000) as producer:
        yield ordered(cluster, producer)
        # Before the kill, which takes offsets of the last seconds along.
        yield lagging(cluster)
        yield over_a_kill(cluster, producer)
        yield replied(cluster, producer)
    yield transactional(cluster)


def ordered(cluster: LocalCluster, producer: Producer) -> Row:
    basket = Basket()
    consumer = PushConsumer(
        "demo-ledger", cluster.namesrv, orderly=True, consume_from_where="first"
    )
    consumer.on_message(basket.put)
    consumer.subscribe("client-steps")
    begun = time.monotonic()
    for number in range(ORDERS):
        key = f"order-{number % KEYS}"
        step = {"step": str(number // KEYS)}
        message = Message("client-steps", b"step", keys=[key], properties=step, sharding_key=key)
        producer.send(message)
    took_ms = (time.monotonic() - begun) * 1000 / ORDERS
    with consumer:
        complete = basket.wait_for(ORDERS)
    in_order = all(steps == sorted(steps) for steps in basket.steps.values())
    what = f"{ORDERS} steps of {KEYS} orders, consumed in order"
    return what, f"{took_ms:.2f} ms a send", complete and in_order


def over_a_kill(cluster: LocalCluster, producer: Producer) -> Row:
    """One of two brokers dies under a producer that goes on sending."""
    for number in range(20):
        producer.send(Message("client-kills", str(number).encode()))
    cluster.brokers[1].kill()
    for number in range(20, 40):
        producer.send(Message("client-kills", str(number).encode()))
    cluster.brokers[1].start()
    basket = Basket()
    consumer = PushConsumer("demo-survivors", cluster.namesrv, consume_from_where="first")
    consumer.on_message(basket.put)
    consumer.subscribe("client-kills")
    with consumer:
        complete = basket.wait_for_different(40)
    return "40 sends, a broker killed in the middle", "all there", complete


def replied(cluster: LocalCluster, producer: Producer) -> Row:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("client-prices", queues=1)
    consumer = PushConsumer("demo-prices", cluster.namesrv, consume_from_where="first")
    consumer.on_message(lambda message: message.reply(b"4.20 for " + message.body) and None)
    consumer.subscribe("client-prices")
    with consumer:
        reply = producer.request(Message("client-prices", b"coffee"), timeout_ms=30_000)
    return "a question and its reply", reply.body.decode(), reply.body == b"4.20 for coffee"


def transactional(cluster: LocalCluster) -> Row:
    basket = Basket()
    with Producer("demo-payments", cluster.namesrv, transaction_checker=forgotten) as producer:
        with producer.transaction(Message("client-payments", b"paid")):
            pass
        with producer.transaction(Message("client-payments", b"cancelled")) as transaction:
            transaction.rollback()
    consumer = PushConsumer("demo-books", cluster.namesrv, consume_from_where="first")
    consumer.on_message(basket.put)
    consumer.subscribe("client-payments")
    with consumer:
        arrived = basket.wait_for(1)
    return "two transactions, one rolled back", "1 message", arrived and basket.bodies == [b"paid"]


def forgotten(_message: Any) -> TransactionState:
    """The answer to a broker's check: no transaction of the demo is left undecided."""
    return TransactionState.ROLLBACK


def lagging(cluster: LocalCluster) -> Row:
    with Admin(cluster.namesrv) as admin:
        lag = admin.lag("demo-ledger", "client-steps").total
    return "what the group has left", f"{lag} messages", lag == 0

"""The part of the demo about replication: a slave takes over the reads of a killed master."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from demo_client import Basket

from contrail import Message, Producer, PushConsumer
from contrail.testing import LocalCluster

TOPIC, GROUP = "replicated", "demo-auditors"
READ_BEFORE, READ_AT_SLAVE, READ_AFTER = 50, 200, 20
PROPERTIES = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveReadEnable": "true"}
Row = tuple[str, str, bool]


def show_replication(folder: Path, properties: dict[str, str]) -> Iterable[Row]:
    """A master and a slave; the master is killed and comes back."""
    settings = {**properties, **PROPERTIES}
    with LocalCluster(
        slaves=1, folder=folder / "pair", in_children=True, properties=settings
    ) as pair:
        send(pair, 0, READ_BEFORE)
        consume(pair, bodies(0, READ_BEFORE))
        pair.wait_for_slaves()
        kept = send(pair, READ_BEFORE, READ_AT_SLAVE)
        yield "on the disks of master and slave, SEND_OK", f"{kept} orders", kept == READ_AT_SLAVE
        pair.brokers[0].kill()
        is_read = consume(pair, bodies(READ_BEFORE, READ_AT_SLAVE))
        what = "master killed: its group goes on at the slave"
        yield what, f"{READ_AT_SLAVE} orders", is_read
        pair.brokers[0].start()
        pair.wait_for_slaves()
        first = READ_BEFORE + READ_AT_SLAVE
        kept = send(pair, first, READ_AFTER)
        # Messages read at the slave come again: no master noted the group's progress.
        is_read = consume(pair, bodies(first, READ_AFTER))
        what = "master back: sent and read there again"
        yield what, f"{kept} orders", kept == READ_AFTER and is_read


def body(number: int) -> bytes:
    return f"order {number}".encode()


def bodies(first: int, count: int) -> set[bytes]:
    return {body(number) for number in range(first, first + count)}


def send(pair: LocalCluster, first: int, count: int) -> int:
    """How many orders the master acknowledged because its slave has them, too."""
    with Producer("demo-tellers", pair.namesrv, send_timeout_ms=20_000) as producer:
        receipts = [
            producer.send(Message(TOPIC, body(number))) for number in range(first, first + count)
        ]
    return sum(receipt.status.name == "SEND_OK" for receipt in receipts)


def consume(pair: LocalCluster, wanted: set[bytes]) -> bool:
    """Whether the group gets all of these."""
    basket = Basket()
    consumer = PushConsumer(GROUP, pair.namesrv, consume_from_where="first")
    consumer.on_message(basket.put)
    consumer.subscribe(TOPIC)
    with consumer:
        return basket.wait_for_all(wanted)

"""Traffic of every kind that metrics tell of, for Contrail's brokers and for Apache's."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from contrail import Admin, Message, Producer, PushConsumer, TransactionState

PLAIN, LATER, TRANSACTED = "MetricsPlain", "MetricsLater", "MetricsTransacted"
GROUP = "metrics-readers"
PLAIN_COUNT = 6
_DEADLINE_S = 60.0


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=_DEADLINE_S) as answer:
        return str(answer.read().decode())


def samples(text: str) -> list[Sample]:
    """Every sample of a text, read by Prometheus's own parser."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(found: list[Sample], name: str, **labels: str) -> float:
    """The one sample with these labels, and perhaps others."""
    wanted = labels.items()
    (sample,) = [one for one in found if one.name == name and wanted <= one.labels.items()]
    return float(sample.value)


def label_keys(found: list[Sample]) -> dict[str, set[str]]:
    """The labels of each name."""
    keys: dict[str, set[str]] = {}
    for sample in found:
        keys.setdefault(sample.name, set()).update(sample.labels)
    return keys


@contextmanager
def traffic(namesrv: str) -> Iterator[None]:
    """Sends of all kinds, a reader that gives up on one message, and clients that stay."""
    with Admin(namesrv) as admin:
        for topic in (PLAIN, LATER, TRANSACTED):
            admin.create_topic(topic, queues=1)
        admin.create_group(GROUP)
    with Producer("metrics-writers", namesrv) as producer:
        for _ in range(PLAIN_COUNT - 1):
            producer.send(Message(PLAIN, b"x" * 100))
        producer.send(Message(PLAIN, b"x" * 3000))
        producer.send(Message(LATER, b"soon", delay_level=1))
        producer.send(Message(LATER, b"soon", delay=1.0))
        producer.send(Message(LATER, b"much later", delay=600.0))
        _end_transactions(namesrv)
        with PushConsumer(GROUP, namesrv, consume_from_where="first") as consumer:
            consumer.subscribe(PLAIN)
            for count, message in enumerate(consumer, start=1):
                if count == 1:
                    message.dead_letter()
                if count == PLAIN_COUNT:
                    message.ack()
                    break
            yield


def _end_transactions(namesrv: str) -> None:
    fates = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
    with Producer(
        "metrics-deciders", namesrv, transaction_checker=lambda message: TransactionState.UNKNOWN
    ) as producer:
        for fate in fates:
            with producer.transaction(Message(TRANSACTED, b"x")) as transaction:
                decide = {
                    TransactionState.COMMIT: transaction.commit,
                    TransactionState.ROLLBACK: transaction.rollback,
                    TransactionState.UNKNOWN: transaction.unknown,
                }
                decide[fate]()

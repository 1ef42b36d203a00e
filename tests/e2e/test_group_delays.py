"""Delayed messages and retries of a failover group, over a change of its leader."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from contrail import ConsumedMessage, Message, Producer, PushConsumer
from contrail.store.reader import StoreReader
from contrail.testing import LocalBroker, LocalCluster, eventually

pytestmark = pytest.mark.proves("replication.failover.kinds")
TOPIC, GROUP = "orders", "workers"


def test_delayed_messages_and_retries_come_once_at_the_next_leader(tmp_path: Path) -> None:
    with LocalCluster(members=3, folder=tmp_path) as cluster:
        cluster.wait_for_voters()
        seen: set[tuple[bytes, int]] = set()
        is_failed = threading.Event()

        def handle(message: ConsumedMessage) -> None:
            seen.add((message.body, message.reconsume_times))
            if message.body == b"hard" and not message.reconsume_times:
                is_failed.set()
                raise ValueError("not yet")

        consumer = PushConsumer(GROUP, cluster.namesrv, consume_from_where="first")
        consumer.subscribe(TOPIC)
        consumer.on_message(handle)
        sent = {b"%d" % number for number in range(20)}
        with Producer("writers", cluster.namesrv, send_timeout_ms=30_000) as producer, consumer:
            producer.send(Message(TOPIC, b"hard"))
            for body in sorted(sent):
                # Some become due before the leader is lost, some after it.
                producer.send(Message(TOPIC, body, delay_level=1 + int(body) % 2))
            eventually(is_failed.is_set, "the handler failed")
            killed = cluster.kill_leader()
            then = cluster.wait_for_leader(besides=killed)
            wanted = {(body, 0) for body in sent} | {(b"hard", 0), (b"hard", 1)}
            eventually(lambda: seen >= wanted, "all delayed messages and the retry came")
        assert seen == wanted
        # A reader of a member's folder sees what its last note of the commit covers.
        eventually(
            lambda: stored_bodies(then, f"%RETRY%{GROUP}") == Counter([b"hard"]),
            "the retry is stored once",
        )
        assert stored_bodies(then, TOPIC) == Counter([*sent, b"hard"])


def stored_bodies(member: LocalBroker, topic: str) -> Counter[bytes]:
    reader = StoreReader.open(member.folder / "store")
    return Counter(one.body for one in reader.messages(topic=topic))

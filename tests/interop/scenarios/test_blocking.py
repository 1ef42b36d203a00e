"""The blocking names: the same scenarios in plain functions and threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import contrail
from contrail import Message, TransactionState
from tests.interop.scenarios.scene import HURRY, PATIENCE_S, Scene


@pytest.fixture
def producer(scene: Scene) -> Any:
    asyncio.run(scene.make_topic())
    with contrail.Producer(
        scene.producer_group, scene.namesrv, send_timeout_ms=15_000, api_timeout_ms=15_000
    ) as started:
        yield started


def test_plain_functions_send_and_consume(scene: Scene, producer: contrail.Producer) -> None:
    keys = [f"plain-{number}" for number in range(12)]
    receipts = [producer.send(scene.message(key)) for key in keys[:4]]
    receipts += [
        one.result(PATIENCE_S) for one in map(producer.send_async, messages(scene, keys[4:8]))
    ]
    producer.send_batch(messages(scene, keys[8:10]))
    assert producer.send_many(messages(scene, keys[10:])).batch_count == 1
    assert len({receipt.message_id for receipt in receipts}) == 8
    seen: list[str] = []
    failed: list[str] = []
    done = threading.Event()
    consumer = contrail.PushConsumer(scene.group, scene.namesrv, **HURRY)

    @consumer.on_message
    def handle(message: contrail.ConsumedMessage) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if message.keys == ["plain-5"] and not message.reconsume_times:
            failed.append(message.keys[0])
            raise RuntimeError("once")
        seen.extend(message.keys)
        if len(seen) == len(keys):
            done.set()

    consumer.subscribe(scene.topic)
    consumer.start()
    assert done.wait(PATIENCE_S), seen
    consumer.close()
    assert (sorted(seen), failed) == (sorted(keys), ["plain-5"])


def messages(scene: Scene, keys: list[str]) -> list[Message]:
    return [scene.message(key) for key in keys]


def test_a_plain_loop_consumes_and_a_pull_consumer_polls(
    scene: Scene, producer: contrail.Producer
) -> None:
    for key in ("one", "two", "three"):
        producer.send(scene.message(key))
    seen: list[str] = []
    with contrail.PushConsumer(scene.group, scene.namesrv, **HURRY) as consumer:
        consumer.subscribe(scene.topic)
        for message in consumer:
            seen += message.keys
            if len(seen) == 3:
                message.ack()
                break
    assert sorted(seen) == ["one", "three", "two"]
    with contrail.PullConsumer(
        f"{scene.group}_pull", scene.namesrv, auto_commit=False, api_timeout_ms=15_000
    ) as puller:
        puller.assign(puller.fetch_queues(scene.topic))
        for queue in puller.assignment():
            puller.seek_to_begin(queue)
        polled: list[str] = []
        while len(polled) < 3:
            polled += [one.keys[0] for one in puller.poll(timeout_ms=200)]
        puller.commit()
    assert sorted(polled) == sorted(seen)
    with contrail.Admin(scene.namesrv, timeout_ms=15_000) as admin:
        assert admin.lag(f"{scene.group}_pull", scene.topic).total == 0


@pytest.mark.proves("client.shown.scenarios")
def test_plain_transactions_requests_and_queries(scene: Scene, producer: contrail.Producer) -> None:
    with producer.transaction(scene.message("kept", tags="tx")) as kept:
        pass
    with producer.transaction(scene.message("dropped")) as dropped:
        dropped.rollback()
    assert dropped.state is TransactionState.ROLLBACK
    consumer = contrail.PushConsumer(scene.group, scene.namesrv, **HURRY)
    arrived = threading.Event()

    @consumer.on_message
    def handle(message: contrail.ConsumedMessage) -> None:
        if message.tags == "tx":
            arrived.set()
        else:
            message.reply(b"re:" + message.body)

    consumer.subscribe(scene.topic)
    consumer.start()
    assert arrived.wait(PATIENCE_S)
    assert producer.request(scene.message("ask"), timeout_ms=60_000).body == b"re:body of ask"
    consumer.close()
    with contrail.Admin(scene.namesrv, timeout_ms=15_000) as admin:
        found = admin.message(scene.topic, kept.transaction_id)
        assert found is not None and found.body == b"body of kept"
        assert admin.messages_by_key(scene.topic, "dropped") == []

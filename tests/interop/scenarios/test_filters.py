"""Subscriptions by tag and by SQL92, for push and pull consumers."""

from __future__ import annotations

import pytest

from contrail.aio import Sql92
from contrail.errors import BrokerRefused
from contrail.kernels.java_hash import java_hash
from tests.interop.scenarios.scene import Inbox, Scene, keys_of, scenario

# Each list ends with a message that every filter passes: by then missing messages are filtered.
TAGGED = [
    ("k1", "Aa"),
    ("k2", "BB"),
    ("k3", None),
    ("k4", "paid"),
    ("k5", "refunded"),
    ("k6", "Aa"),
]
PRICED = [
    ("p1", {"price": "3", "region": "eu"}),
    ("p2", {"price": "12", "region": "欧洲"}),
    ("p3", {"region": "eu"}),
    ("p4", {"price": "7", "region": "us"}),
    ("p5", {"price": "100", "region": "eu"}),
]


@pytest.mark.proves("client.consumers.tags")
@pytest.mark.parametrize(
    ("expression", "keys"),
    [
        ("*", ["k1", "k2", "k3", "k4", "k5", "k6"]),
        ("Aa", ["k1", "k6"]),
        ("paid || refunded||Aa", ["k1", "k4", "k5", "k6"]),
    ],
)
@scenario
async def test_tags_are_told_apart_even_with_equal_hashes(
    scene: Scene, expression: str, keys: list[str]
) -> None:
    assert java_hash(b"Aa") == java_hash(b"BB")
    (queue,) = await scene.make_topic(queues=1, brokers=1)
    async with scene.producer() as producer:
        for key, tag in TAGGED:
            await producer.send(scene.message(key, tags=tag))
    inbox = Inbox()
    async with scene.consuming(inbox.take, expression=expression):
        await inbox.until_has(["k6"])
    assert sorted(inbox.keys) == keys
    async with scene.pull_consumer(auto_commit=False) as puller:
        await puller.assign([queue], expression)
        await puller.seek_to_begin(queue)
        pulled: list[str] = []
        while "k6" not in pulled:
            pulled += keys_of(await puller.poll())
    assert pulled == keys


@pytest.mark.proves("client.consumers.sql92")
@pytest.mark.parametrize(
    ("expression", "keys"),
    [
        ("price > 5", ["p2", "p4", "p5"]),
        ("region = '欧洲' OR price BETWEEN 50 AND 200", ["p2", "p5"]),
        ("price IS NULL OR region IN ('eu', 'us') AND NOT (price = 3)", ["p3", "p4", "p5"]),
    ],
)
@scenario
async def test_sql92_chooses_by_properties(scene: Scene, expression: str, keys: list[str]) -> None:
    await scene.make_topic(queues=1, brokers=1)
    async with scene.producer() as producer:
        for key, properties in PRICED:
            await producer.send(scene.message(key, properties=properties))
    inbox = Inbox()
    async with scene.consuming(inbox.take, expression=Sql92(expression)):
        await inbox.until_has(["p5"])
    assert sorted(inbox.keys) == keys


@pytest.mark.proves("client.consumers.sql92")
@scenario
async def test_an_expression_that_is_none_is_refused_with_the_broker_s_words(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    with pytest.raises(BrokerRefused, match="price >"):
        async with scene.consuming(Inbox().take, expression=Sql92("price > > 3")):
            pytest.fail("it consumes by an expression that is none")

"""All kinds of send: messages are stored as sent, at the places of their receipts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest

from contrail.aio import (
    Compression,
    HashSelector,
    MachineRoomSelector,
    Message,
    MessageQueue,
    RandomSelector,
    SendReceipt,
    SendStatus,
)
from contrail.client.compression import COMPRESSED_FLAG
from contrail.errors import MessageInvalid
from tests.interop.scenarios.scene import Scene, keys_of, scenario

# One broker of the cluster takes the fast path, the other one the general way.
pytestmark = pytest.mark.proves("broker.fast.both-ways-interop")

COMPRESSION_BITS = 0x700
# Names and values hold anything but the separators, which is 1 in names and 2 in both.
ODD_PROPERTIES = {
    "城市": "上海",
    "mixed 名": "größe = 12 €, 😀",
    "binary-like": "\x01\x03\x04\x05\t\n\r\x1b\x7f\x80\xff￿",
    "spaces ": " kept ",
    "quotes": "\"'\\{}[]",
}


def place(receipt: SendReceipt) -> tuple[MessageQueue, int]:
    return receipt.queue, receipt.queue_offset


@pytest.mark.proves(
    "house.tests.shared-scenarios", "client.producer.sends", "client.shown.scenarios"
)
@scenario
async def test_every_way_to_send_stores_the_message(scene: Scene) -> None:
    await scene.make_topic()
    async with scene.producer() as producer:
        begun = [producer.send_async(scene.message(f"async-{n}")) for n in range(3)]
        sync = await producer.send(scene.message("sync"))
        await producer.send_oneway(scene.message("one-way"))
        receipts = {"sync": sync} | {f"async-{n}": await one for n, one in enumerate(begun)}
    assert {one.status for one in receipts.values()} == {SendStatus.SEND_OK}
    found = {one.keys[0]: one for one in await scene.stored(5)}
    assert set(found) == {*receipts, "one-way"}
    for key, one in found.items():
        assert one.body == f"body of {key}".encode()
    for key, receipt in receipts.items():
        one = found[key]
        assert (one.queue, one.queue_offset) == place(receipt)
        assert (one.message_id, one.offset_message_id) == (
            receipt.message_id,
            receipt.offset_message_id,
        )


@scenario
async def test_a_batch_lies_in_one_queue_in_its_order(scene: Scene) -> None:
    queues = await scene.make_topic()
    keys = [f"batch-{number}" for number in range(5)]
    async with scene.producer() as producer:
        batch = [scene.message(key, tags="paid", properties=ODD_PROPERTIES) for key in keys]
        receipt = await producer.send_batch(batch, queue=queues[-1])
        with pytest.raises(MessageInvalid, match="send_many"):
            await producer.send_batch([scene.message(key, body=bytes(1 << 20)) for key in keys])
    found = await scene.stored(len(keys))
    assert [(one.queue, one.queue_offset) for one in found] == [
        (queues[-1], receipt.queue_offset + number) for number in range(len(keys))
    ]
    assert keys_of(found) == keys
    assert [one.message_id for one in found] == receipt.message_id.split(",")
    for one in found:
        assert one.tags == "paid"
        assert one.body == f"body of {one.keys[0]}".encode()
        assert ODD_PROPERTIES.items() <= one.properties.items()


@pytest.mark.proves("client.producer.send-many")
@scenario
async def test_any_number_of_messages_is_cut_into_batches(scene: Scene) -> None:
    await scene.make_topic()
    other = f"{scene.topic}_other"
    await scene.make_topic(topic=other)
    long_ones = [scene.message(f"long-{n}", body=bytes([n]) * 900_000) for n in range(5)]
    others = [scene.message(f"other-{n}", topic=other) for n in range(40)]
    async with scene.producer() as producer:
        sent = await producer.send_many([*long_ones, *others])
    assert sent.batch_count == len(sent.receipts) >= 3
    found = await scene.stored(len(long_ones), scene.topic)
    assert {one.keys[0]: one.body for one in found} == {
        message.keys[0]: message.body for message in long_ones
    }
    assert keys_of(await scene.stored(len(others), other)) == [one.keys[0] for one in others]


@pytest.mark.proves("client.producer.sharding-keys")
@scenario
async def test_equal_sharding_keys_share_a_queue_and_keep_their_order(scene: Scene) -> None:
    await scene.make_topic()
    shards = ["alpha", "订单-7", "gamma", "delta"]
    async with scene.producer() as producer:
        queues = await producer.publish_queues(scene.topic)
        for number in range(4):
            for shard in shards:
                await producer.send(scene.message(f"{shard}#{number}", sharding_key=shard))
    found = await scene.stored(16)
    for shard in shards:
        mine = [one for one in found if one.keys[0].startswith(shard)]
        wanted = HashSelector()(queues, any_message(scene), shard)
        assert {one.queue for one in mine} == {wanted}
        assert keys_of(mine) == [f"{shard}#{number}" for number in range(4)]


def any_message(scene: Scene) -> Message:
    return scene.message("any")


def second_queue(queues: Sequence[MessageQueue], _: Message, argument: object) -> MessageQueue:
    return queues[1]


@pytest.mark.proves("client.producer.sharding-keys")
@scenario
async def test_selectors_choose_the_queue(scene: Scene) -> None:
    queues = await scene.make_topic()
    async with scene.producer() as producer:
        routed = await producer.publish_queues(scene.topic)
        assert sorted(routed) == queues
        by_hash = await producer.send(
            scene.message("hash"), selector=HashSelector(), selector_arg=1234567890123
        )
        at_random = await producer.send(scene.message("random"), selector=RandomSelector())
        own = await producer.send(scene.message("own"), selector=second_queue)
        named = await producer.send(scene.message("named"), queue=queues[0])
        with pytest.raises(MessageInvalid, match="no queue in the machine rooms hangzhou"):
            await producer.send(scene.message("far"), selector=MachineRoomSelector(["hangzhou"]))
    assert by_hash.queue == HashSelector()(routed, any_message(scene), 1234567890123)
    assert at_random.queue in queues
    assert (own.queue, named.queue) == (routed[1], queues[0])
    found = {one.keys[0]: one.queue for one in await scene.stored(4)}
    receipts = {"hash": by_hash, "random": at_random, "own": own, "named": named}
    assert found == {key: receipt.queue for key, receipt in receipts.items()}


@pytest.mark.proves("client.producer.compression")
@pytest.mark.parametrize("compression", list(Compression), ids=lambda kind: kind.name)
@scenario
async def test_long_bodies_are_compressed_and_read_again(
    scene: Scene, compression: Compression
) -> None:
    await scene.make_topic(queues=1, brokers=1)
    long_body = "一段很长的文字, and again. ".encode() * 1000
    async with scene.producer(compression=compression) as producer:
        await producer.send(scene.message("long", body=long_body))
        await producer.send(scene.message("short"))
    long_one, short_one = await scene.stored(2)
    assert long_one.body == long_body
    assert long_one.record_bytes < len(long_body) // 4
    assert long_one.sys_flag & COMPRESSED_FLAG
    assert long_one.sys_flag & COMPRESSION_BITS == compression.value
    assert not short_one.sys_flag & COMPRESSED_FLAG


@scenario
async def test_properties_of_any_language_and_odd_bytes_arrive(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    body = bytes(range(256))
    async with scene.producer() as producer:
        await producer.send(
            Message(
                scene.topic,
                body,
                tags="已付款",
                keys=["订单-1", "o-1"],
                properties=ODD_PROPERTIES,
                flag=77,
            )
        )
        with pytest.raises(MessageInvalid, match="control character"):
            await producer.send(scene.message("bad", properties={"a": "\x02"}))
    (found,) = await scene.stored(1)
    assert (found.body, found.tags, found.keys) == (body, "已付款", ["订单-1", "o-1"])
    assert found.flag == 77
    assert ODD_PROPERTIES.items() <= found.properties.items()


@scenario
async def test_a_topic_is_made_by_the_first_send(scene: Scene) -> None:
    await scene.send("first", "second", "third", "fourth")
    found = await scene.stored(4)
    assert sorted(keys_of(found)) == ["first", "fourth", "second", "third"]
    by_queue = groupby(found, key=lambda one: one.queue)
    assert sum(1 for _ in by_queue) > 1

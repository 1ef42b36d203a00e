"""A message that cannot be decoded arrives with its error, and stops no other message."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import contrail
from contrail.client.admin import Admin
from contrail.client.hooks import ConsumeOutcome
from contrail.client.instance import ClientInstance
from contrail.client.message import Message, MessageQueue, ReceivedMessage
from contrail.client.outgoing import Outgoing
from contrail.client.producer import Producer
from contrail.client.pull_consumer import PullConsumer
from contrail.client.push_consumer import PushConsumer
from contrail.clock import ManualClock
from contrail.model.properties import UNREADABLE
from contrail.model.record import decode_record
from contrail.model.topic import DLQ_PREFIX
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from contrail.testing import LocalCluster, eventually_async
from tests.e2e.push_setup import Seen, eventually_due, fresh

VICTIM = b"this record is damaged on its way"
SOUND = ["one", "two", "three"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as running:
        yield running


@pytest.fixture
def namesrv(cluster: LocalCluster) -> str:
    return cluster.namesrv


# The damage: stored so, or made between the broker and the consumer.


def at(place: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda record: record[:place] + value + record[place + len(value) :]


STORED: Mapping[str, tuple[bytes, int]] = {
    "no zlib": (b"not compressed at all", 0x301),
    "no lz4": (b"not compressed at all", 0x101),
    "unknown compression": (b"not compressed at all", 0x701),
    "too large": (zlib.compress(bytes((64 << 20) + 1), 1), 0x301),
}
DAMAGED: Mapping[str, Callable[[bytes], bytes]] = {
    "checksum": at(8, b"\0\0\0\0"),
    "magic": at(4, b"what"),
    "size": at(0, b"\x7f\xff\xff\xff"),
    "body length": at(84, b"\xff\xff\xff\xff"),
    "everything": lambda record: bytes(len(record)),
}
KINDS = [*STORED, *DAMAGED]


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Spoils the record of ``VICTIM`` in answers to pulls."""
    real_call = ClientInstance.call

    def begin(kind: str) -> None:
        spoil = DAMAGED.get(kind)
        if spoil is None:
            return

        async def call(
            self: ClientInstance, address: str, code: RequestCode, *more: Any, **options: Any
        ) -> ReceivedResponse:
            answer = await real_call(self, address, code, *more, **options)
            if code is RequestCode.PULL_MESSAGE and VICTIM in answer.body:
                return answer._replace(body=spoiled(answer.body, spoil))
            return answer

        monkeypatch.setattr(ClientInstance, "call", call)

    return begin


def spoiled(body: bytes, spoil: Callable[[bytes], bytes]) -> bytes:
    parts, position = [], 0
    while position < len(body):
        stored = decode_record(body, position)
        record = body[position : position + stored.record_bytes]
        # A dead letter, or a retry, is another record with the same body: that record is sound.
        is_first = stored.topic[0] != "%"
        parts.append(spoil(record) if stored.body == VICTIM and is_first else record)
        position += stored.record_bytes
    return b"".join(parts)


async def fill(namesrv: str, topic: str, kind: str) -> MessageQueue:
    """One bad message between sound ones, all in one queue."""
    body, sys_flag = STORED.get(kind, (VICTIM, 0))
    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=1)
    async with Producer(fresh("senders"), namesrv) as producer:
        (queue,) = await producer.publish_queues(topic)
        await producer.send(Message(topic, SOUND[0].encode()), queue=queue)
        bad = Outgoing(topic, body, {"KEYS": "bad"}, sys_flag=sys_flag, unique_id="bad")
        await producer._opened().sender.send(bad, queue=queue)
        for text in SOUND[1:]:
            await producer.send(Message(topic, text.encode()), queue=queue)
    return queue


class Onlooker:
    """A hook that notes failed messages."""

    def __init__(self) -> None:
        self.failures: list[tuple[list[int], str]] = []

    def before_consume(self, group: str, messages: Any) -> object:
        return [one.queue_offset for one in messages]

    def after_consume(
        self, token: Any, outcome: ConsumeOutcome, cost_ms: int, error: BaseException | None = None
    ) -> None:
        if outcome is ConsumeOutcome.EXCEPTION:
            self.failures.append((token, str(error)))


def progress_of(consumer: PushConsumer, topic: str) -> dict[MessageQueue, int]:
    assert consumer._work is not None
    return consumer._work.queues.progress(topic)


async def dead_letters(namesrv: str, group: str) -> list[ReceivedMessage]:
    topic = DLQ_PREFIX + group
    async with Admin(namesrv) as admin:

        async def is_known() -> bool:
            return topic in await admin.topics()

        # The broker creates the topic before it registers it with the NameServer.
        await eventually_async(is_known, "the NameServer knows the dead letters' topic")
        queues = await admin.queues(topic)
        return [one for queue in queues async for one in admin.browse(queue)]


@pytest.mark.proves("client.undecodable.delivered")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_push_consumer_retries_and_gives_up_an_undecodable_message_and_handles_the_others(
    cluster: LocalCluster, damage: Callable[[str], None], kind: str, orderly: bool
) -> None:
    async def main() -> None:
        namesrv, topic, group = cluster.namesrv, fresh("orders"), fresh("readers")
        queue = await fill(namesrv, topic, kind)
        damage(kind)
        seen, onlooker = Seen(), Onlooker()
        consumer = PushConsumer(
            group,
            namesrv,
            consume_from_where="first",
            orderly=orderly,
            max_reconsume_times=1,
            suspend_current_queue_time_ms=10,
            hooks=[onlooker],
        )
        consumer.on_message(seen)
        await consumer.subscribe(topic)
        await consumer.start()
        await seen.reach(3)
        assert sorted(seen.bodies) == sorted(SOUND)
        assert not orderly or seen.bodies == SOUND
        # Tried, tried again, given up.
        await eventually_due(cluster, lambda: len(onlooker.failures) == 2, "the retry")
        assert onlooker.failures[0][0] == [1]
        assert all("cannot be decoded" in told for _, told in onlooker.failures)
        await eventually_async(
            lambda: progress_of(consumer, topic)[queue] == 4, "progress over all four"
        )
        await consumer.close()
        assert len(seen.messages) == 3, "a handler never gets what cannot be decoded"
        (dead,) = await dead_letters(namesrv, group)
        if kind in DAMAGED:
            assert "cannot be decoded" in dead.properties[UNREADABLE]
        else:
            assert (dead.body, dead.decode_error is None) == (STORED[kind][0], False)

    asyncio.run(main())


@pytest.mark.proves("client.undecodable.delivered")
@pytest.mark.parametrize("kind", ["no zlib", "magic", "checksum"])
def test_an_undecodable_broadcast_message_is_skipped(
    cluster: LocalCluster, damage: Callable[[str], None], tmp_path: Any, kind: str
) -> None:
    async def main() -> None:
        topic = fresh("orders")
        await fill(cluster.namesrv, topic, kind)
        damage(kind)
        seen = Seen()
        consumer = PushConsumer(
            fresh("readers"),
            cluster.namesrv,
            consume_from_where="first",
            message_model="BROADCASTING",
            offset_folder=tmp_path,
        )
        consumer.on_message(seen)
        await consumer.subscribe(topic)
        await consumer.start()
        await seen.reach(3)
        await eventually_async(
            lambda: set(progress_of(consumer, topic).values()) == {4}, "progress"
        )
        await consumer.close()
        assert sorted(seen.bodies) == sorted(SOUND)

    asyncio.run(main())


@pytest.mark.proves("client.undecodable.orderly")
@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
def test_an_orderly_consumer_with_default_settings_goes_on_behind_an_undecodable_message(
    cluster: LocalCluster,
    damage: Callable[[str], None],
    tmp_path: Any,
    caplog: pytest.LogCaptureFixture,
    model: str,
) -> None:
    async def main() -> None:
        namesrv, group = cluster.namesrv, fresh("readers")
        # One consumer of all: each queue rests separately.
        topics = {kind: fresh("orders") for kind in ["no zlib", "too large", "magic"]}
        for kind, topic in topics.items():
            await fill(namesrv, topic, kind)
        damage("magic")
        seen, onlooker = Seen(), Onlooker()
        consumer = PushConsumer(
            group,
            namesrv,
            consume_from_where="first",
            orderly=True,
            message_model=model,
            offset_folder=tmp_path,
            hooks=[onlooker],
        )
        consumer.on_message(seen)
        for topic in topics.values():
            await consumer.subscribe(topic)
        await consumer.start()
        await seen.reach(9)
        for topic in topics.values():
            assert [one.body.decode() for one in seen.messages if one.topic == topic] == SOUND
            assert set(progress_of(consumer, topic).values()) <= {3, 4}
        await consumer.close()
        # Tried once, and again 16 times, as where order is not kept.
        assert len(onlooker.failures) == 3 * 17
        if model == "CLUSTERING":
            dead = {
                one.properties["RETRY_TOPIC"]: one for one in await dead_letters(namesrv, group)
            }
            assert dead.keys() == set(topics.values())
            assert dead[topics["no zlib"]].body == STORED["no zlib"][0]
            assert dead[topics["no zlib"]].decode_error is not None
            assert dead[topics["too large"]].decode_error is not None
            assert "cannot be decoded" in dead[topics["magic"]].properties[UNREADABLE]

    asyncio.run(main())
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    told = [one for one in errors if "cannot be decoded" in one]
    assert len(told) == (3 if model == "BROADCASTING" else 0)


@pytest.mark.parametrize("kind", ["no zlib", "size"])
def test_plain_functions_lists_and_loops_never_get_an_undecodable_message(
    cluster: LocalCluster, damage: Callable[[str], None], kind: str
) -> None:
    namesrv, topic = cluster.namesrv, fresh("orders")
    asyncio.run(fill(namesrv, topic, kind))
    damage(kind)
    options: dict[str, Any] = {"consume_from_where": "first", "max_reconsume_times": 0}

    def wait_for(bodies: list[bytes]) -> None:
        async def wait() -> None:
            await eventually_async(lambda: len(bodies) >= 3)

        asyncio.run(wait())
        assert sorted(bodies) == sorted(one.encode() for one in SOUND)

    plain: list[bytes] = []
    with contrail.PushConsumer(fresh("readers"), namesrv, **options) as consumer:
        consumer.on_message(lambda message: plain.append(message.body))
        consumer.subscribe(topic)
        wait_for(plain)

    listed: list[bytes] = []
    with contrail.PushConsumer(
        fresh("readers"), namesrv, consume_message_batch_max_size=8, **options
    ) as consumer:
        consumer.on_messages(lambda batch: listed.extend(one.body for one in batch))
        consumer.subscribe(topic)
        wait_for(listed)

    looped: list[bytes] = []
    with contrail.PushConsumer(fresh("readers"), namesrv, **options) as consumer:
        consumer.subscribe(topic)
        for message in consumer:
            looped.append(message.body)
            if len(looped) == 3:
                break
    wait_for(looped)


@pytest.mark.proves("client.undecodable.delivered")
@pytest.mark.parametrize("kind", KINDS)
def test_a_pull_consumer_and_the_admin_client_get_an_undecodable_message_with_its_error(
    cluster: LocalCluster, damage: Callable[[str], None], kind: str
) -> None:
    def judge(messages: list[ReceivedMessage]) -> None:
        assert [one.queue_offset for one in messages] == [0, 1, 2, 3]
        assert [one.body for one in messages if one.decode_error is None] == [
            one.encode() for one in SOUND
        ]
        bad = messages[1]
        assert "cannot be decoded" in str(bad.decode_error)
        if kind in STORED:
            assert bad.body == STORED[kind][0]

    async def main() -> None:
        namesrv, topic = cluster.namesrv, fresh("orders")
        queue = await fill(namesrv, topic, kind)
        damage(kind)
        async with PullConsumer(fresh("readers"), namesrv, consume_from_where="first") as consumer:
            await consumer.assign([queue])
            polled: list[ReceivedMessage] = []
            while len(polled) < 4:
                polled += await consumer.poll()
            judge(polled)
            await consumer.commit()
            assert await consumer.committed(queue) == 4
            position, pulled = 0, []
            while position < 4:
                result = await consumer.pull(queue, position)
                assert result.next_queue_offset > position
                position = result.next_queue_offset
                pulled += list(result.messages)
            judge(pulled)

    def blocking() -> None:
        namesrv, topic = cluster.namesrv, fresh("orders")
        queue = asyncio.run(fill(namesrv, topic, kind))
        with contrail.PullConsumer(
            fresh("readers"), namesrv, consume_from_where="first"
        ) as consumer:
            consumer.assign([queue])
            polled: list[ReceivedMessage] = []
            while len(polled) < 4:
                polled += consumer.poll()
            judge(polled)

    asyncio.run(main())
    blocking()


def test_consuming_an_undecodable_message_directly_returns_its_error(
    cluster: LocalCluster,
) -> None:
    async def main() -> None:
        namesrv, topic, group = cluster.namesrv, fresh("orders"), fresh("readers")
        queue = await fill(namesrv, topic, "no zlib")
        seen = Seen()
        consumer = PushConsumer(group, namesrv, consume_from_where="first", max_reconsume_times=0)
        consumer.on_message(seen)
        await consumer.subscribe(topic)
        await consumer.start()
        await seen.reach(3)
        async with Admin(namesrv) as admin:
            bad = await admin.message_at(queue, 1)
            result = await admin.consume_directly(group, consumer.client_id, bad)
        await consumer.close()
        assert result.result == "CR_THROW_EXCEPTION"
        assert "cannot be decoded" in result.remark

    asyncio.run(main())

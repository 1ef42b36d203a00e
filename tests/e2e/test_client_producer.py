"""The producer against real servers: every kind of send, and servers that come and go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from contrail.client.blocking.producer import Producer as BlockingProducer
from contrail.client.compression import Compression, decompress
from contrail.client.message import Message, MessageQueue, SendReceipt, SendStatus
from contrail.client.outgoing import Outgoing
from contrail.client.producer import Producer
from contrail.client.selectors import HashSelector, RandomSelector
from contrail.errors import (
    BrokerRefused,
    ClientClosed,
    GroupTaken,
    MessageInvalid,
    NameServerUnreachable,
    RouteMissing,
    SendFailed,
)
from contrail.model.message import StoredMessage
from contrail.model.record import SYS_FLAG_COMPRESSED
from contrail.protocol.codes import ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages, route
from tests.e2e.raw_client import PATIENCE_S

PATIENCE_MS = int(PATIENCE_S * 1000)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, nameservers=2) as running:
        yield running


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@asynccontextmanager
async def producing(
    cluster: LocalCluster, group: str = "g", **options: Any
) -> AsyncIterator[Producer]:
    options.setdefault("send_timeout_ms", PATIENCE_MS)
    async with Producer(group, cluster.namesrv, **options) as producer:
        yield producer


def make_topic(cluster: LocalCluster, topic: str, queues: int = 2, *, order: bool = False) -> None:
    """On all brokers, known to all NameServers."""
    for number in range(len(cluster.brokers)):
        Asker(cluster, number).make_topic(topic, read=queues, write=queues, order=order)
    wanted = {broker.name for broker in cluster.brokers}
    for number in range(len(cluster.nameservers)):

        def is_known(number: int = number) -> bool:
            found = route(cluster, topic, number)
            return found is not None and {one.broker_name for one in found.queues} == wanted

        eventually(is_known, f"NameServer {number} knows all brokers of {topic}")


def stored(cluster: LocalCluster, topic: str, queues: int = 2) -> list[StoredMessage]:
    """All messages of a topic, broker by broker and queue by queue."""
    return [
        message
        for number in range(len(cluster.brokers))
        for queue_id in range(queues)
        for message in stored_in(Asker(cluster, number), topic, queue_id)
    ]


def stored_in(broker: Asker, topic: str, queue_id: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    queue_offset = 0
    while True:
        answer = broker.pull(topic, queue_offset, queueId=str(queue_id))
        if "nextBeginOffset" not in answer.fields:
            # The topic is not on this broker.
            return found
        found += messages(answer)
        queue_offset = int(answer.fields["nextBeginOffset"])
        if queue_offset >= int(answer.fields["maxOffset"]):
            return found


def test_a_message_arrives_with_all_its_fields(cluster: LocalCluster) -> None:
    async def work() -> None:
        async with producing(cluster) as producer:
            receipt = await producer.send(
                Message(
                    "whole", b"body", tags="paid", keys=["o-1", "o-2"],
                    properties={"区域": "华东", "bin": "a\x01\x7f"}, flag=3,
                )
            )  # fmt: skip
        assert receipt.status is SendStatus.SEND_OK
        (message,) = await asyncio.to_thread(stored, cluster, "whole", 4)
        assert (message.body, message.flag) == (b"body", 3)
        properties = message.properties
        assert properties["TAGS"] == "paid"
        assert properties["KEYS"] == "o-1 o-2"
        assert properties["区域"] == "华东"
        assert properties["bin"] == "a\x01\x7f"
        assert properties["UNIQ_KEY"] == receipt.message_id
        assert receipt.queue.queue_id == message.queue_id

    run(work())


def test_sends_take_turns_over_all_queues_of_all_brokers(cluster: LocalCluster) -> None:
    make_topic(cluster, "turns")

    async def work() -> None:
        async with producing(cluster) as producer:
            receipts = [await producer.send(Message("turns", b"x")) for _ in range(8)]
        queues = {receipt.queue for receipt in receipts[:4]}
        assert len(queues) == 4
        assert [receipt.queue for receipt in receipts[4:]] == [r.queue for r in receipts[:4]]

    run(work())


def test_queues_are_chosen_by_key_by_selector_and_by_hand(cluster: LocalCluster) -> None:
    make_topic(cluster, "chosen")

    async def work() -> None:
        async with producing(cluster) as producer:
            queues = await producer.publish_queues("chosen")
            assert [(queue.broker_name, queue.queue_id) for queue in queues] == [
                ("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1),
            ]  # fmt: skip
            by_key = {
                (await producer.send(Message("chosen", b"x", sharding_key="k"))).queue
                for _ in range(4)
            }
            # Java: "k".hashCode() is 107.
            assert by_key == {queues[107 % 4]}
            picked = await producer.send(
                Message("chosen", b"x"), selector=HashSelector(), selector_arg=6
            )
            assert picked.queue == queues[2]
            any_one = await producer.send(Message("chosen", b"x"), selector=RandomSelector())
            assert any_one.queue in queues
            own = await producer.send(
                Message("chosen", b"x"), selector=lambda given, message, arg: given[-1]
            )
            assert own.queue == queues[3]
            exact = await producer.send(Message("chosen", b"x"), queue=queues[1])
            assert exact.queue == queues[1]
            with pytest.raises(MessageInvalid, match="publish_queues"):
                await producer.send(Message("chosen", b"x"), queue=MessageQueue("t", "a", 0))
            with pytest.raises(MessageInvalid, match="keep one"):
                await producer.send(
                    Message("chosen", b"x"), queue=queues[0], selector=HashSelector()
                )
            wrong: Any = lambda given, message, arg: None  # noqa: E731
            with pytest.raises(MessageInvalid, match="the selector returned None"):
                await producer.send(Message("chosen", b"x"), selector=wrong)

    run(work())


@pytest.mark.parametrize("kind", list(Compression))
def test_long_bodies_are_stored_compressed(cluster: LocalCluster, kind: Compression) -> None:
    topic = f"long-{kind.name}"
    body = b"a long body " * 1_000

    async def work() -> None:
        async with producing(cluster, compression=kind) as producer:
            await producer.send(Message(topic, body))

    run(work())
    (message,) = stored(cluster, topic, 4)
    assert message.sys_flag & SYS_FLAG_COMPRESSED
    assert len(message.body) < len(body) // 10
    assert decompress(message.body, message.sys_flag) == body


@pytest.mark.proves("client.producer.sends")
def test_asynchronous_and_one_way_sends_arrive(cluster: LocalCluster) -> None:
    make_topic(cluster, "modes")

    async def work() -> None:
        async with producing(cluster) as producer:
            futures = [producer.send_async(Message("modes", b"a%d" % at)) for at in range(50)]
            receipts = await asyncio.gather(*futures)
            assert len({(receipt.queue, receipt.queue_offset) for receipt in receipts}) == 50
            with pytest.raises(MessageInvalid):
                producer.send_async(Message("modes", b""))
            for at in range(200):
                await producer.send_oneway(Message("modes", b"o%d" % at))

    run(work())
    wanted = {b"a%d" % at for at in range(50)} | {b"o%d" % at for at in range(200)}
    eventually(lambda: {m.body for m in stored(cluster, "modes")} == wanted, "one-way sends arrive")


def test_a_batch_is_one_request_into_one_queue(cluster: LocalCluster) -> None:
    make_topic(cluster, "batch")

    async def work() -> None:
        async with producing(cluster) as producer:
            receipt = await producer.send_batch(
                [Message("batch", b"m%d" % at, keys=[f"k{at}"]) for at in range(10)]
            )
            assert len(receipt.message_id.split(",")) == 10
            assert len(receipt.offset_message_id.split(",")) == 10
            crowd = await producer.send_batch([Message("crowded", b"x") for _ in range(9_000)])
            assert len(crowd.offset_message_id.split(",")) == 9_000
            queue = (await producer.publish_queues("batch"))[0]
            again = await producer.send_batch([Message("batch", b"last")], queue=queue)
            assert again.queue == queue
            with pytest.raises(MessageInvalid, match="send_many"):
                await producer.send_batch([Message("batch", bytes(1 << 20))] * 4)

    run(work())
    found = stored(cluster, "batch")
    assert [message.body for message in found if message.body != b"last"] == [
        b"m%d" % at for at in range(10)
    ]
    assert len({message.properties["UNIQ_KEY"] for message in found}) == 11


@pytest.mark.proves("client.producer.send-many")
def test_a_list_is_cut_into_batches_and_all_messages_arrive(cluster: LocalCluster) -> None:
    make_topic(cluster, "many")

    async def work() -> None:
        async with producing(cluster) as producer:
            body = bytes(5_000)
            sent = await producer.send_many(
                Message("many", b"%05d" % at + body) for at in range(500)
            )
            assert sent.batch_count == len(sent.receipts) == 3
            assert sum(len(one.message_id.split(",")) for one in sent.receipts) == 500
            # Alone, as it is too long for a batch: it is sent like any single message.
            alone = await producer.send_many([Message("many", bytes(4 << 20))])
            assert alone.batch_count == 1
            assert (await producer.send_many([])).batch_count == 0

    run(work())
    reach = sum(
        int(Asker(cluster, number).pull("many", 0, queueId=str(queue_id)).fields["maxOffset"])
        for number in range(2)
        for queue_id in range(2)
    )
    assert reach == 501


def test_a_message_for_later_can_be_recalled_and_has_a_handle(cluster: LocalCluster) -> None:
    async def work() -> None:
        async with producing(cluster) as producer:
            receipt = await producer.send(Message("later", b"x", delay=3_600))
            assert receipt.recall_handle
            assert await producer.recall(receipt) == receipt.message_id
            levelled = await producer.send(Message("later", b"x", delay_level=18))
            assert levelled.status is SendStatus.SEND_OK

    run(work())


def test_sixty_four_concurrent_sends_lose_and_double_no_message(cluster: LocalCluster) -> None:
    make_topic(cluster, "crowd")

    async def work() -> None:
        async with producing(
            cluster, in_flight_count_max=32, in_flight_bytes_max=2_000
        ) as producer:

            async def one(number: int) -> list[tuple[MessageQueue, int]]:
                receipts = [await producer.send(Message("crowd", bytes(100))) for _ in range(10)]
                return [(receipt.queue, receipt.queue_offset) for receipt in receipts]

            places = [
                place for part in await asyncio.gather(*map(one, range(64))) for place in part
            ]
            assert len(set(places)) == 640

    run(work())
    assert len(stored(cluster, "crowd")) == 640


def test_one_group_has_one_producer_and_all_share_one_client(cluster: LocalCluster) -> None:
    async def work() -> None:
        async with producing(cluster, "g1") as first, producing(cluster, "g2") as second:
            assert first.client_id == second.client_id
            with pytest.raises(GroupTaken, match="'g1'"):
                await Producer("g1", cluster.namesrv).start()
            assert await first.send(Message("shared", b"x"))
        async with producing(cluster, "g1") as again:
            assert await again.send(Message("shared", b"x"))
        with pytest.raises(ClientClosed, match="'g1'"):
            await again.send(Message("shared", b"x"))

    run(work())


def test_closing_waits_for_sends_under_way(cluster: LocalCluster) -> None:
    make_topic(cluster, "last")

    async def work() -> None:
        producer = Producer("g", cluster.namesrv)
        await producer.start()
        await producer.send(Message("last", b"first"))
        futures = [producer.send_async(Message("last", b"x")) for _ in range(20)]
        await asyncio.sleep(0)
        await producer.close()
        assert all(future.done() and future.exception() is None for future in futures)
        await producer.close()

    run(work())


@pytest.mark.parametrize("options", [{}, {"sharding_key": "k"}])
def test_closing_waits_for_asynchronous_sends_that_have_not_begun(
    cluster: LocalCluster, options: dict[str, Any]
) -> None:
    async def work() -> None:
        async with producing(cluster) as producer:
            futures = [
                # The route is not known yet.
                producer.send_async(Message(f"unbegun-{at % 2}", b"%d" % at, **options))
                for at in range(200)
            ]
        assert all(future.done() for future in futures)
        receipts = await asyncio.gather(*futures)
        assert len({(one.queue, one.queue_offset) for one in receipts}) == 200

    run(work())


def test_closing_waits_for_asynchronous_sends_of_threads(cluster: LocalCluster) -> None:
    with BlockingProducer("g", cluster.namesrv, send_timeout_ms=PATIENCE_MS) as producer:
        futures = [producer.send_async(Message("threads", b"%d" % at)) for at in range(200)]
    receipts = [future.result(PATIENCE_S) for future in futures]
    assert len({(one.queue, one.queue_offset) for one in receipts}) == 200


@pytest.mark.proves("client.producer.sharding-keys")
def test_a_key_leads_to_the_same_queue_however_it_is_sent(cluster: LocalCluster) -> None:
    make_topic(cluster, "keyed")
    keys = [f"k{at}" for at in range(8)]

    async def work() -> None:
        async with producing(cluster) as producer:
            queues = {
                key: (await producer.send(Message("keyed", b"0", sharding_key=key))).queue
                for key in keys
            }
            assert len(set(queues.values())) > 1
            many = [
                Message("keyed", b"%d" % at, sharding_key=key) for at in (1, 2, 3) for key in keys
            ]
            sent = await producer.send_many(many)
            assert {one.queue for one in sent.receipts} == set(queues.values())
            assert sent.batch_count == len(set(queues.values()))
            for key in keys:
                last = [Message("keyed", b"%d" % at, sharding_key=key) for at in (4, 5)]
                assert (await producer.send_batch(last)).queue == queues[key]
                alone = await producer.send_many([Message("keyed", b"6", sharding_key=key)])
                assert alone.receipts[0].queue == queues[key]
            with pytest.raises(MessageInvalid, match="send_many"):
                await producer.send_batch(many)
            own = (await producer.publish_queues("keyed-by-hand"))[0]
            mixed = [Message("keyed-by-hand", b"x", sharding_key=key) for key in keys]
            assert (await producer.send_batch(mixed, queue=own)).queue == own

    run(work())
    found = stored(cluster, "keyed")
    for key in keys:
        mine = [m.body for m in found if m.properties["__SHARDINGKEY"] == key]
        assert mine == [b"%d" % at for at in range(7)]


def test_anything_but_a_list_of_messages_is_refused_with_the_fix(cluster: LocalCluster) -> None:
    async def work() -> None:
        one: Any = Message("whole", b"x")
        async with producing(cluster) as producer:
            with pytest.raises(MessageInvalid, match=r"send_batch\(\) takes a list"):
                await producer.send_batch(one)
            with pytest.raises(MessageInvalid, match=r"send_many\(\) takes a list"):
                await producer.send_many(one)

    run(work())


@pytest.mark.proves("client.producer.timeouts")
def test_name_servers_that_never_answer_cost_no_more_than_the_timeout() -> None:
    async def work(namesrv: list[str]) -> None:
        loop = asyncio.get_running_loop()
        async with Producer(
            "g", namesrv, send_timeout_ms=300, api_timeout_ms=PATIENCE_MS
        ) as producer:
            message, keyed = Message("t", b"x"), Message("t", b"x", sharding_key="k")
            for send in (
                lambda: producer.send(message),
                lambda: producer.send(keyed),
                lambda: producer.send_async(keyed),
                lambda: producer.send_oneway(message),
                lambda: producer.send_many([keyed]),
                lambda: producer.transaction(keyed).__aenter__(),
            ):
                began_s = loop.time()
                with pytest.raises(NameServerUnreachable, match="in time where topic 't' is"):
                    await send()
                # Each NameServer alone would have a minute.
                assert loop.time() - began_s < PATIENCE_S / 2

    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        run(work([f"127.0.0.1:{one.getsockname()[1]}" for one in silent]))


def test_a_traced_producer_leaves_a_trace(cluster: LocalCluster) -> None:
    async def work() -> None:
        async with producing(cluster, trace=True) as producer:
            receipt = await producer.send(Message("traced", b"x"))
        found = await asyncio.to_thread(stored, cluster, "RMQ_SYS_TRACE_TOPIC", 4)
        assert any(receipt.message_id.encode() in message.body for message in found)

    run(work())


@pytest.mark.proves("client.shared.errors")
def test_a_topic_that_no_broker_may_create_is_named_with_the_fix() -> None:
    async def work(cluster: LocalCluster) -> None:
        async with producing(cluster) as producer:
            with pytest.raises(RouteMissing, match="contrail topic create absent") as caught:
                await producer.send(Message("absent", b"x"))
            assert caught.value.topic == "absent"

    with LocalCluster(properties={"autoCreateTopicEnable": "false"}) as cluster:
        run(work(cluster))


def until_sent(
    producer: Producer, name: str, topic: str = "kills"
) -> Callable[[], Coroutine[Any, Any, None]]:
    async def send() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await producer.send(Message(topic, b"x"))).queue.broker_name != name:
                await asyncio.sleep(0.01)

    return send


@pytest.mark.proves("client.producer.retries")
def test_servers_that_die_cost_no_send_while_one_of_each_is_left() -> None:
    async def work(cluster: LocalCluster) -> None:
        async with producing(cluster, poll_name_server_interval_ms=300) as producer:
            await until_sent(producer, "broker-a")()
            cluster.nameservers[0].kill()
            cluster.nameservers[1].kill()
            cluster.brokers[0].kill()
            for number in range(40):
                receipt = await producer.send(Message("kills", b"%d" % number))
                assert receipt.queue.broker_name == "broker-b"
            assert await producer.send(Message("kills-new", b"x"))
            await asyncio.to_thread(cluster.nameservers[0].start)
            await asyncio.to_thread(cluster.nameservers[1].start)
            await asyncio.to_thread(cluster.brokers[0].start)
            await until_sent(producer, "broker-a")()
            cluster.brokers[0].kill()
            cluster.brokers[1].kill()
            with pytest.raises(SendFailed, match="attempts") as caught:
                await producer.send(Message("kills", b"x"), timeout_ms=30_000)
            assert any("broker-a" in attempt for attempt in caught.value.attempts)
            assert any("broker-b" in attempt for attempt in caught.value.attempts)

    with LocalCluster(brokers=2, nameservers=3, in_children=True) as cluster:
        make_topic(cluster, "kills")
        run(work(cluster))


class Refusals:
    """The refusals of brokers, attempt by attempt."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def before_send(self, outgoing: Outgoing, queue: MessageQueue) -> None: ...

    def after_send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        receipt: SendReceipt | None,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        if isinstance(error, BrokerRefused):
            self.codes.append(error.code)


@pytest.mark.proves("client.producer.retries")
def test_sends_go_on_while_a_broker_is_drained() -> None:
    """Ordered topics are refused at once, long before the routes change."""

    async def work(cluster: LocalCluster) -> None:
        refusals = Refusals()
        async with producing(
            cluster, hooks=[refusals], poll_name_server_interval_ms=3_600_000
        ) as producer:
            await until_sent(producer, "broker-a", "drained")()
            await asyncio.to_thread(Asker(cluster, 0).change_settings, "brokerPermission=4")
            receipts = [await producer.send(Message("drained", b"x")) for _ in range(20)]
            assert {one.queue.broker_name for one in receipts} == {"broker-b"}
            batch = await producer.send_batch([Message("drained", b"x")] * 3)
            assert batch.queue.broker_name == "broker-b"
        assert set(refusals.codes) == {ResponseCode.NO_PERMISSION}

    with LocalCluster(brokers=2) as cluster:
        make_topic(cluster, "drained", order=True)
        run(work(cluster))


@pytest.mark.proves("cli.small-rules.client-errors")
def test_a_list_given_to_send_is_pointed_to_send_batch_in_one_line(cluster: LocalCluster) -> None:
    messages = [Message("orders", b"x" * 100) for _ in range(200)]
    with (
        BlockingProducer("lists", cluster.namesrv) as producer,
        pytest.raises(MessageInvalid, match=r"list of 200.*send_batch") as caught,
    ):
        producer.send(messages)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200

"""The pull consumer against a real broker: polling, seeking, progress, filters, single pulls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from contrail.client.admin import Admin
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.pull_consumer import PullConsumer
from contrail.client.pulling import PullStatus
from contrail.client.subscriptions import Sql92
from contrail.errors import (
    ClientClosed,
    ClientError,
    ConfigError,
    GroupTaken,
    OffsetIllegal,
    RouteMissing,
)
from contrail.model.fastjson import Fields, loads
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalCluster, eventually, eventually_async
from tests.e2e.asking import Asker, offset_fields, route

DEADLINE_S = 60.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(properties={"enablePropertyFilter": "true"}) as running:
        yield running


@pytest.fixture
def broker(cluster: LocalCluster) -> Asker:
    return Asker(cluster)


@pytest.fixture
def topic(cluster: LocalCluster, broker: Asker) -> str:
    name = f"pulled-{next(_numbers)}"
    broker.make_topic(name, read=2, write=2)
    eventually(lambda: route(cluster, name) is not None, f"a route of {name}")
    return name


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * DEADLINE_S))


async def polled(consumer: PullConsumer, count: int, **options: int) -> list[ReceivedMessage]:
    """``count`` messages, however many polls they take."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await consumer.poll(timeout_ms=1_000, **options)
    assert len(found) == count
    return found


def queue_of(topic: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def fill(
    broker: Asker, topic: str, count: int, *, queue_id: int = 0, tag: str = "t"
) -> list[bytes]:
    bodies = [f"{topic} {queue_id} {number}".encode() for number in range(count)]
    for body in bodies:
        broker.stored(topic, body, queue_id=queue_id, properties={"TAGS": tag, "price": "5"})
    return bodies


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def has_progress(broker: Asker, group: str, topic: str) -> bool:
    answer = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, offset_fields(group, topic))
    return answer.code == ResponseCode.SUCCESS


def consumer_of(cluster: LocalCluster, group: str, **options: Any) -> PullConsumer:
    options = {"consume_from_where": "first", **options}
    options.setdefault("consume_from_where", "first")
    return PullConsumer(group, cluster.namesrv, **options)


def test_assigned_queues_are_read_in_order_and_progress_is_kept_at_close(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    sent = fill(broker, topic, 50)

    async def scenario() -> None:
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            await consumer.assign([queue_of(topic)])
            first = await polled(consumer, 20, count_max=20)
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            await consumer.assign([queue_of(topic)])
            second = await polled(consumer, 30)
            assert await consumer.poll(timeout_ms=10) == []
        assert bodies(first + second) == sent

    run(scenario())
    assert broker.offset_of(f"g-{topic}", topic) == 50


def test_a_subscribed_topic_is_read_from_all_queues(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    sent = [*fill(broker, topic, 30), *fill(broker, topic, 30, queue_id=1)]

    async def scenario() -> None:
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            await consumer.subscribe(topic)
            assert sorted(bodies(await polled(consumer, 60))) == sorted(sent)
            assert consumer.assignment() == [queue_of(topic, 0), queue_of(topic, 1)]
            await consumer.unsubscribe(topic)
            assert consumer.assignment() == []

    run(scenario())


def test_messages_of_a_failed_block_come_again(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    sent = fill(broker, topic, 4)

    async def failing_at_the_second_poll() -> None:
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            await consumer.assign([queue_of(topic)])
            await polled(consumer, 2, count_max=2)
            await polled(consumer, 2, count_max=2)
            raise ZeroDivisionError

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await failing_at_the_second_poll()
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            await consumer.assign([queue_of(topic)])
            assert bodies(await polled(consumer, 2)) == sent[2:]

    run(scenario())


def test_seeking_drops_fetched_messages_and_goes_on_from_there(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    sent = fill(broker, topic, 40)

    async def scenario() -> None:
        queue = queue_of(topic)
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            await consumer.assign([queue])
            [middle] = [await polled(consumer, 5, count_max=5)]
            await consumer.seek(queue, 38)
            assert bodies(await polled(consumer, 2)) == sent[38:]
            await consumer.seek_to_begin(queue)
            assert bodies(await polled(consumer, 1, count_max=1)) == sent[:1]
            await consumer.seek_to_time(queue, middle[2].store_timestamp_ms)
            place = await consumer.search(queue, middle[2].store_timestamp_ms)
            assert bodies(await polled(consumer, 1, count_max=1)) == [sent[place]]
            await consumer.seek_to_end(queue)
            await consumer.commit()
            assert await consumer.committed(queue) == 40
            with pytest.raises(OffsetIllegal, match="from 0 to 40, not 41"):
                await consumer.seek(queue, 41)
            with pytest.raises(ClientError, match="assign"):
                await consumer.seek(queue_of(topic, 1), 0)

    run(scenario())
    assert broker.offset_of(f"g-{topic}", topic) == 40


def test_without_auto_commit_only_a_commit_writes_progress(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    fill(broker, topic, 10)
    group, queue = f"g-{topic}", queue_of(topic)

    async def scenario() -> None:
        async with consumer_of(cluster, group, auto_commit=False) as consumer:
            await consumer.assign([queue])
            await polled(consumer, 4, count_max=4)
            assert await consumer.committed(queue) is None
            assert not has_progress(broker, group, topic)
            await consumer.commit()
            assert broker.offset_of(group, topic) == 4
            await polled(consumer, 3, count_max=3)
            await consumer.commit_async({queue: 6})

            async def is_written() -> bool:
                return broker.offset_of(group, topic) == 6

            await eventually_async(is_written)
            await polled(consumer, 3)
            with pytest.raises(ClientError, match="assign"):
                await consumer.commit({queue_of(topic, 1): 0})
        assert broker.offset_of(group, topic) == 6

    run(scenario())


def test_committed_is_the_stored_offset_and_not_the_noted_one(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    fill(broker, topic, 4)
    group, queue = f"g-{topic}", queue_of(topic)

    async def scenario() -> None:
        # No periodic write falls into the time of a test.
        async with consumer_of(cluster, group, auto_commit_interval_ms=3_600_000) as consumer:
            await consumer.assign([queue])
            await polled(consumer, 2, count_max=2)
            await polled(consumer, 2, count_max=2)
            # Two are noted as handled by the second poll.
            assert not has_progress(broker, group, topic)
            assert await consumer.committed(queue) is None
            # Reading the stored offset does not forget the noted ones.
            assert dict(consumer._running().offsets.snapshot()) == {queue: 2}
            await consumer.commit()
            assert await consumer.committed(queue) == 4

    run(scenario())


def test_progress_is_written_periodically_without_a_close(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    fill(broker, topic, 5)
    group = f"g-{topic}"

    async def scenario() -> None:
        async with consumer_of(cluster, group, auto_commit_interval_ms=50) as consumer:
            await consumer.assign([queue_of(topic)])
            await polled(consumer, 5)
            # This poll counts the five as handled.
            assert await consumer.poll(timeout_ms=1) == []

            async def is_written() -> bool:
                return has_progress(broker, group, topic)

            await eventually_async(is_written)
            assert broker.offset_of(group, topic) == 5

    run(scenario())


class FailingHook:
    """Fails before the first messages, and after the second ones."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def before_consume(self, group: str, messages: Sequence[ReceivedMessage]) -> object:
        self.calls.append("before")
        if len(self.calls) == 1:
            raise RuntimeError("broken before")
        return None

    def after_consume(self, *_: object) -> None:
        self.calls.append("after")
        if self.calls.count("after") == 1:
            raise RuntimeError("broken after")


def test_a_failing_hook_keeps_no_message_from_the_application(
    cluster: LocalCluster, broker: Asker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = fill(broker, topic, 9)
    hook, other = FailingHook(), FailingHook()
    other.calls.append("before")

    async def scenario() -> None:
        async with consumer_of(cluster, f"g-{topic}", hooks=[hook, other]) as consumer:
            await consumer.assign([queue_of(topic)])
            assert bodies(await polled(consumer, 9, count_max=3)) == sent

    run(scenario())
    assert broker.offset_of(f"g-{topic}", topic) == 9
    assert hook.calls == ["before", "before", "after", "before", "after"]
    assert other.calls == ["before", *["before", "after"] * 3]
    failures = [record for record in caplog.records if "FailingHook" in record.getMessage()]
    assert [str(record.exc_info[1]) for record in failures if record.exc_info] == [
        "broken before",
        "broken after",
        "broken after",
    ]


def test_starting_twice_is_starting_once(cluster: LocalCluster, broker: Asker, topic: str) -> None:
    sent = fill(broker, topic, 2)

    async def scenario() -> None:
        consumer = consumer_of(cluster, f"g-{topic}")
        await consumer.start()
        client_id = consumer.client_id
        await consumer.start()
        assert consumer.client_id == client_id
        await consumer.assign([queue_of(topic)])
        assert bodies(await polled(consumer, 2)) == sent
        await consumer.close()
        with pytest.raises(ClientClosed):
            await consumer.poll()

    run(scenario())


def test_paused_queues_hand_out_nothing_until_resumed(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    paused, other = queue_of(topic, 0), queue_of(topic, 1)
    of_paused = fill(broker, topic, 3)

    async def scenario() -> None:
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            await consumer.assign([paused, other])
            await consumer.pause(paused)
            of_other = fill(broker, topic, 3, queue_id=1)
            assert bodies(await polled(consumer, 3)) == of_other
            assert await consumer.poll(timeout_ms=100) == []
            await consumer.resume(paused)
            assert bodies(await polled(consumer, 3)) == of_paused
            await consumer.pause()
            fill(broker, topic, 1)
            assert await consumer.poll(timeout_ms=100) == []
            await consumer.resume()
            assert len(await polled(consumer, 1)) == 1

    run(scenario())


def test_tags_are_exact_and_sql_is_answered(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    # These two tags have the same hash in Java, and a broker compares hashes only.
    fill(broker, topic, 2, tag="Aa")
    fill(broker, topic, 2, tag="BB")

    async def scenario() -> None:
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            await consumer.assign([queue_of(topic)], "BB")
            assert [message.tags for message in await polled(consumer, 2)] == ["BB", "BB"]
            assert await consumer.poll(timeout_ms=50) == []
            await consumer.assign([queue_of(topic, 1)], Sql92("price > 3 AND TAGS = 'x'"))
            fill(broker, topic, 2, queue_id=1, tag="x")
            fill(broker, topic, 2, queue_id=1, tag="y")
            assert [message.tags for message in await polled(consumer, 2)] == ["x", "x"]

    run(scenario())


def test_a_single_pull_asks_once_and_keeps_no_state(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    sent = fill(broker, topic, 5)

    async def scenario() -> None:
        queue = queue_of(topic)
        async with consumer_of(cluster, f"g-{topic}") as consumer:
            found = await consumer.pull(queue, 1, 3)
            assert (found.status, found.next_queue_offset) == (PullStatus.FOUND, 4)
            assert bodies(list(found.messages)) == sent[1:4]
            assert (found.queue_offset_min, found.queue_offset_max) == (0, 5)
            nothing = await consumer.pull(queue, 5)
            assert (nothing.status, list(nothing.messages)) == (PullStatus.NO_NEW_MSG, [])
            beyond = await consumer.pull(queue, 99)
            assert beyond.status is PullStatus.OFFSET_ILLEGAL
            waiting = asyncio.create_task(consumer.pull(queue, 5, wait=True))
            late = await asyncio.to_thread(fill, broker, topic, 1)
            assert bodies(list((await waiting).messages)) == late
            assert not has_progress(broker, consumer.group, topic)
            with pytest.raises(OffsetIllegal):
                await consumer.pull(queue, -1)
            assert await consumer.queue_offset_min(queue) == 0
            assert await consumer.queue_offset_max(queue) == 6
            assert await consumer.fetch_queues(topic) == [queue, queue_of(topic, 1)]

    run(scenario())


def test_wrong_use_is_refused_with_the_fix(cluster: LocalCluster, topic: str) -> None:
    async def scenario() -> None:
        consumer = consumer_of(cluster, f"g-{topic}")
        with pytest.raises(ClientClosed, match="with"):
            await consumer.poll()
        async with consumer:
            with pytest.raises(ClientError, match="assign"):
                await consumer.poll()
            with pytest.raises(RouteMissing, match="contrail topic create"):
                await consumer.assign([queue_of("nowhere")])
            await consumer.assign([queue_of(topic)])
            with pytest.raises(ClientError, match="exclude each other"):
                await consumer.subscribe(topic)
            with pytest.raises(OffsetIllegal, match="has no place -1: commit 0 or more"):
                await consumer.commit({queue_of(topic): -1})
            with pytest.raises(GroupTaken):
                await consumer_of(cluster, f"g-{topic}").start()
            for when in ("2024", 1.5):
                with pytest.raises(ConfigError, match="give a datetime"):
                    await consumer.search(queue_of(topic), when)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=r"with 5: give tags.*Sql92"):
                await consumer.pull(queue_of(topic), 0, expression=5)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="topic 5: give its name"):
                await consumer.subscribe(5)  # type: ignore[arg-type]
        await consumer.close()

    run(scenario())


def test_a_topic_made_after_the_subscription_is_found(cluster: LocalCluster, broker: Asker) -> None:
    name = "made-later"

    async def scenario() -> None:
        async with consumer_of(cluster, "g-made-later") as consumer:
            await consumer.subscribe(name)
            assert await consumer.poll(timeout_ms=100) == []
            await asyncio.to_thread(broker.make_topic, name, read=1, write=1)
            sent = fill(broker, name, 2)
            assert bodies(await polled(consumer, 2)) == sent

    run(scenario())


def test_more_queues_of_a_topic_are_noticed(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    told: list[tuple[str, list[MessageQueue]]] = []

    async def scenario() -> None:
        async with consumer_of(cluster, f"g-{topic}", poll_name_server_interval_ms=50) as consumer:
            await consumer.subscribe(topic)
            await consumer.watch_queues(topic, lambda *change: told.append(change))
            await asyncio.to_thread(broker.make_topic, topic, read=3, write=3)

            async def has_three() -> bool:
                return len(consumer.assignment()) == 3

            await eventually_async(has_three)
            sent = fill(broker, topic, 2, queue_id=2)
            assert bodies(await polled(consumer, 2)) == sent
            assert told == [(topic, [queue_of(topic, number) for number in range(3)])]

    run(scenario())


def test_fetching_ahead_stops_when_enough_is_held(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    sent = fill(broker, topic, 60)

    async def scenario() -> None:
        options = {"pull_threshold_for_queue": 10, "pull_batch_size": 4}
        async with consumer_of(cluster, f"g-{topic}", **options) as consumer:
            await consumer.assign([queue_of(topic)])
            found = await polled(consumer, 1, count_max=1)

            async def is_full() -> bool:
                [count] = await held_counts(cluster, consumer)
                return count > 10

            await eventually_async(is_full)
            [count] = await held_counts(cluster, consumer)
            assert 10 < count <= 14
            found += await polled(consumer, 59)
            assert bodies(found) == sent

    run(scenario())


async def held_counts(cluster: LocalCluster, consumer: PullConsumer) -> list[int]:
    """How much each queue of a consumer holds, as its running info reports it."""
    answer = await asyncio.to_thread(
        cluster.caller.call,
        cluster.brokers[0].address,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": consumer.group, "clientId": consumer.client_id, "jstackEnable": "false"},
    )
    table = Fields(loads(answer.body), "running info").children("mqTable")
    return [queue.integer("cachedMsgCount", -1) for queue in table.values()]


def test_progress_is_written_again_after_an_operator_moved_the_group(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    sent = fill(broker, topic, 5)

    async def scenario() -> None:
        async with (
            Admin(cluster.namesrv) as admin,
            consumer_of(cluster, f"g-{topic}", consume_from_where="first") as consumer,
        ):
            await consumer.subscribe(topic)
            assert bodies(await polled(consumer, 5)) == sent
            await consumer.commit()
            queue = next(queue for queue in consumer.assignment() if queue.queue_id == 0)
            assert await consumer.committed(queue) == 5
            await admin.reset_to_time(f"g-{topic}", topic, 0)
            assert bodies(await polled(consumer, 5)) == sent
            await consumer.commit()
            assert await consumer.committed(queue) == 5

    run(scenario())


def test_broadcasting_keeps_its_progress_in_a_file(
    cluster: LocalCluster, broker: Asker, topic: str, tmp_path: Path
) -> None:
    sent = fill(broker, topic, 6)

    async def scenario() -> None:
        options = {
            "message_model": "BROADCASTING",
            "offset_folder": tmp_path,
            "client_ip": "10.1.1.1",
        }
        found: list[ReceivedMessage] = []
        for _ in range(2):
            async with consumer_of(cluster, f"g-{topic}", **options) as consumer:
                await consumer.subscribe(topic)
                found += await polled(consumer, 3, count_max=3)
        assert bodies(found) == sent

    run(scenario())
    [path] = tmp_path.rglob("offsets.json")
    assert path.relative_to(tmp_path).parts[:2] == ("10.1.1.1@DEFAULT", f"g-{topic}")
    assert path.read_bytes().startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,')
    table = Fields(loads(path.read_bytes()), "the file").integers("offsetTable")
    assert sorted(table.values()) == [0, 6]

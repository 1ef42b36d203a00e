"""A push consumer against a running broker: delivery, filters, retries and the end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.client.admin import Admin
from contrail.client.consumed_message import ConsumedMessage, ConsumeResult
from contrail.client.message import Message
from contrail.client.producer import Producer
from contrail.client.push_consumer import PushConsumer
from contrail.client.subscriptions import Sql92
from contrail.clock import ManualClock
from contrail.errors import BrokerRefused, ClientError, ConfigError, GroupTaken
from contrail.kernels.java_hash import java_hash
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX
from contrail.testing import LocalCluster, eventually_async
from tests.e2e.push_setup import (
    PATIENCE_S,
    Seen,
    consuming,
    eventually_due,
    fresh,
    make_topic,
    send,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    properties = {"enablePropertyFilter": "true"}
    with LocalCluster(clock=ManualClock(), properties=properties) as running:
        yield running


@pytest.fixture
def namesrv(cluster: LocalCluster) -> str:
    return cluster.namesrv


@pytest.fixture
def topic() -> str:
    return fresh("orders")


@pytest.fixture
def group() -> str:
    return fresh("readers")


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.proves("client.consumers.clustering")
def test_every_message_is_handled_once_and_the_next_member_goes_on_after_it(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(50))
        first, second = Seen(), Seen()
        consumer = await consuming(namesrv, group, topic, first)
        await first.reach(50)
        await consumer.close()
        await send(namesrv, topic, ["more"])
        consumer = await consuming(namesrv, group, topic, second)
        await second.reach(1)
        await consumer.close()
        assert sorted(first.bodies, key=int) == numbers(50)
        assert second.bodies == ["more"]

    asyncio.run(main())


def test_messages_sent_after_the_start_are_not_missed(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["before"])
        seen = Seen()
        consumer = await consuming(namesrv, group, topic, seen, consume_from_where="last")
        await send(namesrv, topic, ["after"])
        await eventually_async(lambda: "after" in seen.bodies)
        await consumer.close()
        # Brokers let a new group begin with the first message while a topic is small. Of two queues
        # either may come first.
        assert set(seen.bodies) <= {"before", "after"}

    asyncio.run(main())


def test_tags_with_equal_hashes_are_told_apart(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["wanted"], tags="Aa")
        await send(namesrv, topic, ["unwanted"], tags="BB")
        await send(namesrv, topic, ["also wanted"], tags="paid")
        seen = Seen()
        consumer = await consuming(
            namesrv,
            group,
            topic,
            seen,
            expression="Aa || paid",
            persist_consumer_offset_interval_ms=50,
        )
        await seen.reach(2)
        queues = await progress(namesrv, group, topic)
        await consumer.close()
        assert sorted(seen.bodies) == ["also wanted", "wanted"]
        # The unwanted message does not hold its queue's progress back.
        assert queues == 3

    async def progress(namesrv: str, group: str, topic: str) -> int:
        total = 0
        async with Admin(namesrv) as admin:
            while total < 3:
                await asyncio.sleep(0.05)
                offsets = await admin.committed_offsets(group, topic)
                total = sum(place or 0 for place in offsets.values())
        return total

    assert java_hash(b"Aa") == java_hash(b"BB")
    asyncio.run(main())


def test_sql92_chooses_by_properties(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["cheap"], properties={"price": "1"})
        await send(namesrv, topic, ["dear"], properties={"price": "9"})
        seen = Seen()
        consumer = await consuming(namesrv, group, topic, seen, expression=Sql92("price > 3"))
        await seen.reach(1)
        await consumer.close()
        assert seen.bodies == ["dear"]

    asyncio.run(main())


def test_an_expression_that_a_broker_cannot_read_is_refused_at_the_start(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await make_topic(namesrv, topic)
        with pytest.raises(BrokerRefused, match=topic):
            await consuming(namesrv, group, topic, Seen(), expression=Sql92("price >"))

    asyncio.run(main())


@pytest.mark.proves("client.consumers.batches")
def test_several_topics_go_to_one_handler(namesrv: str, group: str) -> None:
    async def main() -> None:
        topics = [fresh("orders"), fresh("orders")]
        for topic in topics:
            await send(namesrv, topic, [f"of {topic}"])
        seen = Seen()
        consumer = await consuming(namesrv, group, topics[0], seen)
        await consumer.subscribe(topics[1])
        await seen.reach(2)
        await consumer.unsubscribe(topics[1])
        assert {queue.topic for queue in consumer.assigned_queues()} <= {
            topics[0],
            RETRY_PREFIX + group,
        }
        await consumer.close()
        assert sorted(seen.bodies) == sorted(f"of {topic}" for topic in topics)

    asyncio.run(main())


def test_a_message_comes_again_after_the_delay_under_its_own_topic(
    cluster: LocalCluster, namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["once more"], keys=["k"])
        seen: list[tuple[str, int, list[str]]] = []

        async def handler(message: ConsumedMessage) -> None:
            seen.append((message.topic, message.reconsume_times, message.keys))
            if message.reconsume_times == 0:
                await message.later(40.0)

        consumer = await consuming(namesrv, group, topic, handler)
        await eventually_async(lambda: seen)
        before_ms = cluster.clock.now_ms()
        await eventually_due(cluster, lambda: len(seen) == 2)
        # 40 s is no level, the next longer one is a minute.
        assert cluster.clock.now_ms() - before_ms >= 55_000
        await consumer.close()
        assert seen == [(topic, 0, ["k"]), (topic, 1, ["k"])]

    asyncio.run(main())


def test_a_handler_that_raises_or_says_later_gets_the_message_again(
    cluster: LocalCluster, namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["raise", "later", "fine"])
        seen = Seen()

        async def handler(message: ConsumedMessage) -> ConsumeResult | None:
            await seen(message)
            if message.reconsume_times == 0 and message.body == b"raise":
                raise ValueError("not today")
            if message.reconsume_times == 0 and message.body == b"later":
                return ConsumeResult.LATER
            return ConsumeResult.SUCCESS

        consumer = await consuming(namesrv, group, topic, handler)
        await seen.reach(5, cluster=cluster)
        await consumer.close()
        assert sorted(seen.bodies) == ["fine", "later", "later", "raise", "raise"]

    asyncio.run(main())


@pytest.mark.proves("client.consumers.retry")
def test_a_message_that_is_given_up_goes_to_the_dead_letters(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["hopeless"])
        buried, dead = asyncio.Event(), Seen()

        async def handler(message: ConsumedMessage) -> None:
            await message.dead_letter()
            buried.set()

        consumer = await consuming(namesrv, group, topic, handler)
        await buried.wait()
        await consumer.close()
        undertaker = await consuming(namesrv, fresh("readers"), DLQ_PREFIX + group, dead)
        await dead.reach(1)
        await undertaker.close()
        assert dead.bodies == ["hopeless"]

    asyncio.run(main())


def test_a_list_handler_gets_several_messages_at_once(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(64))
        sizes: list[int] = []
        consumer = PushConsumer(
            group, namesrv, consume_from_where="first", consume_message_batch_max_size=8
        )

        @consumer.on_messages
        async def handler(messages: list[ConsumedMessage]) -> None:
            assert len({message.queue for message in messages}) == 1
            sizes.append(len(messages))

        await consumer.subscribe(topic)
        await consumer.start()
        await eventually_async(lambda: sum(sizes) == 64)
        await consumer.close()
        assert 1 < max(sizes) <= 8

    asyncio.run(main())


def test_a_plain_function_runs_in_threads_side_by_side(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(4))
        # The barrier passes four threads together.
        together = threading.Barrier(4)
        done: list[str] = []

        def handler(message: ConsumedMessage) -> None:
            together.wait(PATIENCE_S)
            done.append(message.body.decode())

        consumer = await consuming(namesrv, group, topic, handler, consume_thread_max=4)
        await eventually_async(lambda: len(done) == 4)
        await consumer.close()
        assert sorted(done) == numbers(4)

    asyncio.run(main())


def test_no_more_handlers_run_at_once_than_allowed(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(30))
        running = most = done = 0

        async def handler(message: ConsumedMessage) -> None:
            nonlocal running, most, done
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            done += 1

        consumer = await consuming(namesrv, group, topic, handler, consume_thread_max=3)
        await eventually_async(lambda: done == 30)
        await consumer.close()
        assert most == 3

    asyncio.run(main())


@pytest.mark.proves("client.consumers.flow-control")
def test_a_consumer_holds_a_bounded_number_of_messages_while_its_handler_is_slow(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        async with Producer(fresh("senders"), namesrv) as producer:
            await producer.send(Message(topic, b"x"))
            queue = (await producer.publish_queues(topic))[0]
            batch = [Message(topic, b"x") for _ in range(300)]
            await producer.send_batch(batch, queue=queue)
        release, count = asyncio.Event(), 0

        async def handler(message: ConsumedMessage) -> None:
            nonlocal count
            await release.wait()
            count += 1

        consumer = await consuming(
            namesrv, group, topic, handler, pull_threshold_for_queue=50, consume_thread_max=1
        )
        await eventually_async(lambda: held(consumer) > 50)
        await asyncio.sleep(0.2)
        # One pull may begin while just below the bound is held.
        assert held(consumer) <= 50 + 32
        release.set()
        await eventually_async(lambda: count == 301)
        await consumer.close()

    def held(consumer: PushConsumer) -> int:
        table = consumer.running_info()["mqTable"]
        assert isinstance(table, dict)
        return max((row["cachedMsgCount"] for row in table.values()), default=0)

    asyncio.run(main())


def test_a_paused_consumer_gets_nothing_until_it_is_resumed(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["x"])
        seen = Seen()
        consumer = PushConsumer(group, namesrv, consume_from_where="first")
        consumer.on_message(seen)
        consumer.pause()
        await consumer.subscribe(topic)
        await consumer.start()
        await asyncio.sleep(0.3)
        assert seen.bodies == []
        consumer.resume()
        await seen.reach(1)
        await consumer.close()

    asyncio.run(main())


@pytest.mark.proves("client.consumers.progress")
def test_closing_lets_running_handlers_finish_and_keeps_their_progress(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["slow"])
        begun, again = asyncio.Event(), Seen()

        async def handler(message: ConsumedMessage) -> None:
            begun.set()
            await asyncio.sleep(0.3)

        consumer = await consuming(namesrv, group, topic, handler)
        await begun.wait()
        await consumer.close()
        await send(namesrv, topic, ["next"])
        consumer = await consuming(namesrv, group, topic, again)
        await again.reach(1)
        await consumer.close()
        assert again.bodies == ["next"]

    asyncio.run(main())


def test_a_handler_that_does_not_end_in_time_is_cancelled_and_its_message_comes_again(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["stuck"])
        begun, again = asyncio.Event(), Seen()

        async def handler(message: ConsumedMessage) -> None:
            begun.set()
            await asyncio.Event().wait()

        consumer = await consuming(
            namesrv, group, topic, handler, await_termination_ms_when_shutdown=50
        )
        await begun.wait()
        await consumer.close()
        consumer = await consuming(namesrv, group, topic, again)
        await again.reach(1)
        await consumer.close()
        assert again.bodies == ["stuck"]

    asyncio.run(main())


@pytest.mark.proves("client.consumers.async-for")
def test_asking_for_the_next_message_acknowledges_and_raising_sends_back(
    cluster: LocalCluster, namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["one", "other"])
        got: list[bytes] = []
        with pytest.raises(ZeroDivisionError):
            await loop_until_second(got)
        left = Seen()
        consumer = await consuming(namesrv, group, topic, left)
        await left.reach(1, cluster=cluster)
        await consumer.close()
        assert [(message.body, message.reconsume_times) for message in left.messages] == [
            (got[1], 1)
        ]

    async def loop_until_second(got: list[bytes]) -> None:
        async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                got.append(message.body)
                if len(got) == 2:
                    raise ZeroDivisionError

    asyncio.run(main())


def test_breaking_out_and_leaving_the_block_acknowledges(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["only"])
        async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:
            await consumer.subscribe(topic)
            async for _ in consumer:
                break
        await send(namesrv, topic, ["next"])
        async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                assert message.body == b"next"
                await message.ack()
                break

    asyncio.run(main())


def test_cancelling_the_loops_task_neither_loses_nor_acknowledges(
    cluster: LocalCluster, namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["precious"])
        begun = asyncio.Event()

        async def user() -> None:
            async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:
                await consumer.subscribe(topic)
                async for _ in consumer:
                    begun.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(user())
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = Seen()
        consumer = await consuming(namesrv, group, topic, again)
        await again.reach(1, cluster=cluster)
        await consumer.close()
        assert again.bodies == ["precious"]

    asyncio.run(main())


def test_an_error_that_is_caught_around_the_loop_loses_no_message(
    cluster: LocalCluster, namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(6))
        done: list[str] = []
        async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:
            await consumer.subscribe(topic)
            working = asyncio.create_task(work(consumer, done))
            await eventually_due(cluster, lambda: len(done) == 6, "all are handled")
            working.cancel()
        assert sorted(done) == numbers(6)

    async def work(consumer: PushConsumer, done: list[str]) -> None:
        while True:
            try:
                async for message in consumer:
                    if message.reconsume_times == 0 and int(message.body) % 2:
                        raise ValueError("not now")
                    done.append(message.body.decode())
            except ValueError:
                continue

    asyncio.run(main())


def test_a_loop_that_is_left_and_begun_again_sends_back_unacknowledged_messages(
    cluster: LocalCluster, namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(2))
        seen: list[tuple[str, int]] = []
        async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:
            await consumer.subscribe(topic)
            async for message in consumer:
                seen.append((message.body.decode(), message.reconsume_times))
                break
            async for message in consumer:
                await message.ack()
                break
            reading = asyncio.ensure_future(anext(aiter(consumer)))
            await eventually_due(cluster, reading.done, "it comes again")
            again = reading.result()
            assert [(again.body.decode(), 0)] == seen
            assert again.reconsume_times == 1

    asyncio.run(main())


def test_the_message_in_hand_of_an_ended_task_comes_again_while_the_consumer_goes_on(
    cluster: LocalCluster, namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["precious"])
        seen: list[int] = []
        async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:
            await consumer.subscribe(topic)
            first = asyncio.create_task(read(consumer, seen))
            await eventually_async(lambda: len(seen) == 1)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            second = asyncio.create_task(read(consumer, seen))
            await eventually_due(cluster, lambda: len(seen) == 2, "it comes again")
            second.cancel()
        assert seen == [0, 1]

    async def read(consumer: PushConsumer, seen: list[int]) -> None:
        async for message in consumer:
            seen.append(message.reconsume_times)
            await asyncio.Event().wait()

    asyncio.run(main())


def test_a_refused_subscription_leaves_the_consumer_as_it_was(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await make_topic(namesrv, topic)
        await send(namesrv, topic, ["x"], tags="paid")
        async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:
            with pytest.raises(BrokerRefused, match="price = = 3"):
                await consumer.subscribe(topic, Sql92("price = = 3"))
            assert consumer.subscriptions.user_topics() == []
            await consumer.subscribe(topic, "paid")
            assert consumer.assigned_queues()
            with pytest.raises(BrokerRefused, match="price = = 3"):
                await consumer.subscribe(topic, Sql92("price = = 3"))
            kept = consumer.subscriptions.of(topic)
            assert kept is not None and kept.by_tag and kept.sub_string == "paid"
            async for message in consumer:
                assert message.body == b"x"
                break

    asyncio.run(main())


def test_starting_twice_is_starting_once(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        consumer = await consuming(namesrv, group, topic, seen := Seen())
        await consumer.start()
        await send(namesrv, topic, ["x"])
        await seen.reach(1)
        await consumer.close()
        assert seen.bodies == ["x"]

    asyncio.run(main())


def test_a_handler_may_close_its_own_consumer(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["stop"])
        consumer = PushConsumer(group, namesrv, consume_from_where="first")
        ended = asyncio.Event()

        @consumer.on_message
        async def handler(message: ConsumedMessage) -> None:
            await message.ack()
            await consumer.close()
            ended.set()

        await consumer.subscribe(topic)
        await asyncio.wait_for(consumer.run(), PATIENCE_S)
        await asyncio.wait_for(ended.wait(), PATIENCE_S)

    asyncio.run(main())


def test_a_topic_without_a_route_is_warned_about_once_and_consumed_later(
    namesrv: str, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        seen = Seen()
        with caplog.at_level(logging.WARNING):
            consumer = await consuming(namesrv, group, topic, seen)
            await send(namesrv, topic, ["at last"])
            await seen.reach(1)
        await consumer.close()

    asyncio.run(main())
    told = [
        record
        for record in caplog.records
        if "contrail topic create" in record.getMessage() and "subscribed_topics" in record.name
    ]
    assert len(told) == 1


def test_starting_without_a_handler_names_the_fix(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        consumer = PushConsumer(group, namesrv)
        await consumer.subscribe(topic)
        with pytest.raises(ClientError, match="on_message"):
            await consumer.start()

    asyncio.run(main())


def test_a_second_consumer_of_a_group_in_a_process_is_refused(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        consumer = await consuming(namesrv, group, topic, Seen())
        with pytest.raises(GroupTaken, match=group):
            await consuming(namesrv, group, topic, Seen())
        assert consumer.client_id
        await consumer.close()

    asyncio.run(main())


def test_settings_are_checked_when_a_consumer_is_made(namesrv: str) -> None:
    with pytest.raises(ConfigError, match="consume_thread_max"):
        PushConsumer("readers", namesrv, consume_thread_max=0)
    with pytest.raises(ConfigError, match="BROADCASTING"):
        PushConsumer("readers", namesrv, message_model="EVERYBODY")
    with pytest.raises(ConfigError, match="DEFAULT_CONSUMER"):
        PushConsumer("DEFAULT_CONSUMER", namesrv)


def test_two_members_share_the_queues_and_one_takes_over_when_the_other_leaves(
    namesrv: str, topic: str, group: str
) -> None:
    async def main() -> None:
        await send(namesrv, topic, ["x"])
        seen = Seen()
        one = await consuming(namesrv, group, topic, seen, instance_name="one")
        two = await consuming(namesrv, group, topic, seen, instance_name="two")
        await eventually_async(lambda: shares(one, two) == [2, 2], "an even share")
        await two.close()
        await eventually_async(lambda: len(own(one)) == 4, "all queues for one")
        await send(namesrv, topic, numbers(20))
        await eventually_async(lambda: set(numbers(20)) <= set(seen.bodies))
        await one.close()

    def own(consumer: PushConsumer) -> list[object]:
        return [queue for queue in consumer.assigned_queues() if queue.topic == topic]

    def shares(one: PushConsumer, two: PushConsumer) -> list[int]:
        return [len(own(one)), len(own(two))]

    asyncio.run(main())


@pytest.mark.proves("client.consumers.broadcasting")
def test_all_members_get_broadcast_messages_and_failed_ones_are_skipped(
    namesrv: str, topic: str, group: str, tmp_path: Path
) -> None:
    async def main() -> None:
        await send(namesrv, topic, numbers(10))
        one, two, later = Seen(), Seen(), Seen()

        async def failing(message: ConsumedMessage) -> None:
            await one(message)
            raise ValueError("skip me")

        options = {"message_model": "BROADCASTING", "offset_folder": tmp_path}
        first = await consuming(namesrv, group, topic, failing, instance_name="one", **options)
        second = await consuming(namesrv, group, topic, two, instance_name="two", **options)
        await one.reach(10)
        await two.reach(10)
        await first.close()
        await second.close()
        await send(namesrv, topic, ["new"])
        # The same member again: it goes on where its own file says.
        first = await consuming(namesrv, group, topic, later, instance_name="one", **options)
        await later.reach(1)
        await first.close()
        assert sorted(one.bodies, key=int) == sorted(two.bodies, key=int) == numbers(10)
        assert later.bodies == ["new"]

    asyncio.run(main())


def test_a_request_is_answered_by_the_handler(namesrv: str, topic: str, group: str) -> None:
    async def main() -> None:
        async def handler(message: ConsumedMessage) -> None:
            await message.reply(b"answer to " + message.body)

        await make_topic(namesrv, topic)
        # From the first message: a group that starts at the end asks for the end, on a busy machine
        # after the request was stored.
        consumer = await consuming(namesrv, group, topic, handler)
        async with Producer(fresh("senders"), namesrv) as producer:
            reply = await producer.request(Message(topic, b"question"), timeout_ms=60_000)
        await consumer.close()
        assert reply.body == b"answer to question"

    asyncio.run(main())

"""The blocking names: threads, interruptions and cancelled calls."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import contrail
from contrail import aio
from contrail.client.background import background_loop
from contrail.errors import ClientClosed, ClientError, MessageInvalid
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, route

PATIENCE_S = 60.0
THREADS, SENDS_EACH = 16, 50
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"blocking-{next(_numbers)}"
    Asker(cluster, 0).make_topic(name, read=2, write=2)
    eventually(lambda: route(cluster, name), "the NameServer knows the topic")
    return name


def task_count() -> int:
    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return background_loop().run(count)


# Threads.


@pytest.mark.proves("client.programs.threads")
def test_sixteen_threads_share_one_producer_and_one_loop_thread(
    cluster: LocalCluster, topic: str
) -> None:
    with contrail.Producer("threads", cluster.namesrv) as producer:

        def send(number: int) -> set[str]:
            receipts = [
                producer.send(contrail.Message(topic, b"%d:%d" % (number, at)))
                for at in range(SENDS_EACH)
            ]
            return {receipt.message_id for receipt in receipts}

        with ThreadPoolExecutor(THREADS) as threads:
            ids = list(threads.map(send, range(THREADS)))
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("contrail") == 1
    assert len(set().union(*ids)) == THREADS * SENDS_EACH
    bodies = [body for at in (0, 1) for body in Asker(cluster, 0).bodies(topic, at)]
    assert Counter(bodies) == Counter(
        b"%d:%d" % (number, at) for number in range(THREADS) for at in range(SENDS_EACH)
    )


@pytest.mark.proves("client.programs.threads")
def test_several_threads_loop_over_one_consumer_and_share_its_messages(
    cluster: LocalCluster, topic: str
) -> None:
    received: list[tuple[str, bytes]] = []
    # The barrier passes three threads together, each with its first message in hand.
    together = threading.Barrier(3)

    def consume() -> None:
        is_first = True
        for message in consumer:
            received.append((threading.current_thread().name, message.body))
            if is_first:
                together.wait(PATIENCE_S)
                is_first = False

    with contrail.PushConsumer("loops", cluster.namesrv, consume_from_where="first") as consumer:
        consumer.subscribe(topic)
        threads = [threading.Thread(target=consume, name=f"loop-{at}") for at in range(3)]
        for thread in threads:
            thread.start()
        with contrail.Producer("loops", cluster.namesrv) as producer:
            for number in range(60):
                producer.send(contrail.Message(topic, b"%d" % number))
        eventually(lambda: len(received) == 60, "all are read")
    # Closing ends the loops.
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert sorted(body for _, body in received) == sorted(b"%d" % at for at in range(60))
    assert {name for name, _ in received} == {"loop-0", "loop-1", "loop-2"}


def test_closing_does_not_acknowledge_the_message_of_another_thread(
    cluster: LocalCluster, topic: str
) -> None:
    has_it, may_go = threading.Event(), threading.Event()

    def consume() -> None:
        for _ in consumer:
            has_it.set()
            may_go.wait(PATIENCE_S)

    with contrail.Producer("hands", cluster.namesrv) as producer:
        producer.send(contrail.Message(topic, b"in hand"))
    with contrail.PushConsumer(
        "hands",
        cluster.namesrv,
        consume_from_where="first",
        await_termination_ms_when_shutdown=100,
    ) as consumer:
        consumer.subscribe(topic)
        thread = threading.Thread(target=consume)
        thread.start()
        assert has_it.wait(PATIENCE_S)
    may_go.set()
    thread.join(PATIENCE_S)
    with contrail.PushConsumer("hands", cluster.namesrv, consume_from_where="first") as consumer:
        consumer.subscribe(topic)
        assert next(iter(consumer)).body == b"in hand"


def test_closing_waits_for_the_message_of_another_thread(cluster: LocalCluster, topic: str) -> None:
    has_it, may_go = threading.Event(), threading.Event()
    handled: list[bytes] = []

    def consume() -> None:
        for message in consumer:
            has_it.set()
            may_go.wait(PATIENCE_S)
            handled.append(message.body)

    with contrail.Producer("waits", cluster.namesrv) as producer:
        producer.send(contrail.Message(topic, b"in hand"))
    with contrail.PushConsumer(
        "waits",
        cluster.namesrv,
        consume_from_where="first",
        await_termination_ms_when_shutdown=int(PATIENCE_S * 1000),
    ) as consumer:
        consumer.subscribe(topic)
        thread = threading.Thread(target=consume)
        thread.start()
        assert has_it.wait(PATIENCE_S)
        threading.Timer(0.3, may_go.set).start()
    assert handled == [b"in hand"]
    thread.join(PATIENCE_S)
    with contrail.Admin(cluster.namesrv) as admin:
        assert sum(place or 0 for place in admin.committed_offsets("waits", topic).values()) == 1


def test_the_message_in_hand_of_an_ended_thread_is_sent_back(
    cluster: LocalCluster, topic: str
) -> None:
    def consume() -> None:
        for _ in consumer:
            return

    with contrail.Producer("ends", cluster.namesrv) as producer:
        producer.send(contrail.Message(topic, b"in hand"))
    before = Asker(cluster).sent_back_count()
    with contrail.PushConsumer("ends", cluster.namesrv, consume_from_where="first") as consumer:
        consumer.subscribe(topic)
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join(PATIENCE_S)
        eventually(lambda: Asker(cluster).sent_back_count() == before + 1, "it is sent back")


def test_errors_of_loops_fit_programs_without_asyncio(cluster: LocalCluster, topic: str) -> None:
    consumer = contrail.PushConsumer("texts", cluster.namesrv)
    with pytest.raises(ClientClosed, match="inside its `with` or `async with` block"):
        iter(consumer)
    with consumer, pytest.raises(ClientError) as caught:
        iter(consumer)
    assert "await" not in str(caught.value)


def test_a_loop_that_was_left_and_begun_again_goes_on(cluster: LocalCluster, topic: str) -> None:
    with contrail.Producer("again", cluster.namesrv) as producer:
        queue = producer.publish_queues(topic)[0]
        for number in range(4):
            producer.send(contrail.Message(topic, b"%d" % number), queue=queue)
    with contrail.PushConsumer("again", cluster.namesrv, consume_from_where="first") as consumer:
        consumer.subscribe(topic)
        bodies = []
        for _ in range(2):
            for message in consumer:
                bodies.append(message.body)
                if len(bodies) % 2 == 0:
                    message.ack()
                    break
    assert bodies == [b"0", b"1", b"2", b"3"]
    with contrail.Admin(cluster.namesrv) as admin:
        assert sum(place or 0 for place in admin.committed_offsets("again", topic).values()) == 4


# Errors.


def test_errors_are_raised_in_the_calling_thread_and_leave_no_reference_cycle(
    cluster: LocalCluster, topic: str
) -> None:
    with contrail.Producer("errors", cluster.namesrv) as producer:
        for _ in range(2):
            with pytest.raises(MessageInvalid, match="empty body"):
                producer.send(contrail.Message(topic, b""))
        assert producer.send(contrail.Message(topic, b"whole")).message_id
    with pytest.raises(ClientClosed, match="'errors'"):
        producer.send(contrail.Message(topic, b"closed"))
    producer.close()


def test_a_blocking_call_on_the_clients_own_thread_is_refused(
    cluster: LocalCluster, topic: str
) -> None:
    told: list[str] = []
    with (
        contrail.Producer("own", cluster.namesrv) as producer,
        contrail.PushConsumer("own", cluster.namesrv, consume_from_where="first") as consumer,
    ):

        @consumer.on_message
        async def handle(message: Any) -> None:
            try:
                producer.send(contrail.Message(topic, b"would wait for itself"))
            except ClientError as error:
                told.append(str(error))

        consumer.subscribe(topic)
        producer.send(contrail.Message(topic, b"x"))
        eventually(lambda: told, "the handler was called")
    assert "use the asyncio names of `contrail.aio`" in told[0]


# Cancelled calls.


def test_an_interrupted_call_is_cancelled_and_leaves_nothing_behind(
    cluster: LocalCluster, topic: str
) -> None:
    class Alarm(Exception):
        """An exception that a signal handler may raise in the waiting thread."""

    before = task_count()
    with contrail.PullConsumer("alarms", cluster.namesrv) as consumer:
        consumer.assign(consumer.fetch_queues(topic))
        while_open = task_count()
        with pytest.raises(Alarm):
            _raise_in_this_thread(Alarm, lambda: consumer.poll(timeout_ms=600_000))
        eventually(lambda: task_count() <= while_open, "the call was cancelled")
        with contrail.Producer("alarms", cluster.namesrv) as producer:
            producer.send(contrail.Message(topic, b"after"))
        assert [message.body for message in consumer.poll(timeout_ms=60_000)] == [b"after"]
    eventually(lambda: task_count() == before, "everything is let go")


def _raise_in_this_thread(kind: type[Exception], work: Callable[[], object]) -> None:
    def interrupt(*_: object) -> None:
        raise kind

    usual = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        work()
    finally:
        signal.signal(signal.SIGALRM, usual)


def test_cancelled_sends_and_loops_leave_an_asyncio_client_usable(
    cluster: LocalCluster, topic: str
) -> None:
    async def main() -> None:
        async with (
            aio.Producer("cancels", cluster.namesrv, in_flight_count_max=8) as producer,
            aio.PushConsumer("cancels", cluster.namesrv, consume_from_where="first") as consumer,
        ):
            await consumer.subscribe(topic)
            before = _task_names()
            # More than there are slots, cancelled at every stage.
            for turns in range(20):
                sends = [
                    asyncio.create_task(producer.send(aio.Message(topic, b"cancelled")))
                    for _ in range(32)
                ]
                reading = asyncio.create_task(_read_one(consumer, asyncio.Event()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in (*sends, reading):
                    task.cancel()
                await asyncio.gather(*sends, reading, return_exceptions=True)
            receipts = await asyncio.gather(
                *(producer.send(aio.Message(topic, b"whole")) for _ in range(32))
            )
            assert len({receipt.message_id for receipt in receipts}) == 32
            whole = 0
            async for message in consumer:
                whole += message.body == b"whole"
                if whole == 32:
                    break
            assert _task_names() == before

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))


def _task_names() -> list[str]:
    """Tasks without the client's own, which come and go."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return sorted(name for name in names if not name.startswith("contrail-"))


@pytest.mark.proves("client.programs.interrupts")
def test_the_message_in_hand_of_a_cancelled_task_comes_again(
    cluster: LocalCluster, topic: str
) -> None:
    async def main() -> None:
        async with (
            aio.Producer("fails", cluster.namesrv) as producer,
            aio.PushConsumer("fails", cluster.namesrv, consume_from_where="first") as consumer,
        ):
            await consumer.subscribe(topic)
            await producer.send(aio.Message(topic, b"in hand"))
            has_it = asyncio.Event()
            reading = asyncio.create_task(_read_one(consumer, has_it))
            await has_it.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        # The block was left without an error: its task's end counts all the same.

    before = Asker(cluster).sent_back_count()
    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))
    assert Asker(cluster).sent_back_count() == before + 1


async def _read_one(consumer: aio.PushConsumer, has_it: asyncio.Event) -> None:
    async for _ in consumer:
        has_it.set()
        await asyncio.sleep(PATIENCE_S)

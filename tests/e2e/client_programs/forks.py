"""Forks with open clients: the child may not use them, and cannot harm the parent's.

Usage: STYLE LEAVING NAMESRV TOPIC. The style is blocking, asyncio or uvloop; children leave by
``exit`` (through every ``with``, the collector and exit handlers), ``_exit`` or as a
``multiprocessing`` process.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable

import contrail
from contrail import aio
from contrail.client import instances
from contrail.client.instance import ClientInstance
from contrail.client.settings import ClientSettings
from contrail.errors import ClientForked

leaving, namesrv, topic = sys.argv[2:]


def in_child(work: Callable[[], None]) -> None:
    """Run something in a child, and wait for it."""
    if leaving == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join(60)
        assert process.exitcode == 0, process.exitcode
        return
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            gc.collect()
            if status or leaving == "_exit":
                os._exit(status)
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status


def refused(work: Callable[[], object]) -> None:
    try:
        work()
    except ClientForked as error:
        told = str(error)
    else:
        raise AssertionError("an inherited client worked")
    assert "make the client after forking" in told and "post_fork" in told, told


# The blocking names.


def use_blocking(producer: contrail.Producer, consumer: contrail.PushConsumer) -> None:
    refused(lambda: producer.send(contrail.Message(topic, b"child")))
    refused(lambda: producer.send_async(contrail.Message(topic, b"child")))
    refused(lambda: next(iter(consumer)))
    refused(lambda: contrail.Producer.start(producer))
    producer.close()
    consumer.close()
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
    # Of the same group: the child is a client of its own.
    with contrail.Producer("forks", namesrv, send_timeout_ms=60_000) as own:
        own.send(contrail.Message(topic, b"child's own"))


def blocking() -> None:
    received: list[bytes] = []
    consumer = contrail.PushConsumer("forks", namesrv, consume_from_where="first")
    with contrail.Producer("forks", namesrv, send_timeout_ms=60_000) as producer, consumer:
        consumer.subscribe(topic)
        messages = iter(consumer)
        for number in range(3):
            producer.send(contrail.Message(topic, b"parent %d" % number))
            in_child(lambda: use_blocking(producer, consumer))
            for _ in range(2):
                received.append(next(messages).body)
        assert producer.send_async(contrail.Message(topic, b"last")).result(60)
        received.append(next(messages).body)
    check(received)


# The asyncio names.


async def use_asyncio(
    producer: aio.Producer, consumer: aio.PushConsumer, instance: ClientInstance
) -> None:
    for work in (
        producer.send(aio.Message(topic, b"child")),
        producer.start(),
        consumer.subscribe(topic),
    ):
        try:
            await work
        except ClientForked as error:
            told = str(error)
        else:
            raise AssertionError(f"an inherited client worked: {work}")
        assert "make the client after forking" in told, told
    refused(consumer.__aiter__)
    await producer.close()
    await consumer.close()
    # The garbage collector may do this with clients that nobody holds any more.
    await instance.caller.close()
    async with aio.Producer("forks", namesrv, send_timeout_ms=60_000) as own:
        await own.send(aio.Message(topic, b"child's own"))


async def asyncio_main() -> None:
    received: list[bytes] = []
    async with (
        aio.Producer("forks", namesrv, send_timeout_ms=60_000) as producer,
        aio.PushConsumer("forks", namesrv, consume_from_where="first") as consumer,
    ):
        await consumer.subscribe(topic)
        instance = instances.join(ClientSettings.of(namesrv))
        messages = aiter(consumer)
        for number in range(3):
            await producer.send(aio.Message(topic, b"parent %d" % number))
            in_child(lambda: asyncio.run(use_asyncio(producer, consumer, instance)))
            for _ in range(2):
                received.append((await anext(messages)).body)
        await producer.send(aio.Message(topic, b"last"))
        received.append((await anext(messages)).body)
        await instances.leave(instance)
    check(received)


def check(received: list[bytes]) -> None:
    wanted = [b"parent %d" % number for number in range(3)] + 3 * [b"child's own"] + [b"last"]
    assert sorted(received) == sorted(wanted), received
    print("done")


if sys.argv[1] == "blocking":
    blocking()
elif sys.argv[1] == "asyncio":
    asyncio.run(asyncio_main())
else:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio_main())

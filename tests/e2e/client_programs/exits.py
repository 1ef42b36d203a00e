"""Ends without closing anything. Usage: WHAT NAMESRV TOPIC."""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
import time

import contrail
from contrail import aio

what, namesrv, topic = sys.argv[1:]
# Whether the main thread has said so, as its last word.
is_done = threading.Event()


def producer() -> contrail.Producer:
    made = contrail.Producer("exits", namesrv, send_timeout_ms=60_000)
    made.start()
    made.send(contrail.Message(topic, b"sent"))
    return made


def handler() -> None:
    """Messages go on arriving while the interpreter ends."""
    made = producer()
    consumer = contrail.PushConsumer("exits", namesrv, consume_from_where="first")
    consumer.subscribe(topic)
    began = threading.Event()

    @consumer.on_message
    def handle(message: contrail.ConsumedMessage) -> None:
        began.set()
        time.sleep(0.2)

    consumer.start()
    for number in range(200):
        made.send(contrail.Message(topic, b"%d" % number))
    assert began.wait(60)


def handling(seconds: float, await_ms: int = 10_000) -> contrail.PushConsumer:
    """A consumer whose handler has begun."""
    producer()
    consumer = contrail.PushConsumer(
        "exits",
        namesrv,
        consume_from_where="first",
        await_termination_ms_when_shutdown=await_ms,
    )
    consumer.subscribe(topic)
    began = threading.Event()

    @consumer.on_message
    def handle(message: contrail.ConsumedMessage) -> None:
        began.set()
        is_done.wait(60)
        time.sleep(seconds)
        print("handled", flush=True)

    consumer.start()
    assert began.wait(60)
    return consumer


def with_a_handler_at_work() -> None:
    handling(1.0)


def with_a_hung_handler() -> None:
    handling(300.0, await_ms=500)


def with_a_hung_handler_of_a_closed_consumer() -> None:
    handling(300.0, await_ms=500).close()


def with_a_handler_that_closes() -> None:
    """Its message counts, and nobody waits for himself."""
    producer()
    consumer = contrail.PushConsumer(
        "closes",
        namesrv,
        consume_from_where="first",
        await_termination_ms_when_shutdown=60_000,
    )
    consumer.subscribe(topic)
    closed_s: list[float] = []

    @consumer.on_message
    def handle(message: contrail.ConsumedMessage) -> None:
        began_s = time.monotonic()
        consumer.close()
        closed_s.append(time.monotonic() - began_s)
        # Closed or not, this is still part of handling it.
        time.sleep(0.2)

    consumer.run()
    assert len(closed_s) == 1 and closed_s[0] < 30
    with contrail.Admin(namesrv) as admin:
        print(admin.lag("closes").total, flush=True)


def loop() -> None:
    """The loop runs in a thread that the interpreter waits for."""
    made = producer()
    consumer = contrail.PushConsumer("exits", namesrv, consume_from_where="first")
    consumer.__enter__()
    consumer.subscribe(topic)

    def consume() -> None:
        for message in consumer:
            if message.body == b"the end":
                print("the thread is done", flush=True)
                return

    threading.Thread(target=consume).start()

    def end() -> None:
        is_done.wait(60)
        made.send(contrail.Message(topic, b"the end"))

    threading.Thread(target=end).start()


def pull() -> None:
    consumer = contrail.PullConsumer("exits", namesrv, consume_from_where="first")
    consumer.start()
    consumer.subscribe(topic)
    producer()
    assert consumer.poll(timeout_ms=60_000)


def late() -> None:
    """Exit handlers run in the reverse order: this one after the client's own."""
    made = producer()
    kept.append(made)


def use_late() -> None:
    for made in kept:
        made.close()
        try:
            made.send(contrail.Message(topic, b"too late"))
        except contrail.ContrailError as error:
            print(error, flush=True)


def asyncio_forgotten() -> None:
    async def main() -> None:
        made = aio.Producer("exits", namesrv, send_timeout_ms=60_000)
        await made.start()
        await made.send(aio.Message(topic, b"sent"))
        consumer = aio.PushConsumer("exits", namesrv)
        await consumer.__aenter__()
        await consumer.subscribe(topic)

    asyncio.run(main())


def with_a_handler_that_exits() -> None:
    """``sys.exit`` in a coroutine of the client's own thread must not end that thread."""
    made = producer()
    consumer = contrail.PushConsumer("exits", namesrv, consume_from_where="first")
    consumer.subscribe(topic)
    began = threading.Event()

    @consumer.on_message
    async def handle(message: contrail.ConsumedMessage) -> None:
        began.set()
        sys.exit(3)

    consumer.start()
    assert began.wait(60)
    made.send(contrail.Message(topic, b"still here"))


kept: list[contrail.Producer] = []
atexit.register(use_late)
globals()[what]()
print("done", flush=True)
is_done.set()

"""Is interrupted with Ctrl-C. Usage: WHERE NAMESRV TOPIC; says ``ready`` when it may be, and
afterwards ``interrupted``, with the seconds it took to leave all ``with`` blocks.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import contrail
from contrail import aio

where, namesrv, topic = sys.argv[1:]
# Longer than the parent takes for "at once": who waits for any of these is found out.
PATIENT: Any = {"await_termination_ms_when_shutdown": 120_000, "api_timeout_ms": 60_000}
interrupted_s = 0.0


def note_interrupt() -> None:
    global interrupted_s
    interrupted_s = time.monotonic()


def ready() -> None:
    """In one write, as what is got."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()


def got(message: contrail.ReceivedMessage) -> None:
    """In one write: handlers run side by side."""
    sys.stdout.write(f"got {message.body.decode()}\n")
    sys.stdout.flush()


def blocking_send() -> None:
    """Against a broker that does not answer: the parent has stopped it."""
    with contrail.Producer("sends", namesrv, send_timeout_ms=120_000) as producer:
        producer.send(contrail.Message(topic, b"before"))
        ready()
        assert input() == "stopped"
        print("sending", flush=True)
        try:
            producer.send(contrail.Message(topic, b"hangs"))
        except KeyboardInterrupt:
            note_interrupt()
            print("interrupted", flush=True)
            # The client is whole: once the broker is back it goes on.
            assert input() == "continued"
            producer.send(contrail.Message(topic, b"after"))
            raise


def blocking_loop() -> None:
    """In the body, with a message in hand."""
    with contrail.PushConsumer(where, namesrv, consume_from_where="first", **PATIENT) as consumer:
        consumer.subscribe(topic)
        for number, message in enumerate(consumer):
            got(message)
            if number == 2:
                noticing(be_interrupted)


def be_interrupted() -> None:
    ready()
    time.sleep(120)


def blocking_waiting() -> None:
    """While the loop waits for a message; all before it are done."""
    with contrail.PushConsumer(where, namesrv, consume_from_where="first", **PATIENT) as consumer:
        consumer.subscribe(topic)
        messages = iter(consumer)
        for _ in range(3):
            got(next(messages))
        noticing(lambda: (ready(), next(messages)))


def blocking_run() -> None:
    """In ``run``, while handlers work in threads."""
    consumer = contrail.PushConsumer(where, namesrv, consume_from_where="first", **PATIENT)
    consumer.subscribe(topic)
    count = 0

    @consumer.on_message
    def handle(message: contrail.ConsumedMessage) -> None:
        nonlocal count
        got(message)
        count += 1
        if count == 3:
            threading.Timer(0.2, ready).start()

    noticing(consumer.run)


def blocking_poll() -> None:
    with contrail.PullConsumer(where, namesrv, consume_from_where="first") as consumer:
        consumer.subscribe(topic)
        count = 0
        while count < 3:
            for message in consumer.poll():
                count += 1
                got(message)
        noticing(lambda: (ready(), consumer.poll(120_000)))


async def asyncio_loop() -> None:
    async with aio.PushConsumer(where, namesrv, consume_from_where="first", **PATIENT) as consumer:
        await consumer.subscribe(topic)
        number = 0
        async for message in consumer:
            got(message)
            number += 1
            if number == 3:
                ready()
                try:
                    await asyncio.sleep(120)
                except asyncio.CancelledError:
                    note_interrupt()
                    raise


def noticing(work: Callable[[], object]) -> None:
    try:
        work()
    except KeyboardInterrupt:
        note_interrupt()
        raise


def main() -> None:
    try:
        if where == "asyncio_loop":
            asyncio.run(asyncio_loop())
        else:
            globals()[where]()
    except KeyboardInterrupt:
        print(f"interrupted {time.monotonic() - interrupted_s:.3f}", flush=True)


main()

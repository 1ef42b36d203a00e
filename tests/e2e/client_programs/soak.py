"""Sends and consumes in every way for a while, and tells what it held meanwhile.

Usage: ``python -m tests.e2e.client_programs.soak NAMESRV SECONDS REPORT``. Every message has a
number; each group has a set of those that were sent and did not come yet, so that what is
remembered does not grow. A send that failed promised nothing.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import contrail
from contrail import aio
from contrail.client.background import background_loop
from tests.e2e.load_figures import process_figures

TOPIC = "soak"
GROUPS = ("concurrent", "ordered", "pulling")
SAMPLE_PAUSE_S = 2.0
DRAIN_S = 90.0
BODY = b"x" * 200
# Handlers are hired as they are needed and stay: a few, so that all of them are soon there.
HANDLERS = 2

namesrv, seconds, report_path = sys.argv[1], float(sys.argv[2]), sys.argv[3]
numbers = itertools.count()
missing: dict[str, set[int]] = {group: set() for group in GROUPS}
counts: Counter[str] = Counter()
task_names: dict[str, Counter[str]] = {}
is_over = threading.Event()
# 64 tasks that are there or not would be noise.
between_bursts = asyncio.Lock()


def new_message(**options: Any) -> aio.Message:
    return aio.Message(TOPIC, b"%d:" % next(numbers) + BODY, **options)


def number_of(message: aio.Message | aio.ReceivedMessage) -> int:
    return int(message.body.partition(b":")[0])


def promise(messages: list[aio.Message]) -> None:
    for group in GROUPS:
        missing[group].update(map(number_of, messages))


def sent(kind: str, messages: list[aio.Message], error: BaseException | None = None) -> None:
    if error is None:
        counts[kind] += len(messages)
        return
    counts[f"{kind} failed"] += len(messages)
    for group in GROUPS:
        missing[group].difference_update(map(number_of, messages))


def received(group: str, message: aio.ReceivedMessage) -> None:
    counts[group] += 1
    missing[group].discard(number_of(message))


# Sending.


async def keep_sending(
    kind: str, pause_s: float, send: Callable[[aio.Message], Awaitable[object]], **options: Any
) -> None:
    while not is_over.is_set():
        await send_one(kind, send, new_message(**options))
        await asyncio.sleep(pause_s)


async def send_one(
    kind: str, send: Callable[[aio.Message], Awaitable[object]], message: aio.Message
) -> None:
    promise([message])
    try:
        await send(message)
    except contrail.ContrailError as error:
        sent(kind, [message], error)
        await asyncio.sleep(0.2)
    else:
        sent(kind, [message])


async def keep_sending_side_by_side(producer: aio.Producer) -> None:
    while not is_over.is_set():
        sends = (send_one("64 at once", producer.send, new_message()) for _ in range(64))
        async with between_bursts:
            await asyncio.gather(*sends)
        await asyncio.sleep(0.5)


async def keep_sending_batches(producer: aio.Producer) -> None:
    while not is_over.is_set():
        messages = [new_message() for _ in range(20)]
        promise(messages)
        try:
            await producer.send_batch(messages)
        except contrail.ContrailError as error:
            sent("batch", messages, error)
        else:
            sent("batch", messages)
        await asyncio.sleep(0.5)


def keep_sending_from_a_thread(producer: contrail.Producer) -> None:
    while not is_over.wait(0.02):
        message = new_message()
        promise([message])
        try:
            producer.send(message)
        except contrail.ContrailError as error:
            sent("blocking", [message], error)
        else:
            sent("blocking", [message])


# Consuming and looking.


async def keep_polling(consumer: aio.PullConsumer) -> None:
    while True:
        for message in await consumer.poll(timeout_ms=500):
            received("pulling", message)


async def keep_looking(samples: list[dict[str, float]], began_s: float) -> None:
    while not is_over.is_set():
        # Circles that wait for the collector are no growth, and would be noise.
        gc.collect()
        async with between_bursts:
            at_s = time.monotonic() - began_s
            samples.append({"at_s": at_s, **figures()})
            task_names["at the end" if at_s > seconds / 2 else "in the middle"] = names_of_tasks()
        await asyncio.sleep(SAMPLE_PAUSE_S)


def all_tasks() -> list[asyncio.Task[Any]]:
    return [*asyncio.all_tasks(), *asyncio.all_tasks(background_loop().loop)]


def names_of_tasks() -> Counter[str]:
    """Tasks counted by name; those without a name by their function."""
    names = (
        (task.get_name(), getattr(task.get_coro(), "__qualname__", "")) for task in all_tasks()
    )
    return Counter(code if name.startswith("Task-") else name for name, code in names)


def figures() -> dict[str, float]:
    return {
        **process_figures(os.getpid()),
        "tasks": len(all_tasks()),
        "sockets": socket_count(),
    }


def socket_count() -> int:
    links = (os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))
    return sum("socket:" in link for link in links)


async def traffic(threaded: contrail.Producer, samples: list[dict[str, float]]) -> None:
    began_s = time.monotonic()
    async with (
        aio.Producer("soak", namesrv) as producer,
        aio.PushConsumer(
            "ordered",
            namesrv,
            orderly=True,
            consume_from_where="first",
            consume_thread_max=HANDLERS,
        ) as ordered,
        aio.PullConsumer("pulling", namesrv, consume_from_where="first") as pulling,
    ):

        @ordered.on_message
        async def handle(message: aio.ConsumedMessage) -> None:
            received("ordered", message)

        await ordered.subscribe(TOPIC)
        await pulling.subscribe(TOPIC)
        polling = asyncio.create_task(keep_polling(pulling))
        thread = threading.Thread(target=keep_sending_from_a_thread, args=(threaded,))
        thread.start()
        working = asyncio.gather(
            keep_sending("sync", 0.02, producer.send),
            keep_sending("delayed", 0.1, producer.send, delay_level=1),
            keep_sending_side_by_side(producer),
            keep_sending_batches(producer),
            keep_looking(samples, began_s),
        )
        await asyncio.sleep(seconds)
        is_over.set()
        await working
        await asyncio.to_thread(thread.join)
        await until_nothing_is_missing()
        polling.cancel()


async def until_nothing_is_missing() -> None:
    deadline_s = time.monotonic() + DRAIN_S
    while any(missing.values()) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.1)


def main() -> None:
    samples: list[dict[str, float]] = []
    concurrent = contrail.PushConsumer(
        "concurrent", namesrv, consume_from_where="first", consume_thread_max=HANDLERS
    )
    concurrent.subscribe(TOPIC)

    @concurrent.on_message
    def handle(message: contrail.ConsumedMessage) -> None:
        received("concurrent", message)

    concurrent.start()
    with contrail.Producer("threaded", namesrv) as threaded:
        asyncio.run(traffic(threaded, samples))
    concurrent.close()
    left = {group: len(numbers) for group, numbers in missing.items()}
    with open(report_path, "w", encoding="ascii") as report:
        json.dump(
            {"samples": samples, "counts": counts, "missing": left, "task_names": task_names},
            report,
        )


main()

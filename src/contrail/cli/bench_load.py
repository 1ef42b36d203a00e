"""The load that ``contrail bench`` puts on a cluster, and how it is measured."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from contrail import aio
from contrail.cli.latency_histogram import LatencyHistogram
from contrail.cli.target import Target
from contrail.clock import SystemClock
from contrail.errors import ClientError

_PROGRESS_S = 1.0


class Mode(StrEnum):
    """How messages are sent."""

    # Each worker waits for the answer, and tries again elsewhere when there is none.
    SYNC = "sync"
    # As the asynchronous send of clients: tried again on the same broker only.
    ASYNC = "async"
    # Nobody answers; the latency is how long it takes to hand a message to the network.
    ONEWAY = "oneway"


@dataclass(frozen=True, slots=True)
class SendPlan:
    """What is sent; ends after ``count`` messages or ``seconds``, whichever is given."""

    topic: str
    mode: Mode
    concurrency: int
    size: int
    batch: int
    count: int | None
    seconds: float | None
    rate: float | None


class Measured:
    """What has been done so far."""

    def __init__(self) -> None:
        self.messages = 0
        self.failures = 0
        self.first_failure = ""
        self.latencies = LatencyHistogram()
        self.started_s = time.perf_counter()
        self.ended_s: float | None = None

    def done(self, messages: int, latency_us: int) -> None:
        self.messages += messages
        self.latencies.record(latency_us)

    def failed(self, error: ClientError) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or str(error)

    @property
    def seconds(self) -> float:
        return (self.ended_s or time.perf_counter()) - self.started_s

    def result(self, size: int) -> dict[str, Any]:
        seconds = max(self.seconds, 1e-9)
        return {
            "messages": self.messages,
            "failures": self.failures,
            "first_failure": self.first_failure or None,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / seconds, 1),
            "mib_per_second": round(self.messages * size / seconds / (1 << 20), 3),
            "latency": self.latencies.figures(),
        }


class Pace:
    """Deals turns: so many in all, until a time, at most so many a second."""

    def __init__(self, count: int | None, seconds: float | None, rate: float | None) -> None:
        self._turns: Iterator[int] = itertools.count() if count is None else iter(range(count))
        self._end_s = None if seconds is None else time.perf_counter() + seconds
        self._rate = rate
        self._started_s = time.perf_counter()

    async def next(self, step: int) -> int:
        """How many may be sent now, at most ``step``; 0 when all is done."""
        taken = list(itertools.islice(self._turns, step))
        if not taken or (self._end_s is not None and time.perf_counter() >= self._end_s):
            return 0
        if self._rate is not None:
            due_s = self._started_s + taken[0] / self._rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        return len(taken)


async def send_load(target: Target, plan: SendPlan) -> dict[str, Any]:
    """Send by the plan; the result as ``Measured.result`` tells it."""
    options = {**target.client_options(), "in_flight_count_max": max(1024, plan.concurrency)}
    async with aio.Producer("contrail-bench", target.namesrv, **options) as producer:
        # Asks for the route, so that the first send is no slower than the others.
        await producer.publish_queues(plan.topic)
        measured = Measured()
        pace = Pace(plan.count, plan.seconds, plan.rate)
        send = _sending(producer, plan)
        async with asyncio.TaskGroup() as tasks:
            progress = tasks.create_task(_progress(measured, plan.size))
            workers = [
                tasks.create_task(_send_worker(send, plan.batch, pace, measured))
                for _ in range(plan.concurrency)
            ]
            await asyncio.wait(workers)
            measured.ended_s = time.perf_counter()
            progress.cancel()
    return measured.result(plan.size)


async def _send_worker(
    send: Callable[[int], Awaitable[object]], batch: int, pace: Pace, measured: Measured
) -> None:
    while count := await pace.next(batch):
        begun_ns = time.perf_counter_ns()
        try:
            await send(count)
        except ClientError as error:
            measured.failed(error)
        else:
            measured.done(count, (time.perf_counter_ns() - begun_ns) // 1000)


def _sending(producer: aio.Producer, plan: SendPlan) -> Callable[[int], Awaitable[object]]:
    message = aio.Message(plan.topic, b"x" * plan.size)
    if plan.batch > 1:
        return lambda count: producer.send_batch([message] * count)
    if plan.mode is Mode.ONEWAY:
        return lambda count: producer.send_oneway(message)
    if plan.mode is Mode.ASYNC:
        return lambda count: producer.send_async(message)
    return lambda count: producer.send(message)


async def consume_load(
    target: Target,
    topic: str,
    group: str,
    *,
    count: int | None,
    seconds: float | None,
    earliest: bool,
    threads: int,
) -> dict[str, Any]:
    """Consume until one of the limits; latencies are from birth to the handler."""
    measured, enough, clock = Measured(), asyncio.Event(), SystemClock()
    sizes = [0]
    where = "CONSUME_FROM_FIRST_OFFSET" if earliest else "CONSUME_FROM_LAST_OFFSET"
    consumer = aio.PushConsumer(
        group,
        target.namesrv,
        consume_from_where=where,
        consume_thread_max=threads,
        **target.client_options(),
    )
    await consumer.subscribe(topic)

    @consumer.on_message
    async def handle(message: aio.ConsumedMessage) -> None:
        if measured.messages == 0:
            measured.started_s = time.perf_counter()
        if count is None or measured.messages < count:
            measured.done(1, 1000 * (clock.now_ms() - message.born_timestamp_ms))
            sizes[0] += len(message.body)
        if count is not None and measured.messages >= count:
            enough.set()

    async with consumer:
        progress = asyncio.create_task(_progress(measured, 0))
        with suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), seconds)
        measured.ended_s = time.perf_counter()
        progress.cancel()
        with suppress(asyncio.CancelledError):
            await progress
    return measured.result(sizes[0] // max(1, measured.messages))


async def _progress(measured: Measured, size: int) -> None:
    """A line each second on standard error."""
    before = 0
    while True:
        await asyncio.sleep(_PROGRESS_S)
        rate, before = (measured.messages - before) / _PROGRESS_S, measured.messages
        size_text = f"  {rate * size / (1 << 20):,.1f} MiB/s" if size else ""
        figures = measured.latencies.figures()
        print(
            f"{measured.seconds:5.0f} s  {rate:10,.0f} msg/s{size_text}  "
            f"p50 {figures['p50_ms']:g} ms  p99 {figures['p99_ms']:g} ms  "
            f"{measured.failures:,} failed",
            file=sys.stderr,
            flush=True,
        )

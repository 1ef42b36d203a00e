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
from contrail.cli.words import in_words
from contrail.client.options import StartName
from contrail.clock import SystemClock
from contrail.errors import ClientError

_PROGRESS_S = 1.0


class Mode(StrEnum):
    """How messages are sent."""

    # Each worker waits for the answer, and tries again elsewhere when there is none.
    SYNC = "sync"
    # As the asynchronous send of clients: tried again on the same broker only.
    ASYNC = "async"
    # Brokers do not answer; the latency is the time to hand a message to the network.
    ONEWAY = "oneway"


@dataclass(frozen=True, slots=True)
class SendPlan:
    """The load; ends after ``count`` messages or ``seconds``, whichever is given."""

    topic: str
    mode: Mode
    concurrency: int
    size: int
    batch: int
    count: int | None
    seconds: float | None
    rate: float | None


class Measured:
    """The figures so far; they outlive an interrupted load."""

    def __init__(self) -> None:
        self.messages = 0
        self.body_bytes = 0
        self.failures = 0
        self.first_failure = ""
        self.latencies = LatencyHistogram()
        self.started_s = time.perf_counter()
        self.ended_s: float | None = None

    def start(self) -> None:
        """Time counts from here on."""
        self.started_s = time.perf_counter()

    def end(self) -> None:
        """Time counts no more: only connections are closed after this."""
        self.ended_s = time.perf_counter()

    def done(self, messages: int, body_bytes: int, latency_us: int) -> None:
        self.messages += messages
        self.body_bytes += body_bytes
        self.latencies.record(latency_us)

    def failed(self, error: ClientError) -> None:
        self.failures += 1
        self.first_failure = self.first_failure or in_words(error)

    @property
    def seconds(self) -> float:
        return (self.ended_s or time.perf_counter()) - self.started_s

    def result(self) -> dict[str, Any]:
        seconds = max(self.seconds, 1e-9)
        return {
            "messages": self.messages,
            "failures": self.failures,
            "first_failure": self.first_failure or None,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / seconds, 1),
            "mib_per_second": round(self.body_bytes / seconds / (1 << 20), 3),
            "latency": self.latencies.figures(),
        }


class Pace:
    """Deals turns, within a count, a time and a rate."""

    def __init__(self, count: int | None, seconds: float | None, rate: float | None) -> None:
        self._turns: Iterator[int] = itertools.count() if count is None else iter(range(count))
        self._end_s = None if seconds is None else time.perf_counter() + seconds
        self._rate = rate
        self._started_s = time.perf_counter()

    async def next(self, step: int) -> int:
        """How many messages may be sent now, at most ``step``; 0 at the end."""
        taken = list(itertools.islice(self._turns, step))
        if not taken or (self._end_s is not None and time.perf_counter() >= self._end_s):
            return 0
        if self._rate is not None:
            due_s = self._started_s + taken[0] / self._rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        return len(taken)


async def send_load(target: Target, plan: SendPlan, measured: Measured) -> None:
    """Send by the plan; ``measured`` tells how far it is at any time."""
    options = {**target.client_options(), "in_flight_count_max": max(1024, plan.concurrency)}
    async with aio.Producer("contrail-bench", target.namesrv, **options) as producer:
        # Asks for the route, so that the first send is no slower than the others.
        await producer.publish_queues(plan.topic)
        measured.start()
        pace = Pace(plan.count, plan.seconds, plan.rate)
        send = _sending(producer, plan)
        async with asyncio.TaskGroup() as tasks:
            progress = tasks.create_task(_progress(measured))
            workers = [
                tasks.create_task(_send_worker(send, plan, pace, measured))
                for _ in range(plan.concurrency)
            ]
            try:
                await asyncio.wait(workers)
            finally:
                measured.end()
                progress.cancel()


async def _send_worker(
    send: Callable[[int], Awaitable[object]], plan: SendPlan, pace: Pace, measured: Measured
) -> None:
    while count := await pace.next(plan.batch):
        begun_ns = time.perf_counter_ns()
        try:
            await send(count)
        except ClientError as error:
            measured.failed(error)
        else:
            latency_us = (time.perf_counter_ns() - begun_ns) // 1000
            measured.done(count, count * plan.size, latency_us)


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
    measured: Measured,
    *,
    count: int | None,
    seconds: float | None,
    earliest: bool,
    threads: int,
) -> None:
    """Consume until one of the limits; latencies are from birth to the handler."""
    enough, clock = asyncio.Event(), SystemClock()
    where: StartName = "CONSUME_FROM_FIRST_OFFSET" if earliest else "CONSUME_FROM_LAST_OFFSET"
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
            measured.start()
        if count is None or measured.messages < count:
            latency_us = 1000 * (clock.now_ms() - message.born_timestamp_ms)
            measured.done(1, len(message.body), latency_us)
        if count is not None and measured.messages >= count:
            enough.set()

    async with consumer:
        progress = asyncio.create_task(_progress(measured))
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(enough.wait(), seconds)
        finally:
            measured.end()
            progress.cancel()
        with suppress(asyncio.CancelledError):
            await progress


async def _progress(measured: Measured) -> None:
    """A line each second on standard error."""
    messages = body_bytes = 0
    while True:
        await asyncio.sleep(_PROGRESS_S)
        rate = (measured.messages - messages) / _PROGRESS_S
        mib_rate = (measured.body_bytes - body_bytes) / _PROGRESS_S / (1 << 20)
        messages, body_bytes = measured.messages, measured.body_bytes
        figures = measured.latencies.figures()
        print(
            f"{measured.seconds:5.0f} s  {rate:10,.0f} msg/s  {mib_rate:,.1f} MiB/s  "
            f"p50 {figures['p50_ms']:g} ms  p99 {figures['p99_ms']:g} ms  "
            f"{measured.failures:,} failed",
            file=sys.stderr,
            flush=True,
        )

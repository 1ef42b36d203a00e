"""The parts of the group ``failover``: sends without an end, and how long they wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from bench.harness import BenchError
from contrail.aio import Message, MessageQueue, Producer, PushConsumer, ReceivedMessage
from contrail.client.message import SendReceipt, SendStatus
from contrail.client.outgoing import Outgoing
from contrail.errors import ClientError

TOPIC = "Failover"
_SENDER_COUNT = 4
_REST_S = 0.005
_SEND_TIMEOUT_MS = 60_000
_POLL_S = 0.001
_NEXT_TIMEOUT_S = 120.0


class LeaderLost(Protocol):
    """A group of brokers with one leader."""

    namesrv: str

    def lose_leader(self) -> float:
        """Take the leader away; when that began, on ``time.monotonic``'s clock."""
        ...

    def bring_back(self) -> None:
        """Have all members of the group again, level."""
        ...


class EndlessSends:
    """Our producer sends all the time; notes each attempt that was answered SEND_OK."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._begun: dict[int, float] = {}
        # The begin of an attempt and its SEND_OK, newest last.
        self.answered: list[tuple[float, float]] = []
        self.failed: list[str] = []
        # The number of a message that a consumer got, and when; numbers are times of sends.
        self.received: list[tuple[float, float]] = []
        self._is_over = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> EndlessSends:
        self._thread.start()
        if not self._ready.wait(_NEXT_TIMEOUT_S):
            self.__exit__()
            raise BenchError(f"no send was answered: {self.failed[-1:]}")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    # The hook of the producer.

    def before_send(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        self._begun[id(outgoing)] = time.monotonic()

    def after_send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        receipt: SendReceipt | None,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        begun_s = self._begun.pop(id(outgoing))
        if receipt is not None and receipt.status is SendStatus.SEND_OK:
            self.answered.append((begun_s, time.monotonic()))
            self._ready.set()

    async def _run(self) -> None:
        consumer = PushConsumer("failover-readers", self._namesrv)
        consumer.on_message(self._handle)
        async with Producer(
            "failover-senders", self._namesrv, hooks=[self], send_timeout_ms=_SEND_TIMEOUT_MS
        ) as producer:
            first = asyncio.create_task(self._send(producer))
            await asyncio.to_thread(self._ready.wait, _NEXT_TIMEOUT_S)
            await consumer.subscribe(TOPIC)
            await consumer.start()
            await asyncio.gather(first, *(self._send(producer) for _ in range(_SENDER_COUNT - 1)))
        await consumer.close()

    async def _send(self, producer: Producer) -> None:
        while not self._is_over.is_set():
            try:
                await producer.send(Message(TOPIC, repr(time.monotonic()).encode()))
            except ClientError as error:
                self.failed.append(str(error))
            await asyncio.sleep(_REST_S)

    async def _handle(self, message: ReceivedMessage) -> None:
        self.received.append((float(message.body), time.monotonic()))

    # Asked by a measurement.

    def next_ok_s(self, since_s: float) -> float:
        """How long after ``since_s`` an attempt that began then was answered SEND_OK."""
        return self._first(self.answered, since_s, "send was answered")

    def next_received_s(self, since_s: float) -> float:
        """How long after ``since_s`` a message that was first sent then reached the consumer."""
        return self._first(self.received, since_s, "message was received")

    def _first(self, pairs: Sequence[tuple[float, float]], since_s: float, what: str) -> float:
        deadline_s, at = time.monotonic() + _NEXT_TIMEOUT_S, 0
        while time.monotonic() < deadline_s:
            found = [ended_s for begun_s, ended_s in pairs[at:] if begun_s >= since_s]
            if found:
                return min(found) - since_s
            time.sleep(_POLL_S)
        raise BenchError(f"no {what} within {_NEXT_TIMEOUT_S} s: {self.failed[-1:]}")

    def forget(self) -> None:
        """Keep the newest alone: lists of a long run are searched again and again."""
        del self.answered[:-100], self.received[:-100]


def times_of(group: LeaderLost, sends: EndlessSends, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds from each loss to the next SEND_OK, and to the consumer's next new message."""
    ok_ms, received_ms = [], []
    for _ in range(count):
        sends.forget()
        lost_s = group.lose_leader()
        ok_ms.append(1000 * sends.next_ok_s(lost_s))
        received_ms.append(1000 * sends.next_received_s(lost_s))
        group.bring_back()
    return ok_ms, received_ms


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

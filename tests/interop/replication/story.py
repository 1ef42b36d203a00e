"""The story that all replicas live through: messages of every kind, and each side hurt in turn.

The same for all, so that Apache's slave of Apache's master is the oracle: what does not hold
there is not asked of ours.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from contrail.aio import Admin, Message, Producer, TransactionState
from contrail.client.transactions import HalfMessage
from contrail.errors import ContrailError
from tests.interop.replication.replicas import BROKER_NAME, Replicas, start_all
from tests.interop.replication.servers import BrokerProcess

TOPIC = "replicated"
QUEUE_COUNT = 4
BODY_BYTES_MAX = 3000
# Longer than a chunk of the HA protocol (32 KiB), so that records are cut by chunks.
LONG_BODY_BYTES = 100_000
BATCH_COUNT = 10
# Of RocketMQ's delay levels: a second, and two hours.
SOON_LEVEL, NEVER_LEVEL = 1, 18
SOON_S, NEVER_S = 1.0, 3600.0

_CALL_TIMEOUT_MS = 5_000
_IN_FLIGHT = 24
# A JVM on a busy machine takes more than a minute to come back.
_TRIES = 600
_PAUSE_S = 0.5
# How long a broker is stopped: sends and chunks pile up meanwhile.
_STOPPED_S = 1.0
_FLAPS = 5
# With these settings a link is taken for dead within the time that it is cut.
QUICK_HOUSEKEEPING = {"haSendHeartbeatInterval": "500", "haHousekeepingInterval": "3000"}
_CUT_S = 5.0
_SLOW_KBIT_PER_S = 2_000

COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)


Fault = Callable[[], None]


class _Told:
    """Ends local transactions as it is told to; nobody is asked later in this story."""

    async def execute(self, message: HalfMessage, arg: object) -> TransactionState:
        assert isinstance(arg, TransactionState)
        return arg

    def check(self, message: object) -> TransactionState:
        return UNKNOWN


@dataclass(slots=True)
class Sent:
    """The keys of all that was acknowledged, by what must become of it."""

    delivered: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    halves: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        return len(self.delivered) + len(self.waiting) + len(self.halves)


class Sender:
    """Sends messages of every kind, and goes on over the death of the master."""

    def __init__(self, producer: Producer, *, seed: int, timers: bool) -> None:
        self._producer = producer
        self._random = random.Random(seed)
        self._timers = timers
        self._room = asyncio.Semaphore(_IN_FLIGHT)
        self._number = 0
        self.sent = Sent()

    async def send(self, count: int) -> None:
        """Send so many messages more; returns when all were acknowledged."""
        end = self._number + count
        async with asyncio.TaskGroup() as group:
            while self._number < end:
                await self._room.acquire()
                work = self._next()
                group.create_task(self._persist(work))

    async def _persist(self, work: Callable[[], Awaitable[None]]) -> None:
        """Try until the master takes it: a message may then be stored more than once."""
        try:
            for attempt in range(_TRIES):
                try:
                    return await work()
                except (ContrailError, OSError):
                    if attempt == _TRIES - 1:
                        raise
                    await asyncio.sleep(_PAUSE_S)
        finally:
            self._room.release()

    def _next(self) -> Callable[[], Awaitable[None]]:
        """The next message or batch; kinds follow each other in a fixed order."""
        number = self._number
        turn = number % 40
        if turn == 7:
            self._number += BATCH_COUNT
            return self._batch([self._message(number + one) for one in range(BATCH_COUNT)])
        self._number += 1
        if turn == 3:
            return self._plain(self._message(number, delay_level=SOON_LEVEL))
        if turn == 5:
            return self._wait(self._message(number, delay_level=NEVER_LEVEL))
        if turn == 20:
            return self._plain(self._timed(number, SOON_S))
        if turn == 21:
            return self._wait(self._timed(number, NEVER_S))
        if turn in (22, 23, 24):
            return self._transact(self._message(number), (COMMIT, ROLLBACK, UNKNOWN)[turn - 22])
        if turn == 25:
            return self._plain(self._message(number, bytes_=LONG_BODY_BYTES))
        if turn % 2:
            return self._plain(self._message(number, sharding_key=f"shard-{number % 5}"))
        return self._plain(self._message(number))

    def _timed(self, number: int, delay_s: float) -> Message:
        if self._timers:
            return self._message(number, delay=delay_s)
        return self._message(number, delay_level=SOON_LEVEL if delay_s == SOON_S else NEVER_LEVEL)

    def _message(self, number: int, *, bytes_: int | None = None, **more: object) -> Message:
        size = self._random.randint(1, BODY_BYTES_MAX) if bytes_ is None else bytes_
        return Message(
            TOPIC,
            self._random.randbytes(size),
            keys=[f"key-{number}", f"alias-{number}"],
            tags=f"tag-{number % 3}",
            **more,  # type: ignore[arg-type]
        )

    def _plain(self, message: Message) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            await self._producer.send(message)
            self.sent.delivered.add(message.keys[0])

        return work

    def _wait(self, message: Message) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            await self._producer.send(message)
            self.sent.waiting.add(message.keys[0])

        return work

    def _batch(self, messages: list[Message]) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            await self._producer.send_batch(messages)
            self.sent.delivered.update(message.keys[0] for message in messages)

        return work

    def _transact(self, message: Message, fate: TransactionState) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            await self._producer.send_in_transaction(message, fate)
            # The end of a transaction is told one way: only its half is sure to be stored.
            self.sent.halves.add(message.keys[0])

        return work


@asynccontextmanager
async def sending(replicas: Replicas, *, seed: int) -> AsyncIterator[Sender]:
    """A sender to the master; the topic is made, and every slave follows from the first segment."""
    async with Admin(replicas.namesrv, timeout_ms=_CALL_TIMEOUT_MS) as admin:
        await admin.create_topic(TOPIC, queues=QUEUE_COUNT, broker=BROKER_NAME)
    async with Producer(
        "senders",
        replicas.namesrv,
        send_timeout_ms=_CALL_TIMEOUT_MS,
        api_timeout_ms=_CALL_TIMEOUT_MS,
        transaction_listener=_Told(),
    ) as producer:
        sender = Sender(producer, seed=seed, timers=replicas.has_timers)
        await sender.send(QUEUE_COUNT)
        await asyncio.to_thread(replicas.wait_until_equal, "after the first messages")
        yield sender


async def live(replicas: Replicas, count: int, faults: Sequence[Fault], *, seed: int) -> Sent:
    """Send ``count`` messages while the faults happen, one after the other, and are got over."""
    async with sending(replicas, seed=seed) as sender:
        share = count // len(faults)
        for fault in faults:
            traffic = asyncio.create_task(sender.send(share))
            # The first messages of the share are under way when it happens.
            await asyncio.sleep(0)
            await asyncio.to_thread(fault)
            await traffic
            await asyncio.to_thread(replicas.wait_until_equal, f"after {fault.__name__}")
        return sender.sent


def faults_of_brokers(replicas: Replicas) -> Iterable[Fault]:
    """The faults of the brokers, in order; each leaves all of them running."""
    master, slaves = replicas.master, replicas.slaves

    def kill_slaves() -> None:
        for slave in slaves:
            slave.kill()
        start_all(slaves)

    def pause_slaves() -> None:
        _pause(slaves)

    def kill_master() -> None:
        master.kill()
        master.start()

    def pause_master() -> None:
        _pause([master])

    yield from (kill_slaves, pause_slaves, kill_master, pause_master)


def faults_of_links(replicas: Replicas) -> Iterable[Fault]:
    """The faults of the links of Apache's brokers; each leaves them as they were."""
    assert replicas.network is not None
    nodes = list(replicas.network.nodes.values())

    def flap_links() -> None:
        for node in nodes:
            node.flap(_FLAPS)

    def cut_links() -> None:
        """Longer than either side waits for news of the other."""
        for node in nodes:
            node.cut()
        threading.Event().wait(_CUT_S)
        for node in nodes:
            node.mend()

    def slow_links() -> None:
        for node in nodes:
            node.slow_down(kbit_per_s=_SLOW_KBIT_PER_S)
        threading.Event().wait(_STOPPED_S)
        for node in nodes:
            node.speed_up()

    yield from (flap_links, cut_links, slow_links)


def _pause(brokers: Sequence[BrokerProcess]) -> None:
    for broker in brokers:
        broker.pause()
    threading.Event().wait(_STOPPED_S)
    for broker in brokers:
        broker.resume()

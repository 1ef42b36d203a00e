"""Producers of a campaign: all attempts to send, and their results."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import contrail
from contrail.aio import HashSelector, Message, MessageQueue, Producer, SendReceipt, SendStatus
from contrail.client.outgoing import Outgoing
from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    ClientError,
    SendTimedOut,
)
from contrail.model.batch import decode_batch
from contrail.model.properties import KEYS, decode_properties
from tests.history.client_member import digest_of
from tests.history.client_rules import Delivery, Queue
from tests.history.events import Ended, Event, Kind, Outcome, SendInvoked
from tests.history.violations import Rule, Violation

PLAIN, ORDERED = "plain", "ordered"
_SHARDING_KEYS = tuple(f"customer-{number}" for number in range(8))
_SIZES = (10, 100, 100, 1000, 8000)
_REST_S = 0.02
_AGAIN_S = 0.1
_Send = Callable[[], Awaitable[SendReceipt]]


class Timeline:
    """Events and when they were, on the clock that all processes of the machine share."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Event]] = []

    def now(self) -> tuple[int, int]:
        """In nanoseconds, and in the milliseconds of an event."""
        now_ns = time.monotonic_ns()
        return now_ns, now_ns // 1_000_000


class _Made(NamedTuple):
    digest: str
    sharding_key: str
    delay_level: int

    @property
    def kind(self) -> Kind:
        if self.delay_level:
            return Kind.DELAY
        return Kind.ORDERED if self.sharding_key else Kind.NORMAL


class SendNotes:
    """The sends of all producers, attempt by attempt; is a ``SendHook``."""

    def __init__(self, timeline: Timeline, number_of: Callable[[Queue], int], seed: int) -> None:
        self._timeline = timeline
        self._number_of = number_of
        self._seed = seed
        self._ops = itertools.count(1)
        self._keys = itertools.count(1)
        # The parts of a message that an attempt does not tell.
        self._made: dict[str, _Made] = {}
        self._under_way: dict[int, list[int]] = {}
        # Where brokers stored a key by their answers, and the receipt that the application got.
        self.places: dict[str, set[tuple[Queue, int]]] = defaultdict(set)
        self.told: dict[str, list[tuple[Queue, int]]] = defaultdict(list)
        self.outcomes: Counter[str] = Counter()
        # Keys whose send failed for certain, by the application's error.
        self.denied: set[str] = set()

    def new_message(
        self,
        chance: random.Random,
        topic: str,
        sharding_key: str | None = None,
        *,
        delay_level: int = 0,
    ) -> Message:
        key = f"{self._seed:x}-{next(self._keys):06}"
        size = chance.choice(_SIZES)
        # Half of a long body can be compressed.
        body = f"{key} ".encode() + chance.randbytes(size // 2) + b"." * (size // 2)
        self._made[key] = _Made(digest_of(body), sharding_key or "", delay_level)
        return Message(topic, body, keys=[key], sharding_key=sharding_key, delay_level=delay_level)

    # One attempt.

    def before_send(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        self._under_way[id(outgoing)] = [
            self.invoked(key, outgoing.topic, queue) for key in _keys_of(outgoing)
        ]

    def after_send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue,
        receipt: SendReceipt | None,
        error: BaseException | None,
        cost_ms: int,
    ) -> None:
        ops = self._under_way.pop(id(outgoing))
        for number, (op, key) in enumerate(zip(ops, _keys_of(outgoing), strict=True)):
            if receipt is not None and receipt.status is SendStatus.SEND_OK:
                self.stored(op, key, receipt, number)
            else:
                self.ended(op, outcome_of_error(error))

    def invoked(self, key: str, topic: str, queue: MessageQueue) -> int:
        op, made = next(self._ops), self._made[key]
        now_ns, now_ms = self._timeline.now()
        event = SendInvoked(
            now_ms,
            op,
            key,
            made.kind,
            topic,
            self._number_of(_queue_of(queue)),
            made.digest,
            # Only tells one level from another: the clocks of servers are not this one.
            delay_ms=made.delay_level,
            sharding_key=made.sharding_key,
        )
        self._timeline.events.append((now_ns, event))
        return op

    def stored(self, op: int, key: str, receipt: SendReceipt, number: int = 0) -> None:
        queue, queue_offset = _queue_of(receipt.queue), receipt.queue_offset + number
        self.places[key].add((queue, queue_offset))
        self.ended(op, Outcome.OK, self._number_of(queue), queue_offset)

    def ended(self, op: int, outcome: Outcome, queue_id: int = -1, queue_offset: int = -1) -> None:
        now_ns, now_ms = self._timeline.now()
        self._timeline.events.append((now_ns, Ended(now_ms, op, outcome, queue_id, queue_offset)))

    # Results for the application.

    def heard(self, messages: Sequence[Message], receipt: SendReceipt) -> None:
        self.outcomes[receipt.status.name] += len(messages)
        if receipt.status is SendStatus.SEND_OK:
            for number, message in enumerate(messages):
                place = (_queue_of(receipt.queue), receipt.queue_offset + number)
                self.told[message.keys[0]].append(place)

    def heard_no(self, messages: Sequence[Message], error: ClientError) -> None:
        self.outcomes[type(error).__name__] += len(messages)
        if not isinstance(error, SendTimedOut):
            self.denied.update(message.keys[0] for message in messages)

    def misled(self, deliveries: Iterable[Delivery]) -> Iterator[Violation]:
        """MOVED, REFUSED_DELIVERED: the application's receipt or error is wrong."""
        for key, places in self.told.items():
            for place in places:
                if place not in self.places[key]:
                    detail = f"told {place}, stored at {self.places[key]}"
                    yield Violation(Rule.MOVED, (key,), detail)
        for key in self.denied & {delivery.key for delivery in deliveries}:
            yield Violation(Rule.REFUSED_DELIVERED, (key,), "the error left no doubt")


def outcome_of_error(error: BaseException | None) -> Outcome:
    """A refusal is certain, unless the broker says itself that it is not."""
    if isinstance(error, BrokerRefused):
        return Outcome.UNKNOWN if error.is_in_doubt else Outcome.FAILED
    return Outcome.FAILED if isinstance(error, BrokerUnknown) else Outcome.UNKNOWN


def _keys_of(outgoing: Outgoing) -> list[str]:
    if not outgoing.is_batch:
        return [outgoing.properties[KEYS]]
    return [decode_properties(unit.properties)[KEYS] for unit in decode_batch(outgoing.body)]


def _queue_of(queue: MessageQueue) -> Queue:
    return Queue(queue.topic, queue.broker_name, queue.queue_id)


class Senders:
    """Producers that send without a pause until ``stop``."""

    def __init__(self, notes: SendNotes, namesrv: str, chance: random.Random) -> None:
        self._notes = notes
        self._chance = chance
        self._plain = Producer(
            "senders", namesrv, hooks=[notes], poll_name_server_interval_ms=3_000
        )
        # Without a hook, as most applications: with a sharding key there is one attempt.
        self._ordered = Producer("ordered-senders", namesrv, poll_name_server_interval_ms=3_000)
        self._blocking = contrail.Producer("blocking-senders", namesrv, hooks=[notes])
        self._is_over = threading.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._plain.start()
        await self._ordered.start()
        await asyncio.to_thread(self._blocking.start)

    async def close(self) -> None:
        await self.stop()
        await self._plain.close()
        await self._ordered.close()
        await asyncio.to_thread(self._blocking.close)

    def begin(self) -> None:
        """Send until ``stop``."""
        self._is_over.clear()
        loops = [self._one_by_one, self._at_once, self._by_futures, self._in_batches]
        works = [loop() for loop in loops]
        works += [self._in_order(sharding_key) for sharding_key in _SHARDING_KEYS]
        works.append(asyncio.to_thread(self._from_a_thread, self._chance.randrange(1 << 30)))
        self._tasks = [asyncio.create_task(work) for work in works]

    async def stop(self) -> None:
        self._is_over.set()
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)

    async def send_to_each(self, queues: Sequence[MessageQueue]) -> set[str]:
        """One message into each queue, when all brokers are up; their keys."""
        keys: set[str] = set()
        for queue in queues:
            message = self._notes.new_message(self._chance, queue.topic)
            await self._plain.send(message, queue=queue, timeout_ms=60_000)
            keys.add(message.keys[0])
        return keys

    async def queues(self, topic: str) -> list[MessageQueue]:
        return await self._plain.publish_queues(topic)

    # The ways to send.

    async def _one_by_one(self) -> None:
        while not self._is_over.is_set():
            message = self._notes.new_message(self._chance, PLAIN)
            await self._send([message], lambda one=message: self._plain.send(one))  # type: ignore[misc]
            await asyncio.sleep(_REST_S)

    async def _at_once(self) -> None:
        while not self._is_over.is_set():
            messages = self._some(2, 16)
            await asyncio.gather(
                *(self._send([one], lambda one=one: self._plain.send(one)) for one in messages)  # type: ignore[misc]
            )
            await asyncio.sleep(_REST_S * len(messages))

    async def _by_futures(self) -> None:
        while not self._is_over.is_set():
            messages = self._some(2, 8)
            sends = [(one, self._plain.send_async(one)) for one in messages]
            for message, future in sends:
                await self._send([message], lambda future=future: future)  # type: ignore[misc]
            await asyncio.sleep(_REST_S * len(messages))

    async def _in_batches(self) -> None:
        while not self._is_over.is_set():
            messages = self._some(2, 10)
            await self._send(messages, lambda batch=messages: self._plain.send_batch(batch))  # type: ignore[misc]
            await asyncio.sleep(_REST_S * len(messages))

    def _some(self, least: int, most: int) -> list[Message]:
        count = self._chance.randint(least, most)
        return [self._notes.new_message(self._chance, PLAIN) for _ in range(count)]

    async def _send(self, messages: Sequence[Message], send: _Send) -> None:
        try:
            self._notes.heard(messages, await send())
        except ClientError as error:
            self._notes.heard_no(messages, error)
            await asyncio.sleep(_AGAIN_S)

    def _from_a_thread(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._is_over.wait(_REST_S):
            message = self._notes.new_message(chance, PLAIN)
            try:
                self._notes.heard([message], self._blocking.send(message))
            except ClientError as error:
                self._notes.heard_no([message], error)

    # In order.

    async def _in_order(self, sharding_key: str) -> None:
        """The next message of a customer is sent once the one before is stored."""
        choose = HashSelector()
        while not self._is_over.is_set():
            message = self._notes.new_message(self._chance, ORDERED, sharding_key)
            queues = await self._ordered.publish_queues(ORDERED)
            queue = choose(queues, message, sharding_key)
            while not await self._is_stored(message, queue):
                await asyncio.sleep(_AGAIN_S)
            await asyncio.sleep(self._chance.uniform(0, 4 * _REST_S))

    async def _is_stored(self, message: Message, queue: MessageQueue) -> bool:
        notes, key = self._notes, message.keys[0]
        op = notes.invoked(key, ORDERED, queue)
        try:
            receipt = await self._ordered.send(message)
        except ClientError as error:
            in_doubt = isinstance(error, SendTimedOut)
            notes.ended(op, Outcome.UNKNOWN if in_doubt else Outcome.FAILED)
            notes.outcomes[type(error).__name__] += 1
            return False
        if receipt.status is not SendStatus.SEND_OK:
            notes.ended(op, Outcome.UNKNOWN)
            return False
        notes.stored(op, key, receipt)
        notes.heard([message], receipt)
        return True

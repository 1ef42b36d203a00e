"""A consumer in a process of its own, so that it can be killed; it notes its messages in a file.

Usage: ``client_member.py SETTINGS``, the JSON of ``MemberSettings``. It consumes until its standard
input ends, and closes then. Each line of its file is a JSON array: a word, the machine's monotonic
time in nanoseconds, and the word's values. A line is with the kernel before the handler goes on, so
handled messages are known however the process ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from contrail.aio import MessageQueue, PullConsumer, PushConsumer, ReceivedMessage
from contrail.errors import ClientError

_log = logging.getLogger(__name__)

GOT, HAS, CLOSED = "got", "has", "closed"

# Short, so that each happens many times in a campaign of a minute.
_INTERVALS: Any = {
    "poll_name_server_interval_ms": 3_000,
    "heartbeat_broker_interval_ms": 3_000,
    "rebalance_interval_ms": 2_000,
}
PERSIST_INTERVAL_MS = 1_000
_LOOK_INTERVAL_S = 0.02
_ORDERLY_FAILURES = 0.01
_HANDLING_S_MAX = 0.004
# Digests are hexadecimal: of 256 bodies 24 are given back.
_GIVEN_BACK_BELOW = "18"


class HandlerFailed(Exception):
    """The message must come again; an ordered group's before others."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The settings of a member."""

    # Also the instance name: a restarted member finds its locks by it.
    name: str
    kind: Literal["concurrent", "returning", "orderly", "pull"]
    group: str
    topics: tuple[str, ...]
    namesrv: str
    notes_path: str
    seed: int


class Notes:
    """The file; one write for each line, so that a kill never leaves half of one."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, word: str, *values: object) -> None:
        line = json.dumps([word, time.monotonic_ns(), *values]) + "\n"
        os.write(self._file, line.encode())

    def got(self, message: ReceivedMessage) -> None:
        queue = message.queue
        key = message.keys[0] if message.keys else message.message_id
        self.add(
            GOT,
            [queue.topic, queue.broker_name, queue.queue_id],
            message.queue_offset,
            key,
            digest_of(message.body),
            message.store_timestamp_ms,
            message.reconsume_times,
        )


def is_given_back(digest: str, reconsume_times: int) -> bool:
    """Some messages have to come again, through the retry topic of their group."""
    return not reconsume_times and digest < _GIVEN_BACK_BELOW


def digest_of(body: bytes) -> str:
    return hashlib.blake2s(body, digest_size=8).hexdigest()


async def _push(settings: MemberSettings, notes: Notes, closing: asyncio.Event) -> None:
    chance = random.Random(settings.seed)
    is_orderly = settings.kind == "orderly"
    consumer = PushConsumer(
        settings.group,
        settings.namesrv,
        orderly=is_orderly,
        consume_from_where="first",
        instance_name=settings.name,
        persist_consumer_offset_interval_ms=PERSIST_INTERVAL_MS,
        suspend_current_queue_time_ms=50,
        **_INTERVALS,
    )

    @consumer.on_message
    async def handle(message: ReceivedMessage) -> None:
        if is_orderly and chance.random() < _ORDERLY_FAILURES:
            raise HandlerFailed(message.message_id)
        notes.got(message)
        if settings.kind == "returning" and is_given_back(
            digest_of(message.body), message.reconsume_times
        ):
            raise HandlerFailed(message.message_id)
        await asyncio.sleep(chance.uniform(0, _HANDLING_S_MAX))

    for topic in settings.topics:
        await consumer.subscribe(topic)
    await consumer.start()
    looking = asyncio.create_task(_look(consumer.assigned_queues, notes))
    await closing.wait()
    looking.cancel()
    await consumer.close()


async def _pull(settings: MemberSettings, notes: Notes, closing: asyncio.Event) -> None:
    consumer = PullConsumer(
        settings.group,
        settings.namesrv,
        consume_from_where="first",
        instance_name=settings.name,
        auto_commit=False,
        **_INTERVALS,
    )
    async with consumer:
        for topic in settings.topics:
            await consumer.subscribe(topic)
        looking = asyncio.create_task(_look(consumer.assignment, notes))
        while not closing.is_set():
            for message in await consumer.poll(timeout_ms=200):
                notes.got(message)
            try:
                await consumer.commit()
            except ClientError as error:
                # A broker is down: the consumer writes it later.
                _log.info("not committed yet: %s", error)
        looking.cancel()


async def _look(queues: Callable[[], Collection[MessageQueue]], notes: Notes) -> None:
    """Note which queues this member has whenever they change."""
    known: Collection[MessageQueue] | None = None
    while True:
        now = sorted(queues())
        if now != known:
            known = now
            notes.add(HAS, [[queue.topic, queue.broker_name, queue.queue_id] for queue in now])
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def _run(settings: MemberSettings) -> None:
    notes, closing = Notes(settings.notes_path), asyncio.Event()

    async def wait_for_the_end() -> None:
        await asyncio.to_thread(sys.stdin.buffer.read)
        closing.set()

    waiting = asyncio.create_task(wait_for_the_end())
    await consume(settings, notes, closing)
    notes.add(CLOSED)
    await waiting


async def consume(settings: MemberSettings, notes: Notes, closing: asyncio.Event) -> None:
    """Consume until ``closing``, and close the consumer."""
    await (_pull if settings.kind == "pull" else _push)(settings, notes, closing)


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    given = json.loads(sys.argv[1])
    asyncio.run(_run(MemberSettings(**{**given, "topics": tuple(given["topics"])})))

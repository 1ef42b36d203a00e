"""Parts of the client suite: the work of Contrail's client, each part in its own process.

``pulled_barely`` is what consuming is held against: a blocking socket, one pull after the other,
each record decoded, and nothing else. ``sent_barely`` shows what no client can be faster than.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Iterable
from struct import Struct
from typing import Any, TypeVar

from bench.harness import BenchError, Figures, Stopwatch

T = TypeVar("T")

BODY_BYTES = 1024
QUEUE_COUNT = 8
PULL_COUNT = 32

_FILL_RUN = 1000
_CONSUME_TIMEOUT_S = 300
_SOCKET_TIMEOUT_S = 30
_PULL_MESSAGE = 11
# A pull with its own subscription that does not wait for an arrival.
_PULL_SYS_FLAG = 0x4
_LENGTHS = Struct(">II")


def body() -> bytes:
    return b"b" * BODY_BYTES


# Preparations.


def topic_made(*, namesrv: str, topic: str, backlog: int = 0) -> Figures:
    """Make a topic and store a backlog in it, the same number in each queue."""
    return _run(_make_topic(namesrv, topic, backlog))


async def _make_topic(namesrv: str, topic: str, backlog: int) -> Figures:
    from contrail.aio import Admin, Message, Producer

    async with Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=QUEUE_COUNT)
    async with Producer("backlog_senders", namesrv) as producer:
        queues = await producer.publish_queues(topic) if backlog else []
        for queue in queues:
            left = backlog // len(queues)
            while left > 0:
                run = [Message(topic, body()) for _ in range(min(left, _FILL_RUN))]
                await producer.send_batch(run, queue=queue)
                left -= len(run)
    return {"record_count": backlog}


def group_made(*, namesrv: str, group: str) -> Figures:
    """Create a group: Apache's proxy refuses a group that its broker does not know."""
    return _run(_make_group(namesrv, group))


async def _make_group(namesrv: str, group: str) -> Figures:
    from contrail.aio import Admin

    async with Admin(namesrv) as admin:
        await admin.create_group(group)
    return {"record_count": 0}


# Measurements.


def sent_in_turn(*, namesrv: str, topic: str, warm_up_count: int, count: int) -> Figures:
    """The blocking producer in one thread, each message answered before the next."""
    from contrail import Message, Producer

    payload = body()
    with Producer("senders", namesrv) as producer:
        for _ in range(warm_up_count):
            producer.send(Message(topic, payload))
        with Stopwatch() as watch:
            for _ in range(count):
                producer.send(Message(topic, payload))
    return watch.figures(count)


def sent_concurrently(
    *, namesrv: str, topic: str, warm_up_count: int, count: int, tasks: int
) -> Figures:
    """The asyncio producer, so many tasks sending in turn each."""
    return _run(_send_concurrently(namesrv, topic, warm_up_count, count, tasks))


async def _send_concurrently(
    namesrv: str, topic: str, warm_up_count: int, count: int, tasks: int
) -> Figures:
    from contrail.aio import Message, Producer

    payload = body()
    async with Producer("senders", namesrv) as producer:

        async def send(share: int) -> None:
            for _ in range(share):
                await producer.send(Message(topic, payload))

        share = max(1, count // tasks)
        await asyncio.gather(*(send(max(1, warm_up_count // tasks)) for _ in range(tasks)))
        with Stopwatch() as watch:
            await asyncio.gather(*(send(share) for _ in range(tasks)))
    return watch.figures(share * tasks)


def sent_barely(*, broker: str, warm_up_count: int, count: int) -> Figures:
    """A ready frame over a blocking socket, again and again: the time of the broker's answers."""
    from bench.wire_frames import send_frame

    frame = send_frame(BODY_BYTES)
    with _connected(broker) as connection:
        _send_barely(connection, frame, warm_up_count)
        with Stopwatch() as watch:
            _send_barely(connection, frame, count)
    return watch.figures(count)


def _send_barely(connection: socket.socket, frame: bytes, count: int) -> None:
    for _ in range(count):
        connection.sendall(frame)
        header, _ = _answer(connection)
        if header["code"] != 0:
            raise BenchError(f"a bare send was refused: {header}")


def consumed(*, namesrv: str, topic: str, group: str, count: int) -> Figures:
    """A push consumer with its own settings and a handler that counts: first to last message."""
    return _run(_consume(namesrv, topic, group, count))


async def _consume(namesrv: str, topic: str, group: str, count: int) -> Figures:
    from contrail.aio import ConsumedMessage, PushConsumer

    seen = 0
    watch = Stopwatch()
    ended = asyncio.Event()
    async with PushConsumer(group, namesrv, consume_from_where="first") as consumer:

        @consumer.on_message
        async def handle(message: ConsumedMessage) -> None:
            nonlocal seen
            if seen == 0:
                watch.__enter__()
            seen += 1
            if seen == count:
                watch.__exit__()
                ended.set()

        await consumer.subscribe(topic)
        try:
            await asyncio.wait_for(ended.wait(), _CONSUME_TIMEOUT_S)
        except TimeoutError:
            raise BenchError(f"{seen} of {count} messages were consumed in time") from None
    return watch.figures(count)


def pulled_barely(*, broker: str, topic: str, count: int, decoder: str) -> Figures:
    """Every queue to its end, one after the other; ``decoder`` is one of ``DECODERS``."""
    decode = DECODERS[decoder]
    seen = 0
    with _connected(broker) as connection, Stopwatch() as watch:
        for queue_id in range(QUEUE_COUNT):
            seen += _pull_queue(connection, topic, queue_id, decode)
    if seen != count:
        raise BenchError(f"{seen} messages were pulled, {count} are stored")
    return watch.figures(count)


def _pull_queue(
    connection: socket.socket, topic: str, queue_id: int, decode: Callable[[bytes], Iterable[Any]]
) -> int:
    seen = queue_offset = 0
    while True:
        connection.sendall(_pull_frame(topic, queue_id, queue_offset))
        header, records = _answer(connection)
        if header["code"] != 0:
            return seen
        queue_offset = int(header["extFields"]["nextBeginOffset"])
        for message in decode(records):
            seen += 1
            if len(message.body) != BODY_BYTES:
                raise BenchError(f"a message of {len(message.body)} bytes was pulled")


def _as_records(records: bytes) -> Iterable[Any]:
    from contrail.model.record import split_record_run

    return split_record_run(records)


def _as_messages(records: bytes) -> Iterable[Any]:
    from contrail.client.decoding import received_messages

    return received_messages(records, "")


# How each record of a pull is decoded: as the store's value, or as the client hands it out.
DECODERS: dict[str, Callable[[bytes], Iterable[Any]]] = {
    "records": _as_records,
    "messages": _as_messages,
}


def _pull_frame(topic: str, queue_id: int, queue_offset: int) -> bytes:
    fields = {
        "consumerGroup": "bare_pullers",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(PULL_COUNT),
        "sysFlag": str(_PULL_SYS_FLAG),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    command = {"code": _PULL_MESSAGE, "opaque": queue_offset, "flag": 0, "language": "JAVA"}
    header = json.dumps({**command, "version": 479, "extFields": fields}).encode()
    return _LENGTHS.pack(4 + len(header), len(header)) + header


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=_SOCKET_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _answer(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    frame_bytes, header_bytes = _LENGTHS.unpack(_received(connection, _LENGTHS.size))
    rest = _received(connection, frame_bytes - 4)
    return json.loads(rest[:header_bytes]), bytes(memoryview(rest)[header_bytes:])


def _received(connection: socket.socket, byte_count: int) -> bytes:
    data = bytearray(byte_count)
    view = memoryview(data)
    done = 0
    while done < byte_count:
        read = connection.recv_into(view[done:])
        if read == 0:
            raise BenchError("the broker closed the connection of the bare pulls")
        done += read
    return bytes(data)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """On the loop that the blocking names use too."""
    from contrail.runtime.event_loop import choose_event_loop, run

    return run(work, choose_event_loop())

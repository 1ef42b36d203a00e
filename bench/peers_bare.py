"""Bare loads on a RocketMQ broker, each in its own process: many frames sent, queues walked.

The C load replays one frame. These replay as many as there are topics or kinds of message, and
pull each queue from where the last answer ended. They prepare everything before the clock runs
and look at no more of an answer than they must; a run tells its own CPU beside the broker's.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from bench.harness import BenchError, Figures, Stopwatch, in_child
from bench.wire_frames import NUMBER, sample_body
from bench.wire_parts import pinned, process_cpu_s, settle
from contrail.model.batch import BatchUnit, encode_batch

if TYPE_CHECKING:
    from bench.peers_servers import RocketServer

QUEUE_COUNT = 4
BATCH_MESSAGES = 32
PULL_MESSAGES = 32
IN_FLIGHT = 64
# The numbers that the C load replaces in a pull.
OFFSET_NUMBER, QUEUE_NUMBER = "300000000", "400000000"
# Each message has one of this many tags, and the same number as a property, for filters.
KIND_COUNT = 100
KIND_PROPERTY = "kind"

_SEND_MESSAGE_V2 = 310
_SEND_BATCH_MESSAGE = 320
_PULL_MESSAGE = 11
_SUCCESS, _SYSTEM_BUSY = 0, 2
_PULL_NOT_FOUND, _PULL_RETRY_IMMEDIATELY = 19, 20
# A pull with its own subscription that does not wait for an arrival.
_PULL_SYS_FLAG = 0x4
_VERSION = 479
_LENGTHS = Struct(">II")
_LENGTH = Struct(">I")
_SUCCESS_TEXT = b'"code":0,'
_RECEIVE_BYTES = 256 << 10
_TIMEOUT_S = 60


def topic_names(topic: str, topic_count: int) -> list[str]:
    """The names of ``topic_count`` topics; a single one has the name without a number."""
    return [topic] if topic_count == 1 else [f"{topic}-{n}" for n in range(topic_count)]


def bare(part: str, server: RocketServer, **arguments: object) -> Figures:
    """Let a part of this module load a quiet broker, from the core of the loads."""
    settle(server.under_load)
    where = {"broker": server.broker_address, "pid": server.pid}
    with pinned("load"):
        return in_child(f"bench.peers_bare:{part}", **where, **arguments)


# Sends.


def sent(
    *,
    broker: str,
    pid: int,
    topic: str,
    count: int,
    warm_up_count: int = 0,
    topic_count: int = 1,
    in_flight: int = IN_FLIGHT,
    queue_count: int = QUEUE_COUNT,
    frame_count_min: int = 0,
) -> Figures:
    """Single messages of 1 KB on one connection, their topics and kinds in turn.

    A comparison by the number of topics alone needs as many frames, and keys, with few topics.
    """
    frames = _single_frames(topic_names(topic, topic_count), queue_count, frame_count_min)
    with _connected(broker) as connection:
        sender = _Sender(connection, frames)
        sender.send(warm_up_count, in_flight)
        return _clocked(pid, lambda: sender.send(count, in_flight))


def filled(*, broker: str, pid: int, topic: str, count: int) -> Figures:
    """A backlog of whole batches: the same records as of single sends, stored sooner."""
    frames = _batch_frames(topic)
    with _connected(broker) as connection:
        sender = _Sender(connection, frames)
        figures = _clocked(pid, lambda: sender.send(count // BATCH_MESSAGES, 8))
    return {**figures, "record_count": figures["record_count"] * BATCH_MESSAGES}


def _single_frames(topics: list[str], queue_count: int, frame_count_min: int) -> list[bytes]:
    """At least one frame for each kind of message, each with its own unique key."""
    frame_count = max(len(topics), KIND_COUNT * queue_count, frame_count_min)
    return [
        _send_frame(
            topics[number % len(topics)],
            number // KIND_COUNT % queue_count,
            _properties(number),
        )
        for number in range(frame_count)
    ]


def _batch_frames(topic: str) -> list[bytes]:
    # As many messages as make the kinds begin anew in each queue.
    numbers = range(KIND_COUNT * BATCH_MESSAGES * QUEUE_COUNT)
    return [
        _batch_frame(topic, start // BATCH_MESSAGES % QUEUE_COUNT, start)
        for start in numbers[::BATCH_MESSAGES]
    ]


def _send_frame(topic: str, queue_id: int, properties: str) -> bytes:
    return _frame(_SEND_MESSAGE_V2, _send_fields(topic, queue_id, properties), sample_body())


def _batch_frame(topic: str, queue_id: int, start: int) -> bytes:
    units = [
        BatchUnit(sample_body(), _properties(number).encode())
        for number in range(start, start + BATCH_MESSAGES)
    ]
    fields = {**_send_fields(topic, queue_id, _properties(start)), "m": "true"}
    return _frame(_SEND_BATCH_MESSAGE, fields, encode_batch(units))


def _send_fields(topic: str, queue_id: int, properties: str) -> dict[str, str]:
    fields = {"a": "bare_senders", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id)}
    rest = {"f": "0", "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false"}
    return {**fields, **rest, "m": "false"}


def _properties(number: int) -> str:
    kind = number % KIND_COUNT
    pairs = {
        "UNIQ_KEY": f"7F0000010A2B18B4AAC20000{number:08X}",
        "WAIT": "true",
        "TAGS": f"Tag{kind}",
        KIND_PROPERTY: str(kind),
    }
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


class _Sender:
    """Ready frames on a connection, again from the first after the last."""

    def __init__(self, connection: socket.socket, frames: list[bytes]) -> None:
        self._connection = connection
        self._frames: Iterator[bytes] = cycle(frames)
        self._pending = b""

    def send(self, count: int, in_flight: int) -> Figures:
        """Keep sends in flight until ``count`` are stored; busy refusals do not count."""
        stored = busy = answered = 0
        sent_count = min(in_flight, count)
        self._write(sent_count)
        while answered < sent_count:
            stored_now, busy_now = self._answers()
            stored, busy = stored + stored_now, busy + busy_now
            answered += stored_now + busy_now
            left = count - stored - (sent_count - answered)
            more = min(stored_now + busy_now, left)
            self._write(more)
            sent_count += more
        return {"record_count": stored, "request_count": answered, "busy_count": busy}

    def _write(self, frame_count: int) -> None:
        if frame_count > 0:
            self._connection.sendall(b"".join(islice(self._frames, frame_count)))

    def _answers(self) -> tuple[int, int]:
        """How many of the answers that came stored a message, and how many ask for patience."""
        data = self._pending + _received_some(self._connection)
        position = stored = busy = 0
        while len(data) - position >= _LENGTHS.size:
            end = position + 4 + _LENGTH.unpack_from(data, position)[0]
            if end > len(data):
                break
            if data.find(_SUCCESS_TEXT, position, end) >= 0:
                stored += 1
            else:
                _require_busy(data[position:end])
                busy += 1
            position = end
        self._pending = data[position:]
        return stored, busy


def _require_busy(answer: bytes) -> None:
    header, _ = _parts(answer)
    if header["code"] != _SYSTEM_BUSY:
        raise BenchError(f"a bare send was refused: {header}")


# Pulls.


def walking_pull(topic: str) -> bytes:
    """A pull from which the C load makes all pulls of a walk: every queue, from 0 on."""
    place = {"queueId": QUEUE_NUMBER, "queueOffset": OFFSET_NUMBER}
    return _frame(_PULL_MESSAGE, {**_pull_fields(topic, "*", "TAG"), **place}, b"")


def _pull_fields(topic: str, subscription: str, expression_type: str) -> dict[str, str]:
    return {
        "consumerGroup": "bare_pullers",
        "topic": topic,
        "maxMsgNums": str(PULL_MESSAGES),
        "sysFlag": str(_PULL_SYS_FLAG),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": subscription,
        "subVersion": "0",
        "expressionType": expression_type,
    }


class _Walk(NamedTuple):
    """One queue on its own connection, and where its next pull begins."""

    connection: socket.socket
    queue_id: int
    queue_offset: int


def walked(
    *,
    broker: str,
    pid: int,
    topic: str,
    first: int,
    end: int,
    subscription: str = "*",
    expression_type: str = "TAG",
) -> Figures:
    """Every queue from offset ``first`` until ``end``, one pull in flight on each."""
    puller = _Puller(topic, subscription, expression_type, end)
    walks = [_Walk(_connected(broker), queue_id, first) for queue_id in range(QUEUE_COUNT)]
    try:
        return _clocked(pid, lambda: puller.walk(walks))
    finally:
        for walk in walks:
            walk.connection.close()


class _Puller:
    """Pulls with one subscription until each queue has been seen up to an offset."""

    def __init__(self, topic: str, subscription: str, expression_type: str, end: int) -> None:
        self._fields = _pull_fields(topic, subscription, expression_type)
        self._end = end

    def walk(self, walks: list[_Walk]) -> Figures:
        delivered = scanned = requests = answer_bytes = 0
        for walk in walks:
            self._ask(walk)
        while walks:
            going: list[_Walk] = []
            for walk in walks:
                answer = _answer(walk.connection)
                header, records = _parts(answer)
                next_offset = _next_offset(header, walk)
                requests += 1
                answer_bytes += len(answer)
                delivered += _record_count(records)
                scanned += next_offset - walk.queue_offset
                if next_offset < self._end:
                    going.append(walk._replace(queue_offset=next_offset))
                    self._ask(going[-1])
            walks = going
        return {
            "record_count": delivered,
            "scanned_count": scanned,
            "request_count": requests,
            "answer_bytes": answer_bytes,
        }

    def _ask(self, walk: _Walk) -> None:
        place = {"queueId": str(walk.queue_id), "queueOffset": str(walk.queue_offset)}
        walk.connection.sendall(_frame(_PULL_MESSAGE, {**self._fields, **place}, b""))


def _next_offset(header: Figures, walk: _Walk) -> int:
    if header["code"] not in (_SUCCESS, _PULL_RETRY_IMMEDIATELY):
        raise BenchError(
            f"queue {walk.queue_id} gave nothing at queue offset {walk.queue_offset}: {header}"
        )
    next_offset = int(header["extFields"]["nextBeginOffset"])
    if next_offset <= walk.queue_offset:
        raise BenchError(f"a pull at queue offset {walk.queue_offset} leads nowhere: {header}")
    return next_offset


def _record_count(records: bytes) -> int:
    """Each record begins with its length."""
    position = count = 0
    while position < len(records):
        position += _LENGTH.unpack_from(records, position)[0]
        count += 1
    return count


# Both.


def _clocked(pid: int, work: Callable[[], Figures]) -> Figures:
    """The figures of the work with its time, the broker's CPU as ``cpu_s``, and the load's CPU."""
    before = process_cpu_s(pid)
    with Stopwatch() as watch:
        figures = work()
    cpu_s = process_cpu_s(pid) - before
    return {**figures, "wall_s": watch.wall_s, "cpu_s": cpu_s, "load_cpu_s": watch.cpu_s}


def _frame(code: int, fields: dict[str, str], body: bytes) -> bytes:
    command = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA"}
    header = {**command, "opaque": int(NUMBER), "serializeTypeCurrentRPC": "JSON"}
    text = json.dumps({**header, "version": _VERSION}, separators=(",", ":")).encode()
    return _LENGTHS.pack(4 + len(text) + len(body), len(text)) + text + body


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _received_some(connection: socket.socket) -> bytes:
    data = connection.recv(_RECEIVE_BYTES)
    if not data:
        raise BenchError("the broker closed the connection of a bare load")
    return data


def _answer(connection: socket.socket) -> bytes:
    """One whole answer; nothing else is in flight on the connection."""
    data = _received_some(connection)
    while len(data) < 4 or len(data) < 4 + _LENGTH.unpack_from(data)[0]:
        data += _received_some(connection)
    return data


def _parts(answer: bytes) -> tuple[Figures, bytes]:
    header_bytes = _LENGTHS.unpack_from(answer)[1] & 0xFFFFFF
    body_start = _LENGTHS.size + header_bytes
    header: Figures = json.loads(answer[_LENGTHS.size : body_start])
    return header, answer[body_start:]

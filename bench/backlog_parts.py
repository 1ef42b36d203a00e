"""The processes of the backlog suite: one fills the store, one reads its end, one drains it."""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from bench.harness import BenchError, Figures
from contrail.broker.settings import read_broker_settings
from contrail.model.message import MessageDraft
from contrail.model.record import split_record_run
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.protocol.frames import FrameDecoder
from contrail.runtime.files import FileSystem
from contrail.store.log import MessageStore

OLD_TOPIC = "OldMessages"
NEW_TOPIC = "NewMessages"
QUEUE_COUNT = 8
BODY_BYTES = 100
PULL_MESSAGES = 32
HOST = "127.0.0.1"
_RUN_RECORDS = 512
_ANSWER_TIMEOUT_S = 30
_HOLD_MS = 15_000
# Of a pull: brings its own subscription, and may be held.
_GIVEN = 0x4
_MAY_WAIT = 0x2
_NEXT_OFFSET = b'"nextBeginOffset":"'
_OPAQUE = b'"opaque":'
_SERVED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)
_PROBE_STEP_BYTES = 16 << 20
# majflt in /proc/PID/stat, counted from the field behind the name; see proc(5).
_MAJOR_FAULTS = 9


def fill(properties: dict[str, str], message_count: int) -> Figures:
    """Store the backlog, spread over the queues message by message, and close the store."""
    topic, body = OLD_TOPIC.encode(), bytes(range(BODY_BYTES))
    run = [
        MessageDraft(topic=topic, queue_id=number % QUEUE_COUNT, body=body)
        for number in range(_RUN_RECORDS)
    ]
    store = MessageStore.open(read_broker_settings(properties).store)
    began = time.perf_counter()
    for stored in range(0, message_count, _RUN_RECORDS):
        store.append(run[: message_count - stored])
        store.dispatch()
        if stored % (_RUN_RECORDS * 256) == 0:
            store.tick()
    store.close()
    wall_s = time.perf_counter() - began
    return {"wall_s": wall_s, "bytes": store.physical_end, "record_count": message_count}


def drop_from_memory(folder: Path) -> float:
    """Have the system forget the store's files; returns the share of the log that it did forget.

    Pages that the broker has mapped and touched stay: it has just started and read the end.
    """
    files, absent, looked = FileSystem(), 0, 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not path.stat().st_size:
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if path.parent.name == "commitlog":
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                for at in range(0, len(mapped), _PROBE_STEP_BYTES):
                    looked += 1
                    absent += files.absent_at(mapped, at, at + 1) == at
    return absent / max(looked, 1)


def loop_faults(pid: int) -> int:
    """How often a process's first thread, which runs its loop, waited for a page of a file."""
    stat = Path(f"/proc/{pid}/task/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[_MAJOR_FAULTS])


class Link:
    """One connection with as many requests in flight as its owner likes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), timeout=_ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        self._opaque = 0

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> int:
        self._opaque += 1
        self.socket.sendall(encode_request(Request(code, self._opaque, fields, body)))
        return self._opaque

    def answers(self) -> Iterator[ReceivedResponse]:
        """The answers that have arrived; waits for bytes when there are none."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise BenchError("the broker closed a connection")
        for frame in self._decoder.feed(data):
            if isinstance(frame, ReceivedResponse):
                yield frame

    def called(self, code: int, fields: dict[str, str]) -> ReceivedResponse:
        self.ask(code, fields)
        while True:
            for answer in self.answers():
                if answer.code:
                    raise BenchError(f"request {code} was refused: {answer.remark}")
                return answer

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_topic(port: int, topic: str, queue_count: int) -> None:
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
    fields |= {"readQueueNums": str(queue_count), "writeQueueNums": str(queue_count)}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    with Link(port) as link:
        link.called(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def pull_fields(
    group: str, topic: str, queue_id: int, queue_offset: int, flag: int
) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(PULL_MESSAGES),
        "sysFlag": str(flag),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(_HOLD_MS),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


class Tail:
    """A producer at a steady rate, and a consumer that is always at the end of its queue."""

    def __init__(self, port: int, rate: int) -> None:
        self._producer, self._consumer = Link(port), Link(port)
        self._step_ns = 10**9 // rate
        self._sent_ns: dict[int, int] = {}
        self.delivered_us: list[float] = []
        self.acknowledged_us: list[float] = []
        place = self._producer.called(
            RequestCode.GET_MAX_OFFSET, {"topic": NEW_TOPIC, "queueId": "0"}
        )
        self._queue_offset = int(place.fields["offset"])

    def run(self, seconds: float) -> None:
        """Send and receive for this long."""
        self._pull()
        poll = select.poll()
        poll.register(self._producer.socket, select.POLLIN)
        poll.register(self._consumer.socket, select.POLLIN)
        due_ns = time.perf_counter_ns()
        end_ns = due_ns + int(seconds * 1e9)
        while (now_ns := time.perf_counter_ns()) < end_ns:
            if now_ns >= due_ns:
                self._send()
                # A late send is not made up for: the rate is a maximum.
                due_ns = max(due_ns + self._step_ns, now_ns)
            wait_ms = max(due_ns - time.perf_counter_ns(), 0) / 1e6
            for fd, _ in poll.poll(wait_ms):
                if fd == self._producer.socket.fileno():
                    self._take_acknowledgements()
                else:
                    self._take_messages()
        self._producer.close()
        self._consumer.close()

    def _send(self) -> None:
        fields = {"a": "tail", "b": NEW_TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
        fields |= {"g": "0", "h": "0", "i": "", "j": "0", "k": "false"}
        now_ns = time.perf_counter_ns()
        body = now_ns.to_bytes(8, "big").ljust(BODY_BYTES, b"x")
        self._sent_ns[self._producer.ask(RequestCode.SEND_MESSAGE_V2, fields, body)] = now_ns

    def _take_acknowledgements(self) -> None:
        for answer in self._producer.answers():
            if answer.code:
                raise BenchError(f"a message was refused: {answer.remark}")
            waited_ns = time.perf_counter_ns() - self._sent_ns.pop(answer.opaque)
            self.acknowledged_us.append(waited_ns / 1000)

    def _take_messages(self) -> None:
        for answer in self._consumer.answers():
            now_ns = time.perf_counter_ns()
            for message in split_record_run(answer.body):
                sent_ns = int.from_bytes(message.body[:8], "big")
                self.delivered_us.append((now_ns - sent_ns) / 1000)
            self._queue_offset = int(answer.fields["nextBeginOffset"])
            self._pull()

    def _pull(self) -> None:
        flag = _GIVEN | _MAY_WAIT
        fields = pull_fields("tail_readers", NEW_TOPIC, 0, self._queue_offset, flag)
        self._consumer.ask(RequestCode.PULL_MESSAGE, fields)


def tail(port: int, rate: int, seconds: float, settle_s: float = 0.5) -> Figures:
    """How long messages take from the producer to a consumer at the end of the queue."""
    Tail(port, rate).run(settle_s)
    measured = Tail(port, rate)
    measured.run(seconds)
    delivered, acknowledged = sorted(measured.delivered_us), sorted(measured.acknowledged_us)
    if len(delivered) < 2:
        raise BenchError("the consumer at the end of the queue saw nothing")
    return {
        "count": len(delivered),
        "p50_us": quantile(delivered, 0.5),
        "p99_us": quantile(delivered, 0.99),
        "max_us": delivered[-1],
        "answer_p99_us": quantile(acknowledged, 0.99),
        "answer_max_us": acknowledged[-1],
    }


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def drain(port: int, group: str) -> Figures:
    """Read the backlog from its beginning as fast as answers come, until the caller ends it.

    One connection, one pull of every queue in flight, as clients do it. It gives way to every
    other process: it stands for consumers on other machines.
    """
    os.nice(19)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    drained = _Drain(port, group)
    while not stop and drained.open_count:
        drained.take()
    drained.link.close()
    return drained.figures()


class _Drain:
    def __init__(self, port: int, group: str) -> None:
        self.link = Link(port)
        self._frames = [self._frame(group, queue_id) for queue_id in range(QUEUE_COUNT)]
        self._pending = bytearray()
        self._began = time.perf_counter()
        self._places = [0] * QUEUE_COUNT
        self.open_count = QUEUE_COUNT
        for queue_id in range(QUEUE_COUNT):
            self._ask(queue_id)

    def _frame(self, group: str, queue_id: int) -> bytes:
        fields = pull_fields(group, OLD_TOPIC, queue_id, 10**9, _GIVEN)
        return encode_request(Request(RequestCode.PULL_MESSAGE, 10**8 + queue_id, fields, b""))

    def _ask(self, queue_id: int) -> None:
        # Ten digits stand where the offset belongs: zeros in front are as good.
        place = b"%010d" % self._places[queue_id]
        self.link.socket.sendall(self._frames[queue_id].replace(b"1000000000", place))

    def take(self) -> None:
        """Handle the answers that have arrived, and send the next pulls."""
        data = self.link.socket.recv(1 << 20)
        if not data:
            raise BenchError("the broker closed the draining connection")
        self._pending += data
        at = 0
        while len(self._pending) - at >= 4:
            end = at + 4 + int.from_bytes(self._pending[at : at + 4], "big")
            if len(self._pending) < end:
                break
            self._take_answer(bytes(self._pending[at : min(end, at + 512)]))
            at = end
        del self._pending[:at]

    def _take_answer(self, head: bytes) -> None:
        queue_id = int(_digits(head, _OPAQUE)) - 10**8
        if not any(b'"code":%d,' % code in head for code in _SERVED):
            raise BenchError(f"a draining pull was refused: {head[8:500]!r}")
        place = int(_digits(head, _NEXT_OFFSET))
        if place > self._places[queue_id]:
            self._places[queue_id] = place
            self._ask(queue_id)
        else:
            self.open_count -= 1

    def figures(self) -> Figures:
        wall_s = time.perf_counter() - self._began
        return {"wall_s": wall_s, "record_count": sum(self._places), "left": self.open_count}


def _digits(head: bytes, after: bytes) -> bytes:
    start = head.index(after) + len(after)
    end = start
    while head[end : end + 1].isdigit():
        end += 1
    return head[start:end]

"""The timers suite: how late timed and delayed messages are, idle and with a million waiting.

Everything goes over the wire: single sends ask for their times, consumers pull what arrives. Late
is when a consumer has a message minus the time it asked for; early, lost and doubled messages are
counted beside. The server keeps to one core and the clients to the other, where there are two.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from bench.harness import BenchError, Limit, Row, Samples
from bench.wire_frames import frame_bytes
from bench.wire_parts import (
    ANSWER_TIMEOUT_S,
    HOST,
    Flush,
    Server,
    describe_cores,
    pinned,
    received,
    running_broker,
)
from contrail.model.properties import encode_properties
from contrail.model.record import split_record_run
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.protocol.frames import FrameDecoder

_WINDOW = 400
_QUEUE_COUNT = 4
_BODY = b"timed" * 20
_HOUR_MS = 3_600_000
_LEVEL_MS = 1000
_LEVEL_PAUSE_S = 0.05
# The property with the time at which the message was due.
_DUE = "due"
_PULL_SYS_FLAG = 6
_POLL_MS = 2000
_GRACE_S = 30.0
_OPAQUE = re.compile(rb'"opaque":([0-9]+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many messages wait, how many of them are due in one second, and how many when idle."""

    pending_count: int
    burst_count: int
    idle_count: int
    # Long enough for the fill, so that all of them still wait when it is over.
    fill_s: int


SIZES = {
    "full": Sizes(pending_count=1_000_000, burst_count=20_000, idle_count=200, fill_s=300),
    "quick": Sizes(pending_count=20_000, burst_count=2000, idle_count=40, fill_s=8),
    "tiny": Sizes(pending_count=400, burst_count=100, idle_count=5, fill_s=2),
}


class Seen(NamedTuple):
    """A received message: its due time, and its arrival."""

    key: str
    due_ms: int
    stored_ms: int
    arrived_ms: int


def groups() -> list[str]:
    return ["idle", "levels", "million"]


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one group, measured in ``folder``, which must be empty."""
    flush: Flush = "SYNC_FLUSH"
    with running_broker(folder / "broker", flush) as broker, pinned("load"):
        if group == "idle":
            return _idle_rows(broker, SIZES[size])
        if group == "levels":
            return _level_rows(broker, SIZES[size])
        return _million_rows(broker, SIZES[size])


def _idle_rows(broker: Server, sizes: Sizes) -> list[Row]:
    topic = "TimerIdle"
    chance = random.Random(1)
    start_ms = _now_ms() + 3000
    times = [start_ms + chance.randrange(sizes.idle_count * 50) for _ in range(sizes.idle_count)]
    with Consumers(broker, topic) as consumers:
        _send_all(broker, topic, times)
        consumers.wait_for(len(times), max(times))
    return _rows("idle", consumers.seen, times, Limit("<=", 100, on="figure"), {})


def _level_rows(broker: Server, sizes: Sizes) -> list[Row]:
    """Delay level 1, a second, sent one by one; the delay counts from before the send."""
    topic, pause = "LevelIdle", threading.Event()
    times: list[int] = []
    with Consumers(broker, topic) as consumers:
        for number in range(sizes.idle_count):
            times.append(_now_ms() + _LEVEL_MS)
            properties = {"UNIQ_KEY": f"{topic}{number:020d}", "DELAY": "1", _DUE: str(times[-1])}
            _send_frames_of(broker, [_send_frame(topic, number, properties, opaque=0)])
            pause.wait(_LEVEL_PAUSE_S)
        consumers.wait_for(len(times), times[-1])
    return _rows("idle, delay level 1", consumers.seen, times, Limit("<=", 200, on="figure"), {})


def _million_rows(broker: Server, sizes: Sizes) -> list[Row]:
    chance = random.Random(2)
    first_ms = _now_ms() + sizes.fill_s * 1000
    began = time.monotonic()
    _send_all(
        broker,
        "TimerPending",
        (first_ms + chance.randrange(_HOUR_MS) for _ in range(sizes.pending_count)),
    )
    fill_s = time.monotonic() - began
    details = {
        "pending": sizes.pending_count,
        "fill_rate": f"{sizes.pending_count / fill_s:,.0f} sends/s",
        "broker_rss_mb": _rss_mb(broker),
    }
    return _burst_rows(broker, sizes, max(_now_ms(), first_ms), details)


def _burst_rows(
    broker: Server, sizes: Sizes, after_ms: int, details: dict[str, object]
) -> list[Row]:
    topic = "TimerBurst"
    chance = random.Random(3)
    due_ms = after_ms + 5000 + sizes.burst_count
    times = [due_ms + chance.randrange(1000) for _ in range(sizes.burst_count)]
    with Consumers(broker, topic) as consumers:
        _send_all(broker, topic, times)
        consumers.wait_for(len(times), max(times))
    name = f"{sizes.burst_count:,} due in one second, {sizes.pending_count:,} waiting"
    return _rows(name, consumers.seen, times, Limit("<=", 1000, on="figure"), details)


def _rows(
    name: str,
    seen: list[Seen],
    times: list[int],
    limit: Limit,
    details: dict[str, object],
) -> list[Row]:
    late = sorted(one.arrived_ms - one.due_ms for one in seen)
    stored = sorted(one.stored_ms - one.due_ms for one in seen)
    keys = {one.key for one in seen}
    wrong = {
        "early": sum(value < 0 for value in (*late, *stored)),
        "lost": len(times) - len(keys),
        "doubled": len(seen) - len(keys),
    }
    details = {
        **{f"late_{point}_ms": value for point, value in _points(late).items()},
        **{f"stored_late_{point}_ms": value for point, value in _points(stored).items()},
        **wrong,
        "cores": describe_cores(),
        **details,
    }
    return [
        Row(
            name=f"{name}: latest",
            unit="ms late",
            ours=Samples((float(max(late, default=0)),)),
            limit=limit,
            details=details,
        ),
        Row(
            name=f"{name}: early, lost or doubled",
            unit="messages",
            ours=Samples((float(sum(wrong.values())),)),
            limit=Limit("<=", 0, on="figure"),
        ),
    ]


def _points(values: list[int]) -> dict[str, int]:
    if not values:
        raise BenchError("nothing was delivered")
    return {
        "p50": values[len(values) // 2],
        "p99": values[len(values) * 99 // 100],
        "max": values[-1],
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _rss_mb(broker: Server) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    return 0


# Sending.


def _send_all(broker: Server, topic: str, times: Iterable[int]) -> None:
    _send_frames_of(broker, _timer_frames(topic, times))


def _send_frames_of(broker: Server, sends: Iterable[bytes]) -> None:
    """Single sends, some hundreds of them on the way all the time; busy ones are sent again."""
    frames = enumerate(sends)
    unanswered: dict[int, bytes] = {}
    with socket.create_connection((HOST, broker.port), timeout=ANSWER_TIMEOUT_S) as connection:
        while window := dict(islice(frames, _WINDOW)):
            unanswered |= window
            connection.sendall(b"".join(window.values()))
            while len(unanswered) > _WINDOW:
                _take_answer(connection, unanswered)
        while unanswered:
            _take_answer(connection, unanswered)


def _take_answer(connection: socket.socket, unanswered: dict[int, bytes]) -> None:
    head = received(connection, 4)
    answer = received(connection, frame_bytes(head) - 4)
    opaque = _OPAQUE.search(answer)
    if opaque is not None and b'"code":0,' in answer:
        del unanswered[int(opaque[1])]
    elif opaque is not None and b'"code":2,' in answer:
        connection.sendall(unanswered[int(opaque[1])])
    else:
        raise BenchError(f"a send was refused: {answer[4:600]!r}")


def _timer_frames(topic: str, times: Iterable[int]) -> Iterator[bytes]:
    for number, deliver_ms in enumerate(times):
        key = f"{topic}{number:020d}"
        properties = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(deliver_ms), _DUE: str(deliver_ms)}
        yield _send_frame(topic, number, properties, opaque=number)


def _send_frame(topic: str, number: int, properties: dict[str, str], *, opaque: int) -> bytes:
    fields = {
        "a": "bench_producer",
        "b": topic,
        "c": "TBW102",
        "d": str(_QUEUE_COUNT),
        "e": str(number % _QUEUE_COUNT),
        "f": "0",
        "g": properties[_DUE],
        "h": "0",
        "i": encode_properties(properties).decode(),
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return encode_request(Request(RequestCode.SEND_MESSAGE_V2, opaque, fields, _BODY))


# Receiving.


@dataclass
class Consumers:
    """One puller per queue. Messages are checked afterwards: a check must not delay the rest."""

    broker: Server
    topic: str
    _came: list[tuple[int, bytes]] = field(default_factory=list)
    _count: int = 0
    _stopped: bool = False

    def __enter__(self) -> Consumers:
        # The topic is made by its first message; this one asks for a time that is over.
        _send_all(self.broker, self.topic, [0] * _QUEUE_COUNT)
        self._threads = [
            threading.Thread(target=self._pull_all, args=(queue_id,))
            for queue_id in range(_QUEUE_COUNT)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()

    def wait_for(self, count: int, last_due_ms: int) -> None:
        """Wait until this many came, or the time of the last is long over; then a little more."""
        pause = threading.Event()
        while self._count < count and _now_ms() < last_due_ms + _GRACE_S * 1000:
            pause.wait(0.05)
        pause.wait(2.0)

    @property
    def seen(self) -> list[Seen]:
        return [
            Seen(
                message.properties["UNIQ_KEY"],
                int(message.properties[_DUE]),
                message.store_timestamp_ms,
                arrived_ms,
            )
            for arrived_ms, body in self._came
            for message in split_record_run(body)
        ]

    def _pull_all(self, queue_id: int) -> None:
        queue_offset = 1
        with _pulling(self.broker) as pull:
            while not self._stopped:
                answer = pull(self.topic, queue_id, queue_offset)
                if answer.body:
                    self._came.append((_now_ms(), answer.body))
                    next_offset = int(answer.fields["nextBeginOffset"])
                    self._count += next_offset - queue_offset
                    queue_offset = next_offset


_Pull = Callable[[str, int, int], ReceivedResponse]


@contextmanager
def _pulling(broker: Server) -> Iterator[_Pull]:
    with socket.create_connection((HOST, broker.port), timeout=ANSWER_TIMEOUT_S) as connection:
        decoder = FrameDecoder()

        def pull(topic: str, queue_id: int, queue_offset: int) -> ReceivedResponse:
            fields = {
                "consumerGroup": "bench_consumer",
                "topic": topic,
                "queueId": str(queue_id),
                "queueOffset": str(queue_offset),
                "maxMsgNums": "32",
                "sysFlag": str(_PULL_SYS_FLAG),
                "commitOffset": "0",
                "suspendTimeoutMillis": str(_POLL_MS),
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
            }
            connection.sendall(encode_request(Request(RequestCode.PULL_MESSAGE, 1, fields)))
            while True:
                for frame in decoder.feed(connection.recv(1 << 20)):
                    if isinstance(frame, ReceivedResponse):
                        return frame

        yield pull

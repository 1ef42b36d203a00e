"""Consumers that pop, as the pop suite loads brokers: blocking connections, answers taken apart."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from struct import Struct
from types import TracebackType
from typing import Any, Self

from bench.harness import BenchError
from bench.wire_frames import BATCH_MESSAGES, BROKER_NAME, batch_frame, request_frame, send_frame
from bench.wire_parts import ANSWER_TIMEOUT_S, HOST, received
from contrail.protocol.bodies.pop import BatchAck, BatchAcks, encode_batch_acks
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.pop_info import Receipt, read_offsets, read_start_offsets, real_topic

GROUP = "bench_poppers"
_HEAD = Struct(">II")
_NOTHING = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND})
_SEND_WINDOW = 32
_LATE_S = 30.0
_DRAIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Popped:
    """One queue's part of a pop's answer."""

    flag: str
    queue_id: int
    start_offset: int
    offsets: tuple[int, ...]


@dataclass(slots=True)
class Popping:
    """The answer to one pop."""

    parts: list[Popped] = field(default_factory=list)
    pop_time_ms: int = 0
    invisible_ms: int = 0
    revive_queue: int = 0
    body: bytes = b""

    @property
    def count(self) -> int:
        return sum(len(part.offsets) for part in self.parts)


class Popper:
    """One consumer's connection."""

    def __init__(self, port: int, topic: str, group: str = GROUP) -> None:
        self._topic = topic
        self.group = group
        self._socket = socket.create_connection((HOST, port), timeout=ANSWER_TIMEOUT_S + _LATE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def pop(
        self, count_max: int, invisible_ms: int, poll_ms: int = 0, queue_id: int = -1
    ) -> Popping:
        """Raises ``BenchError`` for a refusal."""
        fields = {
            "consumerGroup": self.group,
            "topic": self._topic,
            "queueId": "-1",
            "maxMsgNums": str(count_max),
            "invisibleTime": str(invisible_ms),
            "pollTime": str(poll_ms),
            "bornTime": str(time.time_ns() // 1_000_000),
            "initMode": "0",
            "exp": "*",
            "expType": "TAG",
        }
        code, named, body = self._ask(request_frame(RequestCode.POP_MESSAGE, fields))
        if code in _NOTHING:
            return Popping()
        if code != ResponseCode.SUCCESS:
            raise BenchError(f"a pop was answered {code}")
        starts = read_start_offsets(named["startOffsetInfo"])
        parts = [
            Popped(flag, queue, starts[flag, queue], tuple(offsets))
            for (flag, queue), offsets in read_offsets(named["msgOffsetInfo"]).items()
        ]
        return Popping(
            parts, int(named["popTime"]), int(named["invisibleTime"]), int(named["reviveQid"]), body
        )

    def ack_all(self, popping: Popping) -> None:
        """Acknowledge a pop's messages with one request."""
        acks = [
            BatchAck(
                self.group, self._topic, part.flag, part.start_offset, part.queue_id,
                popping.revive_queue, popping.pop_time_ms, popping.invisible_ms, part.offsets,
            )
            for part in popping.parts
        ]  # fmt: skip
        body = encode_batch_acks(BatchAcks(BROKER_NAME, acks))
        self._require(request_frame(RequestCode.BATCH_ACK_MESSAGE, {}, body))

    def ack_each(self, popping: Popping) -> None:
        """Acknowledge each message with a request of its own, as RocketMQ's clients do."""
        for part in popping.parts:
            for offset in part.offsets:
                receipt = Receipt(
                    part.start_offset, popping.pop_time_ms, popping.invisible_ms,
                    popping.revive_queue, part.flag, BROKER_NAME, part.queue_id, offset,
                )  # fmt: skip
                fields = {
                    "consumerGroup": self.group,
                    "topic": real_topic(self._topic, self.group, part.flag),
                    "queueId": str(part.queue_id),
                    "offset": str(offset),
                    "extraInfo": receipt.encode(),
                }
                self._require(request_frame(RequestCode.ACK_MESSAGE, fields))

    def send(self, body_bytes: int = 100) -> None:
        """Send one message and wait for its answer."""
        self._require(send_frame(body_bytes, topic=self._topic))

    def queue_offset_max(self, topic: str) -> int:
        """How many messages a topic's queue 0 got; none while there is no such topic."""
        fields = {"topic": topic, "queueId": "0"}
        code, named, _ = self._ask(request_frame(RequestCode.GET_MAX_OFFSET, fields))
        return int(named["offset"]) if code == ResponseCode.SUCCESS else 0

    def _require(self, frame: bytes) -> None:
        code, _, _ = self._ask(frame)
        if code != ResponseCode.SUCCESS:
            raise BenchError(f"a request was answered {code}")

    def _ask(self, frame: bytes) -> tuple[int, dict[str, str], bytes]:
        self._socket.sendall(frame)
        return self._answer()

    def _answer(self) -> tuple[int, dict[str, str], bytes]:
        total, header_bytes = _HEAD.unpack(received(self._socket, 8))
        header_bytes &= 0xFFFFFF
        payload = received(self._socket, total - 4)
        header: Mapping[str, Any] = json.loads(payload[:header_bytes])
        return header["code"], dict(header.get("extFields") or {}), payload[header_bytes:]

    def fill(self, count: int) -> None:
        """Send that many messages to queue 0, 32 to a request."""
        frame = batch_frame(self._topic)
        left = -(-count // BATCH_MESSAGES)
        while left:
            window = min(_SEND_WINDOW, left)
            self._socket.sendall(frame * window)
            for _ in range(window):
                code, _, _ = self._answer()
                if code != ResponseCode.SUCCESS:
                    raise BenchError(f"a batch was answered {code}")
            left -= window


def is_over(done: list[int], batch: int, count: int) -> bool:
    """Whether all messages were popped; adds up only when that may be."""
    return len(done) * batch >= count and sum(done) >= count


def consumed_by_many(
    port: int, topic: str, *, count: int, batch: int, connections: int, invisible_ms: int
) -> None:
    """Pop and acknowledge all messages of a topic over several connections."""

    # One entry for each pop: a full batch, but for the last ones.
    done: list[int] = []
    last_s = time.monotonic() + _DRAIN_S

    def consume(number: int) -> None:
        with Popper(port, topic) as popper:
            while not is_over(done, batch, count) and time.monotonic() < last_s:
                found = popper.pop(batch, invisible_ms)
                if not found.count:
                    # Apache's answer also where another pop is at the queue.
                    continue
                if batch == 1:
                    popper.ack_each(found)
                else:
                    popper.ack_all(found)
                done.append(found.count)

    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(consume, range(connections)))
    if sum(done) != count:
        raise BenchError(f"{sum(done)} of {count} messages were popped")

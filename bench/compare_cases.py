"""The cases of a comparison: which frames are sent to which broker, and how they count.

A case has the frames for the C load, and the same frames serve the count of instructions. The
numbers that the load puts into frames are those of ``bench/c/load.c``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.wire_frames import (
    BATCH_MESSAGES,
    BROKER_NAME,
    NUMBER,
    PULL_MESSAGES,
    TOPIC,
    batch_frame,
    pull_frame,
    request_frame,
    send_frame,
)
from bench.wire_parts import Flush
from contrail.protocol.codes import RequestCode

Protocol = Literal["remoting", "transaction", "wake"]

OFFSET_NUMBER = 300_000_000
QUEUE_NUMBER = 400_000_000
LOG_NUMBER = 500_000_000_000_000_000
_HALF = 4
_COMMIT = 8
_OWN_SUBSCRIPTION = 0x4
_MAY_WAIT = 0x2
_WAKE_TOPIC = f"Wake{QUEUE_NUMBER}"
_WAKE_CONNECTIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: frames, how they are spread over connections, and the broker they go to."""

    name: str
    frame: bytes
    second: bytes = b""
    protocol: Protocol = "remoting"
    connections: int
    depth: int
    # How many messages one answer stands for.
    records: int = 1
    flush: Flush = "ASYNC_FLUSH"
    # Frames that are sent before the measured ones, this many times each.
    before: Sequence[tuple[bytes, int]] = ()
    # Whether work that the broker does later is part of the price.
    counts_afterwards: bool = False
    round_count: int = 20_000


def cases() -> list[Case]:
    """Sends, pulls, and the kinds that take other ways."""
    backlog = [(send_frame(), PULL_MESSAGES)]
    tagged = [
        (send_frame(properties="level\x011\x02"), 1),
        (send_frame(tag="TagB", properties="level\x017\x02"), 1),
    ] * PULL_MESSAGES
    return [
        Case(
            name="send 1 KB, 1x64",
            frame=send_frame(),
            connections=1,
            depth=64,
            round_count=150_000,
        ),
        Case(
            name="send 1 KB, 64x1", frame=send_frame(), connections=64, depth=1, round_count=50_000
        ),
        Case(
            name="send 1 KB, 8x8", frame=send_frame(), connections=8, depth=8, round_count=100_000
        ),
        Case(
            name=f"send batches of {BATCH_MESSAGES}, 1x8",
            frame=batch_frame(),
            connections=1,
            depth=8,
            records=BATCH_MESSAGES,
            round_count=8_000,
        ),
        Case(
            name="send 1 KB, sync flush, 16x32",
            frame=send_frame(),
            connections=16,
            depth=32,
            flush="SYNC_FLUSH",
            round_count=60_000,
        ),
        Case(
            name="send delayed, delivery included, 1x64",
            frame=send_frame(properties="DELAY\x011\x02"),
            connections=1,
            depth=64,
            counts_afterwards=True,
            round_count=30_000,
        ),
        Case(
            name="transaction committed, 1x64",
            frame=_half(),
            second=_end(),
            protocol="transaction",
            connections=1,
            depth=64,
            round_count=12_000,
        ),
        Case(
            name=f"pull {PULL_MESSAGES} x 1 KB, 4x4",
            frame=pull_frame(),
            connections=4,
            depth=4,
            before=backlog,
            round_count=40_000,
        ),
        Case(
            name="pull filtered by tag, 4x4",
            frame=pull_frame(expression="TagB"),
            connections=4,
            depth=4,
            before=tagged,
            round_count=30_000,
        ),
        Case(
            name="pull filtered by SQL92, 4x4",
            frame=pull_frame(expression="level > 5", expression_type="SQL92"),
            connections=4,
            depth=4,
            before=tagged,
            round_count=10_000,
        ),
        Case(
            name=f"send that wakes a pull, {_WAKE_CONNECTIONS}x1",
            frame=_held_pull(),
            second=send_frame(topic=_WAKE_TOPIC),
            protocol="wake",
            connections=_WAKE_CONNECTIONS,
            depth=1,
            before=[(_wake_send(number), 1) for number in range(_WAKE_CONNECTIONS)],
            round_count=12_000,
        ),
    ]


def _half() -> bytes:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01bench_producer\x02"
    return send_frame(sys_flag=_HALF, properties=properties)


def _end() -> bytes:
    unique_key = "7F0000010A2B18B4AAC2000" + NUMBER.decode()
    fields = {
        "producerGroup": "bench_producer",
        "topic": TOPIC,
        "tranStateTableOffset": str(OFFSET_NUMBER),
        "commitLogOffset": str(LOG_NUMBER),
        "commitOrRollback": str(_COMMIT),
        "fromTransactionCheck": "false",
        "msgId": unique_key,
        "transactionId": unique_key,
        "bname": BROKER_NAME,
    }
    return request_frame(RequestCode.END_TRANSACTION, fields)


def put_number(frame: bytes, placeholder: int, number: int) -> bytes:
    """The frame with a number at its place, of as many digits."""
    digits = b"%d" % placeholder
    return frame.replace(digits, b"%0*d" % (len(digits), number))


def _wake_send(number: int) -> bytes:
    return put_number(send_frame(topic=_WAKE_TOPIC), QUEUE_NUMBER, number)


def _held_pull() -> bytes:
    flags = _OWN_SUBSCRIPTION | _MAY_WAIT
    return pull_frame(topic=_WAKE_TOPIC, queue_offset=OFFSET_NUMBER, sys_flag=flags)

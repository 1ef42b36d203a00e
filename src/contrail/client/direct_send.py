"""A blocking send without a way over the event loop, for the plain case.

The calling thread chooses the queue, asks its broker over a line of its own and waits for the
answer. Whatever needs more than that is left to the sender on the loop: with nothing sent it gets
the message, and after an attempt that was no plain success it gets that attempt as the first.
"""

from __future__ import annotations

import time

from contrail.client.background import BackgroundLoop
from contrail.client.message import MessageQueue, SendReceipt, SendStatus
from contrail.client.outgoing import TIMER_PROPERTIES, Outgoing
from contrail.client.sender import Sender, build_receipt
from contrail.errors import CallFailed
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse

# Long ones gain nothing, and the loop writes them without copying.
_BODY_BYTES_MAX = 64 << 10
_SUCCESS = int(ResponseCode.SUCCESS)


def send_directly(
    background: BackgroundLoop, sender: Sender, outgoing: Outgoing, timeout_ms: int | None
) -> SendReceipt:
    """What ``sender.send`` would return or raise; for threads that are not the loop's."""
    queue: MessageQueue | None = None
    size = len(outgoing.body)
    if _is_plain(outgoing) and sender.slots.take_in_thread(size):
        try:
            queue = sender.next_queue(outgoing.topic)
            if queue is not None:
                limit_ms = sender.limit_ms(timeout_ms)
                receipt = _send(background, sender, outgoing, queue, limit_ms)
                if receipt is not None:
                    return receipt
        finally:
            sender.slots.give_back_in_thread(size, background.loop)
    return background.run(sender.send(outgoing, timeout_ms=timeout_ms, first=queue))


def _is_plain(outgoing: Outgoing) -> bool:
    """Whether it is short, and nothing is to be found out about the broker first."""
    return len(outgoing.body) <= _BODY_BYTES_MAX and TIMER_PROPERTIES.isdisjoint(
        outgoing.properties
    )


def _send(
    background: BackgroundLoop,
    sender: Sender,
    outgoing: Outgoing,
    queue: MessageQueue,
    limit_ms: int,
) -> SendReceipt | None:
    """None when nothing was sent."""
    connection = sender.open_connection(queue)
    if connection is None or limit_ms <= 0:
        return None
    began_s = time.monotonic()
    answer = _ask(sender, outgoing, queue, limit_ms)
    if answer is None:
        return None
    receipt = _plain_success(outgoing, queue, answer)
    if receipt is not None:
        return receipt
    deadline_s = began_s + limit_ms / 1000
    if time.monotonic() >= deadline_s:
        # By the loop's clock, which is coarser, a little may be left.
        deadline_s = began_s
    first = (connection, answer)
    return background.run(sender.resume(outgoing, queue, first, began_s, deadline_s))


def _ask(
    sender: Sender, outgoing: Outgoing, queue: MessageQueue, limit_ms: int
) -> ReceivedResponse | CallFailed | None:
    line = sender.take_line(queue)
    if line is None:
        return None
    try:
        opaque = line.take_opaque()
        frame = sender.encode(outgoing, queue, opaque)
        return line.ask(opaque, frame, outgoing.code, limit_ms)
    finally:
        sender.give_back(line)


def _plain_success(
    outgoing: Outgoing, queue: MessageQueue, answer: ReceivedResponse | CallFailed
) -> SendReceipt | None:
    if isinstance(answer, CallFailed) or answer.code != _SUCCESS:
        return None
    try:
        return build_receipt(outgoing, queue, SendStatus.SEND_OK, answer)
    except CallFailed:
        # It does not say where: the sender finds the same, and knows what to do.
        return None

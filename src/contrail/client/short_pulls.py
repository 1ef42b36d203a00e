"""One pull for each of many short stretches, many on their way at once over one connection.

The fast way of reads of many queues that have a few messages each. It takes answers that have all
of a stretch, and leaves every other stretch to ``raw_pulls``: away brokers, replicas, refusals,
stretches that do not fit one answer.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from contrail.client.raw_pulls import (
    IDLE_CONNECTIONS,
    IdleConnections,
    addresses_of,
    frames_of,
)
from contrail.client.settings import ClientSettings
from contrail.client.state.pull_ahead import Ask
from contrail.client.state.routes import MASTER_ID
from contrail.errors import CallFailed, ClientError
from contrail.model.subscription import parse_subscription
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import MessageQueue
from contrail.wire.blocking_connection import BlockingConnection

_log = logging.getLogger(__name__)

# Every broker gives so many messages in one answer, if their bytes fit.
SHORT_COUNT_MAX = 32
_IN_FLIGHT_MAX = 16
_ALL = "*"


class ShortPull(NamedTuple):
    """``[queue_offset_start, queue_offset_end)`` of a queue."""

    queue: MessageQueue
    queue_offset_start: int
    queue_offset_end: int


def pull_short(
    settings: ClientSettings,
    pulls: Sequence[ShortPull],
    *,
    timeout_ms: int,
    idle: IdleConnections = IDLE_CONNECTIONS,
) -> list[bytes | None]:
    """The records that one pull of each stretch brought; None where the general way must read.

    The records may go on behind the end of a stretch, and lack some: the caller looks at them.
    """
    found: list[bytes | None] = [None] * len(pulls)
    at_address: defaultdict[str, list[int]] = defaultdict(list)
    for place, pull in enumerate(pulls):
        try:
            broker_id, address = addresses_of(settings, pull.queue, idle, anew=False)[0]
        except (CallFailed, ClientError) as error:
            _log.debug("%s is left to the general way: %s", pull.queue, error)
            continue
        if broker_id == MASTER_ID:
            at_address[address].append(place)
    for address, places in at_address.items():
        for begin in range(0, len(places), _IN_FLIGHT_MAX):
            some = places[begin : begin + _IN_FLIGHT_MAX]
            try:
                connection = idle.take(address, settings)
                answers = _asked(connection, [pulls[place] for place in some], settings, timeout_ms)
            except CallFailed as error:
                _log.debug("%s is left to the general way: %s", address, error)
                break
            idle.give_back(connection, settings)
            for place, answer in zip(some, answers, strict=True):
                if answer.code == ResponseCode.SUCCESS and not _is_moved(answer):
                    found[place] = answer.body
    return found


def _asked(
    connection: BlockingConnection,
    pulls: Sequence[ShortPull],
    settings: ClientSettings,
    timeout_ms: int,
) -> list[ReceivedResponse]:
    """The answers to these pulls, in this order."""
    numbers, frames = [], []
    for queue, start, end in pulls:
        numbers.append(connection.next_opaque())
        made = frames_of(queue, parse_subscription(queue.topic, _ALL), settings.credentials)
        frames.append(made.frame(numbers[-1], Ask(start, end, end - start)))
    connection.send_frames(b"".join(frames))
    answers: dict[int, ReceivedResponse] = {}
    while len(answers) < len(numbers):
        answer = connection.receive(timeout_ms=timeout_ms)
        answers[answer.opaque] = answer
    return [answers[number] for number in numbers]


def _is_moved(answer: ReceivedResponse) -> bool:
    """Whether the queue has moved between brokers, and readers count its offsets otherwise."""
    return answer.fields.get("offsetDelta", "0") not in ("", "0")

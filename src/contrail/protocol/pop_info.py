"""The texts by which brokers and clients of pop name messages: receipts and the answer's lists.

A receipt (``POP_CK``, ``extraInfo``) is eight values with single spaces between them:

==  ==================================================================
0   the queue offset at which the checkpoint starts
1   when the message was popped, in ms
2   how long it is invisible, in ms
3   the revive queue; 999 for a pop in order
4   0 for the topic itself, 1 for its retry topic, 2 for that of the newer spelling
5   the broker's name
6   the queue's id
7   the message's queue offset; older brokers leave it out
==  ==================================================================

An answer names the messages of its body in two lists with ``;`` between their entries, at most one
for each flag and queue: ``flag queueId startOffset``, and ``flag queueId offset,offset,...`` in the
order of the body. The answer to a pop in order counts how often messages were popped before:
``flag qo<queueId>%<offset> count`` for a message, and ``flag queueId count`` for the queue, the
least of its messages, which is for old clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from contrail.model.topic import (
    RETRY_PREFIX,
    is_pop_retry_v2,
    pop_retry_topic,
    pop_retry_topic_v2,
)

ORDER_REVIVE_QUEUE = 999
NORMAL_FLAG, RETRY_FLAG, RETRY_V2_FLAG = "0", "1", "2"

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_PART_COUNT_MIN = 7


class PopTextInvalid(ValueError):
    """A receipt or list is not of this form."""


class Receipt(NamedTuple):
    """The name of one popped message, for acknowledging it."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    retry_flag: str
    broker_name: str
    queue_id: int
    # -1 in the receipts of older brokers.
    queue_offset: int = -1

    @property
    def in_order(self) -> bool:
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def encode(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Raises ``PopTextInvalid`` for a text that is no receipt."""
        parts = text.split(" ")
        if len(parts) < _PART_COUNT_MIN:
            raise PopTextInvalid(f"{text[:80]!r} is no receipt: it has {len(parts)} parts")
        start, popped, invisible, revive = (_number(part) for part in parts[:4])
        offset = _number(parts[7]) if len(parts) > _PART_COUNT_MIN else -1
        return cls(start, popped, invisible, revive, parts[4], parts[5], _number(parts[6]), offset)


def retry_flag(topic: str) -> str:
    """The number that stands for a topic of popped messages."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL_FLAG
    return RETRY_V2_FLAG if is_pop_retry_v2(topic) else RETRY_FLAG


def real_topic(topic: str, group: str, flag: str) -> str:
    """The topic whose queue a message was popped from."""
    if flag == RETRY_FLAG:
        return pop_retry_topic(topic, group)
    return pop_retry_topic_v2(topic, group) if flag == RETRY_V2_FLAG else topic


def start_offset_entry(flag: str, queue_id: int, start_offset: int) -> str:
    return f"{flag} {queue_id} {start_offset}"


def offsets_entry(flag: str, queue_id: int, offsets: Sequence[int]) -> str:
    return f"{flag} {queue_id} {','.join(map(str, offsets))}"


def order_count_entries(
    flag: str, queue_id: int, counts: Mapping[int, int], count_of_all: int
) -> list[str]:
    """The counts of one queue's messages, by queue offset, and that of all of them."""
    entries = [f"{flag} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    return [*entries, f"{flag} {queue_id} {count_of_all}"]


def join_entries(entries: Iterable[str]) -> str:
    return ";".join(entries)


def read_start_offsets(text: str) -> dict[tuple[str, int], int]:
    """By flag and queue: where its checkpoint starts. Raises ``PopTextInvalid``."""
    return {key: _number(value) for key, value in _entries(text).items()}


def read_offsets(text: str) -> dict[tuple[str, int], list[int]]:
    """By flag and queue: the offsets in the order of the body. Raises ``PopTextInvalid``."""
    return {key: list(map(_number, value.split(","))) for key, value in _entries(text).items()}


def read_order_counts(text: str) -> dict[tuple[str, str], int]:
    """By flag and queue, or ``qo<queueId>%<offset>``. Raises ``PopTextInvalid``."""
    found: dict[tuple[str, str], int] = {}
    for entry in filter(None, text.split(";")):
        parts = entry.split(" ")
        if len(parts) != 3:
            raise PopTextInvalid(f"{entry[:80]!r} is no entry of an answer's list")
        found[parts[0], parts[1]] = _number(parts[2])
    return found


def _entries(text: str) -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    for entry in filter(None, text.split(";")):
        parts = entry.split(" ")
        if len(parts) != 3:
            raise PopTextInvalid(f"{entry[:80]!r} is no entry of an answer's list")
        key = parts[0], _number(parts[1])
        if key in found:
            raise PopTextInvalid(f"queue {key[1]} stands twice in an answer's list")
        found[key] = parts[2]
    return found


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise PopTextInvalid(f"{text[:40]!r} is no number")
    return int(text)

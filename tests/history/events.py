"""The events of a test, in their order.

Every event carries the time of the clock that the test shares with the broker. The clock may be
moved either way; the order of the list is the real order. An operation is invoked once and ended
at most once; one that was never ended, or ended as unknown, may or may not have happened.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    NORMAL = "normal"
    ORDERED = "ordered"
    DELAY = "delay"
    TIMER = "timer"
    TRANSACTION = "transaction"


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Decision(StrEnum):
    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SendInvoked:
    """A producer sends; a retried send has the key of the first one and an op of its own."""

    now_ms: int
    op: int
    key: str
    kind: Kind
    topic: str
    queue_id: int
    body: str
    # The message must not be delivered while the clock is below this.
    not_before_ms: int = 0
    # How long it waits, for kinds whose time counts from the send.
    delay_ms: int = 0
    sharding_key: str = ""


@dataclass(frozen=True, slots=True)
class EndInvoked:
    """A producer ends a transaction."""

    now_ms: int
    op: int
    key: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class SendBackInvoked:
    """A consumer sends a message back; ``reconsume_times`` is the message's own."""

    now_ms: int
    op: int
    key: str
    group: str
    topic: str
    reconsume_times: int
    reconsume_times_max: int
    # How long the retry has to wait; below 0 the message goes to the dead letters at once.
    delay_ms: int

    @property
    def is_last(self) -> bool:
        """Whether the message must become a dead letter."""
        return self.delay_ms < 0 or self.reconsume_times >= self.reconsume_times_max


@dataclass(frozen=True, slots=True)
class RecallInvoked:
    """A producer recalls a timer message."""

    now_ms: int
    op: int
    key: str


@dataclass(frozen=True, slots=True)
class ReplyInvoked:
    """A responder answers the request ``key``, for one requester."""

    now_ms: int
    op: int
    key: str
    requester: str
    body: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of an operation; for an acknowledged send also the message's place."""

    now_ms: int
    op: int
    outcome: Outcome
    queue_id: int = -1
    queue_offset: int = -1


@dataclass(frozen=True, slots=True)
class Checked:
    """The broker checked a half message with a producer."""

    now_ms: int
    key: str
    times: int


@dataclass(frozen=True, slots=True)
class StillOpen:
    """The broker lists a half message as open."""

    now_ms: int
    key: str


@dataclass(frozen=True, slots=True)
class ReplyReceived:
    now_ms: int
    key: str
    requester: str
    body: str


@dataclass(frozen=True, slots=True)
class Received:
    """A consumer got a message. ``stored_ms`` is this copy's store timestamp."""

    now_ms: int
    group: str
    reader: str
    topic: str
    queue_id: int
    queue_offset: int
    key: str
    body: str
    stored_ms: int
    reconsume_times: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drained:
    """A group has read a queue to its end, after all messages were due."""

    now_ms: int
    group: str
    topic: str
    queue_id: int
    queue_offset_min: int
    queue_offset_max: int


@dataclass(frozen=True, slots=True)
class BrokerStarted:
    now_ms: int


@dataclass(frozen=True, slots=True)
class BrokerKilled:
    now_ms: int


@dataclass(frozen=True, slots=True)
class LeaderChanged:
    """A member of the failover group leads in this term; ``leader`` is "" while nobody does."""

    now_ms: int
    term: int
    leader: str


@dataclass(frozen=True, slots=True)
class Partitioned:
    """Members reach those of their own side alone; no sides: all reach each other again."""

    now_ms: int
    sides: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerCrashed:
    """A consumer ended before its offset was stored: its group reads again from the stored one."""

    now_ms: int
    group: str


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """A queue of the group went to another member."""

    now_ms: int
    group: str


@dataclass(frozen=True, slots=True)
class ClockMoved:
    """The shared clock was moved; ``now_ms`` is the time after."""

    now_ms: int
    before_ms: int


Invocation = SendInvoked | EndInvoked | SendBackInvoked | RecallInvoked | ReplyInvoked
Event = (
    Invocation
    | Ended
    | Checked
    | StillOpen
    | ReplyReceived
    | Received
    | Drained
    | BrokerStarted
    | BrokerKilled
    | LeaderChanged
    | Partitioned
    | ConsumerCrashed
    | Rebalanced
    | ClockMoved
)


def write_history(path: Path, events: list[Event]) -> None:
    """Keep a history to look at: one event in JSON on each line."""
    lines = ({"event": type(event).__name__, **dataclasses.asdict(event)} for event in events)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

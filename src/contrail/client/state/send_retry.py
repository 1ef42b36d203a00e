"""Whether, and to which broker, a failed send is repeated, and its final error."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from contrail.client.message import SendReceipt
from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    CallTimedOut,
    SendFailed,
    SendTimedOut,
)
from contrail.model.topic import is_closed_topic
from contrail.protocol.codes import ResponseCode

RetryStyle = Literal["sync", "async", "never"]
Failure = CallFailed | BrokerUnknown | BrokerRefused

# Codes after which another broker may succeed.
RETRIED_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


class Next(Enum):
    """The next step after a failed attempt."""

    STOP = "stop"
    SAME_BROKER = "same broker"
    OTHER_BROKER = "other broker"


class Attempt(NamedTuple):
    """One attempt, for the error that lists them all."""

    broker_name: str
    cause: str
    cost_ms: int

    def __str__(self) -> str:
        return f"{self.broker_name}: {self.cause} ({self.cost_ms} ms)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """How often and where: synchronous sends go to another broker, asynchronous ones stay.

    A synchronous send to a queue that the application chose is tried once.
    """

    style: RetryStyle
    retry_count: int
    has_own_queue: bool = False

    def after_failure(self, failure_count: int, code: int | None) -> Next:
        """``code`` is the last broker's refusal, None when there was no answer."""
        if self.style == "never" or failure_count > self.retry_count:
            return Next.STOP
        if self.style == "async":
            return Next.SAME_BROKER if code is None else Next.STOP
        if self.has_own_queue or (code is not None and code not in RETRIED_CODES):
            return Next.STOP
        return Next.OTHER_BROKER

    def seeks_better(self) -> bool:
        """Whether a message that is stored, but not as configured, may be sent once more."""
        return self.style == "sync" and not self.has_own_queue


@dataclass(slots=True)
class SendCourse:
    """The attempts of one message; made after a first attempt without full success."""

    topic: str
    rules: RetryRules
    attempts: list[Attempt] = field(default_factory=list)
    _receipt: SendReceipt | None = None
    _failure: Failure | None = None
    # Whether an attempt was not answered, whatever the later attempts' results.
    _is_in_doubt: bool = False

    def failed(self, broker_name: str, failure: Failure, cost_ms: int) -> Next:
        """An attempt failed."""
        code = failure.code if isinstance(failure, BrokerRefused) else None
        self.attempts.append(Attempt(broker_name, str(failure), cost_ms))
        self._failure = failure
        self._is_in_doubt |= isinstance(failure, CallTimedOut)
        if code == ResponseCode.NO_PERMISSION and is_closed_topic(self.topic):
            # The topic is the system's on every broker: another broker refuses it too.
            return Next.STOP
        return self.rules.after_failure(len(self.attempts), code)

    def stored(self, receipt: SendReceipt, cost_ms: int) -> Next:
        """An attempt was stored with less than SEND_OK, and another broker may reach SEND_OK."""
        broker_name = receipt.queue.broker_name
        self.attempts.append(Attempt(broker_name, f"stored with {receipt.status.name}", cost_ms))
        self._receipt = receipt
        return self.rules.after_failure(len(self.attempts), None)

    def outcome(self, cost_ms: int) -> SendReceipt:
        """The best receipt of all attempts.

        Raises:
            SendFailed: no attempt stored the message.
        """
        if self._receipt is not None:
            return self._receipt
        times = "1 attempt" if len(self.attempts) == 1 else f"{len(self.attempts)} attempts"
        told = "; ".join(str(attempt) for attempt in self.attempts)
        kind = SendTimedOut if self._is_in_doubt else SendFailed
        doubt = " (it may be stored all the same)" if self._is_in_doubt else ""
        raise kind(
            f"a message for topic {self.topic!r} was not sent, {times} in {cost_ms} ms{doubt}: "
            f"{told}",
            topic=self.topic,
            attempts=tuple(str(attempt) for attempt in self.attempts),
        ) from self._failure

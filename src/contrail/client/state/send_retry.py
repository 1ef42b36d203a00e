"""Whether, and to which broker, a failed send is repeated, and its final error."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from contrail.client.message import SendReceipt
from contrail.client.state.leader_changes import Waits, is_in_doubt, may_have_moved
from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    SendFailed,
    SendTimedOut,
)
from contrail.model.topic import is_closed_topic
from contrail.protocol.codes import ResponseCode

RetryStyle = Literal["sync", "async", "never"]
Failure = CallFailed | BrokerUnknown | BrokerRefused

# A send that waits for a leader may try many times.
_TOLD_MAX = 10
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
    # Another broker may lead under the same name by now, or soon.
    NEXT_LEADER = "next leader"


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

    def may_follow_leader(self, *, in_doubt: bool) -> bool:
        """Whether to go on until the deadline, at a name whose master may have changed.

        Without retries the application wants no message twice: one that may be stored stays so.
        """
        return self.style != "never" and not (in_doubt and self.retry_count == 0)

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
    # Attempts that count as retries; those at a name whose master changes do not.
    _spent_count: int = 0
    _attempt_count: int = 0
    waits: Waits = field(default_factory=Waits)
    # Names whose master is gone, for now.
    leaderless: set[str] = field(default_factory=set)
    # Whether the last attempt's broker named another leader, which the route has.
    knows_leader: bool = False

    def failed(
        self, broker_name: str, failure: Failure, cost_ms: int, *, is_replicated: bool = False
    ) -> Next:
        """An attempt failed; ``is_replicated``: its broker's name has other ids."""
        code = failure.code if isinstance(failure, BrokerRefused) else None
        self._note(Attempt(broker_name, str(failure), cost_ms))
        self._failure = failure
        self.knows_leader = False
        in_doubt = is_in_doubt(failure)
        self._is_in_doubt |= in_doubt
        if is_replicated and may_have_moved(failure):
            self.leaderless.add(broker_name)
            if self.rules.may_follow_leader(in_doubt=in_doubt):
                return Next.NEXT_LEADER
        self._spent_count += 1
        if code == ResponseCode.NO_PERMISSION and is_closed_topic(self.topic):
            # The topic is the system's on every broker: another broker refuses it too.
            return Next.STOP
        return self.rules.after_failure(self._spent_count, code)

    def stored(self, receipt: SendReceipt, cost_ms: int) -> Next:
        """An attempt was stored with less than SEND_OK, and another broker may reach SEND_OK."""
        broker_name = receipt.queue.broker_name
        self._note(Attempt(broker_name, f"stored with {receipt.status.name}", cost_ms))
        self._receipt = receipt
        self._spent_count += 1
        return self.rules.after_failure(self._spent_count, None)

    def _note(self, attempt: Attempt) -> None:
        self._attempt_count += 1
        if len(self.attempts) == _TOLD_MAX:
            # The first ones say how it began, the last one how it is now.
            del self.attempts[-1]
        self.attempts.append(attempt)

    def outcome(self, cost_ms: int) -> SendReceipt:
        """The best receipt of all attempts.

        Raises:
            SendFailed: no attempt stored the message.
        """
        if self._receipt is not None:
            return self._receipt
        count = self._attempt_count
        times = "1 attempt" if count == 1 else f"{count} attempts"
        told = "; ".join(str(attempt) for attempt in self.attempts)
        kind = SendTimedOut if self._is_in_doubt else SendFailed
        doubt = " (it may be stored all the same)" if self._is_in_doubt else ""
        raise kind(
            f"a message for topic {self.topic!r} was not sent, {times} in {cost_ms} ms{doubt}: "
            f"{told}",
            topic=self.topic,
            attempts=tuple(str(attempt) for attempt in self.attempts),
        ) from self._failure

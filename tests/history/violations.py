"""The violations of a history."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Rule(StrEnum):
    """The promises; a violation names the one that was broken."""

    LOST = "an acknowledged message was not delivered"
    INVENTED = "a message arrived that nobody sent there"
    REFUSED_DELIVERED = "a send that was refused was delivered"
    WRONG_BODY = "a message arrived with another body"
    MOVED = "a message is not where the broker said it is"
    OFFSET_GAP = "queue offsets are not dense"
    OFFSET_REUSED = "two messages share one queue offset"
    SPLIT_HISTORY = "two readers saw different messages at one place"
    REORDERED = "messages of a queue changed their order"
    ORDER_LOST = "messages of one sharding key were delivered out of order"
    DUPLICATED = "a message was delivered again without a permitted cause"
    EARLY = "a message was delivered before its time"
    LATE = "a message that was due waited too long"
    RECALLED_DELIVERED = "a timer that was called back was delivered"
    HALF_FORGOTTEN = "a half message has no fate and is not open"
    ROLLED_BACK_DELIVERED = "a message that was only ever rolled back was delivered"
    COMMITTED_UNASKED = "a half message was delivered that nobody committed"
    COMMITTED_AFTER_ROLLBACK = "a commit after the rollback took effect"
    COMMITTED_TWICE = "a half message was delivered twice"
    CHECKED_EARLY = "a producer was asked about a half message too soon"
    CHECKED_TOO_OFTEN = "a half message was checked more often than allowed"
    RETRY_LOST = "a message that was given back is not in the retry topic"
    RETRY_EARLY = "a retry was delivered before its time"
    RETRY_MISLABELLED = "a retry does not name the topic it came from"
    DEAD_LETTER_MISSING = "a message out of retries is not among the dead letters"
    DEAD_LETTER_UNASKED = "a message became a dead letter with retries left"
    REPLY_LOST = "a reply that was accepted did not reach the requester"
    REPLY_MISDIRECTED = "a reply arrived that was not for this requester"
    REPLY_DUPLICATED = "a reply arrived more often than it was sent"
    TERM_USED_TWICE = "the term of a leader is not higher than the one before"
    LED_WITHOUT_MAJORITY = "a member came to lead that reached no majority"
    UNREAD = "nobody read a topic to its end, so nothing is shown about it"


FAILOVER_REREAD_MS = 2_000
"""Offsets go to the other members each second, and a handler may have been at work as long."""


class Violation(NamedTuple):
    rule: Rule
    keys: tuple[str, ...]
    detail: str

    def __str__(self) -> str:
        return f"{self.rule.name} {', '.join(self.keys)}: {self.rule.value}; {self.detail}"


class Bounds(NamedTuple):
    """The limits that a history must keep."""

    # A clock that is shared runs with the machine's, which may stall for long.
    late_ms_max: int = 60_000
    transaction_timeout_ms: int = 6_000
    check_count_max: int = 15

"""Dead letters: reading them, their origin and cause, and sending copies back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.message_format import message_fields
from contrail.cli.sending import message_copy
from contrail.client.blocking.admin import Admin
from contrail.client.blocking.producer import Producer
from contrail.client.dead_letters import origin_id, origin_topic, reason_of, why_closed
from contrail.client.message import ReceivedMessage, SendReceipt
from contrail.errors import ClientError
from contrail.model.topic import DLQ_PREFIX, dlq_topic
from contrail.pipeline.jobs.copies import Copy, Original, Skipped, replayed
from contrail.pipeline.jobs.pacing import Pacer

_MAY_BE_SENT = "it was on its way when the command was interrupted, and may have arrived"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection of dead letters; times are those at which they became dead letters."""

    tags: Sequence[str] = ()
    keys: Sequence[str] = ()
    message_ids: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def fits(self, letter: ReceivedMessage) -> bool:
        stored_ms = letter.store_timestamp_ms
        return (
            (not self.tags or letter.tags in self.tags)
            and (not self.keys or not set(self.keys).isdisjoint(letter.keys))
            and (not self.message_ids or not set(self.message_ids).isdisjoint(_ids(letter)))
            and (self.since_ms is None or stored_ms >= self.since_ms)
            and (self.until_ms is None or stored_ms < self.until_ms)
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one dead letter: ``replayed``, ``skipped``, ``failed`` or ``interrupted``."""

    letter: ReceivedMessage
    outcome: str
    topic: str | None = None
    receipt: SendReceipt | None = None
    reason: str | None = None

    def fields(self) -> dict[str, object]:
        receipt = self.receipt
        return {
            "outcome": self.outcome,
            "dead_message_id": self.letter.message_id,
            "origin_message_id": _origin_id(self.letter),
            "topic": self.topic,
            "message_id": None if receipt is None else receipt.message_id,
            "broker_name": None if receipt is None else receipt.queue.broker_name,
            "queue_id": None if receipt is None else receipt.queue.queue_id,
            "queue_offset": None if receipt is None else receipt.queue_offset,
            "reason": self.reason,
        }


def groups_with_letters(admin: Admin) -> list[dict[str, object]]:
    """A row for each group that has dead letters."""
    topics = [topic for topic in admin.topics() if topic.startswith(DLQ_PREFIX)]
    rows = [_summary(admin, topic) for topic in topics]
    return [row for row in rows if row["count"]]


def _summary(admin: Admin, topic: str) -> dict[str, object]:
    stats = admin.topic_stats(topic)
    filled = [one for one in stats.queues if one.count]
    oldest = [admin.earliest_store_time_ms(one.queue) for one in filled]
    newest = [one.last_store_timestamp_ms for one in filled]
    return {
        "group": topic.removeprefix(DLQ_PREFIX),
        "topic": topic,
        "count": stats.count,
        "closed_on": admin.closed_dead_letters(topic.removeprefix(DLQ_PREFIX)),
        "oldest_timestamp_ms": min((ms for ms in oldest if ms > 0), default=None),
        "newest_timestamp_ms": max((ms for ms in newest if ms > 0), default=None),
    }


def letters_of(admin: Admin, group: str, wanted: Wanted) -> Iterator[ReceivedMessage]:
    """A group's selected dead letters, queue by queue.

    Raises:
        NotFound: the group never had a dead letter.
        CommandFailed: a broker's dead-letter topic is not readable.
    """
    require_letters(admin, group)
    closed = why_closed(admin, group)
    if closed is not None:
        raise CommandFailed(closed)
    for queue in admin.queues(dlq_topic(group)):
        start = None if wanted.since_ms is None else admin.search_offset(queue, wanted.since_ms)
        yield from (one for one in admin.browse(queue, start=start) if wanted.fits(one))


def require_letters(admin: Admin, group: str) -> None:
    """Raises ``NotFound`` for a group that never had a dead letter."""
    if admin.dead_letter_topic(group) is None:
        raise NotFound(
            f"group {group!r} has no dead letters here: `contrail dlq list` shows the groups "
            "that have"
        )


def letter_fields(letter: ReceivedMessage, retries_max: int) -> dict[str, object]:
    """A dead letter as JSON has it."""
    return {
        **message_fields(letter),
        "origin_topic": origin_topic(letter.properties),
        "origin_message_id": _origin_id(letter),
        "reason": reason_of(letter.properties, letter.reconsume_times, retries_max),
    }


def _origin_id(letter: ReceivedMessage) -> str:
    return origin_id(letter.properties, letter.message_id)


def _ids(letter: ReceivedMessage) -> set[str]:
    return {letter.message_id, letter.offset_message_id, _origin_id(letter)}


# Sending back.


def replay_plan(letters: Iterable[ReceivedMessage], to_topic: str | None) -> list[str]:
    """The plan of a replay, for a person to agree to."""
    targets = Counter(to_topic or origin_topic(one.properties) for one in letters)
    nowhere = targets.pop(None, 0)
    lines = [f"dead letters to topic {topic}: {count:,}" for topic, count in targets.most_common()]
    if nowhere:
        lines.append(f"skipped, since they name no origin (--to-topic): {nowhere:,}")
    return lines or ["no dead letter fits"]


class Replay:
    """Sends dead letters back, one after the other, at a bounded rate."""

    def __init__(
        self, producer: Producer, *, to_topic: str | None, rate: float | None, job_id: str
    ) -> None:
        self._producer = producer
        self._to_topic = to_topic
        self._rate = rate
        self._job_id = job_id
        # The letter being sent: after an interrupt it is unknown whether it arrived.
        self._sending: Outcome | None = None

    @property
    def interrupted(self) -> Outcome | None:
        """The result of the letter that was being sent at the interrupt."""
        return self._sending

    def run(self, letters: Iterable[ReceivedMessage]) -> Iterator[Outcome]:
        pacer = None if self._rate is None else Pacer(self._rate, time.monotonic())
        for letter in letters:
            if pacer is not None:
                time.sleep(pacer.wait_s(1, time.monotonic()))
            yield self._send(letter)

    def _send(self, letter: ReceivedMessage) -> Outcome:
        copy = replayed(_original(letter), self._to_topic, self._job_id)
        if isinstance(copy, Skipped):
            return Outcome(letter, "skipped", reason=copy.reason)
        self._sending = Outcome(letter, "interrupted", copy.topic, reason=_MAY_BE_SENT)
        outcome = self._sent(letter, copy)
        self._sending = None
        return outcome

    def _sent(self, letter: ReceivedMessage, copy: Copy) -> Outcome:
        try:
            receipt = self._producer.send(message_copy(letter, copy.topic, copy.properties))
        except ClientError as error:
            return Outcome(letter, "failed", copy.topic, reason=str(error))
        return Outcome(letter, "replayed", copy.topic, receipt)


def _original(letter: ReceivedMessage) -> Original:
    return Original(
        letter.queue,
        letter.queue_offset,
        letter.body,
        letter.flag,
        letter.properties,
        letter.message_id,
        letter.store_timestamp_ms,
    )

"""Dead letters at the command line: their fields, and sending copies back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from contrail.cli.message_format import message_fields
from contrail.client.blocking.producer import Producer
from contrail.client.dead_letters import origin_topic, reason_of
from contrail.client.message import ReceivedMessage, SendReceipt
from contrail.errors import ClientError
from contrail.insight.changes.messages import message_copy
from contrail.insight.copies import Copy, Skipped
from contrail.insight.dead_letters import letter_origin_id, replay_copy
from contrail.insight.pacing import Pacer

_MAY_BE_SENT = "it was on its way when the command was interrupted, and may have arrived"


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
            "origin_message_id": letter_origin_id(self.letter),
            "topic": self.topic,
            "message_id": None if receipt is None else receipt.message_id,
            "broker_name": None if receipt is None else receipt.queue.broker_name,
            "queue_id": None if receipt is None else receipt.queue.queue_id,
            "queue_offset": None if receipt is None else receipt.queue_offset,
            "reason": self.reason,
        }


def letter_fields(letter: ReceivedMessage, retries_max: int) -> dict[str, object]:
    """A dead letter as JSON has it."""
    return {
        **message_fields(letter),
        "origin_topic": origin_topic(letter.properties),
        "origin_message_id": letter_origin_id(letter),
        "reason": reason_of(letter.properties, letter.reconsume_times, retries_max),
    }


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
        copy = replay_copy(letter, self._to_topic, self._job_id)
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

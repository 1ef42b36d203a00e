"""Sends many bodies the same way: at a rate, in batches where no single receipts are printed.

Also turns a stored message into one to send again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from contrail.cli.output import complain
from contrail.client.blocking.producer import Producer
from contrail.client.message import Message, MessageQueue, SendReceipt
from contrail.errors import ClientError, MessageInvalid

_BATCH_COUNT = 200
_BATCH_BYTES = 1 << 20
# Batches a second with a rate: a batch is sent at one moment.
_BATCHES_A_SECOND = 20
_FAILURES_TOLD_MAX = 10
_PROGRESS_INTERVAL_S = 0.5


@dataclass(slots=True)
class Tally:
    """How many were sent, how many were not, and the duration."""

    sent: int = 0
    failed: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = self.sent / self.seconds if self.seconds > 0 else 0.0
        return f"sent {self.sent:,}, failed {self.failed:,}, {rate:,.0f} messages/s"


class Sending:
    """One run. A failure before the first sent message is raised; later failures are counted."""

    def __init__(
        self,
        producer: Producer,
        model: Message,
        queue: MessageQueue | None,
        *,
        rate: float | None,
        on_receipt: Callable[[SendReceipt], None] | None,
    ) -> None:
        self._producer = producer
        self._model = model
        self._queue = queue
        self._rate = rate
        self._on_receipt = on_receipt
        self._started_s = time.monotonic()
        self._progress_s = self._started_s
        self.tally = Tally()

    def run(self, chunks: Iterable[Iterable[bytes]], *, in_batches: bool) -> None:
        """Send all bodies, in their order; a batch never spans two chunks."""
        count_max = self._batch_count() if in_batches else 1
        try:
            for batch in (batch for bodies in chunks for batch in _cut(bodies, count_max)):
                self._keep_rate()
                self._send(batch)
                self._show_progress()
        finally:
            self.tally.seconds = time.monotonic() - self._started_s
            self._end_progress()

    def _batch_count(self) -> int:
        if self._rate is None:
            return _BATCH_COUNT
        return min(_BATCH_COUNT, max(1, int(self._rate / _BATCHES_A_SECOND)))

    def _keep_rate(self) -> None:
        if self._rate is not None:
            done = self.tally.sent + self.tally.failed
            wait_s = self._started_s + done / self._rate - time.monotonic()
            time.sleep(max(0.0, wait_s))

    def _send(self, batch: Sequence[bytes]) -> None:
        messages = [replace(self._model, body=body) for body in batch]
        if len(messages) == 1:
            self._send_one(messages[0])
            return
        try:
            self._producer.send_batch(messages, queue=self._queue)
            self.tally.sent += len(messages)
        except MessageInvalid:
            # The batch was refused: send one by one, so that only the invalid message fails.
            for message in messages:
                self._send_one(message)
        except ClientError as error:
            self._note_failure(error, len(messages))

    def _send_one(self, message: Message) -> None:
        try:
            receipt = self._producer.send(message, queue=self._queue)
        except ClientError as error:
            self._note_failure(error, 1)
            return
        self.tally.sent += 1
        if self._on_receipt is not None:
            self._on_receipt(receipt)

    def _note_failure(self, error: ClientError, count: int) -> None:
        if not (self.tally.sent or self.tally.failed):
            raise error
        number = self.tally.sent + self.tally.failed + 1
        self.tally.failed += count
        if self.tally.failed <= _FAILURES_TOLD_MAX:
            complain(f"message {number:,}: {error}")

    def _show_progress(self) -> None:
        now_s = time.monotonic()
        if sys.stderr.isatty() and now_s - self._progress_s >= _PROGRESS_INTERVAL_S:
            self._progress_s = now_s
            so_far = replace(self.tally, seconds=now_s - self._started_s)
            print(f"\r{so_far}\x1b[K", end="", file=sys.stderr, flush=True)

    def _end_progress(self) -> None:
        if self._progress_s != self._started_s:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _cut(bodies: Iterable[bytes], count_max: int) -> Iterator[list[bytes]]:
    """Batches bounded by count and bytes."""
    batch: list[bytes] = []
    batch_bytes = 0
    for body in bodies:
        if batch and (len(batch) >= count_max or batch_bytes + len(body) > _BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(body)
        batch_bytes += len(body)
    if batch:
        yield batch

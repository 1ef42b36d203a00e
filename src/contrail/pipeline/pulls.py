"""Reads a slice on an executor: exactly its records, or an error.

A task sends pulls ahead of their answers on its own connection. It joins the bodies of the answers
to chunks of some megabytes, which are checked and decoded as a whole.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contrail.client.raw_pulls import BUSY_CODES, RawAnswer, RawPulls, named
from contrail.client.short_pulls import SHORT_COUNT_MAX, ShortPull, pull_short
from contrail.client.state.pull_ahead import Ask, PullAhead, Stretch
from contrail.clock import monotonic_ms
from contrail.errors import BrokerRefused, CallFailed, ClientError, ContrailError, DataLost
from contrail.model.subscription import SQL92, SubscriptionData, parse_subscription
from contrail.pipeline.arrow import decode, numbers, unwrapped, walk
from contrail.pipeline.arrow_python import offsets_of_closed_batches
from contrail.pipeline.cluster import client_settings
from contrail.pipeline.columns import plan_columns, schema_of
from contrail.pipeline.options import SourceSettings
from contrail.pipeline.partitions import QueueSlice
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX
from contrail.protocol.codes import ResponseCode
from contrail.protocol.json_style import MessageQueue

_log = logging.getLogger(__name__)

Positions = npt.NDArray[np.int64]
Chunk = tuple[bytes, Positions]

# Contrail's brokers answer with this many messages; others with 32 by default.
_COUNT_MAX = BULK_COUNT_MAX
_ASKS_MAX = 32
_CHUNK_BYTES = 4 << 20
# Half of the answer bytes that a broker allows to be under way to one connection.
_IN_FLIGHT_BYTES_MAX = 4 << 20
# A task gives up without an answer for this many times the time limit of one pull.
_PATIENCE_PULLS = 6
_PAUSE_MS_FIRST = 50
_PAUSE_MS_MAX = 1_000
# A broker that has just started may learn the end of a queue a little late.
_MISSING_PATIENCE_MS = 2_000
# Remarks of pulls whose messages were removed, and of pulls without read permission.
_REMOVING = "MESSAGE_WAS_REMOVING"
_FOUND = "FOUND"


def read_slice(settings: SourceSettings, piece: QueueSlice) -> Iterator[Chunk]:
    """The records of ``[start, end)`` that pass the subscription, in order: bytes and positions.

    Raises:
        DataLost: some messages were removed, and ``failOnDataLoss`` is on.
        ClientError: the broker refused the pull, or did not answer for too long.
    """
    reading = _Reading(settings, piece)
    try:
        yield from reading.chunks()
    except BaseException:
        reading.pulls.close()
        raise
    reading.pulls.release()


def read_short(settings: SourceSettings, pieces: Sequence[QueueSlice]) -> list[Chunk | None]:
    """The chunk of each short slice, read together; None where ``read_slice`` must read.

    The fast way of slices without a filter: an answer counts if it has exactly the slice's records.
    """
    wanted = [
        ShortPull(
            MessageQueue(piece.topic, piece.broker_name, piece.queue_id),
            piece.queue_offset_start,
            piece.queue_offset_end,
        )
        for piece in pieces
    ]
    bodies = pull_short(
        client_settings(settings.cluster), wanted, timeout_ms=settings.pull_timeout_ms
    )
    return [_whole(pull, body) for pull, body in zip(wanted, bodies, strict=True)]


def is_short(settings: SourceSettings, piece: QueueSlice) -> bool:
    """Whether ``read_short`` may read a slice."""
    count = piece.queue_offset_end - piece.queue_offset_start
    return count <= SHORT_COUNT_MAX and subscription_of(settings, piece.topic).takes_all


def _whole(pull: ShortPull, body: bytes | None) -> Chunk | None:
    if body is None:
        return None
    positions = walk(body, 0, len(body))
    wanted = np.arange(pull.queue_offset_start, pull.queue_offset_end)
    is_whole = np.array_equal(numbers(body, positions, "queueOffset"), wanted)
    return (body, positions) if is_whole else None


class _Gathered:
    """Answers to be joined, in order, with the gaps of missing messages."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self.byte_count = 0
        # Adjacent stretches are merged.
        self._ranges: list[tuple[int, int]] = []

    def add(self, stretch: Stretch[bytes]) -> None:
        start, end, body = stretch
        if body:
            self._bodies.append(body)
            self.byte_count += len(body)
        if self._ranges and self._ranges[-1][1] == start:
            start = self._ranges.pop()[0]
        self._ranges.append((start, end))

    def joined(self) -> bytes:
        return b"".join(self._bodies)

    def wanted(self) -> Positions:
        """Every queue offset that was pulled and answered."""
        return np.concatenate([np.arange(start, end) for start, end in self._ranges])

    def inside(self, buffer: bytes, positions: Positions) -> Positions:
        """Records at these queue offsets, in order and once: two answers may share a batch."""
        found, places = np.unique(numbers(buffer, positions, "queueOffset"), return_index=True)
        first, last = self._ranges[0][0], self._ranges[-1][1]
        kept: Positions = positions[places[(found >= first) & (found < last)]]
        return kept


class _Reading:
    """One slice being read."""

    def __init__(self, settings: SourceSettings, piece: QueueSlice) -> None:
        self._settings = settings
        self._queue = MessageQueue(piece.topic, piece.broker_name, piece.queue_id)
        self._subscription = subscription_of(settings, piece.topic)
        self._ahead: PullAhead[bytes] = PullAhead(
            piece.queue_offset_start,
            piece.queue_offset_end,
            count_max=_COUNT_MAX,
            asks_max=_ASKS_MAX,
            bytes_max=_IN_FLIGHT_BYTES_MAX,
            in_order=not self._subscription.takes_all,
        )
        self.pulls = RawPulls(
            client_settings(settings.cluster),
            self._queue,
            self._subscription,
            timeout_ms=settings.pull_timeout_ms,
        )
        # More pulls are sent after half of the last ones were answered.
        self._asked_peak = 0
        self._is_connected = False
        self._is_waiting = False
        self._attempt = 0
        self._pause_ms = 0
        # Spark may take long to use the rows: only consecutive failures count.
        self._failing_since_ms: int | None = None
        self._missing_since_ms: int | None = None
        self._lost_to = -1

    # Chunks.

    def chunks(self) -> Iterator[Chunk]:
        gathered = _Gathered()
        for stretch in self._stretches():
            gathered.add(stretch)
            if gathered.byte_count >= _CHUNK_BYTES:
                yield from self._checked(gathered)
                gathered = _Gathered()
        yield from self._checked(gathered)

    def _checked(self, gathered: _Gathered) -> Iterator[Chunk]:
        """The gathered answers as a chunk, after a check that they have the wanted records."""
        if not gathered.byte_count:
            return
        buffer = gathered.joined()
        positions = walk(buffer, 0, len(buffer))
        if not self._subscription.takes_all:
            buffer, positions = unwrapped(buffer, positions)
            positions = self._with_tags(buffer, gathered.inside(buffer, positions))
        elif not np.array_equal(numbers(buffer, positions, "queueOffset"), gathered.wanted()):
            # A batch stored as one record, or removed messages.
            buffer, positions = unwrapped(buffer, positions)
            positions = gathered.inside(buffer, positions)
            found = numbers(buffer, positions, "queueOffset")
            closed = offsets_of_closed_batches(buffer, positions)
            self._require_whole(np.union1d(found, closed), gathered.wanted())
        if len(positions):
            yield buffer, positions

    def _require_whole(self, found: Positions, wanted: Positions) -> None:
        absent = np.setdiff1d(wanted, found, assume_unique=True)
        if len(absent):
            first, last = int(absent[0]), int(absent[-1])
            self._lost(first, last + 1, f"{len(absent)} were removed from amid the others")

    def _with_tags(self, buffer: bytes, positions: Positions) -> Positions:
        """The records with the wanted tags: brokers compare only hashes, which may collide."""
        wanted = self._subscription.tags
        if not wanted or not len(positions):
            return positions
        batch = decode(buffer, positions, _TAGS_PLAN, broker_name="", raw_body=True)
        is_wanted = pc.is_in(batch.column(0), value_set=pa.array(sorted(wanted), pa.string()))
        kept: Positions = positions[is_wanted.to_numpy(zero_copy_only=False)]
        return kept

    # Pulls.

    def _stretches(self) -> Iterator[Stretch[bytes]]:
        """The broker's answers in order, across lost connections and restarts of the broker."""
        ahead = self._ahead
        while not ahead.is_done:
            try:
                if not self._is_connected:
                    self._connect()
                self._ask_ahead()
                self._take_in(self.pulls.receive())
            except (CallFailed, ClientError) as error:
                self._failed(error)
            yield from ahead.take()

    def _connect(self) -> None:
        self.pulls.connect(self._attempt)
        self._is_connected = True

    def _ask_ahead(self) -> None:
        """Send several pulls in one write: a write for each costs both sides more."""
        ahead = self._ahead
        if self._is_waiting:
            # Answers under way are as old as the one that reported the missing messages.
            if ahead.asked_count:
                return
            self._is_waiting = False
            self._pause()
        if ahead.asked_count > self._asked_peak // 2:
            return
        asks = []
        while (ask := ahead.next_ask()) is not None:
            asks.append(ask)
        if asks:
            self.pulls.ask(asks)
        self._asked_peak = ahead.asked_count

    def _take_in(self, answer: RawAnswer) -> None:
        ask = answer.ask
        if self._covers(answer):
            self._ahead.answered(ask, answer.queue_offset_next, answer.body, len(answer.body))
            self._progressed()
        elif answer.queue_offset_min > ask.queue_offset and self.pulls.is_master:
            start = min(self._ahead.position, ask.queue_offset)
            self._gone(ask, start, answer.queue_offset_min, "retention has removed them")
        elif not self.pulls.is_master:
            raise CallFailed(f"a replica does not have {named(self._queue)} at {ask.queue_offset}")
        elif ask.queue_offset_end <= self._lost_to or not self._is_patient():
            self._missing(answer)
        else:
            self._ahead.again(ask)
            self._is_waiting = True

    def _covers(self, answer: RawAnswer) -> bool:
        """Whether the answer has all messages from the pulled offset to its next offset."""
        if answer.queue_offset_next <= answer.ask.queue_offset:
            return False
        if answer.code == ResponseCode.SUCCESS:
            return bool(answer.body)
        is_filtered = not self._subscription.takes_all
        nothing_matched = answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        return is_filtered and nothing_matched and answer.remark not in (_REMOVING, _FOUND)

    def _progressed(self) -> None:
        self._failing_since_ms = self._missing_since_ms = None
        self._attempt = self._pause_ms = 0

    # Removed messages.

    def _is_patient(self) -> bool:
        """Whether the task still waits for messages that the broker does not have yet."""
        now_ms = monotonic_ms()
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        return now_ms - self._missing_since_ms < _MISSING_PATIENCE_MS

    def _missing(self, answer: RawAnswer) -> None:
        ask = answer.ask
        going_on = max(answer.queue_offset_next, ask.queue_offset + 1)
        if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            self._gone(ask, ask.queue_offset, going_on, "they are being removed")
        elif answer.queue_offset_max <= ask.queue_offset:
            start = max(answer.queue_offset_max, self._ahead.position)
            text = f"the queue ends at {answer.queue_offset_max}, was the topic made anew?"
            self._gone(ask, start, self._ahead.end, text)
        else:
            self._gone(ask, ask.queue_offset, going_on, "the broker passes over them")

    def _gone(self, ask: Ask, start: int, queue_offset_next: int, why: str) -> None:
        reached = min(queue_offset_next, self._ahead.end)
        self._lost(start, reached, why)
        self._ahead.missing(ask, reached)
        self._progressed()

    def _lost(self, start: int, end: int, why: str) -> None:
        text = f"messages {start} to {end - 1} of {named(self._queue)} are gone: {why}"
        if self._settings.fail_on_data_loss:
            raise DataLost(
                f"{text}. Start where the queue starts now, or set failOnDataLoss=false to read "
                "what is left"
            )
        if end > self._lost_to:
            # The other pulls of that moment report the same loss.
            self._lost_to = end
            _log.warning("%s; failOnDataLoss=false: reading goes on after them", text)

    # Transient failures.

    def _failed(self, error: ContrailError) -> None:
        """Try again on a new connection, unless the broker refused or it takes too long."""
        if isinstance(error, BrokerRefused) and error.code not in BUSY_CODES:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                self._topic_gone(error)
                return
            raise error
        patience_ms = _PATIENCE_PULLS * self._settings.pull_timeout_ms
        if self._failing_since_ms is None:
            self._failing_since_ms = monotonic_ms()
        if monotonic_ms() - self._failing_since_ms > patience_ms:
            raise ClientError(
                f"{named(self._queue)} could not be read for {patience_ms} ms, at "
                f"{self._ahead.position}: {error}"
            ) from error
        _log.info("%s is read on over a new connection: %s", named(self._queue), error)
        self.pulls.close()
        self._is_connected = False
        self._missing_since_ms = None
        self._ahead.lost()
        self._attempt += 1
        self._pause()

    def _topic_gone(self, error: BrokerRefused) -> None:
        self._ahead.lost()
        self._lost(self._ahead.position, self._ahead.end, f"the topic is deleted ({error.remark})")
        self._ahead.abandon()
        self.pulls.close()

    def _pause(self) -> None:
        threading.Event().wait(self._pause_ms / 1000)
        self._pause_ms = min(max(_PAUSE_MS_FIRST, 2 * self._pause_ms), _PAUSE_MS_MAX)


def subscription_of(settings: SourceSettings, topic: str) -> SubscriptionData:
    """The subscription to a topic that the options describe.

    Raises:
        ConfigError: the tag expression names no tag.
    """
    if settings.sql_filter is not None:
        return parse_subscription(topic, settings.sql_filter, SQL92)
    return parse_subscription(topic, settings.tags)


_TAGS_PLAN = plan_columns(schema_of(["tags"]))

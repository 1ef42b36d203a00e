"""Reads for pulls with a filter on properties: looks on until enough is found or looked at.

The store's sieve does nearly all of it, without taking a message apart. Rows that the sieve does
not walk over are read as for any other pull, and each message decoded: a queue of whole batches, a
filter of very many properties, and damaged rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from contrail.broker.state.pull_plan import PropertyFilter, PullPlan
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.model.properties import decode_properties
from contrail.model.record import decode_record
from contrail.store import GetResult, GetStatus, MessageStore, Sifted, SiftLimits

# RocketMQ looks at 16,000 bytes of rows for one pull, however many its filter lets through.
SCANNED_ROWS_MAX = 800
# And at no more than this many bytes of messages, which it must read for a property filter.
SCANNED_BYTES_MAX = 16 << 20
# Evaluating an expression costs some 20 ns a character for each row: those of more than 256
# characters look at fewer rows, so that no pull evaluates for longer than a few milliseconds.
SCANNED_CHARACTERS_MAX = SCANNED_ROWS_MAX * 256
_ROWS_MIN = 32


def scanned_rows_max(text: str) -> int:
    """How many rows one pull with this expression looks at."""
    return max(_ROWS_MIN, min(SCANNED_ROWS_MAX, SCANNED_CHARACTERS_MAX // max(1, len(text))))


@dataclass(slots=True)
class _Walk:
    """How far a read has come."""

    queue_offset: int
    count_left: int
    bytes_left: int
    rows_max: int
    queue_offset_min: int = 0
    queue_offset_max: int = 0
    kept: list[memoryview] = field(default_factory=list)
    kept_count: int = 0
    kept_bytes: int = 0
    scanned_count: int = 0
    scanned_bytes: int = 0
    is_full: bool = False

    @property
    def is_over(self) -> bool:
        return (
            self.is_full
            or self.count_left <= 0
            or self.bytes_left <= 0
            or self.scanned_count >= self.rows_max
            or self.scanned_bytes >= SCANNED_BYTES_MAX
            or self.queue_offset >= self.queue_offset_max
        )

    def keep(self, view: memoryview, count: int) -> None:
        self.kept.append(view)
        self.kept_count += count
        self.kept_bytes += len(view)
        self.count_left -= count
        self.bytes_left -= len(view)

    def limits(self) -> SiftLimits:
        return SiftLimits(
            self.count_left,
            self.bytes_left,
            self.rows_max - self.scanned_count,
            SCANNED_BYTES_MAX - self.scanned_bytes,
            is_first_free=not self.scanned_count,
        )

    def take(self, sifted: Sifted) -> None:
        self.kept += sifted.ranges
        self.kept_count += sifted.message_count
        self.kept_bytes += sifted.byte_count
        self.count_left -= sifted.message_count
        self.bytes_left -= sifted.byte_count
        self.scanned_count += sifted.scanned_count
        self.scanned_bytes += sifted.scanned_bytes
        self.queue_offset += sifted.scanned_count
        self.is_full = sifted.is_over
        self.queue_offset_min = sifted.queue_offset_min
        self.queue_offset_max = sifted.queue_offset_max


class FilteredReads:
    """Finds the messages whose properties pass."""

    def __init__(self, settings: RuntimeSettings, store: MessageStore) -> None:
        self._settings = settings
        self._store = store

    def read(self, plan: PullPlan) -> GetResult:
        """The answer to a filtered pull; ``ranges`` are whole records, some of them joined."""
        wanted = plan.property_filter
        assert wanted is not None
        config = self._settings.config
        count_max = max(1, min(plan.count_max, config.transfer_count_in_memory_max))
        walk = _Walk(
            plan.queue_offset,
            count_max,
            config.transfer_bytes_in_memory_max,
            scanned_rows_max(wanted.text),
        )
        while True:
            sifted = None
            if wanted.sieve is not None:
                sifted = self._store.sift(
                    plan.topic, plan.queue_id, walk.queue_offset, walk.limits(), wanted.sieve
                )
            if sifted is not None:
                walk.take(sifted)
            else:
                last = self._read_some(plan, wanted, walk)
                if last.status is not GetStatus.FOUND:
                    return _ended(plan, walk, last)
            if walk.is_over:
                return _found(walk)

    def _read_some(self, plan: PullPlan, wanted: PropertyFilter, walk: _Walk) -> GetResult:
        """As many messages as one answer may have, each decoded."""
        result = self._store.get(
            plan.topic,
            plan.queue_id,
            walk.queue_offset,
            count_max=self._settings.config.transfer_count_in_memory_max,
            bytes_max=walk.bytes_left,
            tag_codes=plan.tag_codes,
        )
        walk.queue_offset_min = result.queue_offset_min
        walk.queue_offset_max = result.queue_offset_max
        if result.status is not GetStatus.FOUND:
            return result
        walk.queue_offset = result.next_queue_offset
        walk.scanned_count += result.message_count
        walk.scanned_bytes += result.byte_count
        for record in result.records:
            message = decode_record(record, 0)
            if walk.count_left <= 0 or (walk.kept and len(record) > walk.bytes_left):
                walk.queue_offset, walk.is_full = message.queue_offset, True
                break
            if wanted.matches(decode_properties(message.raw_properties)):
                walk.keep(record, 1)
        return result


def _ended(plan: PullPlan, walk: _Walk, last: GetResult) -> GetResult:
    """The walk cannot go on from here; messages that were found before count."""
    return last if walk.queue_offset == plan.queue_offset else _found(walk)


def _found(walk: _Walk) -> GetResult:
    return GetResult(
        GetStatus.FOUND if walk.kept else GetStatus.NO_MATCHED_MESSAGE,
        walk.queue_offset,
        walk.queue_offset_min,
        walk.queue_offset_max,
        walk.kept,
        walk.kept_count,
        walk.kept_bytes,
    )

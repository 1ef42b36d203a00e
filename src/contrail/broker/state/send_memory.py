"""The messages that a topic stored lately, by their unique keys.

A producer that got no answer sends again. A topic that de-duplicates remembers where the message
went the first time, for a while and for a number of keys, and gives that answer once more.

A million keys are common, so a memory keeps them in columns of integers, 68 bytes each: a key is
kept as a 128-bit digest (two different keys with the same digest do not occur), and found by linear
hashing, whose table grows by one bucket at a time: no send waits for a table that doubles.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from contrail.broker.state.attributes import (
    DEDUPE_COUNT_ATTRIBUTE,
    DEDUPE_COUNT_DEFAULT,
    DEDUPE_COUNT_MAX,
    DEDUPE_MS_ATTRIBUTE,
    DEDUPE_MS_DEFAULT,
    DEDUPE_MS_MAX,
    is_whole_number,
)

# How many keys one call may drop, so that none takes long; two would do to keep up.
_DROP_COUNT_MAX = 8
_NONE = -1
_DIGEST_BYTES = 16
_HALVES = Struct("<QQ")


class Window(NamedTuple):
    """A key is known while it is neither older than this nor behind that many others."""

    age_ms_max: int
    key_count_max: int

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> Window | None:
        """The window that a topic's attributes ask for; either of the two switches it on."""
        age, count = attributes.get(DEDUPE_MS_ATTRIBUTE), attributes.get(DEDUPE_COUNT_ATTRIBUTE)
        if age is None and count is None:
            return None
        return cls(
            _bounded(age, DEDUPE_MS_DEFAULT, DEDUPE_MS_MAX),
            _bounded(count, DEDUPE_COUNT_DEFAULT, DEDUPE_COUNT_MAX),
        )


def _bounded(text: str | None, default: int, maximum: int) -> int:
    """A table edited by hand may hold anything: a value that is no number is the default."""
    return int(text) if text is not None and is_whole_number(text, maximum) else default


class FirstSend(NamedTuple):
    """Where a message went the first time it was sent."""

    # The queue that was asked for; the other places are those of the record, waiting or not.
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int


class SendMemory:
    """The keys of one topic in the order in which they were first sent."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self._count = 0
        self._oldest = self._newest = self._free = _NONE
        # One number per slot in each column.
        self._digest_high = array("Q")
        self._digest_low = array("Q")
        self._queue_ids = array("i")
        self._queue_offsets = array("q")
        self._physical_offsets = array("q")
        self._times_ms = array("q")
        # Links between slots: neighbours in age, and the next one in the same bucket.
        self._older = array("i")
        self._newer = array("i")
        self._chained = array("i")
        self._buckets = array("i", [_NONE])
        self._bucket_mask = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self.window.key_count_max

    @property
    def byte_count(self) -> int:
        """The bytes of the columns."""
        return sum(len(column) * column.itemsize for column in (*self._columns(), self._buckets))

    def find(self, key: bytes, now_ms: int) -> FirstSend | None:
        """The first send of a key, unless it was too long ago or too many others came since."""
        slot = self._slot_of(*_digest(key))
        if slot == _NONE or now_ms - self._times_ms[slot] > self.window.age_ms_max:
            return None
        return FirstSend(
            self._queue_ids[slot],
            self._queue_offsets[slot],
            self._physical_offsets[slot],
            self._times_ms[slot],
        )

    def remember(self, key: bytes, first: FirstSend) -> None:
        """Note a key that was just stored, as the newest; the oldest ones make room."""
        high, low = _digest(key)
        known = self._slot_of(high, low)
        if known != _NONE:
            self._drop(known)
        self._make_room(first.store_timestamp_ms)
        slot = self._fill_slot(high, low, first)
        self._link(slot, older=self._newest, newer=_NONE)

    def remember_older(self, key: bytes, first: FirstSend) -> None:
        """Note a key that was stored before all known ones; of one key the newest counts."""
        high, low = _digest(key)
        if self.is_full or self._slot_of(high, low) != _NONE:
            return
        slot = self._fill_slot(high, low, first)
        self._link(slot, older=_NONE, newer=self._oldest)

    def assign(self, other: SendMemory) -> None:
        """Be as another memory, of which nothing is shared."""
        self.window = other.window
        self._count = other._count
        self._oldest, self._newest, self._free = other._oldest, other._newest, other._free
        for mine, its in zip(self._columns(), other._columns(), strict=True):
            mine[:] = its
        self._buckets = other._buckets[:]
        self._bucket_mask = other._bucket_mask

    def _make_room(self, now_ms: int) -> None:
        born_ms_min = now_ms - self.window.age_ms_max
        for _ in range(_DROP_COUNT_MAX):
            if self._oldest == _NONE:
                return
            if not self.is_full and self._times_ms[self._oldest] >= born_ms_min:
                return
            self._drop(self._oldest)

    # Slots.

    def _columns(self) -> tuple[array[int], ...]:
        return (
            self._digest_high,
            self._digest_low,
            self._queue_ids,
            self._queue_offsets,
            self._physical_offsets,
            self._times_ms,
            self._older,
            self._newer,
            self._chained,
        )

    def _fill_slot(self, high: int, low: int, first: FirstSend) -> int:
        """Put a key into a free slot and into its bucket; its age is the caller's to link."""
        slot = self._take_slot()
        self._digest_high[slot] = high
        self._digest_low[slot] = low
        self._queue_ids[slot] = first.queue_id
        self._queue_offsets[slot] = first.queue_offset
        self._physical_offsets[slot] = first.physical_offset
        self._times_ms[slot] = first.store_timestamp_ms
        bucket = self._bucket_of(low)
        self._chained[slot] = self._buckets[bucket]
        self._buckets[bucket] = slot
        self._count += 1
        if self._count > len(self._buckets):
            self._split_bucket()
        return slot

    def _take_slot(self) -> int:
        slot = self._free
        if slot != _NONE:
            self._free = self._newer[slot]
            return slot
        for column in self._columns():
            column.append(0)
        return len(self._times_ms) - 1

    def _link(self, slot: int, *, older: int, newer: int) -> None:
        self._older[slot] = older
        self._newer[slot] = newer
        if older == _NONE:
            self._oldest = slot
        else:
            self._newer[older] = slot
        if newer == _NONE:
            self._newest = slot
        else:
            self._older[newer] = slot

    def _drop(self, slot: int) -> None:
        self._unchain(slot)
        older, newer = self._older[slot], self._newer[slot]
        if older == _NONE:
            self._oldest = newer
        else:
            self._newer[older] = newer
        if newer == _NONE:
            self._newest = older
        else:
            self._older[newer] = older
        self._newer[slot] = self._free
        self._free = slot
        self._count -= 1

    # Buckets.

    def _bucket_of(self, low: int) -> int:
        bucket = low & self._bucket_mask
        return bucket if bucket < len(self._buckets) else bucket & (self._bucket_mask >> 1)

    def _slot_of(self, high: int, low: int) -> int:
        slot = self._buckets[self._bucket_of(low)]
        while slot != _NONE:
            if self._digest_low[slot] == low and self._digest_high[slot] == high:
                return slot
            slot = self._chained[slot]
        return _NONE

    def _unchain(self, slot: int) -> None:
        bucket = self._bucket_of(self._digest_low[slot])
        at = self._buckets[bucket]
        if at == slot:
            self._buckets[bucket] = self._chained[slot]
            return
        while self._chained[at] != slot:
            at = self._chained[at]
        self._chained[at] = self._chained[slot]

    def _split_bucket(self) -> None:
        """Add one bucket; only the keys of the bucket it is the double of may move there."""
        added = len(self._buckets)
        if added > self._bucket_mask:
            self._bucket_mask = self._bucket_mask * 2 + 1
        split = added & (self._bucket_mask >> 1)
        slot, self._buckets[split] = self._buckets[split], _NONE
        self._buckets.append(_NONE)
        while slot != _NONE:
            following = self._chained[slot]
            bucket = self._digest_low[slot] & self._bucket_mask
            self._chained[slot] = self._buckets[bucket]
            self._buckets[bucket] = slot
            slot = following


class Claim(NamedTuple):
    """The key of a send to a topic that de-duplicates, before and after it is stored."""

    topic: str
    memory: SendMemory
    # Empty for a batch whose messages have keys of their own.
    key: bytes

    @property
    def name(self) -> tuple[str, bytes]:
        """A key that no other message of the broker has."""
        return (self.topic, self.key)


def _digest(key: bytes) -> tuple[int, int]:
    high, low = _HALVES.unpack(blake2b(key, digest_size=_DIGEST_BYTES).digest())
    return high, low

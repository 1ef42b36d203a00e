"""The messages of its log that a slave, acting as master, handed to other brokers.

Its own log is its master's, so nothing is written there about them. The ledger names their records
instead: delayed and timed messages that waited, and half messages. The slave, and the master when
it is back, take them for done. A slave and its master have the same records at the same places.

Encoded: two counts (i64), then the physical offsets of waited messages and of half messages, all
big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from contrail.errors import RemoteProtocolError

# Eight megabytes: one answer holds them.
COUNT_MAX = 1_000_000
_COUNTS = struct.Struct(">qq")


class Escaped:
    """Places in the log, by the kind of message."""

    def __init__(self, waited: Iterable[int] = (), halves: Iterable[int] = ()) -> None:
        self.waited = set(waited)
        self.halves = set(halves)
        self.changed = False

    def __len__(self) -> int:
        return len(self.waited) + len(self.halves)

    @property
    def is_full(self) -> bool:
        """Whether no more messages may be handed over until retention removes old ones."""
        return len(self) >= COUNT_MAX

    def add_waited(self, physical_offset: int) -> None:
        self.waited.add(physical_offset)
        self.changed = True

    def add_half(self, physical_offset: int) -> None:
        self.halves.add(physical_offset)
        self.changed = True

    def add(self, other: Escaped) -> None:
        """Take another broker's ledger over."""
        if other.waited <= self.waited and other.halves <= self.halves:
            return
        self.waited |= other.waited
        self.halves |= other.halves
        self.changed = True

    def forget_before(self, physical_min: int) -> None:
        """Retention removed the records below."""
        self.waited = {place for place in self.waited if place >= physical_min}
        self.halves = {place for place in self.halves if place >= physical_min}

    def encode(self) -> bytes:
        places = [*sorted(self.waited), *sorted(self.halves)]
        counts = _COUNTS.pack(len(self.waited), len(self.halves))
        return counts + struct.pack(f">{len(places)}q", *places)

    @classmethod
    def decode(cls, data: bytes) -> Escaped:
        """Raises ``RemoteProtocolError`` for anything that ``encode`` does not make."""
        if len(data) < _COUNTS.size:
            raise RemoteProtocolError("ledger", f"a ledger of {len(data)} bytes is too short")
        waited_count, half_count = _COUNTS.unpack_from(data)
        total = waited_count + half_count
        if min(waited_count, half_count) < 0 or len(data) != _COUNTS.size + 8 * total:
            raise RemoteProtocolError(
                "ledger",
                f"a ledger of {len(data)} bytes cannot hold {waited_count} and {half_count} places",
            )
        places = struct.unpack_from(f">{total}q", data, _COUNTS.size)
        return cls(places[:waited_count], places[waited_count:])

"""A message that waits for its time, as the timer files know it."""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

MAGIC_DEFAULT = 1
# To be put back on the timer topic: its time is further away than the wheel reaches.
MAGIC_ROLL = 2
# Not a message of its own, but the end of another one.
MAGIC_DELETE = 4

_SUMMED = Struct(">iqqqi")


class FiledRow(NamedTuple):
    """One row, wherever it stands in the timer log."""

    slot_ms: int
    write_ms: int
    magic: int
    physical_offset: int
    byte_count: int
    topic_hash: int

    @property
    def sum(self) -> int:
        """What it adds to the check sum over all rows that wait."""
        return zlib.crc32(
            _SUMMED.pack(
                self.magic, self.write_ms, self.slot_ms, self.physical_offset, self.byte_count
            )
        )

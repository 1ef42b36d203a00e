"""A waiting timer message, as a row of the timer files."""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

MAGIC_DEFAULT = 1
# The message is put back on the timer topic: its time is beyond the wheel's range.
MAGIC_ROLL = 2
# The row is no message: it deletes another one.
MAGIC_DELETE = 4

_SUMMED = Struct(">iqqqi")


class FiledRow(NamedTuple):
    """One row, without its position in the timer log."""

    slot_ms: int
    write_ms: int
    magic: int
    physical_offset: int
    byte_count: int
    topic_hash: int

    @property
    def sum(self) -> int:
        """The row's share of the check sum over all waiting rows."""
        return zlib.crc32(
            _SUMMED.pack(
                self.magic, self.write_ms, self.slot_ms, self.physical_offset, self.byte_count
            )
        )

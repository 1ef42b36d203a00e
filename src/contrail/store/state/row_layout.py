"""Decodes in Python the rows whose layout ``contrail.kernels.record_layout`` tables."""

from __future__ import annotations

from struct import Struct

from contrail.kernels.record_layout import BLANK_ROW_SIZE, ROW_BASE_AT

# physicalOffset, size of the record, tagsCode
QUEUE_ROW = Struct(">qiq")
# and storeTimestamp
TIMED_ROW = Struct(">qiqq")
# and baseQueueOffset, batchCount, compactOffset, reserved
BATCH_ROW = Struct(">qiqqqhii")
# keyHash, physicalOffset, storeTimestamp
INDEX_ROW = Struct(">iqq")

# How rows of either kind begin: physicalOffset, size of the record.
ROW_TARGET = Struct(">qi")
# At ``ROW_BASE_AT`` of a batch row: baseQueueOffset, batchCount.
ROW_BATCH = Struct(">qh")

# The row of a message that the log never had or no longer has. No record is that large, so a read
# selects such a row only as its first.
BLANK_ROW = QUEUE_ROW.pack(0, BLANK_ROW_SIZE, 0)
BLANK_TARGET = ROW_TARGET.pack(0, BLANK_ROW_SIZE)


def base_offset(rows: bytes | bytearray, at: int = 0) -> int:
    """The queue offset of the first message of the batch row at byte ``at``."""
    return int(ROW_BATCH.unpack_from(rows, at + ROW_BASE_AT)[0])

"""Give each message of a run its queue offset and its place behind the end of the log.

A draft is the tuple that ``record_build`` lays out; the fields used here are 0 (topic), 1 (queue
id) and 5 (sysFlag). Prepared (half) and rolled-back messages take no place in a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_TRANSACTION_MASK = 0xC
_PREPARED = 0x4
_ROLLED_BACK = 0xC


def place_run(
    drafts: Sequence[tuple[Any, ...]],
    sizes: list[int],
    next_offsets: dict[tuple[bytes, int], int],
    physical_end: int,
    weight: int,
) -> tuple[list[int], list[int], int, dict[tuple[bytes, int], int], list[tuple[bytes, int]]]:
    """Return queue offsets, physical offsets, the end, the changed next offsets and new queues.

    ``next_offsets`` is read only. ``weight`` is how many queue offsets each message takes. The
    physical offsets are those of a run that is not broken by the end of a segment.
    """
    queue_offsets: list[int] = []
    physical_offsets: list[int] = []
    planned: dict[tuple[bytes, int], int] = {}
    new_queues: list[tuple[bytes, int]] = []
    position = physical_end
    index = 0
    for draft in drafts:
        physical_offsets.append(position)
        position += sizes[index]
        index += 1
        # A slice of a named tuple is a plain tuple, which C indexes without asking anybody.
        fields = draft[:6]
        transaction = fields[5] & _TRANSACTION_MASK
        if transaction == _PREPARED or transaction == _ROLLED_BACK:
            queue_offsets.append(0)
            continue
        key = (fields[0], fields[1])
        queue_offset = planned.get(key)
        if queue_offset is None:
            queue_offset = next_offsets.get(key)
            if queue_offset is None:
                queue_offset = 0
                new_queues.append(key)
        queue_offsets.append(queue_offset)
        planned[key] = queue_offset + weight
    return (queue_offsets, physical_offsets, position, planned, new_queues)

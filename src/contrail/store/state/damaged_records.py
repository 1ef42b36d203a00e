"""The records of the log that were found damaged since the start.

Memory is bounded: past the limit the oldest is forgotten, and reported again when a read or the
scrubber meets it again.
"""

from __future__ import annotations

from typing import NamedTuple

_REMEMBERED_MAX = 10_000


class DamagedRecord(NamedTuple):
    """Bytes of the log, and the queue and offset of the message they held, if known."""

    physical_start: int
    physical_end: int
    reason: str
    topic: str | None = None
    queue_id: int = -1
    queue_offset: int = -1

    def __str__(self) -> str:
        bytes_text = f"bytes {self.physical_start} to {self.physical_end} of the log"
        if self.topic is None:
            return f"{bytes_text} ({self.reason})"
        return (
            f"message {self.queue_offset} of queue {self.queue_id} of {self.topic}, {bytes_text} "
            f"({self.reason})"
        )


class DamagedRecords:
    """Remembers damage by its first physical offset."""

    def __init__(self, remembered_max: int = _REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        self._by_start: dict[int, DamagedRecord] = {}
        self.found_count = 0
        self.passed_over_count = 0

    def __len__(self) -> int:
        return len(self._by_start)

    def at(self, physical_offset: int) -> DamagedRecord | None:
        return self._by_start.get(physical_offset)

    def note(self, found: DamagedRecord) -> bool:
        """Remember ``found``; returns whether the damage, or the message it names, is new."""
        known = self._by_start.get(found.physical_start)
        if known is not None and (known.topic is not None or found.topic is None):
            return False
        self.found_count += known is None
        if known is None and len(self._by_start) >= self._remembered_max:
            del self._by_start[next(iter(self._by_start))]
        self._by_start[found.physical_start] = found
        return True

    def forget(self, physical_offset: int) -> None:
        """The record that begins there is whole again."""
        self._by_start.pop(physical_offset, None)

    def newest(self, count_max: int) -> list[DamagedRecord]:
        return list(self._by_start.values())[-count_max:]

    def drop_before(self, physical_min: int) -> None:
        """Forget damage below ``physical_min``: retention removed these segments."""
        for start in [one for one in self._by_start if one < physical_min]:
            del self._by_start[start]

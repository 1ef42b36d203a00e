"""Re-reads cold files in small steps and repairs what can be derived again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from contrail.clock import Clock
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import SegmentList


class DamagedRange(NamedTuple):
    """Bytes of the log that are not what was written there."""

    physical_start: int
    physical_end: int
    reason: str


@dataclass(slots=True)
class ScrubReport:
    """What one step found and repaired."""

    bytes_checked: int = 0
    records_checked: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    repaired_rows: int = 0
    repaired_index_files: int = 0
    finished_pass: bool = False


@dataclass(slots=True)
class ScrubCounters:
    """The sums since the start, for metrics."""

    bytes_checked: int = 0
    records_checked: int = 0
    damaged_ranges: int = 0
    repaired_rows: int = 0
    repaired_index_files: int = 0
    passes: int = 0


class Scrubber:
    """Walks the log again and again, a little at a time."""

    def __init__(
        self,
        config: StoreConfig,
        files: FileSystem,
        segments: SegmentList,
        queues: QueueTable,
        index: KeyIndex | None,
        *,
        dispatched_end: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._config = config
        self._files = files
        self._segments = segments
        self._queues = queues
        self._index = index
        self._dispatched_end = dispatched_end
        self._clock = clock
        self.counters = ScrubCounters()

    def run_once(self, bytes_max: int) -> ScrubReport:
        """Check the next ``bytes_max`` bytes of the log and what was derived from them."""
        return ScrubReport()

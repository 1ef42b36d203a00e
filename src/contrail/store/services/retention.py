"""Removes the oldest segments by age and disk use, and the files derived from them.

Removal is an unlink: a read of the segment that is under way keeps its bytes. The folder is synced
after each, because two names that vanish out of order would look like a hole in the log after a
crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.key_index import KeyIndex
from contrail.store.disk.queue_table import QueueTable
from contrail.store.disk.segments import Segment, SegmentList
from contrail.store.state.retention import RetentionRules, RetentionState

_LOG = "commit log's partition"
_QUEUES = "consume queues' partition"


class Retention:
    """Owns the removal of segments. Called by the store's owner only, never from two threads."""

    def __init__(
        self,
        config: StoreConfig,
        files: FileSystem,
        segments: SegmentList,
        queues: QueueTable,
        index: KeyIndex | None,
        *,
        on_disk_full: Callable[[str | None], None],
        before_removal: Callable[[int], bool],
        kept_count: int = 1,
    ) -> None:
        """The newest ``kept_count`` segments are never removed."""
        self._kept_count = kept_count
        self._config = config
        self._files = files
        self._segments = segments
        self._queues = queues
        self._index = index
        self._on_disk_full = on_disk_full
        self._before_removal = before_removal
        self._state = RetentionState(RetentionRules.from_config(config))
        self._told_full = False
        self._cleaned_below: int | None = None
        self.problem: str | None = None

    @property
    def due_again_ms(self) -> int | None:
        """When to call ``run_once`` to go on with a round; None: at ``cleanResourceInterval``."""
        return self._state.due_again_ms

    def request_manual(self) -> None:
        """Let the next rounds remove segments past their age, whatever the hour."""
        self._state.request_manual()

    def judge_disk(self) -> None:
        """Measure disk use, and tell the store when the disk became too full or has room again."""
        used = min(self._used_percent(folder) for folder in self._segments.folders())
        self._state.judge_partition(_LOG, used)
        queues_used = self._used_percent(self._config.root / "consumequeue")
        self._state.judge_partition(_QUEUES, queues_used)
        reason = self._state.full_reason
        if (reason is not None) != self._told_full:
            self._told_full = reason is not None
            self._on_disk_full(reason)

    def run_once(self, now_ms: int) -> list[Path]:
        """One step of cleaning; returns the paths removed.

        A file that cannot be removed ends the round, is named in ``problem`` and is tried again in
        the next one: appends need not stop for it.
        """
        self.judge_disk()
        removed: list[Path] = []
        try:
            self._remove_segments(now_ms, removed)
            self._clean_derived(removed)
            self.problem = None
        except OSError as error:
            self._state.end_round()
            self.problem = f"retention could not go on: {error}"
        return removed

    def _remove_segments(self, now_ms: int, removed: list[Path]) -> None:
        more = self._state.plan_round(now_ms, time.localtime(now_ms / 1000).tm_hour)
        while more:
            segment = self._candidate(now_ms)
            if segment is None:
                self._state.end_round()
                return
            self._segments.remove_first()
            self._files.sync_folder(segment.path.parent)
            crashpoint("retention.segment_removed")
            removed.append(segment.path)
            more = self._state.commit_removal(now_ms)
            self.judge_disk()

    def _candidate(self, now_ms: int) -> Segment | None:
        """The oldest segment, if it may be removed now; never the newest segments."""
        if len(self._segments) <= self._kept_count:
            return None
        segment = self._segments.snapshot()[0]
        if not self._state.may_remove(self._files.modified_ms(segment.path), now_ms):
            return None
        return segment if self._before_removal(segment.end) else None

    def _clean_derived(self, removed: list[Path]) -> None:
        """If the log's minimum moved, drop queue and index files that lead only below it."""
        physical_min = self._segments.physical_min
        if physical_min == self._cleaned_below:
            return
        removed += self._queues.drop_files_before(physical_min)
        crashpoint("retention.queue_files_removed")
        if self._index is not None:
            removed += self._index.drop_files_before(physical_min)
            crashpoint("retention.index_files_removed")
        self._queues.correct_minimums(physical_min)
        self._cleaned_below = physical_min

    def _used_percent(self, folder: Path) -> int:
        """How full the partition of ``folder`` is, whether or not ``folder`` exists yet."""
        while not self._files.exists(folder) and folder != folder.parent:
            folder = folder.parent
        return round(self._files.usage_ratio(folder) * 100)

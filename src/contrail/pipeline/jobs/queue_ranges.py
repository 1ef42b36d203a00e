"""The offset ranges of a source's queues, from brokers or from a store folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from contrail.pipeline.cluster import ClusterView
from contrail.pipeline.jobs.archive_layout import Range
from contrail.pipeline.offline_choice import is_topic_read
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import SourceSettings
from contrail.store.reader import StoreReader


class QueueRanges:
    """The queues that source options choose; use it in ``with``."""

    def __init__(self, options: Mapping[str, str], broker_name: str = "") -> None:
        """``broker_name`` names the broker of a store folder, which does not hold it."""
        self._settings = SourceSettings.of(options, streaming=False)
        self._broker_name = broker_name
        self._view = None if self._settings.store_path else ClusterView(self._settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._view is not None:
            self._view.close()

    def now(self) -> dict[QueueKey, Range]:
        """Every queue's oldest and next queue offset; without queues of brokers that are away."""
        if self._view is None:
            return _stored_ranges(self._settings, self._broker_name)
        reaches = self._view.ranges(self._view.queues())
        return {QueueKey(*queue): Range(*reach) for queue, reach in reaches.items()}

    @property
    def away(self) -> frozenset[str]:
        """Brokers that did not answer ``now``."""
        return frozenset() if self._view is None else self._view.away

    def at(self, time_ms: int | None) -> dict[QueueKey, int]:
        """The queue offset of the first message stored at or after a time; empty without a time."""
        if time_ms is None:
            return {}
        assert self._view is not None, "a store folder is not asked for times"
        found = self._view.offsets_at(self._view.queues(), time_ms)
        return {QueueKey(*queue): queue_offset for queue, queue_offset in found.items()}


def _stored_ranges(settings: SourceSettings, broker_name: str) -> dict[QueueKey, Range]:
    assert settings.store_path is not None
    reader = StoreReader.open(Path(settings.store_path), segment_bytes=settings.segment_bytes)
    return {
        QueueKey(topic, broker_name, queue.queue_id): Range(
            queue.queue_offset_min, queue.queue_offset_max
        )
        for topic, queues in reader.topics().items()
        if is_chosen(topic, settings)
        for queue in queues
    }


def is_chosen(topic: str, settings: SourceSettings) -> bool:
    """Whether a read of a store folder with these settings includes a topic."""
    return is_topic_read(
        topic, settings.topics, settings.topic_pattern, internal=settings.internal_topics
    )

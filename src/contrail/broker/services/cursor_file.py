"""A cursor's file: written only when the log is durable as far as the cursor says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.persistence import Persistence, Render
from contrail.broker.state.durable_marks import DurableMarks

T = TypeVar("T")


class CursorFile(Generic[T]):
    """Takes a mark after every delivery and keeps the newest that holds in a file."""

    def __init__(
        self,
        name: str,
        persistence: Persistence,
        deliveries: Deliveries,
        *,
        render: Callable[[T], bytes],
        interval_ms: int,
    ) -> None:
        self._deliveries = deliveries
        self._render = render
        self._marks: DurableMarks[T] = DurableMarks()
        self._held: tuple[int, T] | None = None
        self._writing_end = 0
        self._written_end = 0
        persistence.register(
            name,
            take_changed=self._take_changed,
            snapshot=self._snapshot,
            interval_ms=interval_ms,
            on_written=self._note_written,
        )

    def begin(self, physical_start: int) -> None:
        """The file as it is speaks for all deliveries up to here."""
        self._written_end = physical_start

    def note(self, physical_end: int, mark: T) -> None:
        """``mark`` holds once the log is durable up to ``physical_end``."""
        self._marks.note(physical_end, mark)

    def forget(self) -> None:
        """Drop the marks that wait: the log they speak of may be cut."""
        self._marks = DurableMarks()

    @property
    def durable_end(self) -> int:
        """The log position up to which the file speaks for all deliveries."""
        if self._marks or (self._held is not None and self._held[0] > self._written_end):
            return self._written_end
        return self._deliveries.settled_end

    def _take_changed(self) -> bool:
        newest = self._marks.take(self._deliveries.settled_end)
        if newest is None:
            return False
        self._held = newest
        return True

    def _snapshot(self) -> Render:
        assert self._held is not None, "only what changed is copied"
        self._writing_end, mark = self._held
        return lambda: self._render(mark)

    def _note_written(self) -> None:
        self._written_end = self._writing_end

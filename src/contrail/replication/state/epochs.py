"""Epochs of a replicated log: which leader wrote which byte.

A leader opens its epoch with a marker record. The epoch of a byte is that of the last marker at or
before it, 0 before the first one. A blank record belongs to the record behind it: an epoch begins
with the blank in front of its marker.

The epoch of an *end* is that of the byte before it. At the first byte of a marker it is still the
old epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NO_EPOCH = 0
"""The epoch of bytes that no leader of a group wrote."""


@dataclass(frozen=True, slots=True)
class EpochStart:
    """An epoch and the physical offset of its first byte."""

    epoch: int
    physical_start: int


class EpochTable:
    """The epochs of one member's log, in rising order of epoch and of start."""

    def __init__(
        self, starts: Sequence[EpochStart] | None = None, *, removed_count: int = 0
    ) -> None:
        """``removed_count`` epochs began before the first of ``starts``; nobody asks for them."""
        self._starts: list[EpochStart] = []
        self.removed_count = removed_count
        for start in starts or []:
            self.begin(start.epoch, start.physical_start)

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    @property
    def marker_count(self) -> int:
        """How many markers the log has had: the queue offset of the next one."""
        return self.removed_count + len(self._starts)

    @property
    def last_epoch(self) -> int:
        return self._starts[-1].epoch if self._starts else NO_EPOCH

    def begin(self, epoch: int, physical_start: int) -> None:
        """The next byte of the log, at ``physical_start``, is the first of ``epoch``."""
        if self._starts:
            last = self._starts[-1]
            assert last.epoch < epoch, f"epoch {epoch} begins behind epoch {last.epoch}"
            assert last.physical_start < physical_start, "an epoch has at least its marker"
        self._starts.append(EpochStart(epoch, physical_start))

    def epoch_of_byte(self, physical_offset: int) -> int:
        for start in reversed(self._starts):
            if start.physical_start <= physical_offset:
                return start.epoch
        return NO_EPOCH

    def epoch_of_end(self, physical_end: int) -> int:
        """The epoch of the byte before ``physical_end``."""
        return self.epoch_of_byte(physical_end - 1)

    def start_of(self, epoch: int) -> int:
        """Where ``epoch`` begins; 0 for bytes that no leader wrote."""
        for start in self._starts:
            if start.epoch == epoch:
                return start.physical_start
        assert epoch == NO_EPOCH, f"the log has no epoch {epoch}"
        return 0

    def stretch_end(self, physical_offset: int, log_end: int) -> int:
        """Where the epoch of the byte at ``physical_offset`` ends."""
        for start in self._starts:
            if start.physical_start > physical_offset:
                return start.physical_start
        return log_end

    def begins_within(self, physical_start: int, physical_end: int) -> bool:
        """Whether an epoch begins at a byte from ``physical_start`` to before ``physical_end``."""
        for start in reversed(self._starts):
            if start.physical_start < physical_end:
                return start.physical_start >= physical_start
        return False

    def end_at_most(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch not above ``epoch`` in this log, and where it ends."""
        end = log_end
        for start in reversed(self._starts):
            if start.epoch <= epoch:
                return start.epoch, end
            end = start.physical_start
        return NO_EPOCH, end

    def before(self, physical_start: int) -> tuple[EpochStart, ...]:
        """The epochs that begin before a place of the log."""
        return tuple(one for one in self._starts if one.physical_start < physical_start)

    def forget_before(self, physical_start: int) -> None:
        """The log begins there now: keep the epoch of the byte before, and the later ones."""
        while len(self._starts) > 1 and self._starts[1].physical_start < physical_start:
            del self._starts[0]
            self.removed_count += 1

    def cut(self, physical_end: int) -> None:
        """Forget the epochs that begin at or behind ``physical_end``."""
        while self._starts and self._starts[-1].physical_start >= physical_end:
            self._starts.pop()

"""The records that a rebuild trusts of one queue: stretches of consecutive offsets, and gaps.

Between two long stretches lie queue offsets without a record, and perhaps a few records that stand
alone and prove little. If the log has exactly as many records there as the queue has offsets, the
order of the records gives each its offset, whatever they claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# In a stretch of more records than this most claim their true offset; the outermost may not.
WEAK_ROWS_MAX = 3
_PEELED_ROWS = 2
_GAP_PLACES_MAX = 16
_STRETCHES_MAX = 1000


class Gap(NamedTuple):
    """Queue offsets between long stretches, the bytes of their records, and the records trusted."""

    first: int
    end: int
    physical_start: int
    physical_end: int
    believed: tuple[int, ...]


@dataclass(slots=True)
class _Stretch:
    first: int
    end: int
    physical_start: int
    physical_end: int
    # The physical offsets of its first and its last records.
    heads: list[int]
    tails: list[int]

    @property
    def is_weak(self) -> bool:
        return len(self.heads) == self.end - self.first


class QueueStretches:
    """Takes trusted records in the order of the log."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []
        self._is_whole = True

    def believe(
        self, first: int, count: int, heads: list[int], tails: list[int], physical_end: int
    ) -> None:
        """Trust ``count`` messages, whose outermost records begin at ``heads`` and ``tails``."""
        last = self._stretches[-1] if self._stretches else None
        if last is not None and first <= last.end:
            if last.is_weak and len(last.heads) < WEAK_ROWS_MAX:
                last.heads = [*last.heads, *heads][:WEAK_ROWS_MAX]
            last.tails = [*last.tails, *tails][-_PEELED_ROWS:]
            last.end = max(last.end, first + count)
            last.physical_end = max(last.physical_end, physical_end)
        elif len(self._stretches) < _STRETCHES_MAX:
            physical_start = heads[0] if heads else 0
            heads, tails = heads[:WEAK_ROWS_MAX], tails[-_PEELED_ROWS:]
            self._stretches.append(
                _Stretch(first, first + count, physical_start, physical_end, heads, tails)
            )
        else:
            self._is_whole = False

    def gaps(self, bounds: tuple[int, int] | None, derived_to: int) -> Iterator[Gap]:
        """The gaps; with ``bounds`` also before the first stretch and behind the last.

        A gap includes the outermost records of the stretches around it.
        """
        if not self._is_whole:
            return
        at = None if bounds is None else bounds[0]
        physical, believed = 0, list[int]()
        for stretch in self._stretches:
            if stretch.is_weak:
                believed += stretch.heads
                continue
            if at is not None and stretch.first > at + len(believed):
                peeled = stretch.heads[:_PEELED_ROWS]
                end = peeled[-1] + 1 if peeled else stretch.physical_start
                behind = stretch.first + len(peeled)
                yield from _gap(at, behind, physical, end, [*believed, *peeled])
            believed = list(stretch.tails)
            at = stretch.end - len(believed)
            physical = believed[0] if believed else stretch.physical_end
        if bounds is not None and at is not None and bounds[1] > at + len(believed):
            yield from _gap(at, bounds[1], physical, derived_to, believed)


def _gap(first: int, end: int, start: int, stop: int, believed: list[int]) -> Iterator[Gap]:
    if end - first <= _GAP_PLACES_MAX + 2 * _PEELED_ROWS:
        yield Gap(first, end, start, stop, tuple(believed))

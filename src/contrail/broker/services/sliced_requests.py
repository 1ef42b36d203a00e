"""Requests about whole tables of a broker, whose rows may be on the disk only.

Such rows are brought in by a thread once all others have been looked at, and the request is carried
out again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

from contrail.runtime.files import FilePart
from contrail.runtime.turns import LaterCalls
from contrail.store import DiskWaits, NotInMemory
from contrail.wire.sliced_requests import (
    Begin,
    SlicedRequests,
    SlicedRun,
    Steps,
    raises,
    server_stops,
)

# Rows that were brought in this often and still count as missing will never count as present.
_TRIES_MAX = 8


class Fetcher(Protocol):
    """Brings parts of files into memory by a thread."""

    def fetch(self, parts: list[FilePart], then: Callable[[Exception | None], None]) -> None: ...


class StoreSlicedRequests(SlicedRequests):
    """Carries sliced requests out over a store. Belongs to the event loop's thread."""

    def __init__(self, loop: LaterCalls, disk_waits: DiskWaits, fetcher: Fetcher) -> None:
        super().__init__(loop)
        self._disk_waits = disk_waits
        self._fetcher = fetcher

    def _new_run(self, key: Hashable, begin: Begin) -> SlicedRun:
        # A caller that carries a request out without the guard lets it wait for the disk.
        return SlicedRun(key, begin, [], may_wait=not self._disk_waits.are_forbidden)

    def _look(self, run: SlicedRun, steps: Steps) -> None:
        if run.may_wait:
            next(steps)
        else:
            with self._disk_waits:
                next(steps)

    def _puts_off(self, run: SlicedRun, error: BaseException) -> bool:
        if not isinstance(error, NotInMemory):
            return False
        if run.try_count >= _TRIES_MAX or self._is_closed:
            self._end(run, raises(server_stops()))
        else:
            self._fetch(run, error.parts)
        return True

    def _fetch(self, run: SlicedRun, parts: list[FilePart]) -> None:
        run.try_count += 1
        # Not every file system knows which pages are in memory: the last time rows are read anyway.
        run.may_wait = run.try_count == _TRIES_MAX
        self._fetcher.fetch(parts, lambda failure: self._go_on(run, failure))

    def _go_on(self, run: SlicedRun, failure: Exception | None) -> None:
        if failure is not None:
            self._end(run, raises(failure))
        elif run.askers:
            request, peer = run.askers[0]
            self._work.add(self._rows(run, run.begin(request, peer)))

"""Requests whose work grows with the tables: a bounded number of rows in a turn of the loop.

Their handlers are generators that yield after each row and return the answer. A small table is
answered at once. Otherwise the rest is done in the turns after it, other requests are served in
between, and a request that asks for the same thing meanwhile gets the same answer.

Rows that are on the disk only are brought in by a thread once all others have been looked at, and
the request is carried out again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Protocol

from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request, Response
from contrail.runtime.files import FilePart
from contrail.runtime.turns import LaterCalls, TurnWork
from contrail.store.services.residency import DiskWaits, NotInMemory
from contrail.wire.peer import LATER, Answer, Handler, Peer

# A row costs 5 to 20 µs, so that a slice is over in about a millisecond.
ROWS_PER_TURN = 64
RUNNING_MAX = 64
ASKERS_MAX = 1000
# What was brought in so often and still counts as missing will not be told to be there.
_TRIES_MAX = 8

Steps = Generator[None, None, Response]
Begin = Callable[[Request, Peer], Steps]
Reply = Callable[[Request, Peer, Callable[[], Answer]], None]
"""Replies to a request with what a function returns, or with the error that it raises."""


InSlices = Callable[[Begin], Handler]


def in_one_go(begin: Begin) -> Handler:
    """The handler of such a request for a broker that serves nothing else meanwhile."""

    def handle(request: Request, peer: Peer) -> Answer:
        steps = begin(request, peer)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    return handle


class Fetcher(Protocol):
    """Brings parts of files into memory by a thread."""

    def fetch(self, parts: list[FilePart], then: Callable[[Exception | None], None]) -> None: ...


@dataclass(slots=True, eq=False)
class _Run:
    """One piece of work, and the requests that its answer is for."""

    key: Hashable
    begin: Begin
    askers: list[tuple[Request, Peer]]
    try_count: int = 0
    may_wait: bool = False


class SlicedRequests:
    """Carries such requests out. Belongs to the event loop's thread."""

    def __init__(self, loop: LaterCalls, disk_waits: DiskWaits, fetcher: Fetcher) -> None:
        self._work = TurnWork(loop, steps_per_turn=ROWS_PER_TURN, steps_in_a_row=ROWS_PER_TURN // 4)
        self._disk_waits = disk_waits
        self._fetcher = fetcher
        self._reply: Reply | None = None
        self._running: dict[Hashable, _Run] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._running)

    def replies_by(self, reply: Reply) -> None:
        """Must be set before the first request."""
        self._reply = reply

    def handler(self, begin: Begin) -> Handler:
        """The handler of a request code whose work is done in slices."""

        def handle(request: Request, peer: Peer) -> Answer:
            key = (request.code, frozenset(request.fields.items()), request.body)
            run = self._running.get(key)
            if run is not None and len(run.askers) < ASKERS_MAX:
                self._ask(run, request, peer)
                return LATER
            return self._begin(key, begin, request, peer)

        return handle

    def _begin(self, key: Hashable, begin: Begin, request: Request, peer: Peer) -> Answer:
        """Look at the first rows now: nearly always they are all."""
        steps = begin(request, peer)
        for _ in range(ROWS_PER_TURN):
            try:
                next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
        if self._is_closed:
            raise _stops()
        if len(self._running) >= RUNNING_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self._running)} requests about whole tables are under way: ask again later",
            )
        # Whoever carries a request out without the guard lets it wait for the disk.
        run = _Run(key, begin, [], may_wait=not self._disk_waits.are_forbidden)
        self._running.setdefault(key, run)
        self._ask(run, request, peer)
        self._work.add(self._rows(run, steps))
        return LATER

    def _ask(self, run: _Run, request: Request, peer: Peer) -> None:
        run.askers.append((request, peer))
        peer.in_flight_count += 1

    def _rows(self, run: _Run, steps: Steps) -> Generator[None, None, None]:
        """One step for each row; nothing more is looked at once no peer waits for it."""
        outcome: Callable[[], Answer]
        try:
            while any(not peer.is_closed for _, peer in run.askers):
                if run.may_wait:
                    next(steps)
                else:
                    with self._disk_waits:
                        next(steps)
                yield
            steps.close()
            outcome = Response
        except StopIteration as done:
            response: Response = done.value
            outcome = lambda: response  # noqa: E731
        except NotInMemory as absent:
            if run.try_count < _TRIES_MAX and not self._is_closed:
                self._fetch(run, absent.parts)
                return
            outcome = _raises(_stops())
        except Exception as error:
            outcome = _raises(error)
        self._end(run, outcome)

    def _fetch(self, run: _Run, parts: list[FilePart]) -> None:
        run.try_count += 1
        # Not every file system tells what is in memory: the last time it is read all the same.
        run.may_wait = run.try_count == _TRIES_MAX
        self._fetcher.fetch(parts, lambda failure: self._go_on(run, failure))

    def _go_on(self, run: _Run, failure: Exception | None) -> None:
        if failure is not None:
            self._end(run, _raises(failure))
        elif run.askers:
            request, peer = run.askers[0]
            self._work.add(self._rows(run, run.begin(request, peer)))

    def _end(self, run: _Run, outcome: Callable[[], Answer]) -> None:
        assert self._reply is not None
        if self._running.get(run.key) is run:
            del self._running[run.key]
        askers, run.askers = run.askers, []
        for request, peer in askers:
            peer.in_flight_count -= 1
            self._reply(request, peer, outcome)

    def close(self) -> None:
        """Answer what is under way: the broker stops."""
        self._is_closed = True
        for run in list(self._running.values()):
            self._end(run, _raises(_stops()))


def _stops() -> RequestRejected:
    return RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker stops")


def _raises(error: Exception) -> Callable[[], Answer]:
    def fail() -> Answer:
        raise error

    return fail

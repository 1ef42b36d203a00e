"""Requests whose work grows with the tables: a bounded number of rows in a turn of the loop.

Their handlers are generators that yield after each row and return the answer. A small table is
answered at once. Otherwise the rest is done in the turns after it, and other requests are served in
between. A question that is asked again meanwhile gets the same answer, and is dropped when nobody
waits for it any more; a change is made for each request, to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass

from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request, Response
from contrail.runtime.turns import LaterCalls, TurnWork
from contrail.wire.peer import LATER, Answer, Handler, Peer

# A row of a broker costs 5 to 20 µs, so that a slice is over in about a millisecond.
ROWS_PER_TURN = 64
RUNNING_MAX = 64
ASKERS_MAX = 1000

Steps = Generator[None, None, Response]
Begin = Callable[[Request, Peer], Steps]
Reply = Callable[[Request, Peer, Callable[[], Answer]], None]
"""Replies to a request with the value that a function returns, or the error that it raises."""


InSlices = Callable[[Begin], Handler]


def in_one_go(begin: Begin) -> Handler:
    """The handler of a sliced request for a server that serves nothing else meanwhile."""

    def handle(request: Request, peer: Peer) -> Answer:
        steps = begin(request, peer)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    return handle


@dataclass(slots=True, eq=False)
class SlicedRun:
    """One piece of work, and the requests that its answer is for."""

    key: Hashable
    begin: Begin
    askers: list[tuple[Request, Peer]]
    is_change: bool = False
    try_count: int = 0
    may_wait: bool = False


class SlicedRequests:
    """Carries sliced requests out. Belongs to the event loop's thread."""

    def __init__(self, loop: LaterCalls, *, rows_per_turn: int = ROWS_PER_TURN) -> None:
        self._rows_per_turn = rows_per_turn
        self._work = TurnWork(loop, steps_per_turn=rows_per_turn, steps_in_a_row=rows_per_turn // 4)
        self._reply: Reply | None = None
        self._running: dict[Hashable, SlicedRun] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._running)

    def replies_by(self, reply: Reply) -> None:
        """Must be set before the first request."""
        self._reply = reply

    def handler(self, begin: Begin) -> Handler:
        """The handler of a question whose work is done in slices."""

        def handle(request: Request, peer: Peer) -> Answer:
            key = (request.code, frozenset(request.fields.items()), request.body)
            run = self._running.get(key)
            if run is not None and len(run.askers) < ASKERS_MAX:
                self._ask(run, request, peer)
                return LATER
            return self._begin(key, begin, request, peer)

        return handle

    def change_handler(self, begin: Begin) -> Handler:
        """The handler of a change whose work is done in slices."""

        def handle(request: Request, peer: Peer) -> Answer:
            return self._begin(object(), begin, request, peer, is_change=True)

        return handle

    def _begin(
        self,
        key: Hashable,
        begin: Begin,
        request: Request,
        peer: Peer,
        *,
        is_change: bool = False,
    ) -> Answer:
        """Look at the first rows now: nearly always they are all."""
        steps = begin(request, peer)
        for _ in range(self._rows_per_turn):
            try:
                next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
        if self._is_closed:
            raise server_stops()
        # A change is never refused here: its first rows have been carried out.
        if not is_change and len(self._running) >= RUNNING_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self._running)} requests about whole tables are under way: ask again later",
            )
        run = self._new_run(key, begin)
        run.is_change = is_change
        self._running.setdefault(key, run)
        self._ask(run, request, peer)
        self._work.add(self._rows(run, steps))
        return LATER

    def _new_run(self, key: Hashable, begin: Begin) -> SlicedRun:
        return SlicedRun(key, begin, [])

    def _ask(self, run: SlicedRun, request: Request, peer: Peer) -> None:
        run.askers.append((request, peer))
        peer.in_flight_count += 1

    def _rows(self, run: SlicedRun, steps: Steps) -> Generator[None, None, None]:
        """One step for each row; a question ends once no peer waits for it."""
        outcome: Callable[[], Answer]
        try:
            while run.is_change or any(not peer.is_closed for _, peer in run.askers):
                self._look(run, steps)
                yield
            steps.close()
            outcome = Response
        except StopIteration as done:
            response: Response = done.value
            outcome = lambda: response  # noqa: E731
        except BaseException as error:
            if self._puts_off(run, error):
                return
            if not isinstance(error, Exception):
                raise
            outcome = raises(error)
        self._end(run, outcome)

    def _look(self, run: SlicedRun, steps: Steps) -> None:
        """Look at one row."""
        next(steps)

    def _puts_off(self, run: SlicedRun, error: BaseException) -> bool:
        """Whether the run is not ended by this error, but carried out again later."""
        return False

    def _end(self, run: SlicedRun, outcome: Callable[[], Answer]) -> None:
        assert self._reply is not None
        if self._running.get(run.key) is run:
            del self._running[run.key]
        askers, run.askers = run.askers, []
        for request, peer in askers:
            peer.in_flight_count -= 1
            self._reply(request, peer, outcome)

    def close(self) -> None:
        """Answer the requests that are under way: the server stops."""
        self._is_closed = True
        for run in list(self._running.values()):
            self._end(run, raises(server_stops()))


def server_stops() -> RequestRejected:
    return RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, "this server stops")


def raises(error: Exception) -> Callable[[], Answer]:
    """An answer that is this error."""

    def fail() -> Answer:
        raise error

    return fail

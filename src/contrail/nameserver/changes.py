"""Makes changes of the routes that are too large for one turn of the loop.

A change handles a bounded number of rows in a turn. Changes of one broker name are made one at a
time in the order of their requests, and requests that a connection sent after its change are
served after it. A thread decodes a large registration before its first turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request, Response
from contrail.runtime.turns import LaterCalls, TurnWork
from contrail.wire.peer import LATER, Answer, Peer
from contrail.wire.sliced_requests import Reply, Steps, raises, server_stops

# A row costs 1 to 3 µs, so a slice takes less than a millisecond.
ROWS_PER_TURN = 256
WAITING_COUNT_MAX = 10_000
WAITING_BYTES_MAX = 64 << 20
HELD_PER_PEER_MAX = 256

Begin = Callable[[], Steps]
Prepare = Callable[[], Begin]
"""Run by the thread; returns the function that begins the change on the loop."""


class Worker(Protocol):
    """One thread beside the loop."""

    def run(
        self, work: Prepare, then: Callable[[Begin | None, Exception | None], None]
    ) -> None: ...
    def close(self) -> None: ...


class RunningLoop:
    """The running event loop, for servers that are put together before it runs."""

    def call_soon(self, callback: Callable[[], object]) -> Any:
        return asyncio.get_running_loop().call_soon(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any:
        return asyncio.get_running_loop().call_later(delay, callback)


class WorkerThread:
    """Runs one piece of work after the other, and gives each outcome to the loop."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def run(self, work: Prepare, then: Callable[[Begin | None, Exception | None], None]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "registrations")
        future = asyncio.get_running_loop().run_in_executor(self._thread, _attempted, work)
        future.add_done_callback(lambda done: _tell(done, then))

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


Attempt = tuple[Begin | None, Exception | None]


def _attempted(work: Prepare) -> Attempt:
    """The result of the work, or its error without traceback.

    The frames of a traceback hold the decoded registration, and an error that is kept for later
    is part of a cycle that only the garbage collector frees.
    """
    try:
        return work(), None
    except Exception as error:
        each: BaseException | None = error
        while each is not None:
            each.__traceback__ = None
            each = each.__cause__ or each.__context__
        return None, error


def _tell(
    done: asyncio.Future[Attempt], then: Callable[[Begin | None, Exception | None], None]
) -> None:
    if done.cancelled():
        then(None, server_stops())
    else:
        then(*done.result())


@dataclass(slots=True, eq=False)
class _Change:
    """One change; ``request`` is None if no peer waits for it."""

    broker_name: str
    begin: Begin | None
    prepare: Prepare | None = None
    request: Request | None = None
    peer: Peer | None = None
    ends_with_peer: bool = False
    is_in_thread: bool = False
    has_begun: bool = False
    is_ended: bool = False

    @property
    def is_dropped(self) -> bool:
        """Whether the change ends because its peer has closed the connection."""
        return self.ends_with_peer and self.peer is not None and self.peer.is_closed


@dataclass(slots=True)
class _Held:
    """The requests that a connection has sent after a change that is still being made."""

    change_count: int = 0
    requests: deque[Request] = field(default_factory=deque)
    is_being_served: bool = False


class RouteChanges:
    """Makes large changes of routes. Belongs to the event loop's thread."""

    def __init__(self, loop: LaterCalls, worker: Worker) -> None:
        self._work = TurnWork(loop, steps_per_turn=ROWS_PER_TURN, steps_in_a_row=ROWS_PER_TURN // 4)
        self._worker = worker
        self._reply: Reply | None = None
        self._serve: Callable[[Request, Any], None] | None = None
        # The first change of each line is being made.
        self._lines: dict[str, deque[_Change]] = {}
        self._held: dict[Peer, _Held] = {}
        self._waiting_count = 0
        self._waiting_bytes = 0
        self._is_closed = False

    def __len__(self) -> int:
        """How many broker names have unfinished changes."""
        return len(self._lines)

    def replies_by(self, reply: Reply, serve: Callable[[Request, Any], None]) -> None:
        """Set the functions that reply to requests later and that serve held requests."""
        self._reply = reply
        self._serve = serve

    # Changes.

    def make(
        self,
        broker_name: str,
        request: Request,
        peer: Peer,
        *,
        begin: Begin | None = None,
        prepare: Prepare | None = None,
        ends_with_peer: bool = False,
    ) -> Answer:
        """Make a change of a broker's routes and answer the request with its outcome.

        It begins with ``begin``, or with the function that ``prepare`` returns from the thread. A
        change with ``ends_with_peer`` stops when the connection is closed.
        """
        change = _Change(broker_name, begin, prepare, request, peer, ends_with_peer)
        is_first = broker_name not in self._lines
        steps: Steps | None = None
        if is_first and begin is not None:
            # Nearly every change ends here.
            steps = begin()
            for _ in range(ROWS_PER_TURN):
                try:
                    next(steps)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
        else:
            self._require_room(request)
        self._put_off(change)
        line = self._lines.setdefault(broker_name, deque())
        line.append(change)
        if steps is not None:
            self._go_over(change, steps)
        elif is_first:
            self._start(change)
        return LATER

    def clean(self, broker_name: str, rows: Iterator[None]) -> None:
        """Clean these rows before any change of this broker that has not begun."""
        line = self._lines.get(broker_name)
        if line is not None:
            change = _Change(broker_name, lambda: _answered(rows))
            if line[0].has_begun:
                line.insert(1, change)
            else:
                line.appendleft(change)
                self._start(change)
            return
        for _ in range(ROWS_PER_TURN):
            try:
                next(rows)
            except StopIteration:
                return
        change = _Change(broker_name, None)
        self._lines[broker_name] = deque([change])
        self._go_over(change, _answered(rows))

    def again_behind(
        self, broker_names: Iterable[str] | None, act: Callable[[str], object]
    ) -> None:
        """Repeat a small change after the earlier changes that are still being made.

        ``broker_names`` is None for all brokers.
        """
        names = list(self._lines) if broker_names is None else broker_names
        for name in names:
            line = self._lines.get(name)
            if line is not None:
                line.append(_Change(name, lambda name=name: _done(act, name)))  # type: ignore[misc]

    def _start(self, change: _Change) -> None:
        if change.is_dropped:
            self._end(change, Response)
        elif change.begin is not None:
            self._go_over(change, change.begin())
        elif not change.is_in_thread:
            assert change.prepare is not None
            change.is_in_thread = True
            self._worker.run(
                change.prepare, lambda begin, error: self._prepared(change, begin, error)
            )

    def _prepared(self, change: _Change, begin: Begin | None, error: Exception | None) -> None:
        if change.is_ended:
            return
        if error is not None:
            self._end(change, raises(error))
            return
        change.begin = begin
        # First remove the rows of a broker that left meanwhile.
        if self._lines[change.broker_name][0] is change:
            self._start(change)

    def _go_over(self, change: _Change, steps: Steps) -> None:
        change.has_begun = True
        self._work.add(self._rows(change, steps))

    def _rows(self, change: _Change, steps: Steps) -> Generator[None, None, None]:
        outcome: Callable[[], Answer] = Response
        try:
            while not change.is_dropped and not change.is_ended:
                next(steps)
                yield
            steps.close()
        except StopIteration as done:
            response: Response = done.value
            outcome = lambda: response  # noqa: E731
        except Exception as error:
            outcome = raises(error)
        self._end(change, outcome)

    def _end(self, change: _Change, outcome: Callable[[], Answer]) -> None:
        if change.is_ended:
            return
        change.is_ended = True
        if change.request is not None and change.peer is not None:
            assert self._reply is not None
            self._forget(change.request, change.peer)
            self._reply(change.request, change.peer, outcome)
            self._release(change.peer)
        line = self._lines[change.broker_name]
        was_first = line[0] is change
        line.remove(change)
        if not line:
            del self._lines[change.broker_name]
        elif was_first and not self._is_closed:
            self._start(line[0])

    # Requests behind a change.

    def take(self, request: Request, peer: Peer) -> None:
        """Serve a request, or hold it until its connection's change is made."""
        assert self._serve is not None and self._reply is not None
        held = self._held.get(peer)
        if held is None:
            self._serve(request, peer)
            return
        try:
            self._hold(held, request, peer)
        except RequestRejected as refusal:
            self._reply(request, peer, raises(refusal))

    def _hold(self, held: _Held, request: Request, peer: Peer) -> None:
        self._require_room(request)
        if len(held.requests) >= HELD_PER_PEER_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{len(held.requests)} requests of this connection wait for its change of routes",
            )
        self._remember(request, peer)
        held.requests.append(request)

    def _require_room(self, request: Request) -> None:
        if self._is_closed:
            raise server_stops()
        if (
            self._waiting_count >= WAITING_COUNT_MAX
            or self._waiting_bytes + len(request.body) > WAITING_BYTES_MAX
        ):
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{self._waiting_count} requests of {self._waiting_bytes} bytes wait for changes "
                "of routes: ask again later",
            )

    def _put_off(self, change: _Change) -> None:
        assert change.request is not None and change.peer is not None
        self._remember(change.request, change.peer)
        self._held.setdefault(change.peer, _Held()).change_count += 1

    def _remember(self, request: Request, peer: Peer) -> None:
        self._waiting_count += 1
        self._waiting_bytes += len(request.body)
        peer.in_flight_count += 1

    def _forget(self, request: Request, peer: Peer) -> None:
        self._waiting_count -= 1
        self._waiting_bytes -= len(request.body)
        peer.in_flight_count -= 1

    def _release(self, peer: Peer) -> None:
        held = self._held[peer]
        held.change_count -= 1
        if held.change_count:
            return
        if not held.requests:
            if not held.is_being_served:
                del self._held[peer]
        elif not held.is_being_served:
            held.is_being_served = True
            self._work.add(self._served(peer, held))

    def _served(self, peer: Peer, held: _Held) -> Generator[None, None, None]:
        """Serve one request a step, until one of them is a change that takes several turns."""
        assert self._serve is not None
        while held.requests and not held.change_count:
            request = held.requests.popleft()
            self._forget(request, peer)
            # As with requests read from a closed connection: a broker that left stays out.
            if not peer.is_closed:
                self._serve(request, peer)
            yield
        held.is_being_served = False
        if not held.requests and not held.change_count:
            self._held.pop(peer, None)

    def close(self) -> None:
        """Answer the requests that wait for changes: the server stops."""
        self._is_closed = True
        self._worker.close()
        for line in list(self._lines.values()):
            for change in list(line):
                self._end(change, raises(server_stops()))


def _answered(rows: Iterator[None]) -> Steps:
    yield from rows
    return Response()


def _done(act: Callable[[str], object], broker_name: str) -> Steps:
    act(broker_name)
    yield from ()
    return Response()

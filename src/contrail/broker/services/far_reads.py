"""Requests that read old messages: no such request makes the event loop wait for the disk.

Handlers of these requests run while reads that would wait are forbidden. One that meets a page
that is on the disk only is broken off there, a thread brings it in, and the loop carries the
request out again from its beginning, until nothing is missing. Those handlers read all they need
before they change anything, so a request that was broken off has not happened.

Ends of one transaction keep their order. A question whose asker has gone is dropped; a change
is carried out all the same, as it is when nothing has to be brought in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.runtime.files import FilePart
from contrail.store import DiskWaits, NotInMemory
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_THREADS = 3
WAITING_MAX = 2000
WAITING_PER_PEER_MAX = 500
# A search by time takes some forty, and a chain of keys one for each page that it leads to.
TRIES_MAX = 1000
# Parts that were brought in this often and still count as missing will never count as present.
FUTILE_TRIES_MAX = 4
_FETCHED_PARTS_MAX = 64

_QUESTIONS = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.LIST_TRANSACTIONS,
        RequestCode.LIST_SYSTEM_MESSAGES,
        RequestCode.LIST_IN_FLIGHT,
        RequestCode.NOTIFICATION,
        RequestCode.PEEK_MESSAGE,
    }
)
_CHANGES = frozenset(
    {
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.END_TRANSACTION,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.DECIDE_TRANSACTION,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.RECALL_MESSAGE,
        RequestCode.POP_MESSAGE,
    }
)


class FarStore(Protocol):
    """The store as this service sees it; ``bring_in`` is called on its threads."""

    @property
    def disk_waits(self) -> DiskWaits: ...

    def bring_in(self, part: FilePart) -> None: ...


class Loop(Protocol):
    """The part of an event loop that is used here."""

    def call_soon_threadsafe(self, callback: Callable[..., None], *given: object) -> object: ...


@dataclass(slots=True, eq=False)
class _FarRequest:
    """A request that waits for the disk."""

    request: Request
    peer: Peer
    missing: list[FilePart] = field(default_factory=list)
    try_count: int = 0
    futile_count: int = 0


class FarReads:
    """Holds requests until the parts they read are in memory; only the reading is off the loop."""

    def __init__(self, store: FarStore, *, after: Callable[[], None]) -> None:
        """``after`` is called when a held request was carried out, which no frame announced."""
        self._store = store
        self._after = after
        self._answer: Callable[[Request, Any], None] | None = None
        self._loop: Loop | None = None
        self._threads: ThreadPoolExecutor | None = None
        # Lines by transaction, other requests in a line each; reads are for the first of a line.
        self._lines: dict[object, deque[_FarRequest]] = {}
        self._counts: Counter[Peer] = Counter()
        self._fetched: set[FilePart] = set()
        self._is_closed = False
        self.brought_in_count = 0

    def __len__(self) -> int:
        return self._counts.total()

    def begin(self, answer: Callable[[Request, Any], None], loop: Loop | None = None) -> None:
        """``answer`` carries a request out and replies, in every case but ``NotInMemory``."""
        self._answer = answer
        self._loop = loop

    # Requests.

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers; those that may read old messages never wait for the disk."""
        return {
            code: self._guard(handler) if code in _QUESTIONS or code in _CHANGES else handler
            for code, handler in handlers.items()
        }

    def _guard(self, handler: Handler) -> Handler:
        def handle(request: Request, peer: Peer) -> Answer:
            missing: list[FilePart] = []
            if not self._lines or _transaction_of(request) not in self._lines:
                try:
                    with self._store.disk_waits:
                        return handler(request, peer)
                except NotInMemory as absent:
                    missing = absent.parts
            self._hold(_FarRequest(request, peer), missing)
            return LATER

        return handle

    def _hold(self, far: _FarRequest, missing: list[FilePart]) -> None:
        if self._is_closed:
            raise RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, _STOPS)
        if len(self) >= WAITING_MAX or self._counts[far.peer] >= WAITING_PER_PEER_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self)} requests wait for the disk, {self._counts[far.peer]} of this "
                "connection: ask again later",
            )
        self._counts[far.peer] += 1
        line = self._lines.setdefault(_line_of(far), deque())
        line.append(far)
        if len(line) == 1:
            self._bring_in(far, missing)

    def _bring_in(self, far: _FarRequest, missing: list[FilePart]) -> None:
        far.missing = missing
        self._submit(missing, lambda failure: self._brought_in(far, failure))

    def _brought_in(self, far: _FarRequest, failure: Exception | None) -> None:
        self.brought_in_count += 1
        if self._is_closed:
            return
        line = self._lines[_line_of(far)]
        if failure is not None:
            remark = f"messages of the request cannot be read: {failure}"
            far.peer.reply(far.request, Response(ResponseCode.SYSTEM_ERROR, remark))
            self._leave(line)
        while line and self._carry_out(line[0]):
            self._leave(line)
        self._after()

    def _leave(self, line: deque[_FarRequest]) -> None:
        """The first of a line is over."""
        far = line.popleft()
        self._counts[far.peer] -= 1
        if not self._counts[far.peer]:
            del self._counts[far.peer]
        if not line:
            del self._lines[_line_of(far)]

    def _carry_out(self, far: _FarRequest) -> bool:
        """Try; False if something is missing still, and is being brought in."""
        if far.peer.is_closed and far.request.code in _QUESTIONS:
            return True
        missing = self._missing(far)
        if not missing:
            return True
        far.try_count += 1
        far.futile_count = far.futile_count + 1 if missing == far.missing else 0
        if far.futile_count >= FUTILE_TRIES_MAX:
            # Not every file system knows which pages are in memory.
            self._reply(far)
        elif far.try_count >= TRIES_MAX:
            remark = "too much of what the request reads is not in memory: ask again"
            far.peer.reply(far.request, Response(ResponseCode.SYSTEM_BUSY, remark))
        else:
            self._bring_in(far, missing)
            return False
        return True

    def _missing(self, far: _FarRequest) -> list[FilePart]:
        try:
            with self._store.disk_waits:
                self._reply(far)
        except NotInMemory as absent:
            return absent.parts
        return []

    def _reply(self, far: _FarRequest) -> None:
        assert self._answer is not None, "begin comes first"
        try:
            self._answer(far.request, far.peer)
        except Exception:
            # One request that cannot be answered must not stop those behind it.
            _log.exception("request %s of %s failed", far.request.code, far.peer.address)

    # Services.

    def attempt(self, work: Callable[[], _T]) -> _T:
        """Read for a service that comes again later when something has to be brought in first.

        Raises:
            NotInMemory: parts are missing; a thread has been told to bring them in.
        """
        try:
            with self._store.disk_waits:
                return work()
        except NotInMemory as absent:
            self._fetch(absent.parts)
            raise

    def _fetch(self, parts: list[FilePart]) -> None:
        room = _FETCHED_PARTS_MAX - len(self._fetched)
        parts = [part for part in parts if part not in self._fetched][: max(room, 0)]
        if parts and not self._is_closed:
            self._fetched.update(parts)
            self._submit(parts, lambda failure: self._fetched.difference_update(parts))

    def fetch(self, parts: list[FilePart], then: Callable[[Exception | None], None]) -> None:
        """Bring parts in by a thread, and call ``then`` on the loop, with the error if any."""
        if not self._is_closed:
            self._submit(parts, then)

    # Threads.

    def _submit(self, parts: list[FilePart], then: Callable[[Exception | None], None]) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="far-reads")
        self._threads.submit(self._read, self._loop, parts, then)

    def _read(
        self, loop: Loop, parts: list[FilePart], then: Callable[[Exception | None], None]
    ) -> None:
        failure: Exception | None = None
        try:
            for part in parts:
                # Retention may have taken it meanwhile: the reader learns that from the store.
                with contextlib.suppress(FileNotFoundError):
                    self._store.bring_in(part)
        except Exception as error:
            _log.exception("old messages could not be brought into memory")
            failure = error
        # The loop may be closed by now: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(then, failure)

    # The end.

    def close(self) -> None:
        """Stop, and refuse those that wait."""
        self._is_closed = True
        waiting = [far for line in self._lines.values() for far in line]
        self._lines.clear()
        self._counts.clear()
        for far in waiting:
            refusal = Response(ResponseCode.SERVICE_NOT_AVAILABLE, _STOPS)
            far.peer.reply(far.request, refusal)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


_STOPS = "the broker stops: ask again later"


def _transaction_of(request: Request) -> object:
    """The key that the ends of one transaction have in common; None for any other request."""
    if request.code != RequestCode.END_TRANSACTION:
        return None
    return request.fields.get("commitLogOffset")


def _line_of(far: _FarRequest) -> object:
    key = _transaction_of(far.request)
    return far if key is None else key

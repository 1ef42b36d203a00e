"""Pulls far behind the end of the log: answered in turns, and never by waiting for the disk.

Records of such a pull may have left memory. A thread of this service brings them in first, and has
the records behind them read ahead, for a consumer of old messages mostly reads on. Then the event
loop answers the pull through the store's maps, like any other.

Connections take turns, one pull each, and a round of turns is short: in between the loop serves
pulls of new messages. The pulls of one connection keep their order; its pulls of the near
end are not held up by them. No pull is refused for want of a thread: it waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from contrail.broker.state.pull_plan import PullPlan
from contrail.protocol.command import Request
from contrail.runtime.files import FilePart
from contrail.store import OnDisk
from contrail.wire.peer import Peer

_log = logging.getLogger(__name__)

_THREADS = 3
# How long the loop answers far pulls before it looks for something new.
_ROUND_S = 0.000_25
# A connection that has not read its answers is looked at again after this time.
_CHOKED_S = 0.005
# A pull is brought in by at most this many reads: rows, records, a search through batch rows.
_READS_PER_PULL_MAX = 8
# The disk gets a read-ahead hint for a block when a reader comes to the block before it.
BLOCK_RECORD_BYTES = 4 << 20
BLOCK_ROWS = 8192
_HINTS_MAX = 16
# Far pulls are answered without standing in line up to this many bytes until the event loop polls
# again: eight common answers or a large one, which takes about as long as a round. The smallest
# answer counts as 32 KiB, for it is not much cheaper than a common one.
DIRECT_BYTES_MAX = 256 << 10
ANSWER_BYTES_MIN = 32 << 10
_TOLD_BLOCKS_MAX = 1024

_Block = tuple[bytes, int, int]


class ColdStore(Protocol):
    """The store as this service sees it; the last two are called on its threads."""

    def on_disk(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
    ) -> OnDisk: ...

    def record_parts(self, physical_offset: int, byte_count: int) -> list[FilePart]: ...

    def row_parts(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[FilePart]: ...

    def bring_in(self, part: FilePart) -> None: ...
    def announce(self, part: FilePart) -> None: ...


class Loop(Protocol):
    """The part of an event loop that is used here."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...
    def call_later(self, delay: float, callback: Callable[[], None]) -> object: ...
    def call_soon_threadsafe(self, callback: Callable[..., None], *given: object) -> object: ...


@dataclass(slots=True, eq=False)
class FarPull:
    """One pull, and the most it may read."""

    request: Request
    peer: Peer
    plan: PullPlan
    count_max: int
    bytes_max: int
    read_count: int = 0


class FarAnswer(NamedTuple):
    """Where a pull was answered from, and where in the log its last record ends."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_end: int


class FastPull(NamedTuple):
    """A pull of the fast path: ``answer`` answers it if that waits for no disk, else not at all."""

    peer: Peer
    answer: Callable[[], FarAnswer | None]
    # Serves the pull on the general way.
    general: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Line:
    """The pulls of one connection, the oldest first."""

    peer: Peer
    pulls: deque[FarPull | FastPull] = field(default_factory=deque)


class ColdReads:
    """Holds far pulls until their bytes are in memory and their turn has come."""

    def __init__(
        self,
        store: ColdStore,
        answer: Callable[[FarPull], None],
        *,
        time_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._store = store
        self._answer = answer
        self._time_s = time_s
        self._loop: Loop | None = None
        self._threads: ThreadPoolExecutor | None = None
        # Connections with pulls in line: empty nearly always, so frequent callers look here.
        self.lines: dict[Peer, _Line] = {}
        # Lines whose first pull may be answered now, in turn; those that read are in none.
        self._ready: deque[_Line] = deque()
        self._choked: list[_Line] = []
        self._round_is_due = False
        self._hint_count = 0
        # Blocks of rows by queue, blocks of records as those of no topic, the oldest first.
        self._told: OrderedDict[_Block, None] = OrderedDict()
        self._count = 0
        self._is_closed = False
        self.brought_in_count = 0
        # Bytes of answers that skipped the line since the event loop last polled, or a little more.
        self.direct_bytes = 0
        # Grows whenever the event loop is known to have polled.
        self._turn = 0
        # Grows whenever earlier read-ahead hints to the disk no longer count.
        self.told_epoch = 0
        self._renewal_is_due = False

    def __len__(self) -> int:
        return self._count

    def begin(self, loop: Loop) -> None:
        """The loop that runs rounds and that threads report to; otherwise the running loop."""
        self._loop = loop

    def take(self, pull: FarPull | FastPull, *, count_max: int, count_per_peer_max: int) -> bool:
        """Answer a pull as soon as that waits for no disk; False when too many wait already."""
        line = self.lines.get(pull.peer)
        if self._is_closed or self._count >= count_max:
            return False
        if line is not None and len(line.pulls) >= count_per_peer_max:
            return False
        if line is None:
            line = self.lines[pull.peer] = _Line(pull.peer)
            self._ready.append(line)
            self._schedule_round()
        line.pulls.append(pull)
        self._count += 1
        return True

    @property
    def may_skip_line(self) -> bool:
        """Whether a pull need not be put in line: no pull waits, and few have skipped the line."""
        return not (self.lines or self.direct_bytes >= DIRECT_BYTES_MAX or self._is_closed)

    def begin_turn(self, last_turn: int) -> int:
        """A connection is read whose last read was in turn ``last_turn``; returns the turn now.

        The event loop reads each connection once between two polls.
        """
        if self._turn == last_turn:
            self._turn += 1
            self.direct_bytes = 0
        return self._turn

    def note_direct(self, byte_count: int) -> bool:
        """A far pull was answered without having been in line; whether another one may be."""
        self.direct_bytes += byte_count if byte_count > ANSWER_BYTES_MIN else ANSWER_BYTES_MIN
        if self.direct_bytes >= DIRECT_BYTES_MAX // 2 and not self._renewal_is_due:
            # Not for each answer, which would cost more.
            self._renewal_is_due = True
            self._found_loop().call_soon(self._renew)
        return self.direct_bytes < DIRECT_BYTES_MAX

    def _renew(self) -> None:
        self._renewal_is_due = False
        self.direct_bytes = 0
        self._turn += 1

    # Rounds.

    def _schedule_round(self) -> None:
        if not self._round_is_due:
            self._round_is_due = True
            self._found_loop().call_soon(self._run_round)

    def _found_loop(self) -> Loop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _run_round(self) -> None:
        self._round_is_due = False
        end_s = self._time_s() + _ROUND_S
        while self._ready:
            line = self._ready.popleft()
            if line.peer.is_closed:
                self._forget(line)
            elif line.peer.is_choked:
                self._put_off(line)
            elif self._take_turn(line):
                self._ready.append(line)
            if self._time_s() >= end_s:
                break
        if self._ready:
            self._schedule_round()

    def _forget(self, line: _Line) -> None:
        self._count -= len(line.pulls)
        del self.lines[line.peer]

    def _put_off(self, line: _Line) -> None:
        if not self._choked:
            assert self._loop is not None
            self._loop.call_later(_CHOKED_S, self._look_again)
        self._choked.append(line)

    def _look_again(self) -> None:
        self._ready += self._choked
        self._choked = []
        if self._ready:
            self._schedule_round()

    def _take_turn(self, line: _Line) -> bool:
        """Answer the first pull, or have its bytes brought in; whether the line goes on waiting."""
        pull = line.pulls[0]
        if isinstance(pull, FastPull):
            self._leave(line)
            self._answer_fast(pull)
            return bool(line.pulls)
        found = self._on_disk(pull)
        if found.parts and pull.read_count < _READS_PER_PULL_MAX:
            pull.read_count += 1
            self._forget_told(pull.plan, found.physical_end)
            self._submit(self._bring_in, found.parts, line)
            return False
        self._leave(line)
        try:
            self._answer(pull)
        except Exception:
            # One pull that cannot be answered must not stop those behind it.
            _log.exception("a pull of %s was not answered", line.peer.address)
        plan = pull.plan
        self.read_ahead(FarAnswer(plan.topic, plan.queue_id, plan.queue_offset, found.physical_end))
        return bool(line.pulls)

    def _leave(self, line: _Line) -> None:
        """The first of a line is over."""
        line.pulls.popleft()
        self._count -= 1
        if not line.pulls:
            del self.lines[line.peer]

    def _answer_fast(self, pull: FastPull) -> None:
        try:
            answered = pull.answer()
            if answered is None:
                self._take_general(pull)
            else:
                self.read_ahead(answered)
        except Exception:
            _log.exception("a pull of %s was not answered", pull.peer.address)

    def _take_general(self, pull: FastPull) -> None:
        """The pull ends in line again, at its old place: earlier pulls are answered first."""
        line = self.lines.get(pull.peer)
        count = 0 if line is None else len(line.pulls)
        pull.general()
        if line is not None and len(line.pulls) > count:
            line.pulls.rotate(1)

    def _on_disk(self, pull: FarPull) -> OnDisk:
        plan = pull.plan
        try:
            return self._store.on_disk(
                plan.topic,
                plan.queue_id,
                plan.queue_offset,
                count_max=pull.count_max,
                bytes_max=pull.bytes_max,
                tag_codes=plan.tag_codes,
            )
        except Exception as error:
            # The reader meets the same error, and the pull is answered with it.
            _log.debug(
                "the records of a pull of %s could not be found: %s", pull.peer.address, error
            )
            return OnDisk([], 0)

    # Threads.

    def _submit(self, work: Callable[..., None], parts: list[FilePart], *given: object) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="cold-reads")
        self._threads.submit(work, parts, *given)

    def _bring_in(self, parts: list[FilePart], line: _Line) -> None:
        try:
            self._each(self._store.bring_in, parts)
        finally:
            self._report(self._brought_in, line)

    def _announce(self, parts: list[FilePart]) -> None:
        try:
            self._each(self._store.announce, parts)
        finally:
            self._report(self._announced)

    def _each(self, work: Callable[[FilePart], None], parts: list[FilePart]) -> None:
        for part in parts:
            try:
                work(part)
            except FileNotFoundError:
                # Retention took it meanwhile: the reader learns that from the store.
                continue
            except OSError:
                # The reader meets the same error, in a place where it can be answered.
                _log.exception("%s could not be brought into memory", part.path)

    def _report(self, callback: Callable[..., None], *given: object) -> None:
        assert self._loop is not None
        # The loop may be closed by now: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *given)

    def _brought_in(self, line: _Line) -> None:
        self.brought_in_count += 1
        if self.lines.get(line.peer) is line:
            self._ready.append(line)
            self._schedule_round()

    def _announced(self) -> None:
        self._hint_count -= 1

    # Reading ahead.

    def read_ahead(self, answered: FarAnswer) -> bool:
        """Give the disk a read-ahead hint, once for all pulls there; whether it is done."""
        topic, queue_id, queue_offset, physical_end = answered
        if not physical_end or self._hint_count >= _HINTS_MAX:
            return False
        told, parts = self._told, []
        for number in _blocks(physical_end, BLOCK_RECORD_BYTES):
            if (b"", 0, number) not in told:
                self._note_told((b"", 0, number))
                start = max(physical_end, number * BLOCK_RECORD_BYTES)
                end = (number + 1) * BLOCK_RECORD_BYTES
                parts += self._store.record_parts(start, end - start)
        for number in _blocks(queue_offset, BLOCK_ROWS):
            block = topic, queue_id, number
            if block not in told:
                self._note_told(block)
                parts += self._store.row_parts(topic, queue_id, number * BLOCK_ROWS, BLOCK_ROWS)
        if parts:
            self._hint_count += 1
            self._submit(self._announce, parts)
        return True

    def _note_told(self, block: _Block) -> None:
        self._told[block] = None
        if len(self._told) > _TOLD_BLOCKS_MAX:
            self._told.popitem(last=False)

    def _forget_told(self, plan: PullPlan, physical_end: int) -> None:
        """A part was not in memory: earlier hints for this place no longer count."""
        self.told_epoch += 1
        for number in _blocks(physical_end, BLOCK_RECORD_BYTES):
            self._told.pop((b"", 0, number), None)
        for number in _blocks(plan.queue_offset, BLOCK_ROWS):
            self._told.pop((plan.topic, plan.queue_id, number), None)

    # The end.

    def close(self) -> list[FarPull]:
        """Stop; returns the pulls that were not answered."""
        self._is_closed = True
        held = [pull for line in self.lines.values() for pull in line.pulls]
        waiting = [pull for pull in held if isinstance(pull, FarPull)]
        self.lines.clear()
        self._ready.clear()
        self._choked.clear()
        self._count = 0
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        for pull in held:
            if isinstance(pull, FastPull):
                # The pull comes here again, and is refused.
                pull.general()
        return waiting


def _blocks(place: int, block_size: int) -> tuple[int, int]:
    """The block that a reader is in, and the next."""
    number = place // block_size
    return number, number + 1

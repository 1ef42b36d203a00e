"""Keeps damaged places out of queues that are derived from the log alone.

Where rows are, ``RecordPlaces`` judges by them. A queue that has lost its rows leaves only this: in
the order of the log the offsets of a queue follow each other. A lone record that runs ahead of its
queue is held until the next one of the queue tells. If that goes on behind it, messages are missing
and it is believed; if that goes back, it lied, and would have kept its neighbours out. A record
that claims a place which another one has lied too, or the other did.

Who lied leaves a hole where it belongs: in a queue whose neighbours lie around it in the log, at a
place of which two of three parts (topic, queue, queue offset) are those that it claims. The row of
the hole is made to lead to it, so that it is told of as every misplaced record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from contrail.model.topic import NAME_PATTERN, QUEUE_COUNT_MAX
from contrail.store.disk.queue_table import QueueTable
from contrail.store.services.record_places import Place, Run, Runs, row_bytes_of

# A wider gap is a loss of many messages, and nothing that one record left.
_HOLE_PLACES_MAX = 16
_I32, _I64 = (1 << 32) - 1, (1 << 64) - 1
# More than this do not lie one by one.
_LIARS_MAX = 1000

Key = tuple[bytes, int]


class _Hole(NamedTuple):
    """A place without a record, and the bytes of the log among which that would have to be."""

    place: Place
    physical_start: int
    physical_end: int


class _Liar(NamedTuple):
    """A record that cannot be where it says."""

    place: Place
    run: Run

    @property
    def physical_start(self) -> int:
        return int.from_bytes(self.run[2][:8], "big")


class RebuiltRuns:
    """Takes the rows of one pass over the log. ``finish`` comes behind the last.

    ``known_ends`` are the next offsets of all queues as they were noted when the log had been
    derived up to ``known_to``; None if no such note is left.
    """

    def __init__(
        self, queues: QueueTable, *, known_ends: Mapping[Key, int] | None, known_to: int
    ) -> None:
        self._queues = queues
        self._known_ends = known_ends
        self._known_to = known_to
        self._settled = {(topic, at): queue.physical_end for topic, at, queue in queues.queues()}
        self._next = {
            (topic, at): queue.queue_offset_max
            for topic, at, queue in queues.queues()
            if queue.physical_end
        }
        self._ends = dict(self._settled)
        self._held: dict[Key, Run] = {}
        self._holes: list[_Hole] = []
        self._liars: list[_Liar] = []
        self.problems: list[str] = []

    def take(self, derived: Runs) -> Runs:
        """What of derived rows may be put now."""
        taken: Runs = {}
        for topic, by_queue in derived.items():
            for queue_id, runs in by_queue.items():
                kept = [some for run in runs for some in self._taken((topic, queue_id), run)]
                if kept:
                    taken.setdefault(topic, {})[queue_id] = kept
        return taken

    def finish(self) -> None:
        """Put what is still held, and lead holes to the records that belong there."""
        for key, run in self._held.items():
            liar = _Liar(Place(*key, run[0]), run)
            hole = self._hole_of(liar)
            belongs = hole.place if hole is not None else self._tail_of(liar)
            if belongs is not None and _is_a_bit_away(belongs, liar.place):
                self._note(liar)
            elif self._may_exist(key, run) or _is_a_queue(*key):
                # Perhaps the note of queues is older than a folder that was lost since.
                self._put(key, run)
            else:
                self.problems.append(f"{_told(liar)}, which no queue can be: it is left out")
        self._held.clear()
        for liar in self._liars:
            tail = self._tail_of(liar)
            if self._hole_of(liar) is None and tail is not None:
                self._put(tail[:2], [tail.queue_offset, *liar.run[1:]])
                self.problems.append(f"{_told(liar)}, but is {_words(tail)}: it is damaged")
        self._queues.write_pending()
        for liar in self._liars:
            self._fill_hole(liar)

    # Private: taking.

    def _taken(self, key: Key, run: Run) -> Iterator[Run]:
        start = int.from_bytes(run[2][:8], "big")
        is_lone = len(run[2]) == self._row_bytes(key, run)
        if start < self._queues.tombstones.get(key[0], 0):
            yield run
            return
        if start < self._settled.get(key, 0):
            # There are rows of these records; one that has none lies.
            if is_lone and not self._has_row(key, run):
                self._note(_Liar(Place(*key, run[0]), run))
            elif run[3] > self._ends[key]:
                # Some of them are behind the rows that were there.
                self._believed(key, run)
            yield run
            return
        held = self._held.pop(key, None)
        if held is not None and run[0] >= held[0] + held[1]:
            yield self._believed(key, held)
        elif held is not None:
            self._note(_Liar(Place(*key, held[0]), held))
        reached = self._next.get(key)
        if reached is not None and run[0] < reached:
            self._note_double(key, run, reached)
            if not is_lone:
                yield self._believed(key, run)
        elif not is_lone or (run[0] == (reached or 0) and self._may_exist(key, run)):
            yield self._believed(key, run)
        else:
            self._held[key] = run

    def _believed(self, key: Key, run: Run) -> Run:
        reached = self._next.get(key)
        if reached is not None and 0 < run[0] - reached <= _HOLE_PLACES_MAX:
            start = int.from_bytes(run[2][:8], "big")
            self._holes += [
                _Hole(Place(*key, queue_offset), self._ends[key], start)
                for queue_offset in range(reached, run[0])
            ]
        self._next[key] = max(run[0] + run[1], reached or 0)
        self._ends[key] = run[3]
        return run

    def _note_double(self, key: Key, run: Run, reached: int) -> None:
        """The first record of a run claims a place that has one."""
        if run[0] == reached - 1 or len(run[2]) == self._row_bytes(key, run):
            row_bytes = self._row_bytes(key, run)
            size = int.from_bytes(run[2][8:12], "big")
            end = int.from_bytes(run[2][:8], "big") + size
            first = [run[0], 1, run[2][:row_bytes], end, run[4]]
            self._note(_Liar(Place(*key, run[0]), first))

    def _note(self, liar: _Liar) -> None:
        is_batch = liar.place.topic in self._queues.batch_topics
        if len(self._liars) < _LIARS_MAX and not is_batch:
            self._liars.append(liar)

    def _may_exist(self, key: Key, run: Run) -> bool:
        """Whether a queue may have a record there, as far as is known."""
        start = int.from_bytes(run[2][:8], "big")
        return self._known_ends is None or key in self._known_ends or start >= self._known_to

    def _has_row(self, key: Key, run: Run) -> bool:
        queue = self._queues.get(*key)
        assert queue is not None, "a queue with rows is there"
        return bool(queue.raw_rows(run[0], 1)[:12] == run[2][:12])

    def _row_bytes(self, key: Key, run: Run) -> int:
        return row_bytes_of(run, key[0] in self._queues.batch_topics)

    # Private: where liars belong.

    def _put(self, key: Key, run: Run) -> None:
        self._queues.put({key[0]: {key[1]: [self._believed(key, run)]}})

    def _hole_of(self, liar: _Liar, physical_start: int | None = None) -> _Hole | None:
        start = liar.physical_start if physical_start is None else physical_start
        for hole in self._holes:
            is_there = hole.physical_start <= start < hole.physical_end
            if is_there and _parts_in_common(hole.place, liar.place) == 2:
                return hole
        return None

    def _tail_of(self, liar: _Liar) -> Place | None:
        """The end of a queue of which the last message is missing, and may be this one."""
        for key, end in (self._known_ends or {}).items():
            place = Place(*key, self._next.get(key, 0))
            is_missing = place.queue_offset == end - 1
            is_behind = self._ends.get(key, 0) <= liar.physical_start < self._known_to
            if is_missing and is_behind and _parts_in_common(place, liar.place) == 2:
                return place
        return None

    def _fill_hole(self, liar: _Liar) -> None:
        hole, run = self._hole_of(liar), liar.run
        if hole is None:
            # Perhaps it is not this one that lied, but the one which came first.
            queue = self._queues.get(*liar.place[:2])
            rival = queue.raw_rows(liar.place.queue_offset, 1) if queue is not None else b""
            rival_start = int.from_bytes(rival[:8], "big")
            hole = self._hole_of(liar, rival_start) if rival else None
            if hole is None or rival_start >= liar.physical_start:
                return
            self._write(liar.place, run)
            run = [hole.place.queue_offset, 1, bytearray(rival), 0, 0]
        self._holes.remove(hole)
        self._write(hole.place, run)
        self.problems.append(
            f"{_told(liar)}, which another one is, and {_words(hole.place)} is "
            f"missing: one of the two is damaged"
        )

    def _write(self, place: Place, run: Run) -> None:
        queue = self._queues.get(*place[:2])
        assert queue is not None, "a hole is among the rows of a queue"
        queue.repair_rows(place.queue_offset, run[2], len(run[2]))


def _is_a_queue(topic: bytes, queue_id: int) -> bool:
    """Whether a broker would have made this queue."""
    is_name = NAME_PATTERN.fullmatch(topic.decode("utf-8", "replace")) is not None
    return is_name and 0 <= queue_id < QUEUE_COUNT_MAX


def _parts_in_common(one: Place, other: Place) -> int:
    return sum(mine == his for mine, his in zip(one, other, strict=True))


def _is_a_bit_away(one: Place, other: Place) -> bool:
    """Whether one flipped bit makes one place of the other: of a record that proves nothing."""
    topics = int.from_bytes(one.topic, "big") ^ int.from_bytes(other.topic, "big")
    queue_ids = (one.queue_id ^ other.queue_id) & _I32
    queue_offsets = (one.queue_offset ^ other.queue_offset) & _I64
    bits = topics.bit_count() + queue_ids.bit_count() + queue_offsets.bit_count()
    return len(one.topic) == len(other.topic) and bits == 1


def _words(place: Place) -> str:
    topic = place.topic.decode("utf-8", "replace")
    return f"message {place.queue_offset} of queue {place.queue_id} of {topic}"


def _told(liar: _Liar) -> str:
    return f"the record at byte {liar.physical_start} says that it is {_words(liar.place)}"

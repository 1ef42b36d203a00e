"""Keeps records with a damaged address out of queues that are derived from the log alone.

Where rows are left, ``RecordPlaces`` judges by them. For a queue that has lost its rows two facts
remain: in the order of the log the offsets of a queue are consecutive, and ``contrail.queues``
notes the first and the next offset of each queue. A record outside of these bounds is misplaced. A
few records ahead of their queue's next offset are held until the queue goes on: of the held
records, the longest chain of rising offsets is trusted. If two records claim the same address, one
of the two is misplaced.

A misplaced record leaves a hole at its true address (``state.place_holes``). The row of the hole
is made to lead to the record, so that the record is reported as misplaced; no read returns it as
that message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from contrail.kernels.record_layout import BLANK_ROW_SIZE
from contrail.model.topic import LMQ_PREFIX, NAME_PATTERN, QUEUE_COUNT_MAX
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.queue_table import QueueTable
from contrail.store.services.record_places import Run, Runs, row_bytes_of
from contrail.store.services.row_sources import first_at_or_above
from contrail.store.state.place_holes import (
    Claim,
    Hole,
    Place,
    could_be_of,
    hole_a_bit_away,
    hole_of,
    is_between,
    match_holes,
)
from contrail.store.state.queue_stretches import WEAK_ROWS_MAX, Gap, QueueStretches

# If more messages than this are missing, a few damaged records are not the reason.
_HOLE_PLACES_MAX = 16
_HELD_ROWS_MAX = 16
_LIARS_MAX = 1000
_NAMED_MAX = 20
_LMQ_PREFIX = LMQ_PREFIX.encode()

Key = tuple[bytes, int]


class KnownQueues(NamedTuple):
    """Every queue's first and next offset, noted when ``derived_to`` was the end derived."""

    bounds: Mapping[Key, tuple[int, int]]
    derived_to: int


class RebuiltRuns:
    """Takes the rows of one pass over the log; call ``finish`` after the last.

    ``known`` is None if ``contrail.queues`` is lost. ``problems`` are texts about damage,
    ``missing`` texts about messages that have no record.
    """

    def __init__(self, queues: QueueTable, *, known: KnownQueues | None) -> None:
        self._queues = queues
        self._known = known
        self._settled = {
            (topic, at): queue.physical_end
            for topic, at, queue in queues.queues()
            if queue.physical_end
        }
        self._next = {
            (topic, at): queue.queue_offset_max
            for topic, at, queue in queues.queues()
            if queue.physical_end
        }
        self._ends = dict(self._settled)
        self._stretches = {key: QueueStretches() for key in self._settled}
        for key, physical_end in self._settled.items():
            self._stretches[key].believe(0, self._next[key], [], [], physical_end)
        self._held: dict[Key, list[Run]] = {}
        self._holes: list[Hole] = []
        # Rows of records that cannot have the address they claim, or share it with another record.
        self._liars: dict[Claim, Run] = {}
        self._outdated: Counter[Key] = Counter()
        # Queues that begin with rows of messages not found yet.
        self._begun: dict[Key, int] = {}
        self.problems: list[str] = []
        self.missing: list[str] = []

    def take(self, derived: Runs) -> Runs:
        """The derived rows that may be put now; the others are held or noted as misplaced."""
        taken: Runs = {}
        for topic, by_queue in derived.items():
            for queue_id, runs in by_queue.items():
                kept = [some for run in runs for some in self._taken((topic, queue_id), run)]
                if kept:
                    taken.setdefault(topic, {})[queue_id] = kept
        return taken

    def finish(self) -> None:
        """Put the rows still held, and make the rows of holes lead to their records."""
        for key in sorted(self._held, key=lambda key: key not in self._next):
            for run in self._resolved(key, is_last=True):
                self._queues.put({key[0]: {key[1]: [run]}})
        self._queues.write_pending()
        self._find_tails()
        filled = self._filled()
        for hole, run in sorted(filled.items()):
            self._fill(hole, run)
        self._queues.write_pending()
        self._raise_minimums({hole.place for hole in filled})
        self._tell_of_the_rest([hole for hole in self._holes if hole not in filled])

    # Private: taking.

    def _taken(self, key: Key, run: Run) -> Iterator[Run]:
        if _start(run) < self._queues.tombstones.get(key[0], 0):
            yield run
        elif _start(run) < self._settled.get(key, 0):
            # The queue has rows of this stretch of the log: a record without one is misplaced.
            self._note(key, self._without_row(key, run))
            if run[3] > self._ends[key]:
                # Some records lie behind the rows that the queue kept.
                self._believed(key, run)
            yield run
        else:
            for part in self._possible(key, run):
                if self._is_odd(key):
                    yield self._believed(key, part)
                else:
                    yield from self._in_order(key, part)

    def _possible(self, key: Key, run: Run) -> Iterator[Run]:
        """The rows of a run within the noted bounds; the others are misplaced, unless many are."""
        known = self._known
        if known is None or _start(run) >= known.derived_to:
            yield run
            return
        end = known.bounds.get(key, (0, 0))[1]
        if run[0] + run[1] <= end:
            yield run
            return
        if self._is_odd(key):
            if end or self._row_count(key, run) > _HELD_ROWS_MAX:
                yield run
            else:
                self.problems.append(_left_out(_claim(key, run)))
            return
        rows = list(_singles(run))
        lying = [one[0] >= end and _start(one) < known.derived_to for one in rows]
        if sum(lying) > _HELD_ROWS_MAX:
            yield run
            return
        self._note(key, (one for one, lies in zip(rows, lying, strict=True) if lies))
        yield from _joined(one for one, lies in zip(rows, lying, strict=True) if not lies)

    def _in_order(self, key: Key, run: Run) -> Iterator[Run]:
        reached = self._next.get(key)
        if reached is not None and run[0] < reached:
            run = self._without_doubles(key, run, reached)
            if not run[1]:
                return
        expected = reached if reached is not None else self._first_of(key) or 0
        if run[0] == expected:
            # The queue goes on here, so the records held ahead of it are misplaced.
            for ahead in self._held.pop(key, []):
                self._note(key, _singles(ahead))
            yield self._believed(key, run)
            return
        held = self._held.setdefault(key, [])
        held.append(run)
        if sum(one[1] for one in held) > _HELD_ROWS_MAX:
            yield from self._resolved(key)

    def _without_doubles(self, key: Key, run: Run, reached: int) -> Run:
        """The rows of a run at or behind ``reached``; the others claim offsets that are taken."""
        count = min(reached - run[0], run[1])
        row_bytes = len(run[2]) // run[1]
        if count <= _HELD_ROWS_MAX:
            doubles = [run[0], count, run[2][: count * row_bytes], 0, run[4]]
            self._note(key, _singles(doubles))
        else:
            self._outdated[key] += count
        return [run[0] + count, run[1] - count, run[2][count * row_bytes :], *run[3:]]

    def _resolved(self, key: Key, *, is_last: bool = False) -> Iterator[Run]:
        """The longest chain of held runs with rising offsets; the others are misplaced."""
        held = self._held.pop(key)
        if is_last and self._known is None:
            # No note says that these messages exist; a hole one bit away says that they do not.
            rows = [one for run in held for one in _singles(run)]
            lying = [hole_a_bit_away(_claim(key, one), self._holes) is not None for one in rows]
            self._note(key, (one for one, lies in zip(rows, lying, strict=True) if lies))
            kept = (one for one, lies in zip(rows, lying, strict=True) if not lies)
            held = list(_joined(kept))
        chain = _longest_chain(held)
        for number, run in enumerate(held):
            if number in chain:
                yield self._believed(key, run)
            else:
                self._note(key, _singles(run))

    def _believed(self, key: Key, run: Run) -> Run:
        reached = self._next.get(key)
        first = self._first_of(key) if reached is None else reached
        if first is not None and 0 < run[0] - first <= _HOLE_PLACES_MAX and not self._is_odd(key):
            offsets = range(first, run[0])
            self._add_holes(key, offsets, self._ends.get(key, 0), _start(run))
            if reached is None:
                self._queues.begin(*key, first, len(offsets))
                self._begun[key] = run[0]
        if not self._is_odd(key):
            starts = _starts(run)
            stretches = self._stretches.setdefault(key, QueueStretches())
            stretches.believe(run[0], run[1], starts[:WEAK_ROWS_MAX], starts, run[3])
        self._next[key] = max(run[0] + run[1], reached or 0)
        self._ends[key] = max(run[3], self._ends.get(key, 0))
        return run

    def _first_of(self, key: Key) -> int | None:
        """The queue's first offset, if it was noted."""
        bounds = self._known.bounds.get(key) if self._known is not None else None
        return None if bounds is None else bounds[0]

    def _add_holes(self, key: Key, offsets: range, start: int, end: int) -> None:
        self._holes += [Hole(Place(*key, queue_offset), start, end) for queue_offset in offsets]

    def _note(self, key: Key, rows: Iterable[Run]) -> None:
        for row in rows:
            if len(self._liars) < _LIARS_MAX:
                self._liars[_claim(key, row)] = row

    def _without_row(self, key: Key, run: Run) -> Iterator[Run]:
        """Records of a queue that kept its rows, but has no row that leads to them."""
        queue = self._queues.get(*key)
        if self._is_odd(key) or queue is None or queue.raw_rows(run[0], run[1]) == run[2]:
            return
        for one in _singles(run):
            if _start(one) < self._settled[key] and queue.raw_rows(one[0], 1)[:12] != one[2][:12]:
                yield one

    def _is_odd(self, key: Key) -> bool:
        """Rows of batches, and of queues that lead to records of other topics, are not judged."""
        return key[0] in self._queues.batch_topics or key[0].startswith(_LMQ_PREFIX)

    def _row_count(self, key: Key, run: Run) -> int:
        return len(run[2]) // row_bytes_of(run, key[0] in self._queues.batch_topics)

    # Private: the true addresses of misplaced records.

    def _find_tails(self) -> None:
        """Add holes for queues whose last messages are missing."""
        if self._known is None:
            return
        for key, (first, end) in self._known.bounds.items():
            reached = self._next.get(key, first)
            if 0 < end - reached <= _HOLE_PLACES_MAX and not self._is_odd(key):
                start = self._ends.get(key, 0)
                self._add_holes(key, range(reached, end), start, self._known.derived_to)

    def _filled(self) -> dict[Hole, Run]:
        """The record that fills each hole: surely misplaced records first, then doubles."""
        liars = {
            claim: run
            for claim, run in self._liars.items()
            # A record whose own row is left is reported through that row.
            if self._own_place(claim) in (None, claim.place)
        }
        filled = self._filled_in_order(liars)
        for run in filled.values():
            liars = {claim: one for claim, one in liars.items() if _start(one) != _start(run)}
        doubles = {claim: rival for claim in liars if (rival := self._rival_of(claim)) is not None}
        alone = [claim for claim in liars if claim not in doubles]
        holes = [hole for hole in self._holes if hole not in filled]
        matched = {hole: liars[one] for hole, one in match_holes(alone, holes).items()}
        self._told(self._unnoted(alone, liars, matched), matched)
        filled |= matched
        for claim, rival in doubles.items():
            self._settle(claim, liars[claim], rival, filled)
        return filled

    def _filled_in_order(self, liars: Mapping[Claim, Run]) -> dict[Hole, Run]:
        """Fill the gaps of queues that have as many records as offsets."""
        filled: dict[Hole, Run] = {}
        if not liars:
            return filled
        for key, stretches in self._stretches.items():
            if self._is_odd(key):
                continue
            known = self._known
            bounds = known.bounds.get(key) if known is not None else None
            for gap in stretches.gaps(bounds, known.derived_to if known is not None else 0):
                filled |= self._in_gap(key, gap, liars)
        return filled

    def _in_gap(self, key: Key, gap: Gap, liars: Mapping[Claim, Run]) -> dict[Hole, Run]:
        places = [Place(*key, queue_offset) for queue_offset in range(gap.first, gap.end)]
        holes = [Hole(place, gap.physical_start, gap.physical_end) for place in places]
        records = {
            claim: run
            for claim, run in liars.items()
            if is_between(claim, holes[0]) and could_be_of(claim.place, key, gap.first, gap.end)
        }
        records |= {
            claim: run
            for place in places
            if (run := self._rival_of(Claim(-1, place))) is not None
            and _start(run) in gap.believed
            and (claim := _claim(key, run)) not in records
        }
        ordered = sorted(records.items())
        if len(ordered) != len(places):
            return {}
        pairs = list(zip(holes, ordered, strict=True))
        if any(
            claim.place[:2] != key and claim.place.queue_offset != hole.place.queue_offset
            for hole, (claim, _) in pairs
        ):
            return {}
        for hole, (claim, _) in pairs:
            if claim.place != hole.place:
                self.problems.append(f"{_says(claim)}, but it is {hole.place}: it is damaged")
        known = {hole.place: hole for hole in self._holes}
        return {known.get(hole.place, hole): run for hole, (_, run) in pairs}

    def _settle(self, claim: Claim, run: Run, rival: Run, filled: dict[Hole, Run]) -> None:
        """Of two records with one address, the one that could fill a hole is misplaced.

        If either could, it is the later one; but a row that is left decides first.
        """
        other = _claim(claim.place[:2], rival)
        holes = [hole for hole in self._holes if hole not in filled]
        is_settled = other.physical_start < self._settled.get(claim.place[:2], 0)
        if self._own_place(other) not in (None, other.place):
            self._write(claim.place, run)
        elif hole := hole_of(claim, holes):
            filled[hole] = run
            self._say_one_lied(claim, hole)
        elif not is_settled and (hole := hole_of(other, holes)):
            self._write(claim.place, run)
            filled[hole] = rival
            self._say_one_lied(claim, hole)
        elif not is_settled:
            self._outdated[claim.place[:2]] += 1

    def _say_one_lied(self, claim: Claim, hole: Hole) -> None:
        self.problems.append(
            f"{_says(claim)}, as another record does, and {hole.place} is missing: one of the two "
            f"records is damaged"
        )

    def _unnoted(
        self, alone: list[Claim], liars: Mapping[Claim, Run], matched: Mapping[Hole, Run]
    ) -> list[Claim]:
        """Trust records of queues that may be newer than the note; returns the other claims."""
        starts = {_start(run) for run in matched.values()}
        left: list[Claim] = []
        for claim in alone:
            key = claim.place[:2]
            is_new = self._known is not None and key not in self._known.bounds
            if is_new and claim.physical_start not in starts and _is_a_queue(*key):
                self._queues.put({key[0]: {key[1]: [self._believed(key, liars[claim])]}})
                if len(matched) < len(self._holes):
                    self.problems.append(
                        f"{_says(claim)}, of a queue that contrail.queues does not list: the "
                        f"record is trusted"
                    )
            else:
                left.append(claim)
        return left

    def _told(self, alone: list[Claim], filled: Mapping[Hole, Run]) -> None:
        by_start = {_start(run): hole for hole, run in filled.items()}
        for claim in alone:
            hole = by_start.get(claim.physical_start)
            if hole is None:
                self.problems.append(_left_out(claim))
            else:
                self.problems.append(f"{_says(claim)}, but it is {hole.place}: it is damaged")

    def _rival_of(self, claim: Claim) -> Run | None:
        """The row of the address that a record claims, if there is one."""
        queue = self._queues.get(*claim.place[:2])
        if not isinstance(queue, ConsumeQueue):
            return None
        row = queue.raw_rows(claim.place.queue_offset, 1)
        size = int.from_bytes(row[8:12], "big")
        if not 0 < size < BLANK_ROW_SIZE:
            return None
        start = int.from_bytes(row[:8], "big")
        return [claim.place.queue_offset, 1, bytearray(row), start + size, 0]

    def _own_place(self, claim: Claim) -> Place | None:
        """The address whose row, not lost, leads to the record of ``claim``."""
        for (topic, queue_id), end in self._settled.items():
            queue = self._queues.get(topic, queue_id)
            if end <= claim.physical_start or not isinstance(queue, ConsumeQueue):
                continue
            if topic.startswith(_LMQ_PREFIX):
                continue
            found = _row_that_leads_to(queue, claim.physical_start)
            if found is not None:
                return Place(topic, queue_id, found)
        return None

    def _fill(self, hole: Hole, run: Run) -> None:
        place, queue = hole.place, self._queues.get(*hole.place[:2])
        if queue is not None and place.queue_offset < queue.queue_offset_max:
            self._write(place, run)
        else:
            if queue is not None:
                # The record that was taken for the queue's last one belongs elsewhere.
                queue.physical_end = min(queue.physical_end, _start(run))
            put = [place.queue_offset, *run[1:]]
            self._queues.put({place.topic: {place.queue_id: [put]}})

    def _write(self, place: Place, run: Run) -> None:
        queue = self._queues.get(*place[:2])
        assert queue is not None, "a queue offset that is written again has a row"
        queue.repair_rows(place.queue_offset, run[2], len(run[2]))

    def _raise_minimums(self, filled: set[Place]) -> None:
        """Let these queues begin with their first message that was found."""
        for key, first in self._begun.items():
            queue = self._queues.get(*key)
            found = [place.queue_offset for place in filled if place[:2] == key]
            if isinstance(queue, ConsumeQueue):
                queue.raise_minimum(min([first, *found]))

    def _tell_of_the_rest(self, holes: list[Hole]) -> None:
        for hole in holes[:_NAMED_MAX]:
            if hole.place[:2] not in self._settled:
                self.missing.append(f"no record claims to be {hole.place}: the message is missing")
        if len(holes) > _NAMED_MAX:
            self.missing.append(f"{len(holes) - _NAMED_MAX} more messages are missing")
        for (topic, queue_id), count in self._outdated.items():
            name = topic.decode("utf-8", "replace")
            self.problems.append(
                f"{count} records of queue {queue_id} of {name} have queue offsets that earlier "
                f"records have: if the topic was deleted and made again, its deleted messages are "
                f"back and hide the messages sent since"
            )


def _is_a_queue(topic: bytes, queue_id: int) -> bool:
    """Whether a broker could have made this queue."""
    is_name = NAME_PATTERN.fullmatch(topic.decode("utf-8", "replace")) is not None
    return is_name and 0 <= queue_id < QUEUE_COUNT_MAX


def _row_that_leads_to(queue: ConsumeQueue, physical_offset: int) -> int | None:
    def target(queue_offset: int) -> tuple[int, int]:
        row = queue.raw_rows(queue_offset, 1)
        size = int.from_bytes(row[8:12], "big") if row else BLANK_ROW_SIZE
        return int.from_bytes(row[:8], "big"), size

    low, high = queue.queue_offset_min, queue.queue_offset_max
    found = first_at_or_above(target, low, high, physical_offset)
    return found if found < high and target(found)[0] == physical_offset else None


def _longest_chain(runs: list[Run]) -> set[int]:
    """The runs of the chain of rising offsets with the most messages; the later chain if equal."""
    best: list[tuple[int, int | None]] = []
    for number, run in enumerate(runs):
        before = [
            (best[other][0], other)
            for other in range(number)
            if runs[other][0] + runs[other][1] <= run[0]
        ]
        weight, previous = max(before, default=(0, None))
        best.append((weight + run[1], previous))
    at: int | None = max(
        range(len(best)), key=lambda number: (best[number][0], number), default=None
    )
    chain: set[int] = set()
    while at is not None:
        chain.add(at)
        at = best[at][1]
    return chain


def _start(run: Run) -> int:
    return int.from_bytes(run[2][:8], "big")


def _starts(run: Run) -> list[int]:
    """Where the first and the last few records of a run begin."""
    row_bytes = len(run[2]) // run[1]
    numbers: Sequence[int] = range(run[1])
    if run[1] > 2 * WEAK_ROWS_MAX:
        numbers = [*numbers[:WEAK_ROWS_MAX], *numbers[-WEAK_ROWS_MAX:]]
    return [int.from_bytes(run[2][n * row_bytes : n * row_bytes + 8], "big") for n in numbers]


def _claim(key: Key, run: Run) -> Claim:
    return Claim(_start(run), Place(*key, run[0]))


def _singles(run: Run) -> Iterator[Run]:
    """Each row of a run of single messages, as a run of its own."""
    row_bytes = len(run[2]) // run[1]
    for number in range(run[1]):
        row = run[2][number * row_bytes : (number + 1) * row_bytes]
        end = int.from_bytes(row[:8], "big") + int.from_bytes(row[8:12], "big")
        yield [run[0] + number, 1, row, end, run[4]]


def _joined(rows: Iterable[Run]) -> Iterator[Run]:
    """Single rows joined to runs again."""
    joined: Run | None = None
    for row in rows:
        if joined is not None and joined[0] + joined[1] == row[0]:
            joined[1] += 1
            joined[2] = joined[2] + row[2]
            joined[3] = row[3]
            continue
        if joined is not None:
            yield joined
        joined = row
    if joined is not None:
        yield joined


def _says(claim: Claim) -> str:
    return f"the record at byte {claim.physical_start} claims to be {claim.place}"


def _left_out(claim: Claim) -> str:
    return f"{_says(claim)}, which it cannot be: the record is left out"

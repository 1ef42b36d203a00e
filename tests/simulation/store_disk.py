"""A member's disk that is a real store on a file system which loses power at any operation.

It has the interface of ``SimulatedDisk``. The units are the model: what was written, and what of it
is surely on the disk. After each crash the store opens what the power cut left, and must have the
durable units, then perhaps some that were written behind them, and nothing else.
"""

from __future__ import annotations

import json
import shutil
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from random import Random

from contrail.clock import ManualClock
from contrail.model.message import MessageDraft, StoredMessage
from contrail.replication.services.replica_file import Phase, Replica, ReplicaFile
from contrail.store.config import FlushDiskType
from contrail.store.log import MessageStore
from contrail.store.services.checkpoint import CheckpointFiles
from tests.fakes.recording_files import Operation, RecordingFileSystem
from tests.fault.campaigns.crash_states import Disk, materialise, some_survive
from tests.fault.store_setup import small_config
from tests.simulation.disk import Unit
from tests.simulation.invariants import hold

MARKERS, VOTERS = "rmq_sys_contrail_epoch", "rmq_sys_contrail_voters"
ORDERS = ("orders", "parcels")
TOPICS = frozenset(topic.encode() for topic in (MARKERS, VOTERS, *ORDERS))


class PowerCut(BaseException):
    """The power goes in the middle of a file operation's caller."""


@dataclass(frozen=True, slots=True)
class StoredUnit(Unit):
    """A unit as it lies in a real log."""

    topic: str = ""
    queue_offset: int = 0
    data: bytes = b""


class MortalFiles(RecordingFileSystem):
    """Records operations until ``operations_left`` of them are over, then the power goes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.operations_left: int | None = None
        self.is_dead = False

    def usage_ratio(self, folder: Path) -> float:
        return 0.1

    def _record(self, operation: Operation) -> None:
        if self.is_dead:
            # The process is dead: its last steps out of the way reach no disk.
            return
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left <= 0:
                self.is_dead = True
                raise PowerCut
        super()._record(operation)


class StoreDisk:
    """A store folder through all lives of its member."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._life = 0
        self.units: list[StoredUnit] = []
        self.durable: list[StoredUnit] = []
        self._covered = 0
        # The value of the record that is being written: a power cut may leave it behind.
        self._value_under_way: int | None = None
        self._make().mkdir(parents=True)
        self._open()

    def _make(self) -> Path:
        return self._folder / f"{self._name}{self._life}"

    def _open(self) -> None:
        root = self._make()
        self.files = MortalFiles(root)
        self._trace, self._followed = Disk(self.files.baseline), 0
        self.replica_file = ReplicaFile(self.files, root)
        self._replica = self._loaded()
        config = small_config(
            root, flush_disk_type=FlushDiskType.SYNC_FLUSH, queue_flush_interval_ms=300
        )
        self.clock = ManualClock()
        self.store = MessageStore.open(
            config, clock=self.clock, files=self.files, in_group=True, is_stepped=True
        )

    def _loaded(self) -> Replica:
        found = self.replica_file.read()
        if found is None:
            hold(self._life == 0 or not self.durable, "a member forgot its vote")
            found = self._of_term(0, None)
            self.replica_file.write(found)
        return found

    def _of_term(self, term: int, voted_for: str | None) -> Replica:
        return Replica(
            group_id="g",
            replica_uuid=self._name,
            self_id=self._name,
            phase=Phase.VOTER,
            term=term,
            voted_for=voted_for,
        )

    # As the model disk.

    @property
    def term(self) -> int:
        return self._replica.term

    @property
    def voted_for(self) -> str | None:
        return self._replica.voted_for

    @property
    def commit_hint(self) -> int:
        return self.store.positions.commit_limit

    @property
    def end(self) -> int:
        return self.units[-1].physical_end if self.units else 0

    @property
    def durable_end(self) -> int:
        return self.durable[-1].physical_end if self.durable else 0

    def index_of(self, physical_offset: int) -> int:
        return bisect_left(self.units, physical_offset, key=lambda unit: unit.physical_start)

    def between(self, start: int, end: int) -> list[StoredUnit]:
        return self.units[self.index_of(start) : self.index_of(end)]

    def batch_end(self, start: int, limit: int, bytes_max: int) -> int:
        found = self.store.units_end(start, limit, bytes_max)
        last = self.units[self.index_of(found) - 1]
        hold(last.physical_end == found > start, "a batch ends inside a unit")
        return found

    def save_vote(self, term: int, voted_for: str | None) -> None:
        replica = self._of_term(term, voted_for)
        self.replica_file.write(replica)
        self._replica = replica

    def append(
        self,
        epoch: int,
        value: int,
        *,
        is_marker: bool,
        voters: frozenset[str] | None,
        random: Random,
    ) -> StoredUnit:
        """Append a record of the leader's own."""
        topic = MARKERS if is_marker else VOTERS if voters is not None else random.choice(ORDERS)
        fields = {
            "epoch": epoch,
            "value": value,
            "voters": sorted(voters) if voters is not None else None,
        }
        body = json.dumps(fields).encode().ljust(random.randint(60, 900))
        draft = MessageDraft(topic.encode(), 0, body, b"", born_timestamp_ms=1_760_000_000_000)
        self._value_under_way = value
        start = self.store.physical_end
        if is_marker:
            markers = [unit for unit in self.units if unit.is_marker]
            self.store.append_marker(draft, len(markers))
        else:
            self.store.append([draft])
        [unit] = units_of(self.store, start)
        self.units.append(unit)
        self._value_under_way = None
        return unit

    def take(self, physical_offset: int, units: list[StoredUnit]) -> None:
        """Write a leader's records."""
        data = b"".join(unit.data for unit in units)
        self.units += units
        taken = self.store.append_raw(physical_offset, data)
        hold(taken == len(data), "a batch of whole units is taken whole")

    def sync_begins(self) -> None:
        self._covered = len(self.units)

    def sync_ends(self) -> None:
        self.store.flush_now()
        flushed_end = self.store.flushed_end
        hold(flushed_end <= self.store.physical_end, "I19: the log is flushed beyond its end")
        # Bytes written since the sync began may be on the disk, but nobody relies on them.
        self.durable += self.units[len(self.durable) : self._covered]
        hold(self.durable_end <= flushed_end, "a sync that ended has not synced what it covers")
        self.store.dispatch()

    def cut(self, physical_end: int) -> None:
        index = self.index_of(physical_end)
        del self.durable[index:]
        self.store.truncate(physical_end)
        del self.units[index:]
        self._covered = min(self._covered, index)
        hold(self.store.physical_end == self.end == physical_end, "a cut ends elsewhere")
        hold(self.store.flushed_end <= physical_end, "I19: bytes that were cut count as flushed")

    def commit(self, physical_end: int) -> None:
        self.store.commit_to(physical_end)
        self.store.dispatch()

    def tick(self, now_ms: int) -> None:
        self.clock.advance(ms=now_ms - self.clock.now_ms())
        self.store.tick(now_ms)

    # Crashes.

    def crash(self, random: Random) -> None:
        """Cut the power, or close in order; then open what is left, perhaps in several tries."""
        if not self.files.is_dead and random.random() < 0.3:
            try:
                self.files.operations_left = random.choice([None, None, random.randint(1, 30)])
                self.store.close()
                self.durable = list(self.units)
            except PowerCut:
                pass
        while True:
            self._lose_power(random)
            try:
                self._open()
                break
            except PowerCut:
                continue
        found = units_of(self.store, 0)
        hold(found[: len(self.durable)] == self.durable, "synced records are lost, or others there")
        known = len(self.units)
        hold(found[:known] == self.units[: len(found)], "records that were cut have come back")
        hold(
            [unit.value for unit in found[known:]] in ([], [self._value_under_way]),
            "the log holds records that were never written",
        )
        self._value_under_way = None
        self.units, self.durable, self._covered = found, list(found), 0
        hold(self.end == self.store.physical_end, "the log ends behind its last record")
        hold(self.store.flushed_end == self.end, "what was found is synced")
        self.look(random)

    def _lose_power(self, random: Random) -> None:
        for index in range(self._followed, len(self.files.operations)):
            self._trace.follow(index, self.files.operations[index])
        self.files.is_dead = True
        self.close()
        source, state = self._make(), self._trace.crash(some_survive(random))
        self._life += 1
        materialise(state, source=source, target=self._make())
        shutil.rmtree(source)
        mark = CheckpointFiles(self.files, self._make()).read().log
        if mark is not None:
            hold((mark.commit_hint or 0) <= mark.physical_end, "a hint above the durable end")

    def look(self, random: Random) -> None:
        """I8, I9: queues hold the records below ``dispatched_end``, and no others."""
        store = self.store
        limit = store.dispatched_end
        hold(limit <= store.positions.commit_limit, "I9: records above the commit are derived")
        for topic in (MARKERS, VOTERS, *ORDERS):
            units = [unit for unit in self.units if unit.topic == topic]
            offsets = [unit.queue_offset for unit in units]
            hold(offsets == [*range(len(units))], f"I8: queue offsets of {topic} are {offsets}")
            expected = [
                unit.physical_start + unit.blank_bytes
                for unit in units
                if unit.physical_end <= limit
            ]
            places = _row_places(store, topic.encode())
            hold(places == expected, f"I9: the rows of {topic} lead to {places}, not {expected}")
            if expected:
                number = random.randrange(len(expected))
                [message] = store.get(topic.encode(), 0, number, count_max=1).messages
                hold(message.physical_offset == expected[number], "a pull gets another record")

    def close(self) -> None:
        if not self.store._closed:
            self.store._closed = True
            self.store._release()


def _row_places(store: MessageStore, topic: bytes) -> list[int]:
    """Where all rows of a topic's queue lead; a read ends with its file."""
    places: list[int] = []
    while rows := store.rows(topic, 0, len(places), 1000):
        places += [row.physical_offset for row in rows]
    return places


def units_of(store: MessageStore, physical_start: int) -> list[StoredUnit]:
    """The units of a log from ``physical_start`` on, read from the store."""
    units: list[StoredUnit] = []
    for message in store.appended_between(physical_start, store.physical_end, TOPICS):
        unit = _unit(store, physical_start, message)
        units.append(unit)
        physical_start = unit.physical_end
    return units


def _unit(store: MessageStore, start: int, message: StoredMessage) -> StoredUnit:
    fields = json.loads(message.body)
    end = message.physical_offset + message.record_bytes
    blank_bytes = message.physical_offset - start
    data = store.log_bytes(start, blank_bytes) if blank_bytes else b""
    data += store.log_bytes(message.physical_offset, message.record_bytes)
    return StoredUnit(
        start,
        end,
        fields["epoch"],
        fields["value"],
        frozenset(fields["voters"]) if fields["voters"] is not None else None,
        message.topic == MARKERS,
        blank_bytes,
        message.topic,
        message.queue_offset,
        data,
    )

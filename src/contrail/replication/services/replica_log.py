"""A member's view of its store: the log's positions, its epochs and voters, and how it changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from contrail.errors import StateFileDamaged, StoreReadOnly
from contrail.model.message import StoredMessage
from contrail.model.record import BLANK_MAGIC, decode_record
from contrail.protocol.log_floor import LogFloor
from contrail.replication.state.carried_floor import carried_floor
from contrail.replication.state.group_records import (
    GROUP_TOPIC,
    MARKER_QUEUE,
    VOTER_QUEUE,
    Marker,
    VoterChange,
    decode_group_record,
)
from contrail.replication.state.member_log import MemberLog, epochs_of
from contrail.replication.state.state_records import STATE_TOPIC
from contrail.replication.state.voters import Voters
from contrail.store import MessageStore

BATCH_BYTES_MAX = 1 << 20
"""The most bytes of a batch; one record with the blank in front of it may be longer."""
# How far ahead of a batch the system is asked to read, for a member that catches up.
_READ_AHEAD_BYTES = 4 << 20
_log = logging.getLogger(__name__)
_TOPIC, _STATE_TOPIC = GROUP_TOPIC.encode(), STATE_TOPIC.encode()


class ReplicaLog:
    """The log of one member; belongs to the loop's thread."""

    def __init__(self, store: MessageStore, now_ms: Callable[[], int]) -> None:
        self.store = store
        self._now_ms = now_ms

    @property
    def end(self) -> int:
        return self.store.physical_end

    @property
    def synced_end(self) -> int:
        return self.store.flushed_end

    def recalled(self, first_voters: frozenset[str], floor: LogFloor | None = None) -> MemberLog:
        """The log's word on epochs and voters, with its floor for what it does not say itself.

        ``first_voters`` are those before any record.

        Raises:
            StateFileDamaged: the log begins late, and nothing tells in which epoch.
        """
        store = self.store
        start = store.physical_min
        if start == 0:
            floor = LogFloor(
                physical_start=0, removed_count=0, starts=(), voters=first_voters, voters_end=0
            )
        else:
            floor = self._checked(floor) or self._carried_floor(start)
        epochs = epochs_of(floor)
        voters = Voters(floor.voters, physical_end=floor.voters_end)
        for message in self._group_records():
            found = decode_group_record(message)
            if isinstance(found, Marker) and found.epoch > epochs.last_epoch:
                epochs.begin(found.epoch, found.physical_start)
            physical_end = message.physical_offset + message.record_bytes
            if found is not None and physical_end > voters.changed_end:
                voters.record(physical_end, found.voters)
        log = MemberLog(
            end=store.physical_end,
            synced_end=store.flushed_end,
            commit=store.positions.commit_limit,
            epochs=epochs,
            voters=voters,
        )
        log.forget_before(start)
        return log

    def _checked(self, floor: LogFloor | None) -> LogFloor | None:
        """The floor, unless a marker of the log says otherwise."""
        if floor is None:
            return None
        starts = dict(floor.starts)
        for message in self._queued(_TOPIC, MARKER_QUEUE):
            found = decode_group_record(message)
            if isinstance(found, Marker) and starts.get(found.epoch) not in (
                None,
                found.physical_start,
            ):
                _log.warning(
                    "contrail.epochs is not of this log: epoch %d begins at %d by it, at %d here",
                    found.epoch,
                    starts[found.epoch],
                    found.physical_start,
                )
                return None
        return floor

    def _carried_floor(self, start: int) -> LogFloor:
        """The floor by the first state record that names it, if its file is lost."""
        for message in self._queued(_STATE_TOPIC, 0):
            found = carried_floor(message.body)
            if found is not None:
                return replace(found, physical_start=max(start, found.physical_start))
        raise StateFileDamaged(
            f"contrail.epochs is missing or damaged, and the log from {start} on does not tell in "
            "which epoch it begins: run `contrail replication replace` on this folder"
        )

    def _group_records(self) -> list[StoredMessage]:
        """The group's records in the log's order: those in queues, and those not derived yet."""
        store = self.store
        found = [*self._queued(_TOPIC, MARKER_QUEUE), *self._queued(_TOPIC, VOTER_QUEUE)]
        found.sort(key=lambda message: message.physical_offset)
        return [
            *found,
            *store.appended_between(store.dispatched_end, store.physical_end, frozenset((_TOPIC,))),
        ]

    def _queued(self, topic: bytes, queue_id: int) -> Iterator[StoredMessage]:
        store = self.store
        at = store.queue_offset_min(topic, queue_id)
        while at < store.queue_offset_max(topic, queue_id):
            found = store.get(topic, queue_id, at)
            yield from found.messages
            assert found.next_queue_offset > at, "a read goes on"
            at = found.next_queue_offset

    # Reading.

    def batch_end(self, start: int, limit: int) -> int:
        """Where a batch of whole records from ``start`` ends, at most at ``limit``."""
        if limit - start <= BATCH_BYTES_MAX:
            return limit
        self._read_ahead(start)
        return self.store.units_end(start, limit, BATCH_BYTES_MAX)

    def _read_ahead(self, start: int) -> None:
        """A member catches up: have the system read what follows, so that the loop waits less."""
        self.store.will_need(start, min(_READ_AHEAD_BYTES, self.end - start))

    def parts(self, start: int, end: int) -> list[memoryview | bytes]:
        """The bytes from ``start`` to ``end``, one view for each segment.

        Bytes that are on the disk only are copied, which waits for the disk.
        """
        store = self.store
        found: list[memoryview | bytes] = []
        while start < end:
            segment_end = (start // store.segment_bytes + 1) * store.segment_bytes
            count = min(end, segment_end) - start
            found.append(store.log_view(start, count) or store.log_bytes(start, count))
            start += count
        return found

    # Writing.

    def append_marker(self, leader: str, log: MemberLog, epoch: int, previous_epoch: int) -> int:
        """Append the record that opens ``epoch``; returns its end."""
        marker = Marker(epoch, leader, previous_epoch, self.end, log.voters.now)
        draft = marker.draft(self._now_ms())
        return self.store.append_marker(draft, log.epochs.marker_count).physical_end

    def append_voters(self, epoch: int, voters: frozenset[str]) -> int:
        """Append the record that names the voters; returns its end."""
        return self.store.append_one(VoterChange(epoch, voters).draft(self._now_ms())).physical_end

    def append_raw(self, physical_offset: int, data: memoryview) -> None:
        """Write whole records of the leader.

        Raises:
            RawBytesRefused: they do not continue this log; nothing was written.
            DiskFull: the disk has no room now; nothing was written.
            StorePoisoned: an earlier write or sync failed.
        """
        taken = self.store.append_raw(physical_offset, data)
        if taken != len(data):
            raise StoreReadOnly(f"{len(data) - taken} bytes of a batch are no whole record")

    def voter_records(
        self, physical_offset: int, data: memoryview
    ) -> list[tuple[int, frozenset[str]]]:
        """The ends and voters of the group's records among the records of a batch."""
        found = []
        for at, end in self._record_spans(physical_offset, data):
            message = decode_record(data[at:end], 0)
            record = decode_group_record(message)
            if record is not None:
                found.append((physical_offset + end, record.voters))
        return found

    def _record_spans(self, physical_offset: int, data: memoryview) -> Iterator[tuple[int, int]]:
        """Where the records of a batch begin and end in it; blanks are passed over."""
        segment_bytes, at = self.store.segment_bytes, 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            magic = int.from_bytes(data[at + 4 : at + 8], "big")
            if magic == BLANK_MAGIC:
                at += segment_bytes - (physical_offset + at) % segment_bytes
            else:
                yield at, at + size
                at += size

    def truncate(self, physical_end: int) -> None:
        """Cut the log, durably; views of what is cut must be gone."""
        self.store.truncate(physical_end)

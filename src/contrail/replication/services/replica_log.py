"""A member's view of its store: the log's positions, its epochs and voters, and how it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from contrail.errors import StoreReadOnly
from contrail.model.message import StoredMessage
from contrail.model.record import BLANK_MAGIC, decode_record
from contrail.replication.state.epochs import EpochStart, EpochTable
from contrail.replication.state.group_records import (
    GROUP_TOPIC,
    MARKER_QUEUE,
    VOTER_QUEUE,
    Marker,
    VoterChange,
    decode_group_record,
)
from contrail.replication.state.member import MemberLog
from contrail.replication.state.voters import Voters
from contrail.store import MessageStore

BATCH_BYTES_MAX = 1 << 20
"""The most bytes of a batch; one record with the blank in front of it may be longer."""
# How far ahead of a batch the system is asked to read, for a member that catches up.
_READ_AHEAD_BYTES = 4 << 20
_TOPIC = GROUP_TOPIC.encode()


class ReplicaLog:
    """The log of one member; belongs to the loop's thread."""

    def __init__(self, store: MessageStore, now_ms: Callable[[], int]) -> None:
        self.store = store
        self._now_ms = now_ms
        # How many markers retention has removed: each marker is one row of its queue.
        self._removed_markers = 0

    @property
    def end(self) -> int:
        return self.store.physical_end

    @property
    def synced_end(self) -> int:
        return self.store.flushed_end

    def recalled(self, first_voters: frozenset[str]) -> MemberLog:
        """The log's word on epochs and voters; ``first_voters`` are those before any record."""
        store = self.store
        self._removed_markers = store.queue_offset_min(_TOPIC, MARKER_QUEUE)
        voters, starts = Voters(first_voters), []
        for message in self._group_records():
            found = decode_group_record(message)
            if isinstance(found, Marker):
                starts.append(EpochStart(found.epoch, found.physical_start))
            if found is not None:
                voters.record(message.physical_offset + message.record_bytes, found.voters)
        return MemberLog(
            end=store.physical_end,
            synced_end=store.flushed_end,
            commit=store.positions.commit_limit,
            epochs=EpochTable(starts),
            voters=voters,
        )

    def _group_records(self) -> list[StoredMessage]:
        """The group's records in the log's order: those in queues, and those not derived yet."""
        store = self.store
        found = [*self._queued(MARKER_QUEUE), *self._queued(VOTER_QUEUE)]
        found.sort(key=lambda message: message.physical_offset)
        return [
            *found,
            *store.appended_between(store.dispatched_end, store.physical_end, frozenset((_TOPIC,))),
        ]

    def _queued(self, queue_id: int) -> Iterator[StoredMessage]:
        store = self.store
        at = store.queue_offset_min(_TOPIC, queue_id)
        while at < store.queue_offset_max(_TOPIC, queue_id):
            found = store.get(_TOPIC, queue_id, at)
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
        queue_offset = self._removed_markers + len(log.epochs.starts)
        return self.store.append_marker(marker.draft(self._now_ms()), queue_offset).physical_end

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

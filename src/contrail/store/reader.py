"""Read-only access to a store folder: live, stopped or copied, Contrail's or RocketMQ's.

Nothing is locked, written or mapped, so a reader works on a read-only copy and beside a running
broker. It sees a snapshot: the log's end is found when the folder is opened. Queue rows reach the
disk about a second after their messages, so rows that the files may lack are derived in memory
from the end of the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, Self

from contrail.errors import RecordDamaged, StateFileDamaged, StoreLayoutError
from contrail.kernels.java_hash import java_hash
from contrail.kernels.record_layout import (
    BLANK_ROW_SIZE,
    REASON_CUT_SHORT,
    REASON_END,
    RECORD_BYTES_MIN,
    record_reason,
    store_time,
)
from contrail.kernels.record_scan import check_record
from contrail.model.message import StoredMessage
from contrail.model.properties import INNER_NUM, KEY_SEPARATOR, KEYS, UNIQ_KEY
from contrail.model.record import (
    SYS_FLAG_INNER_BATCH,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    decode_record,
    transaction_type,
)
from contrail.model.replaced_record import REPLACED_MARK, LostPlace, read_replacement
from contrail.model.topic import QUEUE_TYPE_ATTRIBUTE, QueueType, is_system_topic
from contrail.runtime.files import FileSystem, opened
from contrail.store.config_files import load_topics
from contrail.store.disk.marker_files import ApacheCheckpoint
from contrail.store.features import GROUP_FEATURE, require_known
from contrail.store.services.checkpoint import CheckpointFiles, Known
from contrail.store.services.folder_files import (
    INDEX_HEADER_BYTES,
    FoundLog,
    IndexReader,
    LogFile,
    QueueFiles,
    UntouchedFiles,
    find_index,
    find_log,
    find_queues,
    is_in_use,
)
from contrail.store.services.log_tail import LogTail, QueueKey, RowPlace, places
from contrail.store.services.log_walk import REASONS, DamagedRange, LogChunk, LogWalk

_FOREVER_MS = (1 << 63) - 1
_ROWS_A_READ = 1000
INDEX_SLOT_COUNT_DEFAULT = 5_000_000
_INDEX_FILE_BYTES_PER_SLOT = 84
_INDEX_SLOT_BYTES = 4


class QueueSummary(NamedTuple):
    """One queue: its offsets, and when its first and last message were stored."""

    queue_id: int
    queue_offset_min: int
    queue_offset_max: int
    first_store_timestamp_ms: int | None
    last_store_timestamp_ms: int | None


class StoreReader:
    """A folder as it was when it was opened. ``damaged`` collects ranges that cannot be read."""

    def __init__(
        self, root: Path, found: FoundLog, files: FileSystem, *, index_slot_count: int | None
    ) -> None:
        self.root = root
        self.files = files
        self.segments: list[LogFile] = found.segments
        self.segment_bytes = found.segment_bytes
        self.problems = list(found.problems)
        self.notes = list(found.notes)
        self.damaged: list[DamagedRange] = []
        self._index_slot_count = index_slot_count
        self.known = self._read_known()
        log = self.known.log
        # Record CRCs count only in a store that switched them on: a sender may set the property.
        self._record_crc = 1 if log is not None and log.record_crc_from is not None else 0
        self.was_clean = not files.exists(root / "abort")
        found_queues = list(find_queues(files, root))
        self._configured = self._read_topic_types()
        self.known_batch_topics = frozenset(
            {q.topic for q in found_queues if q.is_batch}
            | {topic for topic, is_batch in self._configured.items() if is_batch}
        )
        self.queues = self._fitting(found_queues)
        self.physical_min = self.segments[0].start if self.segments else 0
        self.durable_end = self._durable_end()
        self.physical_end = self._committed(self._find_end())
        self.derived_end = self._derived_end()
        self._tail: LogTail | None = None
        self._batch_topics = self.known_batch_topics

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        segment_bytes: int | None = None,
        log_folders: tuple[Path, ...] = (),
        index_slot_count: int | None = None,
        files: FileSystem | None = None,
    ) -> Self:
        """Find the segments, queues and index files of ``root``.

        ``log_folders`` names the commit log's folders when they are not ``root/commitlog``. Sizes
        are taken from the files; ``segment_bytes`` and ``index_slot_count`` override that.

        Raises:
            StoreLayoutError: ``root`` holds no store, its segments have another length, or its
                index files have no room for that many slots.
            FeatureRefused: the folder asks for what this release does not know.
        """
        files = files or UntouchedFiles()
        folders = log_folders or (root / "commitlog",)
        _require_store(root, folders)
        _require_slots_that_fit(files, root, index_slot_count)
        found = find_log(files, folders)
        if segment_bytes is not None and found.segments and segment_bytes != found.segment_bytes:
            raise StoreLayoutError(
                f"{root}: its segments have {found.segment_bytes} bytes, not {segment_bytes}: "
                f"leave the segment size out, or name the one the folder was written with"
            )
        return cls(root, found, files, index_slot_count=index_slot_count)

    # The log.

    def walk(
        self, *, physical_start: int | None = None, physical_end: int | None = None
    ) -> Iterator[LogChunk | DamagedRange]:
        """Stretches of verified records in log order, and the damaged ranges between them."""
        start = self.physical_min if physical_start is None else physical_start
        limit = self.physical_end if physical_end is None else min(physical_end, self.physical_end)
        return iter(
            LogWalk(
                self.files,
                self.segments,
                physical_start=max(start, self.physical_min),
                durable_end=limit,
                physical_limit=limit,
                record_crc=self._record_crc,
            )
        )

    def scan(
        self, *, physical_start: int | None = None, physical_end: int | None = None
    ) -> Iterator[LogChunk]:
        """Stretches of whole records, for bulk work; damaged ranges are noted and skipped."""
        for found in self.walk(physical_start=physical_start, physical_end=physical_end):
            if isinstance(found, DamagedRange):
                self._note(found)
            else:
                yield found

    def missing_ranges(self) -> list[DamagedRange]:
        """Bytes of the log that no segment holds: between two segments, or behind the last."""
        ends = [self.physical_min, *(file.end for file in self.segments)]
        starts = [*(file.start for file in self.segments), self.durable_end]
        pairs = zip(ends, starts, strict=True)
        return [DamagedRange(end, start, REASONS[0]) for end, start in pairs if start > end]

    def record(self, physical_offset: int) -> StoredMessage:
        """The record that starts there.

        Raises:
            RecordDamaged: nothing whole starts there.
        """
        size = int.from_bytes(self.read(physical_offset, 4), "big", signed=True)
        return self._record(physical_offset, min(size, self.segment_bytes))

    def _record(self, physical_offset: int, size: int) -> StoredMessage:
        data = self.read(physical_offset, max(size, 0))
        mode = self._record_crc
        if check_record(data, 0, len(data), physical_offset, True, mode)[0] != REASON_END:
            raise RecordDamaged(
                f"no whole record starts at physical offset {physical_offset}",
                physical_offset=physical_offset,
            )
        return decode_record(data, 0, physical_offset=physical_offset)

    def read(self, physical_offset: int, byte_count: int) -> bytes:
        """Bytes of the log from one segment; fewer, or none, if the segment has no more."""
        index = bisect_left(self.segments, physical_offset + 1, key=lambda file: file.start) - 1
        if index < 0 or physical_offset >= self.segments[index].end:
            return b""
        file = self.segments[index]
        try:
            with opened(self.files, file.path, writable=False) as fd:
                # A damaged row may ask for gigabytes; the segment's end bounds the read.
                room = min(byte_count, file.end - physical_offset)
                return self.files.pread(fd, room, physical_offset - file.start)
        except OSError:
            return b""

    # Messages.

    def topics(self) -> dict[str, list[QueueSummary]]:
        """Every topic's queues with their offsets and times."""
        found: dict[str, list[QueueSummary]] = {}
        for topic, queue_id in sorted({*self.queues, *self._the_tail().runs}):
            queue = self.queues.get((topic, queue_id))
            with queue.held_open() if queue is not None else nullcontext():
                summary = self._summary((topic, queue_id))
            found.setdefault(topic.decode("utf-8", "replace"), []).append(summary)
        return found

    def has_topic(self, topic: str) -> bool:
        """Whether the folder has messages of a topic, or its settings."""
        name = topic.encode("utf-8", "surrogateescape")
        return name in self._configured or bool(self.queue_ids(topic))

    def queue_ids(self, topic: str) -> set[int]:
        """The queues of a topic that were ever written."""
        name = topic.encode("utf-8", "surrogateescape")
        return {
            queue_id for found, queue_id in {*self.queues, *self._the_tail().runs} if found == name
        }

    def messages(
        self,
        *,
        topic: str | None = None,
        queue_id: int | None = None,
        queue_offset_start: int = 0,
        queue_offset_end: int | None = None,
        begin_ms: int = 0,
        end_ms: int = _FOREVER_MS,
        internal: bool = False,
    ) -> Iterator[StoredMessage]:
        """Messages of one topic by queue, or of all topics in log order.

        Times are store times, inclusive. A clock may have been set back, so times need not rise
        along the log: every message is checked. Without a topic, messages of system topics and
        half messages are left out unless ``internal``.
        """
        if topic is None:
            yield from self._in_log_order(begin_ms, end_ms, internal)
            return
        name = topic.encode()
        for key in sorted({*self.queues, *self._the_tail().runs}):
            if key[0] == name and queue_id in (None, key[1]):
                for message in self._in_queue(key, queue_offset_start):
                    if queue_offset_end is not None and message.queue_offset >= queue_offset_end:
                        break
                    if begin_ms <= message.store_timestamp_ms <= end_ms:
                        yield message

    def by_key(self, topic: str, key: str) -> list[StoredMessage]:
        """Messages of a topic that carry a key or unique id, in log order; keys are compared."""
        text = f"{topic}#{key}".encode()
        key_hash = abs(java_hash(text))
        key_hash = key_hash if key_hash < 1 << 31 else 0
        index = self.index_files()
        offsets = {place for file in index for place in file.find(key_hash)}
        offsets |= self._the_tail().find(key_hash)
        if not index:
            offsets |= self._scan_for(key_hash)
        found = []
        for physical_offset in sorted(offsets):
            if not self.physical_min <= physical_offset < self.physical_end:
                continue
            try:
                message = self.record(physical_offset)
            except RecordDamaged as damage:
                self._note(DamagedRange(physical_offset, physical_offset, str(damage)))
                continue
            if message.topic == topic and key in keys_of(message):
                found.append(message)
        return found

    def replaced(self, chunk: LogChunk) -> list[LostPlace]:
        """The damaged messages that records of this stretch replace."""
        if REPLACED_MARK.to_bytes(8, "big") not in chunk.data:
            return []
        places = (read_replacement(message) for message in messages_of(chunk))
        return [place for place in places if place is not None]

    def _scan_for(self, key_hash: int) -> set[int]:
        """Without an index: compare every key of the log."""
        found: set[int] = set()
        for chunk in self.scan(physical_end=self.derived_end):
            keys = LogTail()
            keys.add(chunk, self.known_batch_topics)
            found |= keys.find(key_hash)
        return found

    def index_files(self) -> list[IndexReader]:
        return find_index(self.files, self.root, self.index_slot_count)

    @property
    def index_slot_count(self) -> int:
        """Slots of an index file: as given, or from its length at four entries a slot."""
        if self._index_slot_count is None:
            lengths = [entry.stat().st_size for entry in self.files.entries(self.root / "index")]
            slots = (max(lengths, default=0) - 40) // _INDEX_FILE_BYTES_PER_SLOT
            self._index_slot_count = slots if slots > 0 else INDEX_SLOT_COUNT_DEFAULT
        return self._index_slot_count

    def is_in_use(self) -> bool | None:
        """Whether a process has the store open; None if the system does not say."""
        return is_in_use(self.files, self.root)

    @property
    def batch_topics(self) -> frozenset[bytes]:
        """Topics of batch queues: by their folders, ``topics.json`` and the log's end."""
        self._the_tail()
        return self._batch_topics

    def learned_batch_topics(self, chunk: LogChunk) -> set[bytes]:
        """Batch topics that only these records show.

        For a topic with a folder or an entry in ``topics.json`` old records do not count.
        """
        if INNER_NUM.encode() not in chunk.data:
            return set()
        settled = {topic for topic, _ in self.queues} | self._configured.keys()
        dead = self.known.derived.tombstones if self.known.derived else {}
        return {
            message.topic.encode()
            for message in messages_of(chunk)
            if message.sys_flag & SYS_FLAG_INNER_BATCH
            and message.topic.encode() not in settled
            and message.physical_offset >= dead.get(message.topic.encode(), 0)
        }

    # Private: the types of queues.

    def _read_topic_types(self) -> dict[bytes, bool]:
        """By topic in ``topics.json``: whether it keeps batches in one row each."""
        try:
            found = load_topics(self.files, self.root, set_aside=False)
        except (StateFileDamaged, OSError) as error:
            self.notes.append(f"types of topics are guessed from queues and log: {error}")
            return {}
        if found.problem:
            self.notes.append(found.problem)
        topics = found.value.topics.values() if found.value else ()
        batch = QueueType.BATCH.value
        return {t.topic.encode(): t.attributes.get(QUEUE_TYPE_ATTRIBUTE) == batch for t in topics}

    def _fitting(self, found: list[QueueFiles]) -> dict[QueueKey, QueueFiles]:
        """The queues whose folder fits their topic's type."""
        dead = self.known.derived.tombstones if self.known.derived else {}
        fitting: dict[QueueKey, QueueFiles] = {}
        for queue in found:
            if queue.is_batch == (queue.topic in self.known_batch_topics):
                fitting[queue.topic, queue.queue_id] = queue
            elif queue.topic not in dead:
                self.problems.append(
                    f"{queue.folder} does not fit its topic, which holds batches: move it away"
                )
        return fitting

    # Private: the ends of the log and of derived files.

    def _read_known(self) -> Known:
        try:
            known = CheckpointFiles(self.files, self.root).read()
        except StateFileDamaged as damage:
            self.problems.append(str(damage))
            return Known(None, None, None, [])
        self.notes += known.notes
        return known

    def _durable_end(self) -> int:
        """Below this byte bytes that are no record are damage; above, they may be the log's end."""
        if self.known.log is not None:
            return self.known.log.physical_end
        proven = [self._proven_end(queue) for queue in self.queues.values()]
        begun = [file.start for file in self.segments if self._store_time(file.start) is not None]
        return max([*proven, *begun], default=0)

    def _proven_end(self, queue: QueueFiles) -> int:
        """The end of a queue's last record, if that record is in the log."""
        limit = self.segments[-1].end if self.segments else 0
        rows = queue.live_rows(0, limit)
        if not rows:
            return 0
        physical_offset, size = queue.place(rows[-1])
        data = self.read(physical_offset, size) if 0 < size < BLANK_ROW_SIZE else b""
        sound = check_record(data, 0, len(data), physical_offset, False, 0)[0] == REASON_END
        return physical_offset + size if sound and data else 0

    def _find_end(self) -> int:
        """Walk from the durable end to the first bytes that are no record."""
        start = min(max(self.durable_end, self.physical_min), self._file_end())
        walk = LogWalk(
            self.files, self.segments, physical_start=start, durable_end=0, check_crc=True
        )
        for _ in walk:
            pass
        return max(walk.position, self.durable_end)

    def _committed(self, physical_end: int) -> int:
        """Of a failover group's member only what it knew to be committed: the rest may be cut."""
        if GROUP_FEATURE not in require_known(self.files, self.root):
            return physical_end
        return min(physical_end, max(self.known.commit_hint, self.physical_min))

    def _file_end(self) -> int:
        return self.segments[-1].end if self.segments else 0

    def _derived_end(self) -> int:
        """The physical offset up to which queue and index files surely hold all rows."""
        if self.known.derived is not None:
            return max(min(self.known.derived.dispatched_end, self.physical_end), self.physical_min)
        if self.known.log is not None:
            return self.physical_min
        if self.was_clean and self.queues:
            return max(self.physical_min, *(self._proven_end(q) for q in self.queues.values()))
        return self._start_by_time(self.known.apache)

    def _start_by_time(self, apache: ApacheCheckpoint | None) -> int:
        safe_ms = apache.safe_timestamp_ms if apache else 0
        for file in reversed(self.segments):
            store_ms = self._store_time(file.start)
            if store_ms is not None and 0 < store_ms <= safe_ms:
                return file.start
        return self.physical_min

    def _store_time(self, physical_offset: int) -> int | None:
        """The store time of the record there, without reading its body; None if there is none."""
        head = self.read(physical_offset, RECORD_BYTES_MIN)
        # Only the head was read, so the record is cut short, unless it is of the smallest size.
        if record_reason(head, 0, len(head)) not in (REASON_CUT_SHORT, REASON_END):
            return None
        return store_time(head, 0) if len(head) == RECORD_BYTES_MIN else None

    def _the_tail(self) -> LogTail:
        if self._tail is None:
            tail, learned = self._derived_tail()
            if learned:
                # These rows were derived as single messages' rows: derive them again as batches.
                self._batch_topics |= learned
                tail, _ = self._derived_tail()
            self._tail = tail
        return self._tail

    def _derived_tail(self) -> tuple[LogTail, set[bytes]]:
        tail = LogTail()
        learned: set[bytes] = set()
        for chunk in self.scan(physical_start=self.derived_end):
            tail.add(chunk, self._batch_topics)
            learned |= self.learned_batch_topics(chunk)
        tail.drop_dead(self.known.derived.tombstones if self.known.derived else {})
        return tail, learned

    # Private: rows.

    def rows(self, key: QueueKey, queue_offset_start: int = 0) -> Iterator[RowPlace]:
        """A queue's rows in order: first from its files, then derived from the log's end."""
        queue, reached = self.queues.get(key), 0
        if queue is not None:
            for place in self._disk_rows(queue, queue_offset_start):
                reached = place.next_queue_offset
                yield place
        for place in self._the_tail().rows(key, key[0] in self._batch_topics):
            if place.queue_offset >= reached and place.next_queue_offset > queue_offset_start:
                yield place

    def _disk_rows(self, queue: QueueFiles, queue_offset_start: int) -> Iterator[RowPlace]:
        live = queue.live_rows(self.physical_min, self.physical_end)
        with queue.held_open():
            first = live.start + bisect_left(
                live, queue_offset_start + 1, key=lambda number: queue.queue_offsets(number)[1]
            )
        for number in range(first, live.stop, _ROWS_A_READ):
            count = min(_ROWS_A_READ, live.stop - number)
            data = queue.rows(number, count)
            for place in places(data, number, queue.is_batch):
                if 0 < place.size < BLANK_ROW_SIZE:
                    yield place

    def _summary(self, key: QueueKey) -> QueueSummary:
        queue = self.queues.get(key)
        live = queue.live_rows(self.physical_min, self.physical_end) if queue else range(0)
        places = [self._disk_place(queue, n) for n in (live[0], live[-1])] if queue and live else []
        reached = places[-1].next_queue_offset if places else 0
        tail = self._the_tail().ends(key, key[0] in self._batch_topics)
        places += [place for place in tail if place.queue_offset >= reached]
        if not places:
            # Retention removed every message; the next message still gets the next offset.
            spent = queue.queue_offsets(live.stop - 1)[1] if queue and live.stop else 0
            return QueueSummary(key[1], spent, spent, None, None)
        first, last = places[0], places[-1]
        first_ms = self._store_time(first.physical_offset)
        last_ms = first_ms if last == first else self._store_time(last.physical_offset)
        return QueueSummary(key[1], first.queue_offset, last.next_queue_offset, first_ms, last_ms)

    def _disk_place(self, queue: QueueFiles, number: int) -> RowPlace:
        return next(places(queue.rows(number, 1), number, queue.is_batch))

    def _in_queue(self, key: QueueKey, queue_offset_start: int) -> Iterator[StoredMessage]:
        for place in self.rows(key, queue_offset_start):
            start, end = place.physical_offset, place.physical_offset + place.size
            try:
                message = self._record(start, place.size)
            except RecordDamaged as damage:
                self._note(DamagedRange(start, end, str(damage)))
                continue
            said = (message.topic.encode(), message.queue_id, message.queue_offset)
            if said != (*key, place.queue_offset):
                lost = read_replacement(message)
                if lost is not None and lost[:3] == (*key, place.queue_offset):
                    continue
                reason = f"row {place.queue_offset} of queue {key[1]} leads to another record"
                self._note(DamagedRange(start, end, reason))
                continue
            yield message

    def _in_log_order(self, begin_ms: int, end_ms: int, internal: bool) -> Iterator[StoredMessage]:
        for chunk in self.scan():
            for message in messages_of(chunk, begin_ms, end_ms):
                if internal or not is_internal(message):
                    yield message

    def _note(self, damage: DamagedRange) -> None:
        if damage not in self.damaged:
            self.damaged.append(damage)


def messages_of(
    chunk: LogChunk, begin_ms: int = -_FOREVER_MS, end_ms: int = _FOREVER_MS
) -> Iterator[StoredMessage]:
    """The messages of a stretch stored within a time span; only these are decoded."""
    data, position = chunk.data, chunk.start
    while position < chunk.end:
        if begin_ms <= store_time(data, position) <= end_ms:
            yield decode_record(data, position, check_body_crc=False)
        position += int.from_bytes(data[position : position + 4], "big")


def keys_of(message: StoredMessage) -> list[str]:
    """The keys by which a message can be found: its unique id and each of its keys."""
    properties = message.properties
    keys = [key for key in properties.get(KEYS, "").split(KEY_SEPARATOR) if key]
    return [*keys, properties[UNIQ_KEY]] if UNIQ_KEY in properties else keys


def is_internal(message: StoredMessage) -> bool:
    """Whether a message is internal to the broker: of a system topic or an open transaction."""
    halves = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
    return is_system_topic(message.topic) or transaction_type(message.sys_flag) in halves


def _require_store(root: Path, folders: tuple[Path, ...]) -> None:
    if not root.exists():
        raise StoreLayoutError(f"{root} does not exist: name the folder of a store")
    if not root.is_dir():
        raise StoreLayoutError(f"{root} is a file: name the folder of a store")
    for folder in folders:
        if not folder.is_dir():
            raise StoreLayoutError(
                f"{root} is not a store: it has no folder {folder.name} "
                f"(name the commit log's folders if they are elsewhere)"
            )


def _require_slots_that_fit(files: FileSystem, root: Path, slot_count: int | None) -> None:
    lengths = [entry.stat().st_size for entry in files.entries(root / "index")]
    if slot_count is None or not lengths:
        return
    slots_max = max((max(lengths) - INDEX_HEADER_BYTES) // _INDEX_SLOT_BYTES, 1)
    if not 0 < slot_count <= slots_max:
        raise StoreLayoutError(
            f"{root}: its index files have {max(lengths)} bytes, which is no room for "
            f"{slot_count} slots: leave their number out, or name the broker's maxHashSlotNum"
        )

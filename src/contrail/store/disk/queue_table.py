"""All queues of a store: found at the start, made on the first message, fed by the dispatcher.

Only queues with new rows cost time: a write visits the dirty queues alone, and a queue that got no
row between two calls of ``cool_idle`` gives back the memory of its tail.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from contrail.errors import StoreLayoutError
from contrail.kernels.record_layout import BATCH_ROW_BYTES
from contrail.kernels.send_dispatch import put_sends
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.batch_queue import BatchQueue
from contrail.store.disk.consume_queue import ConsumeQueue
from contrail.store.disk.handles import FileHandles, UnsyncedPaths
from contrail.store.disk.row_queue import QueueMark
from contrail.store.state.row_layout import base_offset

if TYPE_CHECKING:
    from contrail.kernels.send_records import Chunk

__all__ = ["Arrival", "QueueMark", "QueueProblem", "QueueTable"]

_QUEUE_ID = re.compile(r"0|-?[1-9][0-9]*")
# The first write of a new queue makes two folders and the file: it takes as long as this many
# writes to queues that have a file.
_NEW_QUEUE_WRITES = 20
_log = logging.getLogger(__name__)

Queue = ConsumeQueue | BatchQueue
# derive_rows' runs: [first_queue_offset, count, rows, last_physical_end, last_store_timestamp_ms].
Run = list[Any]
# From topic, physical offset and size of a record to the bitmap of its extension unit.
TopicBitmapOf = Callable[[bytes, int, int], bytes]


class Arrival(NamedTuple):
    """Messages that became visible in one queue."""

    topic: bytes
    queue_id: int
    queue_offset_max: int
    rows: int


class QueueProblem(NamedTuple):
    """A queue that could not be used as found and was emptied, to be fed from the log again."""

    topic: bytes
    queue_id: int
    text: str

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {os.fsdecode(self.topic)} is rebuilt: {self.text}"


class QueueTable:
    """Every queue by topic and queue id. Belongs to one thread, but for ``sync``."""

    def __init__(
        self,
        config: StoreConfig,
        files: FileSystem,
        *,
        batch_topics: frozenset[bytes] = frozenset(),
        bitmap_of: TopicBitmapOf | None = None,
    ) -> None:
        self._config = config
        self._files = files
        self._bitmap_of = bitmap_of
        self._handles = FileHandles(files, config.open_files_max)
        self._unsynced = UnsyncedPaths()
        self._folder = config.root / "consumequeue"
        self._batch_folder = config.root / "batchconsumequeue"
        self._topics: dict[bytes, dict[int, Queue]] = {}
        self._dirty: dict[Queue, tuple[bytes, int]] = {}
        self._warm: set[Queue] = set()
        self._owed: set[Queue] = set()
        self._marks: dict[tuple[bytes, int], QueueMark] = {}
        self._refused: set[bytes] = set()
        self.batch_topics = batch_topics
        self.tombstones: dict[bytes, int] = {}
        # Deleting a topic does not lower it: it is only an upper bound.
        self.physical_end_max = 0

    # Starting and stopping.

    def load(
        self,
        *,
        physical_limit: int,
        marks: dict[tuple[bytes, int], QueueMark] | None,
        go_on: Callable[[], None] = lambda: None,
    ) -> list[QueueProblem]:
        """Find every queue on disk and hold it to its mark; queues with a problem are emptied.

        ``go_on`` is called between queues, and raises to end the load.
        """
        problems: list[QueueProblem] = []
        missing = dict(marks or {})
        # Find all queues before the first is opened: ending a deletion removes folders.
        for topic, queue_id in list(self._found()):
            go_on()
            mark = missing.pop((topic, queue_id), None)
            queue = self._made(topic, queue_id)
            problem = _load(queue, physical_limit, mark)
            if problem is not None:
                queue.reset()
                problems.append(QueueProblem(topic, queue_id, problem))
            elif marks is not None and (mark is None or not mark.queue_offset_max):
                # All its rows come from records behind the marks, and are derived again. A power
                # cut may have taken the first of its files and left the second.
                queue.reset()
            elif 0 < queue.physical_end <= self.tombstones.get(topic, 0):
                # The queue's removal was not durable; the topic may have been made again since.
                queue.reset()
            queue.cool()
            self._marks[topic, queue_id] = queue.mark()
        self._end_deletions()
        self.physical_end_max = self._highest_end()
        for (topic, queue_id), mark in missing.items():
            # A topic deleted and made again has marks above its tombstone: these rows are live.
            if mark.queue_offset_max and mark.physical_end > self.tombstones.get(topic, -1):
                problems.append(QueueProblem(topic, queue_id, "its folder is missing"))
        return problems

    def close(self) -> None:
        """Close every file; rows that were not written are lost."""
        self._handles.close_all()

    @property
    def open_count(self) -> int:
        return self._handles.open_count

    # Feeding.

    def put(self, queues: dict[bytes, dict[int, list[Run]]]) -> list[Arrival]:
        """Take the rows of ``derive_rows``; returns the queues that grew."""
        arrivals: list[Arrival] = []
        for topic, by_queue in queues.items():
            dead_below = self.tombstones.get(topic, 0)
            for queue_id, runs in by_queue.items():
                if dead_below:
                    runs = _alive(runs, dead_below, topic in self.batch_topics)
                queue = self.get(topic, queue_id) or (runs and self._created(topic, queue_id))
                if not queue:
                    continue
                added = 0
                for run in runs:
                    added += queue.put(run[0], run[1], run[2], run[3])
                if added:
                    self._dirty[queue] = (topic, queue_id)
                    queue.is_dirty = True
                    arrivals.append(Arrival(topic, queue_id, queue.queue_offset_max, added))
                    if queue.physical_end > self.physical_end_max:
                        self.physical_end_max = queue.physical_end
        return arrivals

    def begin(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> None:
        """Begin a queue without rows with blank rows, of messages that may be found later."""
        queue = self.get(topic, queue_id) or self._created(topic, queue_id)
        if isinstance(queue, ConsumeQueue):
            queue.begin_blank(queue_offset, count)

    def put_sends(
        self,
        stored: list[tuple[list[Chunk], int]],
        *,
        watched: dict[tuple[bytes, int], Any] | None,
        with_index: bool,
    ) -> tuple[list[Arrival], bytearray | None]:
        """Take stored sends as rows of numbers; returns the queues that grew, and index rows.

        ``stored`` are chunks adjacent in the log, each with its store time. If the index rows are
        None, ``put`` must take the same records too: some of their rows may be missing.
        """
        grown: dict[tuple[bytes, int], int] = {}
        full: list[Queue] = []
        index_rows = put_sends(
            stored,
            self._topics,
            self.tombstones,
            watched,
            self._dirty,
            grown,
            full,
            with_index,
        )
        for queue in full:
            queue.write_if_many()
        return [self._arrival(key, before) for key, before in grown.items()], index_rows

    def _arrival(self, key: tuple[bytes, int], queue_offset_before: int) -> Arrival:
        queue_offset_max = self._topics[key[0]][key[1]].queue_offset_max
        return Arrival(*key, queue_offset_max, queue_offset_max - queue_offset_before)

    def note_end(self, physical_end: int) -> None:
        """Rows of all records below ``physical_end`` were put."""
        self.physical_end_max = max(self.physical_end_max, physical_end)

    def cool_idle(self) -> None:
        """Give back the memory of queues without new rows since the last call."""
        for queue in self._warm.difference(self._dirty):
            queue.cool()
        self._warm = set(self._dirty)

    def write_pending(self, *, queues_max: int | None = None) -> bool:
        """Write waiting rows, of ``queues_max`` queues at most; returns whether all are written.

        Queues that have waited longest come first. A queue without a file counts for several.
        """
        writes_left = queues_max
        for queue, key in list(islice(self._dirty.items(), queues_max)):
            if writes_left is not None:
                if writes_left <= 0:
                    break
                writes_left -= 1 if queue.mark().physical_end else _NEW_QUEUE_WRITES
            queue.write_pending()
            self._marks[key] = queue.mark()
            del self._dirty[queue]
            queue.is_dirty = False
            self._owed.discard(queue)
        return not self._dirty

    def owe(self) -> dict[tuple[bytes, int], QueueMark]:
        """The mark of every queue, its waiting rows included.

        The marks hold for the files once ``is_owing`` is False and the files are synced.
        """
        self._owed = set(self._dirty)
        waiting = {key: queue.mark_to_come() for queue, key in self._dirty.items()}
        return {**self._marks, **waiting}

    @property
    def is_owing(self) -> bool:
        """Whether rows of the last ``owe`` are still to be written."""
        return bool(self._owed)

    @property
    def has_pending(self) -> bool:
        """Whether rows wait in memory: then ``marks`` do not include them."""
        return bool(self._dirty)

    def sync(self) -> None:
        """Make written rows durable. Any thread may call it, after ``write_pending``."""
        self._unsynced.sync(self._files, self._config.root)
        crashpoint("queue.synced")

    def marks(self) -> dict[tuple[bytes, int], QueueMark]:
        """The mark of every queue as written; durable once the next ``sync`` returned."""
        return dict(self._marks)

    # Finding.

    def get(self, topic: bytes, queue_id: int) -> Queue | None:
        by_queue = self._topics.get(topic)
        return by_queue.get(queue_id) if by_queue is not None else None

    def topics(self) -> list[bytes]:
        return list(self._topics)

    def queues(self) -> Iterator[tuple[bytes, int, Queue]]:
        """Every queue with its topic and id; the table may change while this is walked."""
        for topic, by_queue in list(self._topics.items()):
            for queue_id, queue in list(by_queue.items()):
                yield topic, queue_id, queue

    def has_topic(self, topic: bytes) -> bool:
        """Whether a topic has any queue."""
        return bool(self._topics.get(topic))

    def add_batch_topic(self, topic: bytes) -> None:
        """From now on ``topic`` keeps batches in one row each."""
        self.check_batch_topic(topic)
        self.batch_topics |= {topic}

    def check_batch_topic(self, topic: bytes) -> None:
        """Refuse a topic that has queues of the other kind."""
        by_queue = self._topics.get(topic, {})
        if any(isinstance(queue, ConsumeQueue) for queue in by_queue.values()):
            raise _other_type(topic, self._folder)

    # Forgetting.

    def truncate(self, physical_end: int) -> None:
        """Durably forget the rows of records at or above ``physical_end``."""
        for topic, queue_id, queue in self.queues():
            if queue.physical_end > physical_end:
                queue.truncate(physical_end)
                self._marks[topic, queue_id] = queue.mark()
        self.physical_end_max = self._highest_end()

    def correct_minimums(self, physical_min: int) -> None:
        """Raise every queue's minimum to its first message that the log still has."""
        if physical_min <= 0:
            return
        for topic, queue_id, queue in self.queues():
            minimum = queue.queue_offset_min
            queue.correct_minimum(physical_min)
            if queue.queue_offset_min != minimum:
                self._marks[topic, queue_id] = queue.mark()
        for topic in [t for t, end in self.tombstones.items() if end <= physical_min]:
            del self.tombstones[topic]

    def drop_files_before(self, physical_min: int) -> list[Path]:
        """Unlink the queue files of which the log has no record left."""
        dropped: list[Path] = []
        for topic, queue_id, queue in self.queues():
            gone = queue.drop_files_before(physical_min)
            if gone:
                dropped += gone
                self._marks[topic, queue_id] = queue.mark()
        return dropped

    def delete_topic(self, topic: bytes, physical_offset: int) -> None:
        """Forget ``topic`` and every record of it below ``physical_offset``."""
        self.tombstones[topic] = max(physical_offset, self.tombstones.get(topic, 0))
        crashpoint("queue.topic_tombstoned")
        for queue_id, queue in self._topics.pop(topic, {}).items():
            self._dirty.pop(queue, None)
            queue.is_dirty = queue.takes_fast_rows = False
            self._warm.discard(queue)
            self._owed.discard(queue)
            self._marks.pop((topic, queue_id), None)
            queue.reset()
            crashpoint("queue.files_removed")
        self._remove_folders(topic)
        self.batch_topics -= {topic}
        crashpoint("queue.topic_removed")

    # Private.

    def _found(self) -> Iterator[tuple[bytes, int]]:
        for folder in (self._folder, self._batch_folder):
            for entry in self._files.entries(folder):
                if entry.is_dir():
                    yield from self._found_queues(folder, entry.path, os.fsencode(entry.name))

    def _found_queues(self, folder: Path, path: str, topic: bytes) -> Iterator[tuple[bytes, int]]:
        for entry in self._files.entries(Path(path)):
            if entry.is_dir() and _QUEUE_ID.fullmatch(entry.name):
                if (topic in self.batch_topics) == (folder is self._batch_folder):
                    yield topic, int(entry.name)
                elif topic in self.tombstones:
                    self._remove_tree(Path(entry.path))
                else:
                    raise _other_type(topic, folder)

    def _end_deletions(self) -> None:
        """Remove the files left of topics whose deletion a crash interrupted."""
        for topic, physical_offset in list(self.tombstones.items()):
            queues = self._topics.get(topic, {}).values()
            if queues and all(queue.physical_end <= physical_offset for queue in queues):
                self.delete_topic(topic, physical_offset)

    def _created(self, topic: bytes, queue_id: int) -> Queue | None:
        """A new queue, or None for a topic that cannot be a folder's name."""
        if _is_folder_name(topic):
            return self._made(topic, queue_id)
        if topic not in self._refused:
            self._refused.add(topic)
            _log.error("messages of topic %r get no queue: it is not a folder's name", topic)
        return None

    def _made(self, topic: bytes, queue_id: int) -> Queue:
        name = os.fsdecode(topic)
        if topic in self.batch_topics:
            queue: Queue = BatchQueue(
                self._batch_folder / f"{name}/{queue_id}",
                config=self._config,
                files=self._files,
                handles=self._handles,
                unsynced=self._unsynced,
            )
        else:
            queue = ConsumeQueue(
                self._folder / f"{name}/{queue_id}",
                config=self._config,
                files=self._files,
                handles=self._handles,
                unsynced=self._unsynced,
                bitmap_of=self._bitmap_for(topic),
            )
        self._topics.setdefault(topic, {})[queue_id] = queue
        return queue

    def _bitmap_for(self, topic: bytes) -> Callable[[int, int], bytes] | None:
        bitmap_of = self._bitmap_of
        if bitmap_of is None:
            return None
        return lambda physical_offset, size: bitmap_of(topic, physical_offset, size)

    def _remove_folders(self, topic: bytes) -> None:
        name = os.fsdecode(topic)
        if not _is_folder_name(topic):
            return
        for folder in (self._folder, self._batch_folder, self._config.root / "consumequeue_ext"):
            self._remove_tree(folder / name)
            self._unsynced.changed(folder)

    def _remove_tree(self, folder: Path) -> None:
        for entry in self._files.entries(folder):
            path = Path(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                self._files.unlink(path)
                self._handles.close(path)
            else:
                self._remove_tree(path)
        with contextlib.suppress(FileNotFoundError):
            self._files.remove_folder(folder)

    def _highest_end(self) -> int:
        return max((queue.physical_end for _, _, queue in self.queues()), default=0)


def _load(queue: Queue, physical_limit: int, mark: QueueMark | None) -> str | None:
    try:
        return queue.load(physical_limit=physical_limit, expected=mark)
    except OSError as error:
        return f"it cannot be read: {error}"


def _alive(runs: list[Run], dead_below: int, batches: bool) -> list[Run]:
    """The rows of a deleted topic's records that were appended after the deletion."""
    alive: list[Run] = []
    for first, count, rows, physical_end, store_timestamp_ms in runs:
        row_bytes = BATCH_ROW_BYTES if batches else len(rows) // count
        at = 0
        while at < len(rows) and int.from_bytes(rows[at : at + 8], "big") < dead_below:
            at += row_bytes
        if at < len(rows):
            end = first + count
            first = base_offset(rows, at) if batches else first + at // row_bytes
            alive.append([first, end - first, rows[at:], physical_end, store_timestamp_ms])
    return alive


def _is_folder_name(topic: bytes) -> bool:
    return topic not in (b"", b".", b"..") and b"/" not in topic and b"\0" not in topic


def _other_type(topic: bytes, folder: Path) -> StoreLayoutError:
    return StoreLayoutError(
        f"{folder / os.fsdecode(topic)} does not fit the type of the topic: correct queue.type "
        f"of the topic in topics.json, or move the folder away to have it rebuilt"
    )

"""The key index: which messages of a topic carry a key, in files of 20 million entries each.

Keys go into the newest file, in memory first. A file is named by the local time of its creation,
as in RocketMQ; the names only order the files. The index is derived from the log: after a crash
the last file is cut back to the last durable mark and fed again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from contrail.clock import Clock
from contrail.kernels.java_hash import java_hash
from contrail.kernels.record_layout import INDEX_PHYSICAL_AT, INDEX_ROW_BYTES, INDEX_TIME_AT
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.disk.disk_waits import DiskWaits
from contrail.store.disk.handles import FileHandles, UnsyncedPaths
from contrail.store.disk.index_file import BEGIN_PHYSICAL, IndexFile, IndexMark

__all__ = ["IndexMark", "KeyIndex"]

NAME_DIGITS = 17
_OPEN_FILES_MAX = 8
_SECOND_MS = 1000
# How far an entry's time can be from its file's begin.
_SPAN_MS_MAX = _SECOND_MS << 31
# A chain may hold millions of entries, and most queries want a few of the newest.
_SELECTED_FIRST = 64
_log = logging.getLogger(__name__)


class KeyIndex:
    """All index files. Belongs to one thread, but for ``sync``."""

    def __init__(
        self,
        folder: Path,
        *,
        config: StoreConfig,
        files: FileSystem,
        clock: Clock,
        waits: DiskWaits | None = None,
    ) -> None:
        self._folder = folder
        self._config = config
        self._files = files
        self._clock = clock
        self._waits = waits or DiskWaits()
        self._handles = FileHandles(files, _OPEN_FILES_MAX)
        self._unsynced = UnsyncedPaths()
        self._index_files: list[IndexFile] = []
        # Files that rolled but could not be written yet.
        self._unwritten: list[IndexFile] = []
        self._indexed_through = -1
        # How many keys of the last indexed message the index has already when it is fed again.
        self._keys_kept = 0

    @property
    def physical_end(self) -> int:
        """Where the last indexed message begins; 0 when there is none."""
        return self._index_files[-1].end_physical_offset if self._index_files else 0

    @property
    def last_timestamp_ms(self) -> int:
        """The store time of the last indexed message; 0 when there is none."""
        return self._index_files[-1].end_timestamp_ms if self._index_files else 0

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self._index_files]

    # Starting and stopping.

    def load(
        self, *, physical_limit: int, marks: list[IndexMark] | None, trusted: bool = False
    ) -> int:
        """Find the files and return the physical offset from which the log must be fed again.

        The answer is ``physical_limit`` if the files agree with ``marks``, or, without marks, if
        they are ``trusted`` (the folder was closed in order). Otherwise the last file's slots are
        chained anew, and damaged or unknown files are removed with all later files.
        """
        found = self._found()
        if marks is not None:
            answer = self._load_marked(found, marks, physical_limit, trusted)
        else:
            answer = self._load_unmarked(found, physical_limit, trusted)
        self.truncate(physical_limit)
        if self._indexed_through < 0 and self._index_files:
            self._indexed_through = self.physical_end
        return answer

    def close(self) -> None:
        """Close every file; entries that were not written are lost."""
        self._handles.close_all()

    # Writing.

    def put(self, index_rows: bytearray) -> None:
        """Take the keys of whole messages, skipping messages already indexed."""
        rows = memoryview(bytes(index_rows[self._known_bytes(index_rows) :]))
        if self._keys_kept and rows:
            rows = self._without_kept(rows)
        if not rows:
            return
        indexed_through = int.from_bytes(rows[-16:-8], "big", signed=True)
        while rows:
            active = self._active()
            rows = rows[active.put(rows) * INDEX_ROW_BYTES :]
            if active.wants_write:
                self._write_early(active)
        # Set last: after an error these keys are fed again, and must not be skipped then.
        self._indexed_through = indexed_through

    def write_pending(self) -> None:
        """Write pending entries to the files. On an error unwritten entries stay pending."""
        while self._unwritten:
            self._unwritten[0].write_pending()
            self._unwritten.pop(0).release()
        if self._index_files:
            self._index_files[-1].write_pending()

    @property
    def has_pending(self) -> bool:
        """Whether keys wait in memory: then ``marks`` do not include them."""
        active = self._index_files[-1] if self._index_files else None
        return bool(self._unwritten) or (active is not None and active.has_pending)

    def sync(self) -> None:
        """Make written entries durable. Any thread may call it, after ``write_pending``."""
        self._unsynced.sync(self._files, self._folder.parent)
        crashpoint("index.synced")

    def marks(self) -> list[IndexMark]:
        """The marks of the files as written; durable once the next ``sync`` returned."""
        marks = [file.mark() for file in self._index_files]
        return [mark for mark in marks if mark is not None]

    def drop_files_before(self, physical_min: int) -> list[Path]:
        """Unlink leading files whose messages the log no longer has; never the last file."""
        dropped: list[Path] = []
        while len(self._index_files) > 1:
            file = self._index_files[0]
            if file.end_physical_offset >= physical_min or file in self._unwritten:
                break
            self._unlink(file.path)
            dropped.append(self._index_files.pop(0).path)
            crashpoint("index.file_dropped")
        return dropped

    def drop_from(self, name: str) -> int:
        """Unlink the file ``name`` and every later file; returns from where to feed again."""
        while self._index_files and self._index_files[-1].path.name >= name:
            file = self._index_files.pop()
            if file in self._unwritten:
                self._unwritten.remove(file)
            if self._files.exists(file.path):
                self._unlink(file.path)
            crashpoint("index.file_distrusted")
        self._indexed_through = -1
        return self._after_last()

    # Asking.

    def candidates(self, topic: bytes, key: bytes, *, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets that may hold ``key``, the newest first; callers compare the messages.

        The index keeps the hash of a key and the second of a time, so messages with another key
        may be among them, and one message several times. No message with this key and a store
        time in the span is left out.
        """
        key_hash = _key_hash(topic + b"#" + key)
        begin_ms, end_ms = begin_ms - _SECOND_MS, end_ms + _SECOND_MS
        for file in reversed(self._index_files):
            if file.covers(begin_ms, end_ms):
                yield from _selected(file, key_hash, begin_ms, end_ms)
                yield from _first_of(file, begin_ms, end_ms)
            if file.begin_timestamp_ms < begin_ms:
                return

    # Private: starting.

    def _found(self) -> list[Path]:
        found: list[Path] = []
        for entry in self._files.entries(self._folder):
            if entry.is_dir():
                continue
            if entry.name.isdecimal():
                found.append(Path(entry.path))
            else:
                _log.warning("%s is not an index file and is left alone", entry.path)
        return found

    def _load_marked(
        self, found: list[Path], marks: list[IndexMark], physical_limit: int, trusted: bool
    ) -> int:
        sound = True
        for mark in marks:
            file = self._file(self._folder / mark.name)
            problem = self._held_to(file, mark) if file.path in found else "it is missing"
            if problem is not None:
                _log.warning("index file %s is rebuilt from the log: %s", mark.name, problem)
                sound = False
                break
            self._index_files.append(file)
        self._keep_only(found)
        if not sound:
            return self._after_last()
        if marks and (not trusted or self._index_files[-1].mark() != marks[-1]):
            self._index_files[-1].cut(*marks[-1][1:])
        return physical_limit

    def _held_to(self, file: IndexFile, mark: IndexMark) -> str | None:
        problem = _load(file)
        if problem is None and file.index_count < mark.index_count:
            problem = f"it has {file.index_count - 1} entries, not {mark.index_count - 1}"
        return problem

    def _load_unmarked(self, found: list[Path], physical_limit: int, trusted: bool) -> int:
        answer = physical_limit
        for path in found:
            file = self._file(path)
            problem = _load(file)
            if problem is not None:
                _log.warning("index file %s is rebuilt from the log: %s", path.name, problem)
                trusted = True
                answer = self._after_last()
                break
            self._index_files.append(file)
        if not trusted and self._index_files:
            # The last file was being written when the broker died.
            self._index_files.pop()
        if not trusted:
            answer = self._after_last()
        self._keep_only(found)
        return answer

    def _after_last(self) -> int:
        """Feed again from the last message of the last file: it may have further keys."""
        if not self._index_files:
            self._keys_kept = 0
            return 0
        self._indexed_through = self.physical_end - 1
        self._keys_kept = self._index_files[-1].count_of_last()
        return self.physical_end

    def _keep_only(self, found: list[Path]) -> None:
        kept = {file.path for file in self._index_files}
        for path in reversed(found):
            if path not in kept:
                self._unlink(path)

    def truncate(self, physical_limit: int) -> None:
        """Forget entries of messages at or above ``physical_limit``, the log's end."""
        while self._index_files and self.physical_end >= physical_limit:
            file = self._index_files[-1]
            file.cut_before(physical_limit)
            # The file now ends with all keys of a message; the message that was counted is cut off.
            self._keys_kept = 0
            if file.index_count > 1:
                break
            self._unlink(file.path)
            self._index_files.pop()
        self._indexed_through = min(
            self._indexed_through, self.physical_end if self._index_files else -1
        )

    # Private: writing.

    def _known_bytes(self, index_rows: bytearray) -> int:
        for at in range(0, len(index_rows), INDEX_ROW_BYTES):
            if (
                int.from_bytes(index_rows[at + INDEX_PHYSICAL_AT : at + INDEX_TIME_AT], "big")
                > self._indexed_through
            ):
                return at
        return len(index_rows)

    def _without_kept(self, rows: memoryview) -> memoryview:
        """Skip the keys of the last indexed message that the index has already."""
        at, end = 0, self.physical_end
        while at < min(len(rows), self._keys_kept * INDEX_ROW_BYTES) and (
            int.from_bytes(rows[at + INDEX_PHYSICAL_AT : at + INDEX_TIME_AT], "big") == end
        ):
            at += INDEX_ROW_BYTES
        self._keys_kept = 0
        return rows[at:]

    def _active(self) -> IndexFile:
        previous = self._index_files[-1] if self._index_files else None
        if previous is not None and not previous.is_full:
            return previous
        file = self._file(self._folder / self._new_name(previous))
        if previous is None:
            self._make_folder()
        else:
            file.follow(previous)
            self._retire(previous)
        self._index_files.append(file)
        return file

    def _retire(self, file: IndexFile) -> None:
        try:
            file.write_pending()
            file.release()
        except OSError as error:
            # The file keeps its memory; the regular ``write_pending`` tries again and raises.
            _log.debug("%s stays in memory: %s", file.path, error)
            self._unwritten.append(file)
        crashpoint("index.rolled")

    def _write_early(self, file: IndexFile) -> None:
        try:
            file.write_entries()
        except OSError as error:
            _log.debug("entries of %s stay in memory: %s", file.path, error)

    def _new_name(self, previous: IndexFile | None) -> str:
        now_ms = self._clock.now_ms()
        moment = datetime.fromtimestamp(now_ms // 1000)
        name = int(f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}")
        # A clock that was set back must not change the order of the files.
        return f"{max(name, int(previous.path.name) + 1 if previous else 0):0{NAME_DIGITS}d}"

    def _make_folder(self) -> None:
        if not self._files.exists(self._folder):
            self._files.make_folder(self._folder)
            self._unsynced.changed(self._folder.parent)

    def _file(self, path: Path) -> IndexFile:
        return IndexFile(
            path,
            config=self._config,
            files=self._files,
            handles=self._handles,
            unsynced=self._unsynced,
            waits=self._waits,
        )

    def _unlink(self, path: Path) -> None:
        self._files.unlink(path)
        self._handles.close(path)
        self._unsynced.changed(self._folder)


def _load(file: IndexFile) -> str | None:
    try:
        return file.load()
    except OSError as error:
        return f"it cannot be read: {error}"


def _selected(file: IndexFile, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
    """The entries of a hash, in steps: each walks the chain anew and goes twice as far."""
    count_max, given = _SELECTED_FIRST, 0
    while True:
        found: list[int] = []
        file.select(key_hash, found, count_max, begin_ms, end_ms)
        yield from found[given:]
        if len(found) < count_max:
            return
        count_max, given = count_max * 2, len(found)


def _first_of(file: IndexFile, begin_ms: int, end_ms: int) -> Iterator[int]:
    """A file's first message, whose entry's time counts from the end of the file before.

    That time may be far too late, so it is compared with the file's begin time.
    """
    first_ms = file.begin_timestamp_ms
    if file.index_count > 1 and begin_ms <= first_ms <= end_ms < first_ms + _SPAN_MS_MAX:
        yield file.header[BEGIN_PHYSICAL]


def _key_hash(text: bytes) -> int:
    key_hash = abs(java_hash(text))
    return key_hash if key_hash < 1 << 31 else 0

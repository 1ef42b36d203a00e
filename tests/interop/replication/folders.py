"""Whether the folders of a master and of its slave hold the same, without any code of the store.

Compared over the bytes that both logs have: a slave that joined late begins with a later segment.
Everything derived from the log is compared as far as it speaks of these bytes.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.comparison import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    Queue,
    Record,
    derive_index_rows,
    log_end,
    read_files,
    read_log,
)

_ROW = struct.Struct(">qiq")
_INDEX_ENTRY = struct.Struct(">iqii")
# Apache fills the rows before the first one of a slave that joined late with this size.
_FILLER_BYTES = 0x7FFFFFFF
# Size, previous record, magic, written at, delay, physical offset, record bytes, topic hash, spare.
_TIMER_RECORD = struct.Struct(">iqiqiqiiq")

# queue offset -> physical offset, record bytes, tags code
Rows = dict[int, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much two folders were found to have in common."""

    start: int
    end: int
    record_count: int
    segment_count: int
    row_count: int
    key_count: int


class Folder:
    """A broker's store folder, read once its broker has ended."""

    def __init__(self, root: Path, *, index_slots: int, keeps_keys: bool) -> None:
        """``keeps_keys``: every key must be found. An Apache broker of 5.5.0 that was killed with
        a long log misses some, its own pair shows that.
        """
        self.root = root
        self.keeps_keys = keeps_keys
        self.records: list[Record] = read_log(root)
        self.segments = {int(path.name): path for path in (root / "commitlog").iterdir()}
        self._index_slots = index_slots

    @property
    def start(self) -> int:
        return min(self.segments)

    @property
    def end(self) -> int:
        return log_end(self.records)

    def log(self, start: int, end: int) -> bytes:
        """The bytes of the log from ``start``, where a segment begins, to ``end``."""
        paths = [path for base, path in sorted(self.segments.items()) if start <= base < end]
        return b"".join(path.read_bytes() for path in paths)[: end - start]

    def rows(self, start: int, end: int) -> dict[Queue, Rows]:
        """The rows of every consume queue that point between two places of the log."""
        queues: dict[Queue, Rows] = {}
        for name, content in read_files(self.root, "consumequeue").items():
            _, topic, queue_id, first = name.split("/")
            base = int(first) // _ROW.size
            rows = queues.setdefault((topic, int(queue_id)), {})
            for number, row in enumerate(_ROW.iter_unpack(content)):
                if row[1] not in (0, _FILLER_BYTES) and start <= row[0] < end:
                    rows[base + number] = row
        return {queue: rows for queue, rows in queues.items() if rows}

    def index(self, start: int, end: int) -> set[tuple[int, int]]:
        """Hash and physical offset of every key of the index files between two places."""
        found: set[tuple[int, int]] = set()
        first = INDEX_HEADER_BYTES + 4 * self._index_slots + INDEX_ENTRY_BYTES
        for path in (self.root / "index").iterdir():
            data = path.read_bytes()
            (count,) = struct.unpack_from(">i", data, 36)
            entries = data[first : first + (count - 1) * INDEX_ENTRY_BYTES]
            rows = _INDEX_ENTRY.iter_unpack(entries)
            found |= {(key_hash, place) for key_hash, place, _, _ in rows if start <= place < end}
        return found

    def config(self, name: str) -> Any:
        """A file of the config folder; Apache writes numbers as names, which JSON has not."""
        text = (self.root / "config" / name).read_text(encoding="utf-8")
        return json.loads(re.sub(r"([{,]\s*)(\d+)(\s*:)", r'\1"\2"\3', text))


def timers(root: Path) -> set[tuple[int, int, int]]:
    """Due time, physical offset and length of every record of a folder's timer log.

    After a crash ours also notes there, for no topic, what a slot had delivered.
    """
    found: set[tuple[int, int, int]] = set()
    for content in read_files(root, "timerlog").values():
        whole = len(content) // _TIMER_RECORD.size * _TIMER_RECORD.size
        for row in _TIMER_RECORD.iter_unpack(content[:whole]):
            if row[0] == _TIMER_RECORD.size and row[7] != 0:
                found.add((row[3] + row[4], row[5], row[6]))
    return found


def check_same(master: Folder, slave: Folder, what: str) -> Agreement:
    """Logs, queues and keys are equal over what both have; returns how much that is."""
    start, end = max(master.start, slave.start), min(master.end, slave.end)
    ours, theirs = master.log(start, end), slave.log(start, end)
    assert ours == theirs, f"{what}: the logs differ at {start + _first_difference(ours, theirs)}"
    records = [one for one in master.records if start <= one.fields.physical_offset < end]
    rows = _same_rows(master.rows(start, end), slave.rows(start, end), records, what)
    wanted = set(derive_index_rows(records, with_tags=False))
    for folder in (master, slave):
        missing = wanted - folder.index(start, end)
        told = f"{what}: {folder.root} does not find {len(missing)} keys of {len(wanted)}"
        assert not missing or not folder.keeps_keys, told
        if missing:
            print(told)
    segments = sum(start <= base < end for base in master.segments)
    return Agreement(start, end, len(records), segments, rows, len(wanted))


def _same_rows(
    ours: dict[Queue, Rows], theirs: dict[Queue, Rows], records: list[Record], what: str
) -> int:
    assert ours.keys() == theirs.keys(), f"{what}: other queues: {ours.keys() ^ theirs.keys()}"
    for queue, rows in ours.items():
        wrong = sorted(rows.items() ^ theirs[queue].items())
        assert not wrong, f"{what}: {queue} has {len(wrong)} other rows, the first {wrong[0]}"
    count = sum(len(rows) for rows in ours.values())
    queued = sum(one.fields.is_queued for one in records)
    assert count == queued, f"{what}: {count} rows of {queued} messages"
    return count


def _first_difference(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))

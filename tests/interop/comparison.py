"""Expected and actual content of a store folder, computed without any code of the store.

``ExpectedLog`` predicts from the drafts where every record goes and what its fields are;
``read_log``, ``derive_queue_files`` and ``read_index_files`` parse the files with nothing but
``struct``; ``read_report`` parses Apache's report. Tests compare the three.

Record: totalSize i32, magic i32, bodyCRC i32, queueId i32, flag i32, queueOffset i64,
physicalOffset i64, sysFlag i32, bornTimestamp i64, bornHost 8|20, storeTimestamp i64,
storeHost 8|20, reconsumeTimes i32, preparedTransactionOffset i64, body (i32 length), topic
(u8 or, with magic 2, i16 length), properties (i16 length).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from contrail.model.message import MessageDraft
from tests.interop.generator import BATCH_QUEUE_TOPIC, SCHEDULE_TOPIC, Kind, Run

MAGIC_1, MAGIC_2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
ROW_BYTES, BATCH_ROW_BYTES, BLANK_BYTES = 20, 46, 8
INDEX_HEADER_BYTES, INDEX_ENTRY_BYTES = 40, 20

_FIXED_BYTES = 91
_DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_TRANSACTION_MASK, _ROLLBACK = 0xC, 0xC
_BORN_IPV6, _STORE_IPV6 = 0x10, 0x20

Queue = tuple[str, int]


class Fields(NamedTuple):
    """One message, field by field, in the order of Apache's report."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    sys_flag: int
    flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body_bytes: int
    body_digest: str
    properties: str

    @property
    def queue(self) -> Queue:
        return self.topic, self.queue_id

    @property
    def is_queued(self) -> bool:
        return self.sys_flag & _TRANSACTION_MASK in (0, 0x8)


# The moment of storing is the writer's; everything else can be predicted.
PREDICTED = tuple(name for name in Fields._fields if name != "store_timestamp_ms")


class Record(NamedTuple):
    """One record of the log: its fields and its bytes."""

    fields: Fields
    raw: bytes


class Seen(NamedTuple):
    """One message as Apache reported it."""

    fields: Fields
    record_digest: str
    tags_code: int | None


@dataclass(slots=True)
class ExpectedLog:
    """Predicts the place and the fields of every record appended, in order."""

    segment_bytes: int
    physical_end: int = 0
    messages: list[Fields] = field(default_factory=list)
    queue_ends: dict[Queue, int] = field(default_factory=lambda: defaultdict(int))

    def append(self, runs: Iterable[Run], store_host: bytes) -> None:
        """Take the drafts that one writer appended under one store host."""
        for run in runs:
            if run.kind is Kind.SPLIT_BATCH:
                self._append_whole(run.drafts, store_host)
            else:
                for draft in run.drafts:
                    self._append_whole([draft], store_host)

    def _append_whole(self, drafts: Sequence[MessageDraft], store_host: bytes) -> None:
        """Append together: drafts that do not fit go to the next segment, behind a blank record."""
        stored = [self._with_batch_base(draft) for draft in drafts]
        total = sum(record_bytes(draft, store_host) for draft in stored)
        room = self.segment_bytes - self.physical_end % self.segment_bytes
        if total + BLANK_BYTES > room:
            self.physical_end += room
        for draft in stored:
            self._append_one(draft, store_host)

    def _with_batch_base(self, draft: MessageDraft) -> MessageDraft:
        """The store adds an inner batch's first queue offset to its properties."""
        if draft.topic != BATCH_QUEUE_TOPIC:
            return draft
        base = self.queue_ends[draft.topic.decode(), draft.queue_id]
        return draft._replace(properties=draft.properties + f"INNER_BASE\x01{base}\x02".encode())

    def _append_one(self, draft: MessageDraft, store_host: bytes) -> None:
        queue = draft.topic.decode(), draft.queue_id
        properties = decode_properties(draft.properties)
        sys_flag = draft.sys_flag
        sys_flag |= _BORN_IPV6 if len(draft.born_host) == 20 else 0
        sys_flag |= _STORE_IPV6 if len(store_host) == 20 else 0
        queue_offset = 0
        if sys_flag & _TRANSACTION_MASK in (0, 0x8):
            queue_offset = self.queue_ends[queue]
            self.queue_ends[queue] += int(properties.get("INNER_NUM", "1"))
        size = record_bytes(draft, store_host)
        self.messages.append(
            Fields(
                *queue,
                queue_offset,
                self.physical_end,
                size,
                sys_flag,
                draft.flag,
                draft.born_timestamp_ms,
                draft.born_host.hex(),
                0,
                store_host.hex(),
                draft.reconsume_times,
                draft.prepared_transaction_offset,
                zlib.crc32(draft.body) & 0x7FFFFFFF,
                len(draft.body),
                digest(draft.body),
                sorted_properties(properties),
            )
        )
        self.physical_end += size


def record_bytes(draft: MessageDraft, store_host: bytes) -> int:
    size = _FIXED_BYTES + len(draft.body) + len(draft.topic) + len(draft.properties)
    return size + (len(draft.topic) > 127) + len(draft.born_host) - 8 + len(store_host) - 8


# The log


def read_log(root: Path) -> list[Record]:
    """Every record of a folder's log, up to the first thing that is not one."""
    records: list[Record] = []
    for path in sorted((root / "commitlog").iterdir()):
        if not _read_segment(path.read_bytes(), int(path.name), records):
            break
    return records


def log_end(records: list[Record]) -> int:
    """The byte after the last record."""
    last = records[-1].fields
    return last.physical_offset + last.record_bytes


def _read_segment(data: bytes, base: int, records: list[Record]) -> bool:
    """Collect a segment's records; true if the log goes on in the next one."""
    position = 0
    while position + BLANK_BYTES <= len(data):
        size, magic = struct.unpack_from(">iI", data, position)
        if magic == MAGIC_BLANK:
            assert position + size == len(data), f"blank record at {base + position} ends early"
            return True
        if magic not in (MAGIC_1, MAGIC_2) or size < _FIXED_BYTES or position + size > len(data):
            return False
        raw = data[position : position + size]
        fields = _parse(raw, magic)
        if fields is None:
            return False
        assert fields.physical_offset == base + position, fields
        records.append(Record(fields, raw))
        position += size
    return True


def _parse(raw: bytes, magic: int) -> Fields | None:
    crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = struct.unpack_from(
        ">iiiqqiq", raw, 8
    )
    position = 48
    born_host, position = _take(raw, position, 20 if sys_flag & _BORN_IPV6 else 8)
    (store_ms,) = struct.unpack_from(">q", raw, position)
    store_host, position = _take(raw, position + 8, 20 if sys_flag & _STORE_IPV6 else 8)
    reconsume_times, prepared, body_bytes = struct.unpack_from(">iqi", raw, position)
    body, position = _take(raw, position + 16, body_bytes)
    topic_form = ">h" if magic == MAGIC_2 else ">b"
    (topic_bytes,) = struct.unpack_from(topic_form, raw, position)
    topic, position = _take(raw, position + struct.calcsize(topic_form), topic_bytes)
    (properties_bytes,) = struct.unpack_from(">h", raw, position)
    properties, position = _take(raw, position + 2, properties_bytes)
    if position != len(raw) or zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    return Fields(
        topic.decode(),
        queue_id,
        queue_offset,
        physical_offset,
        len(raw),
        sys_flag,
        flag,
        born_ms,
        born_host.hex(),
        store_ms,
        store_host.hex(),
        reconsume_times,
        prepared,
        crc,
        body_bytes,
        digest(body),
        sorted_properties(decode_properties(properties)),
    )


def _take(raw: bytes, position: int, count: int) -> tuple[bytes, int]:
    return raw[position : position + count], position + count


# Files derived from the log


def derive_queue_files(records: list[Record], file_bytes: int) -> dict[str, bytes]:
    """The consume queue files that a log calls for: path under the folder, whole content."""
    rows: dict[Queue, bytearray] = defaultdict(bytearray)
    for fields, _ in records:
        if fields.is_queued and fields.topic != BATCH_QUEUE_TOPIC.decode():
            row = rows[fields.queue]
            assert len(row) == fields.queue_offset * ROW_BYTES, fields
            row += struct.pack(
                ">qiq", fields.physical_offset, fields.record_bytes, tags_code(fields)
            )
    return _cut_into_files("consumequeue", rows, file_bytes)


def derive_batch_queue_files(records: list[Record], file_bytes: int) -> dict[str, bytes]:
    """The same for queues of inner batches."""
    rows: dict[Queue, bytearray] = defaultdict(bytearray)
    for fields, _ in records:
        if fields.topic == BATCH_QUEUE_TOPIC.decode():
            properties = decode_properties(fields.properties.encode())
            rows[fields.queue] += struct.pack(
                ">qiqqqhii",
                fields.physical_offset,
                fields.record_bytes,
                tags_code(fields),
                fields.store_timestamp_ms,
                int(properties["INNER_BASE"]),
                int(properties["INNER_NUM"]),
                -1,
                0,
            )
    return _cut_into_files("batchconsumequeue", rows, file_bytes)


def _cut_into_files(
    folder: str, rows: Mapping[Queue, bytearray], file_bytes: int
) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for (topic, queue_id), content in rows.items():
        for start in range(0, len(content), file_bytes):
            piece = bytes(content[start : start + file_bytes])
            files[f"{folder}/{topic}/{queue_id}/{start:020}"] = piece.ljust(file_bytes, b"\0")
    return files


def read_files(root: Path, folder: str) -> dict[str, bytes]:
    """Every file below a folder: path under ``root``, content."""
    paths = (root / folder).rglob("*")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}


def tags_code(fields: Fields) -> int:
    """The tags code of a message's queue row."""
    properties = decode_properties(fields.properties.encode())
    if fields.topic == SCHEDULE_TOPIC.decode() and int(properties.get("DELAY", "0")) > 0:
        level = min(int(properties["DELAY"]), len(_DELAYS_S))
        return fields.store_timestamp_ms + _DELAYS_S[level - 1] * 1000
    return _tag_hash(properties["TAGS"]) if "TAGS" in properties else 0


@cache
def _tag_hash(tags: str) -> int:
    return java_hash(tags)


def index_keys(fields: Fields) -> list[str]:
    """The keys a message is found by, in the order they are indexed."""
    if fields.sys_flag & _TRANSACTION_MASK == _ROLLBACK:
        return []
    properties = decode_properties(fields.properties.encode())
    keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    return keys + [key for key in properties.get("KEYS", "").split(" ") if key]


@cache
def key_hash(topic: str, key: str) -> int:
    value = abs(java_hash(f"{topic}#{key}"))
    return 0 if value == 1 << 31 else value


class IndexEntry(NamedTuple):
    """One entry of a key index file."""

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


def derive_index_rows(records: list[Record], *, with_tags: bool) -> list[tuple[int, int]]:
    """Hash and physical offset of every key, in the order of the log.

    Apache indexes tags as well since 5.4, as ``topic#T#tags``, behind a message's other keys.
    """
    rows: list[tuple[int, int]] = []
    for fields, _ in records:
        keys = index_keys(fields)
        tags = decode_properties(fields.properties.encode()).get("TAGS")
        if with_tags and tags and fields.sys_flag & _TRANSACTION_MASK != _ROLLBACK:
            keys = [*keys, f"T#{tags}"]
        rows += [(key_hash(fields.topic, key), fields.physical_offset) for key in keys]
    return rows


def read_index_files(root: Path, slot_count: int) -> list[tuple[bytes, list[IndexEntry], bytes]]:
    """Header, entries and slots of every index file, oldest first; names are the clock's."""
    files = []
    for path in sorted((root / "index").iterdir()):
        data = path.read_bytes()
        (count,) = struct.unpack_from(">i", data, 36)
        start = INDEX_HEADER_BYTES + 4 * slot_count + INDEX_ENTRY_BYTES
        end = start + (count - 1) * INDEX_ENTRY_BYTES
        entries = [IndexEntry(*row) for row in struct.iter_unpack(">iqii", data[start:end])]
        slots = data[INDEX_HEADER_BYTES : INDEX_HEADER_BYTES + 4 * slot_count]
        files.append((data[:INDEX_HEADER_BYTES], entries, slots))
    return files


# Apache's report


def read_messages_report(path: Path) -> tuple[dict[Queue, tuple[int, int]], list[Seen]]:
    """Minimum and maximum of every queue, and every message, from ``messages.tsv``."""
    bounds: dict[Queue, tuple[int, int]] = {}
    seen: list[Seen] = []
    for kind, *row in read_report(path):
        if kind == "queue":
            bounds[row[0], int(row[1])] = int(row[2]), int(row[3])
        else:
            seen.append(_seen(row[:-1], int(row[-1])))
    return bounds, seen


def read_records_report(path: Path) -> list[Seen]:
    """Every record looked up by its place, from ``records.tsv``."""
    return [_seen(row, None) for row in read_report(path)]


def read_keys_report(path: Path) -> dict[tuple[str, str], set[int]]:
    """The physical offsets found for every topic and key, from ``keys.tsv``."""
    return {(row[0], row[1]): {int(place) for place in row[2:]} for row in read_report(path)}


def read_report(path: Path) -> Iterator[list[str]]:
    """The rows of a report. Only a newline ends a row: properties hold other controls."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line:
            yield line.split("\t")


def _seen(row: list[str], tags: int | None) -> Seen:
    numbers = {1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14}
    values = [int(text) if at in numbers else text for at, text in enumerate(row)]
    record_digest = row[16]
    del values[16]
    return Seen(Fields(*values), record_digest, tags)  # type: ignore[arg-type]


# Comparing


def assert_same_messages(got: Sequence[Fields], expected: Sequence[Fields], what: str) -> None:
    """Compare every predicted field of every message; name the first that differs."""
    for number, (one, other) in enumerate(zip(got, expected, strict=False)):
        wrong = [name for name in PREDICTED if getattr(one, name) != getattr(other, name)]
        assert not wrong, f"{what}: message {number} differs in {wrong}:\n{one}\n{other}"
    assert len(got) == len(expected), f"{what}: {len(got)} messages instead of {len(expected)}"


def assert_same_files(got: Mapping[str, bytes], expected: Mapping[str, bytes], what: str) -> None:
    """Same names, same lengths, same bytes; name the first file and byte that differ."""
    missing, surplus = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
    assert not missing and not surplus, f"{what}: missing {missing[:5]}, surplus {surplus[:5]}"
    for name, content in expected.items():
        if got[name] != content:
            pairs = enumerate(zip(got[name], content, strict=False))
            at = next((i for i, (one, other) in pairs if one != other), "the end")
            lengths = f"{len(got[name])} and {len(content)} bytes"
            raise AssertionError(f"{what}: {name} ({lengths}) differs at byte {at}")


# Small codecs


@cache
def decode_properties(raw: bytes) -> Mapping[str, str]:
    """Later pairs win; a pair without a name or a value does not count."""
    properties: dict[str, str] = {}
    for pair in raw.decode().split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def sorted_properties(properties: Mapping[str, str]) -> str:
    """One text for equal mappings, in the order Java sorts strings: by UTF-16 code units."""
    names = sorted(properties, key=lambda name: name.encode("utf-16-be"))
    return "".join(f"{name}\x01{properties[name]}\x02" for name in names)


def java_hash(text: str) -> int:
    """Java's String.hashCode."""
    value = 0
    for unit in struct.unpack(f">{len(units := text.encode('utf-16-be')) // 2}H", units):
        value = 31 * value + unit & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()

"""Reads store files with nothing but their documented layout, to judge the store from outside."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_V1, _V2, _BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
_HEAD = struct.Struct(">IIIiiqqi")
_ROW = struct.Struct(">qiq")
_EXT_ADDRESS_BELOW = -(1 << 31) - 1
_EXT_HEAD = struct.Struct(">hqqh")

QueueKey = tuple[bytes, int]


class Found(NamedTuple):
    """One record as its bytes say."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    record_bytes: int
    body: bytes
    properties: bytes
    store_timestamp_ms: int
    tail_at: int


def decode(record: bytes | memoryview) -> Found:
    """Decode a whole record; its lengths are trusted, as the caller vouches for them."""
    data = bytes(record)
    size, magic, _, queue_id, _, queue_offset, physical_offset, sys_flag = _HEAD.unpack_from(data)
    place = 48 + (20 if sys_flag & 0x10 else 8)
    store_timestamp_ms = int.from_bytes(data[place : place + 8], "big")
    place += 8 + (20 if sys_flag & 0x20 else 8) + 12
    body_bytes = int.from_bytes(data[place : place + 4], "big")
    body = data[place + 4 : place + 4 + body_bytes]
    tail_at = place = place + 4 + body_bytes
    width = 2 if magic == _V2 else 1
    topic_bytes = int.from_bytes(data[place : place + width], "big")
    topic = data[place + width : place + width + topic_bytes]
    properties = data[place + width + topic_bytes + 2 : size]
    return Found(
        topic, queue_id, queue_offset, physical_offset, size, body, properties,
        store_timestamp_ms, tail_at,
    )  # fmt: skip


def walk_log(root: Path, segment_bytes: int) -> Iterator[Found]:
    """Every record of a sound log, in order, up to the first unwritten byte."""
    for path in sorted((root / "commitlog").iterdir()):
        data, position = path.read_bytes(), 0
        assert len(data) == segment_bytes, f"{path} has {len(data)} bytes"
        while position + 8 <= segment_bytes:
            size, magic = struct.unpack_from(">II", data, position)
            if magic == _BLANK:
                break
            if magic not in (_V1, _V2):
                return
            yield decode(data[position : position + size])
            position += size


def queue_rows(root: Path, key: QueueKey, low: int, high: int) -> list[bytes]:
    """Rows ``low`` to ``high`` of a consume queue as they are on disk, ext addresses resolved."""
    folder = root / "consumequeue" / os.fsdecode(key[0]) / str(key[1])
    spans = [(int(path.name), path.read_bytes()) for path in sorted(folder.iterdir())]
    ext = _ext_bytes(root, key)
    rows = []
    for queue_offset in range(low, high):
        at = queue_offset * 20
        start, data = next(span for span in reversed(spans) if span[0] <= at)
        rows.append(_resolved(data[at - start : at - start + 20], ext))
    return rows


def _ext_bytes(root: Path, key: QueueKey) -> dict[int, bytes]:
    folder = root / "consumequeue_ext" / os.fsdecode(key[0]) / str(key[1])
    if not folder.is_dir():
        return {}
    return {int(path.name): path.read_bytes() for path in sorted(folder.iterdir())}


def _resolved(row: bytes, ext: dict[int, bytes]) -> bytes:
    """The row, or with the code and store time of its ext unit in place of the address."""
    physical_offset, size, tags_code = _ROW.unpack(row)
    if not ext or tags_code > _EXT_ADDRESS_BELOW:
        return row
    address = tags_code + (1 << 63)
    start = max(begin for begin in ext if begin <= address)
    _, code, store_timestamp_ms, _ = _EXT_HEAD.unpack_from(ext[start], address - start)
    return struct.pack(">qiqq", physical_offset, size, code, store_timestamp_ms)

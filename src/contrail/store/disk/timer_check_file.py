"""RocketMQ's ``timercheck``: how far timers have been read, enqueued and delivered.

4,096 bytes; integers are big-endian and signed. The first 56 bytes are RocketMQ's, which leaves
the rest zero. Contrail adds a sealed copy, so that a damaged time cannot pass for a true one:

    at     bytes  field
    0      8      read time, ms: every slot before it is finished
    8      8      durable end of the timer log
    16     8      queue offset in the timer topic up to which messages are enqueued
    24     8      the same, as the master says
    32     24     data version: state version, timestamp, counter
    64     8      ``contrail``
    72     8      check sum over the rows of the slots that are not finished
    80     56     a copy of the first 56 bytes
    136    4      CRC-32 of the bytes from 64 on
"""

from __future__ import annotations

import zlib
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, opened, write_fully

CHECK_FILE_BYTES = 4096
_CHECK = Struct(">7q")
_OWN_AT = 64
_OWN = Struct(">8sQ56s")
_CRC = Struct(">I")
_OWN_END = _OWN_AT + _OWN.size
_TAG = b"contrail"


class TimerCheck(NamedTuple):
    """RocketMQ's fields, in their order; also the body of GET_TIMER_CHECK_POINT."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        return _CHECK.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> TimerCheck:
        """Raises ``ValueError`` for bytes of another length."""
        if len(data) != _CHECK.size:
            raise ValueError(f"a timer checkpoint of {len(data)} bytes")
        return cls(*_CHECK.unpack(data))


class FoundCheck(NamedTuple):
    """The content of a check file. Without a sum RocketMQ wrote it last."""

    check: TimerCheck
    rows_sum: int | None


def read_check(files: FileSystem, path: Path) -> FoundCheck | None:
    """The check file's content; None if it is missing or damaged."""
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return None
    if len(data) < _CHECK.size or not any(data[: _CHECK.size]):
        return None
    head = TimerCheck(*_CHECK.unpack_from(data))
    own = _read_own(data)
    if own is None:
        # Bytes that are not zero are a damaged seal: RocketMQ leaves these bytes zero.
        return None if any(data[_OWN_AT:]) else FoundCheck(head, None)
    if own.check == head or not _is_newer(head, own.check):
        return own
    return FoundCheck(head, None)


def _is_newer(head: TimerCheck, own: TimerCheck) -> bool:
    """Whether RocketMQ wrote since the seal: it raises the version with every change."""
    return head.counter > own.counter and head.timestamp_ms >= own.timestamp_ms


def _read_own(data: bytes) -> FoundCheck | None:
    if len(data) < _OWN_END + _CRC.size:
        return None
    tag, rows_sum, copy = _OWN.unpack_from(data, _OWN_AT)
    (crc,) = _CRC.unpack_from(data, _OWN_END)
    if tag != _TAG or zlib.crc32(data[_OWN_AT:_OWN_END]) != crc:
        return None
    return FoundCheck(TimerCheck(*_CHECK.unpack(copy)), rows_sum)


def write_check(files: FileSystem, path: Path, check: TimerCheck, rows_sum: int) -> None:
    """Overwrite in place, as RocketMQ does: all changed bytes lie within one sector."""
    head = check.encode()
    own = _OWN.pack(_TAG, rows_sum, head)
    data = head.ljust(_OWN_AT, b"\0") + own + _CRC.pack(zlib.crc32(own))
    is_new = not files.exists(path)
    if is_new:
        files.make_folder(path.parent)
    with opened(files, path, create=True) as fd:
        write_fully(files, fd, data.ljust(CHECK_FILE_BYTES, b"\0"), 0)
        crashpoint("timer_check.written")
        files.fdatasync(fd)
    if is_new:
        files.sync_folder(path.parent)
        files.sync_folder(path.parent.parent)
    crashpoint("timer_check.synced")

"""The frames of a link between two Contrail brokers, on the HA port.

| bytes  | field                                                                         |
| ------ | ----------------------------------------------------------------------------- |
| u32    | length of all that follows                                                    |
| u8     | kind, one of ``Kind``                                                         |
| n      | payload                                                                       |
| 16     | seal, only on a sealed link: HMAC-SHA256 over number, length, kind, payload   |

The link begins with ``PREFACE``. As a report of Apache's slaves these eight bytes would be an end
of the log beyond any disk, so a master tells both apart by the first eight bytes. The handshake
(``handshake``) is never sealed; every later frame is, unless TLS or the loopback device carries
the link. A seal counts the frames, so that none can be left out, repeated or moved.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from contrail.errors import RemoteProtocolError
from contrail.protocol.received_bytes import ReceivedBytes

PREFACE = b"CONTRAIL"
SEAL_BYTES = 16
# A transfer's body is at most this long, whatever ``haTransferBatchSize`` says.
TRANSFER_BODY_BYTES_MAX = 1 << 20
FRAME_BYTES_MAX = TRANSFER_BODY_BYTES_MAX + 64
# Before both have proved the secret, a frame has an introduction or a refusal in it.
GREETING_BYTES_MAX = 32 << 10
# How much of the end of its log a slave proves to have.
TAIL_BYTES_MAX = 4096

_HEAD = Struct(">IB")
_COUNT = Struct(">Q")
_PLACE = Struct(">q")
_BEGIN = Struct(">qiI")
_REPORT = Struct(">IBq")
_REPORT_BYTES = _REPORT.size
_TRANSFER = Struct(">IBq")


class Kind(IntEnum):
    """The type of a frame."""

    HELLO = 1
    ANSWER = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    BEGIN = 6
    REPORT = 7
    TRANSFER = 8
    # Between members of a failover group; ``group_frames`` has their payloads.
    MEMBER = 9
    PRE_VOTE = 10
    PRE_VOTE_ANSWER = 11
    VOTE = 12
    VOTE_ANSWER = 13
    APPEND = 14
    APPEND_ANSWER = 15
    APPEND_REFUSAL = 16
    TIMEOUT_NOW = 17
    PING = 18
    RESET = 19
    COPY_ANSWER = 20
    FETCH = 21
    FETCHED = 22


class Begin(NamedTuple):
    """A slave's request: where its log ends, and the CRC-32 of the bytes before that place."""

    physical_end: int
    tail_bytes: int
    tail_crc: int

    def encode(self) -> bytes:
        return _BEGIN.pack(*self)

    @classmethod
    def decode(cls, payload: memoryview) -> Begin:
        found = cls(*_unpack(_BEGIN, payload))
        if found.physical_end < 0 or not 0 <= found.tail_bytes <= TAIL_BYTES_MAX:
            raise RemoteProtocolError("begin", f"a slave asked for the log by {found}")
        return found

    @classmethod
    def of(cls, physical_end: int, tail: memoryview | bytes) -> Begin:
        return cls(physical_end, len(tail), crc32(tail))


class Seal:
    """Signs the frames of one direction of a link, in their order."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod=hashlib.sha256)
        self._count = 0

    def next(self, parts: Sequence[bytes | memoryview]) -> bytes:
        """The seal of the next frame, given as its parts."""
        signed = self._keyed.copy()
        signed.update(_COUNT.pack(self._count))
        for part in parts:
            signed.update(part)
        self._count += 1
        return signed.digest()[:SEAL_BYTES]


class LinkWriter:
    """Makes frames; a body goes into the result as it is given, without a copy."""

    def __init__(self) -> None:
        self.seal: Seal | None = None

    def frame(self, kind: Kind, *payload: bytes | memoryview) -> list[bytes | memoryview]:
        """The parts of one frame."""
        sealed_bytes = SEAL_BYTES if self.seal is not None else 0
        byte_count = 1 + sum(map(len, payload)) + sealed_bytes
        parts: list[bytes | memoryview] = [_HEAD.pack(byte_count, kind), *payload]
        if self.seal is not None:
            parts.append(self.seal.next(parts))
        return parts

    def transfer(
        self, physical_offset: int, body: memoryview | bytes = b""
    ) -> list[bytes | memoryview]:
        return self.frame(Kind.TRANSFER, _PLACE.pack(physical_offset), body)

    def transfer_head(self, physical_offset: int, body_bytes: int) -> bytes:
        """All of a transfer's frame before its body; without a seal nothing is behind it."""
        assert self.seal is None, "a seal is computed of the body"
        return _TRANSFER.pack(1 + _PLACE.size + body_bytes, Kind.TRANSFER, physical_offset)

    def report(self, physical_end: int) -> list[bytes | memoryview]:
        if self.seal is None:
            return [_REPORT.pack(1 + _PLACE.size, Kind.REPORT, physical_end)]
        return self.frame(Kind.REPORT, _PLACE.pack(physical_end))


class LinkReader:
    """Takes a peer's bytes; ``take`` gives one frame at a time, for a seal begins between two."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.seal: Seal | None = None
        self.frame_bytes_max = frame_bytes_max
        self._chunks: list[bytes] = []
        self._pending_bytes = 0
        self._wanted_bytes = _HEAD.size
        self._data = b""
        self._at = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether no byte waits to be taken."""
        return not self._pending_bytes

    def feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= self._wanted_bytes:
            # Joined only when a frame is whole: a frame in many parts is copied once, and one that
            # came alone is not copied.
            rest = self._data[self._at :]
            self._data = b"".join((rest, *self._chunks)) if rest or self._chunks[1:] else data
            self._at = 0
            self._chunks.clear()

    def take(self) -> tuple[Kind, memoryview] | None:
        """The next whole frame: its kind and payload.

        Raises:
            RemoteProtocolError: a length, a kind or a seal is wrong.
        """
        unread = memoryview(self._data)[self._at :]
        total = _frame_bytes(unread, self.seal, self.frame_bytes_max)
        if len(unread) < total:
            self._wait_for(total)
            return None
        self._at += total
        return _opened(unread[:total], self.seal)

    def _wait_for(self, byte_count: int) -> None:
        self._pending_bytes = len(self._data) - self._at + sum(map(len, self._chunks))
        self._wanted_bytes = byte_count


class PlacedLinkReader:
    """The same for a link that fills ``received``: frames are read where they arrived."""

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.seal: Seal | None = None
        self.frame_bytes_max = frame_bytes_max
        self.received = ReceivedBytes()
        self.wanted_bytes = _HEAD.size
        """The length of the frame that has not arrived whole, as far as it is known."""

    def take(self) -> tuple[Kind, memoryview] | None:
        """The next whole frame: its kind and payload.

        Raises:
            RemoteProtocolError: a length, a kind or a seal is wrong.
        """
        unread = self.received.unread
        self.wanted_bytes = _frame_bytes(unread, self.seal, self.frame_bytes_max)
        if len(unread) < self.wanted_bytes:
            return None
        self.received.read(self.wanted_bytes)
        return _opened(unread[: self.wanted_bytes], self.seal)


def _frame_bytes(unread: memoryview, seal: Seal | None, frame_bytes_max: int) -> int:
    """How long the next frame is; the length of a head while there is none.

    Raises:
        RemoteProtocolError: a length or a kind is wrong.
    """
    if len(unread) < _HEAD.size:
        return _HEAD.size
    byte_count, kind = _HEAD.unpack_from(unread)
    overhead = 1 + (SEAL_BYTES if seal is not None else 0)
    if not overhead <= byte_count <= frame_bytes_max or kind not in _KINDS:
        raise RemoteProtocolError("link_frame", f"a frame of kind {kind}, {byte_count} bytes")
    return _HEAD.size - 1 + int(byte_count)


def _opened(frame: memoryview, seal: Seal | None) -> tuple[Kind, memoryview]:
    """The kind and payload of a whole frame, once its seal is found to be right."""
    content = frame
    if seal is not None:
        content = frame[:-SEAL_BYTES]
        if not hmac.compare_digest(seal.next([content]), bytes(frame[-SEAL_BYTES:])):
            raise RemoteProtocolError("seal", "a frame was changed on its way, or sent by another")
    return _KINDS[frame[_HEAD.size - 1]], content[_HEAD.size :]


def decode_report(payload: memoryview) -> int:
    """The end of the slave's log.

    Raises:
        RemoteProtocolError: the payload is no report.
    """
    physical_end = int(_unpack(_PLACE, payload)[0])
    if physical_end < 0:
        raise RemoteProtocolError("report", f"a slave reported {physical_end} as its log's end")
    return physical_end


def lone_report(data: bytes) -> int | None:
    """The end of the slave's log, if ``data`` is a report without a seal and nothing else.

    Most reads of a link are. None leaves every other case to ``LinkReader``, refusals too.
    """
    if len(data) != _REPORT_BYTES:
        return None
    byte_count, kind, physical_end = _REPORT.unpack(data)
    is_report = byte_count == 1 + _PLACE.size and kind == Kind.REPORT and physical_end >= 0
    return int(physical_end) if is_report else None


def decode_transfer(payload: memoryview) -> tuple[int, memoryview]:
    """The physical offset and the body, which is empty in a heartbeat.

    Raises:
        RemoteProtocolError: the payload is no transfer.
    """
    physical_offset = int(_unpack(_PLACE, payload[: _PLACE.size])[0])
    if physical_offset < 0:
        raise RemoteProtocolError("transfer", f"a master sent bytes at {physical_offset}")
    return physical_offset, payload[_PLACE.size :]


def _unpack(layout: Struct, payload: memoryview) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise RemoteProtocolError(
            "link_frame", f"{len(payload)} bytes where {layout.size} are expected"
        )
    return layout.unpack(payload)


_KINDS = {int(kind): kind for kind in Kind}

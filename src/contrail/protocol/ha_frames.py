"""RocketMQ's HA stream between a master and its slave: no handshake, two fixed layouts.

| direction       | bytes                                                                       |
| --------------- | --------------------------------------------------------------------------- |
| slave → master  | i64 end of the slave's log: the first is its request, the others are acks   |
| master → slave  | i64 physical offset, i32 size of the body, body: raw bytes of the log       |

A transfer of size 0 is the master's heartbeat. Bodies cut records anywhere.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from contrail.errors import RemoteProtocolError

_REPORT = Struct(">q")
_TRANSFER = Struct(">qi")
REPORT_BYTES = _REPORT.size
TRANSFER_HEADER_BYTES = _TRANSFER.size
# A Java slave reads into 4 MiB, and a frame must fit in them.
TRANSFER_BODY_BYTES_MAX = (4 << 20) - TRANSFER_HEADER_BYTES

encode_transfer_header = _TRANSFER.pack
encode_report = _REPORT.pack


class LogPiece(NamedTuple):
    """Bytes of a master's log at a physical offset; none in a heartbeat."""

    physical_offset: int
    data: memoryview


class ReportReader:
    """Takes a slave's bytes and tells its newest report."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> int | None:
        """The last whole report, if any became whole; earlier ones are of no use any more.

        Raises:
            RemoteProtocolError: the report is negative.
        """
        data = self._pending + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._pending = data[whole:]
        if not whole:
            return None
        physical_end = int(_REPORT.unpack_from(data, whole - REPORT_BYTES)[0])
        if physical_end < 0:
            raise RemoteProtocolError("report", f"a slave reported {physical_end} as its log's end")
        return physical_end


class TransferReader:
    """Takes a master's bytes and gives the log pieces in them, as far as they have arrived.

    A piece is a view of the bytes that were fed: a body that comes in parts is not put together.
    """

    def __init__(self, *, body_bytes_max: int = TRANSFER_BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._header = b""
        self._physical_offset = 0
        self._body_left = 0

    def feed(self, data: bytes | memoryview) -> list[LogPiece]:
        """The pieces of the log in ``data``, in their order.

        Raises:
            RemoteProtocolError: a size or an offset is out of range.
        """
        view = memoryview(data)
        pieces: list[LogPiece] = []
        while view:
            if not self._body_left:
                view = self._read_header(view, pieces)
                continue
            body = view[: self._body_left]
            pieces.append(LogPiece(self._physical_offset, body))
            self._physical_offset += len(body)
            self._body_left -= len(body)
            view = view[len(body) :]
        return pieces

    def _read_header(self, view: memoryview, pieces: list[LogPiece]) -> memoryview:
        missing = TRANSFER_HEADER_BYTES - len(self._header)
        self._header += view[:missing]
        if len(self._header) == TRANSFER_HEADER_BYTES:
            self._physical_offset, self._body_left = _TRANSFER.unpack(self._header)
            self._header = b""
            if self._physical_offset < 0 or not 0 <= self._body_left <= self._body_bytes_max:
                raise RemoteProtocolError(
                    "transfer",
                    f"a master sent {self._body_left} bytes at {self._physical_offset}: "
                    f"at most {self._body_bytes_max} are read at once",
                )
            if not self._body_left:
                pieces.append(LogPiece(self._physical_offset, memoryview(b"")))
        return view[missing:]

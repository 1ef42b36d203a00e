"""Sends as rows of numbers: of one connection, or one each of several.

The scan kernel takes bytes apart that begin with fast sends: every one up to the first frame that
is none. See ``kernels.send_rows`` for the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels.frame_scan import scan_frames
from contrail.kernels.send_scan import scan_sends
from contrail.protocol.frames import Frames, SendRequest, send_request
from contrail.wire.limits import Limits

if TYPE_CHECKING:
    from contrail.kernels.send_records import Chunk

# How a Java client's header begins, in JSON and in binary; others are not worth a try.
SEND_BEGINS = (b'{"code":310,', b"\x01\x36\x00")


class SendRows:
    """Fast sends by their bytes; a ``wire.connection.Run``.

    ``chunk`` is for ``kernels.send_records``: the received bytes, how many sends they hold, the
    numbers of each, their properties as they are to be stored, their senders' hosts, their topics.
    """

    __slots__ = ("_suffix", "chunk", "end", "send_count")

    def __init__(self, chunk: Chunk, suffix: bytes, end: int) -> None:
        """``end`` is where the sends end in the received bytes."""
        self.end = end
        self.chunk = chunk
        self.send_count = chunk[1]
        self._suffix = suffix

    @property
    def data(self) -> bytes:
        """The sends as they were received."""
        data = self.chunk[0]
        return data if self.end == len(data) else data[: self.end]

    def sends(self) -> list[SendRequest]:
        """The same sends for the general way."""
        data, hosts = self.data, self.chunk[4]
        items = scan_frames(data, 0, len(data), len(data), hosts[0], self._suffix)[0]
        return [
            send._replace(draft=send.draft._replace(born_host=host))
            for send, host in zip(map(send_request, items), hosts, strict=True)
        ]

    def frames(self) -> Frames:
        """The same sends as the decoder takes them apart."""
        return list(self.sends())


def rows_of(data: bytes, host: bytes, limits: Limits, suffix: bytes) -> SendRows | None:
    """The fast sends that a connection's bytes begin with; None when there are none.

    ``suffix`` are the properties that the broker adds to each.
    """
    found = scan_sends(data, limits.frame_bytes_max, limits.header_bytes_max, suffix)
    if found is None:
        return None
    count, end, rows, texts, topics = found
    return SendRows((data, count, rows, texts, [host] * count, topics), suffix, end)


def joined_rows(
    sends: list[bytes], hosts: list[bytes], limits: Limits, suffix: bytes
) -> SendRows | None:
    """One send each of several connections; None when one of them is no fast send."""
    data, count = b"".join(sends), len(sends)
    found = scan_sends(data, limits.frame_bytes_max, limits.header_bytes_max, suffix)
    if found is None or found[0] != count:
        return None
    _, _, rows, texts, topics = found
    return SendRows((data, count, rows, texts, hosts, topics), suffix, len(data))

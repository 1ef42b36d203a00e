"""Sends as rows of numbers: of one connection, or one each of several.

The row kernel takes bytes apart that hold nothing but tidy sends, and an unfinished frame at their
end. See ``kernels.send_rows`` for the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.kernels.frame_scan import Item, scan_frames
from contrail.kernels.plain_scan import scan_plain
from contrail.protocol.frames import Frames
from contrail.wire.limits import Limits

if TYPE_CHECKING:
    from contrail.kernels.plain_sends import Chunk

# How a Java client's header begins, in JSON and in binary; others are not worth a try.
SEND_BEGINS = (b'{"code":310,', b"\x01\x36\x00")
# Three sends of one connection cost a fifth less as rows than as tuples, one costs as much.
_COUNT_MIN = 1


class SendRows:
    """Sends that need no second look by what they are; a ``wire.connection.Run``.

    ``chunk`` is for ``kernels.plain_sends``: the received bytes, how many sends they hold, the
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

    def items(self) -> list[Item]:
        """The same sends as tuples of the frame kernel."""
        buffer, limit, hosts = self.chunk[0], len(self.chunk[0]), self.chunk[4]
        items = scan_frames(buffer, 0, limit, limit, hosts[0], self._suffix)[0]
        return [
            item if host is hosts[0] else (*item[:11], (*item[11][:7], host, *item[11][8:]))
            for item, host in zip(items, hosts, strict=True)
        ]

    def frames(self) -> Frames:
        """The same sends as the decoder takes them apart."""
        return list(self.items())


def rows_of(data: bytes, host: bytes, limits: Limits, suffix: bytes) -> SendRows | None:
    """The sends of one connection; None when the decoder must look at them.

    ``suffix`` are the properties that the broker adds to each.
    """
    found = scan_plain(data, limits.frame_bytes_max, limits.header_bytes_max, suffix, _COUNT_MIN)
    if found is None:
        return None
    count, end, rows, texts, topics = found
    return SendRows((data, count, rows, texts, [host] * count, topics), suffix, end)


def joined_rows(
    sends: list[bytes], hosts: list[bytes], limits: Limits, suffix: bytes
) -> SendRows | None:
    """One send each of several connections; None when the decoder must look at one of them."""
    data, count = b"".join(sends), len(sends)
    found = scan_plain(data, limits.frame_bytes_max, limits.header_bytes_max, suffix, count)
    if found is None or found[0] != count:
        return None
    _, _, rows, texts, topics = found
    return SendRows((data, count, rows, texts, hosts, topics), suffix, len(data))

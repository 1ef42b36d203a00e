"""The memory that a slave's link fills: frames are read where they arrived.

A broker's store reads the bytes of the log once more, when queues are derived from them. Buffers
are therefore used in turn, and one that was full rests until the queues are derived up to the end
that the log had by then. Without new memory for each read a slave needs half the CPU.
"""

from __future__ import annotations

from collections import deque

BUFFER_BYTES = 2 << 20
"""The length of a buffer: a frame of any size fits in one."""
# Less room than this at a buffer's end is not worth a read.
_ROOM_BYTES_MIN = 64 << 10
# The system gives at most so much in one read: the loop serves others in between.
_ROOM_BYTES_MAX = 1 << 20
_RESTING_COUNT_MAX = 4


class ReceivedBytes:
    """Received and unread bytes in one piece, wherever the buffers change."""

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._begin = self._end = 0
        # Where the log ended when each buffer was full, and the buffer.
        self._resting: deque[tuple[int, bytearray]] = deque()

    def room(self, unread_bytes_max: int, *, written_end: int, derived_end: int) -> memoryview:
        """The place for what arrives next, once so many unread bytes fit together in a buffer.

        Bytes that were read belong to the log up to ``written_end``; the store needs no memory of
        those below ``derived_end``.
        """
        assert unread_bytes_max <= BUFFER_BYTES, "a frame fits in one buffer"
        has_room = BUFFER_BYTES - self._end >= _ROOM_BYTES_MIN
        if not has_room or BUFFER_BYTES - self._begin < unread_bytes_max:
            self._change(written_end, derived_end)
        end = min(self._end + _ROOM_BYTES_MAX, BUFFER_BYTES)
        return memoryview(self._buffer)[self._end : end]

    def _change(self, written_end: int, derived_end: int) -> None:
        """Go on in another buffer, with the bytes that nobody has read."""
        full, unread = self._buffer, self.unread
        resting = self._resting
        is_free = bool(resting) and resting[0][0] <= derived_end
        self._buffer = resting.popleft()[1] if is_free else bytearray(BUFFER_BYTES)
        self._buffer[: len(unread)] = unread
        self._begin, self._end = 0, len(unread)
        resting.append((written_end, full))
        if len(resting) > _RESTING_COUNT_MAX:
            # Deriving is far behind: memory is given back once the store needs it no more.
            resting.popleft()

    def filled(self, byte_count: int) -> None:
        """The link put this many bytes into the room that it was given last."""
        self._end += byte_count

    @property
    def unread(self) -> memoryview:
        """The bytes that were not read yet; they stay until the log is derived up to them."""
        return memoryview(self._buffer)[self._begin : self._end]

    def read(self, byte_count: int) -> None:
        """The first of the unread bytes were read."""
        self._begin += byte_count

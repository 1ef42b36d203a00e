"""Memory that a link fills: used in turn, and never while the store still reads it."""

from __future__ import annotations

from contrail.protocol.received_bytes import BUFFER_BYTES, ReceivedBytes


class Log:
    """A log that is written as bytes are read, and derived when the test says so."""

    def __init__(self) -> None:
        self.received = ReceivedBytes()
        self.written_end = self.derived_end = 0
        self.kept: list[tuple[memoryview, bytes]] = []

    def fill(self, value: int, *, unread_bytes_max: int = 0) -> memoryview:
        """One read that fills all the room with bytes of this value."""
        room = self.received.room(
            unread_bytes_max, written_end=self.written_end, derived_end=self.derived_end
        )
        room[:] = bytes([value]) * len(room)
        self.received.filled(len(room))
        return room

    def take(self) -> None:
        """All that is unread becomes part of the log, and the store keeps its memory."""
        unread = self.received.unread
        self.received.read(len(unread))
        self.written_end += len(unread)
        self.kept.append((unread, bytes(unread)))


def test_bytes_that_are_not_derived_stay_as_they_are() -> None:
    log = Log()
    for value in range(20):
        log.fill(value)
        log.take()
    assert all(view == kept for view, kept in log.kept)


def test_a_buffer_is_used_again_once_its_bytes_are_derived() -> None:
    log, seen = Log(), set()
    for value in range(50):
        seen.add(id(log.fill(value).obj))
        log.take()
        log.derived_end = log.written_end
        log.kept.clear()
    assert len(seen) == 2


def test_bytes_that_are_unread_move_along_and_a_long_frame_finds_room() -> None:
    log = Log()
    log.fill(1)
    log.received.read(len(log.received.unread) - 100)
    assert len(log.fill(2, unread_bytes_max=BUFFER_BYTES)) == 1 << 20
    unread = bytes(log.received.unread)
    assert unread == b"\1" * 100 + b"\2" * (1 << 20)
    room = log.received.room(BUFFER_BYTES, written_end=0, derived_end=0)
    assert len(unread) + len(room) == BUFFER_BYTES

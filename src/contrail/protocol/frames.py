"""Turns received bytes into frames. Knows nothing of sockets or time."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from contrail.errors import RemoteProtocolError
from contrail.kernels.frame_scan import (
    COUNT_MAX,
    FRAMES_LEFT,
    KIND_SEND,
    PROBLEM_HEADER_LENGTH,
    PROBLEM_HEADER_TOO_LONG,
    PROBLEM_TOTAL,
    Item,
    scan_frames,
)
from contrail.model.message import MessageDraft
from contrail.protocol.command import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    LANGUAGES,
    VALUE_BYTES_MAX,
    Frame,
    ReceivedResponse,
    Request,
    decode_frame,
)

_TOTAL = Struct(">I")
_PREFIX = Struct(">II")
FRAME_PREFIX_BYTES = 8
# The second word of a frame: the type of its header, and how long that is.
_TYPE_SHIFT = 24
_HEADER_LENGTH_MASK = 0xFFFFFF
# Nothing else of the frame kernel is as long as a pull or a send.
_PULL_LENGTH = 9
_SEND_LENGTH = 12
_KNOWN_LANGUAGES = frozenset(LANGUAGES)
_PROBLEMS = {
    PROBLEM_TOTAL: ("frame_length", "a frame's length is below 4 or above the limit"),
    PROBLEM_HEADER_LENGTH: ("header_length", "a header is longer than its frame"),
    PROBLEM_HEADER_TOO_LONG: ("header_too_long", "a header is longer than the limit"),
}


class SendRequest(NamedTuple):
    """A send in the short spelling, taken apart by the frame kernel.

    ``draft`` is the message as it came, and with the broker's properties if ``features`` is 0; see
    ``kernels.frame_scan``.
    """

    opaque: int
    flag: int
    version: int
    code: int
    producer_group: bytes
    default_topic: bytes
    default_queue_count: int
    is_batch: bool
    reconsume_max: int
    features: int
    unique_key: bytes
    draft: MessageDraft


class PullFrame(NamedTuple):
    """A pull without a body, taken apart by the kernel."""

    opaque: int
    flag: int
    version: int
    code: int
    # All fields but the three numbers, as one text.
    key: bytes
    queue_offset: int
    # How many messages the client wants.
    count_max: int
    consumer_offset: int
    # The header as it came, for ``pull_request``.
    header: bytes


Frames = list[Frame | SendRequest | PullFrame]
"""The frames of one read, each by its type."""


class FrameDecoder:
    """One connection's received bytes. Buffers grow as bytes arrive, never by a declared length."""

    def __init__(
        self,
        *,
        born_host: bytes = b"",
        property_suffix: bytes = b"",
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        value_bytes_max: int = VALUE_BYTES_MAX,
        decodes_all: bool = False,
    ) -> None:
        """With ``decodes_all`` every frame comes out as a ``Request`` or a ``ReceivedResponse``,
        decoded without the frame kernel.
        """
        self._born_host = born_host
        self._property_suffix = property_suffix
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._value_bytes_max = value_bytes_max
        self._decodes_all = decodes_all
        # Frames that came out and wait again, and the bytes of their bodies.
        self._again: Frames = []
        self._again_bytes = 0
        # Frames that were not looked at yet begin here in the received bytes; see ``more``.
        self._rest = b""
        self._rest_at = 0
        # The bytes that are held of an unfinished frame.
        self.pending = bytearray()
        self._wanted_bytes = 0
        self.failure: RemoteProtocolError | None = None
        # Whether the last frames may join a run: they were sends without exception.
        self.may_join = False

    @property
    def pending_bytes(self) -> int:
        """How much is held: an unfinished frame, and those that wait."""
        return len(self.pending) + len(self._rest) - self._rest_at + self._again_bytes

    def feed(self, data: bytes) -> Frames:
        """The frames that ``data`` completes, in order.

        After bytes that are no frame ``failure`` is set: nothing more can be read.
        """
        return self.frames_of(self.joined(data), 0, COUNT_MAX, COUNT_MAX)

    def joined(self, data: bytes) -> bytes:
        """``data`` behind the pending bytes: nothing while a frame is known to be unfinished.

        The bytes that come out begin with a frame and are pending no more.
        """
        if not self.pending:
            return data
        self.pending += data
        if len(self.pending) < self._wanted_bytes:
            return b""
        data = bytes(self.pending)
        self.pending = bytearray()
        return data

    def frames_of(self, data: bytes, start: int, count_max: int, bytes_max: int) -> Frames:
        """The frames of ``data``, which has one at ``start``; see ``feed``.

        No more than ``count_max`` frames and ``bytes_max`` come out, the first frame in any case;
        ``more`` gives the others. The bytes of sends do not count. An unfinished frame is pending.
        """
        if self._decodes_all:
            return self._decoded_of(data, start, count_max, bytes_max)
        items, consumed, problem, kinds = scan_frames(
            data,
            start,
            self._frame_bytes_max,
            self._header_bytes_max,
            self._born_host,
            self._property_suffix,
            count_max,
            bytes_max,
        )
        if consumed < len(data) and not problem:
            if kinds & FRAMES_LEFT or len(items) == count_max:
                self._rest, self._rest_at = data, consumed
            else:
                self._keep(data, consumed)
        if problem:
            self.failure = RemoteProtocolError(*_PROBLEMS[problem])
        self.may_join = kinds & ~FRAMES_LEFT == KIND_SEND
        return self._finished(data, items)

    # Frames that wait.

    @property
    def has_rest(self) -> bool:
        """Whether frames may have been received that did not come out yet."""
        return bool(self._rest or self._again)

    def waiting_count(self, count_max: int) -> int:
        """How many frames wait, counted up to ``count_max``."""
        count, at = len(self._again), self._rest_at
        while count < count_max and at < len(self._rest):
            count += 1
            at += _TOTAL.size + int.from_bytes(self._rest[at : at + _TOTAL.size], "big")
        return count

    def wait_again(self, frames: Frames) -> None:
        """Let frames wait that came out before everything that has not."""
        self._again += frames
        self._again_bytes += sum(map(_body_bytes, frames))

    def wait_first(self, frames: Frames) -> None:
        """Let frames wait that came out last, in front of everything else that waits."""
        self._again = [*frames, *self._again]
        self._again_bytes += sum(map(_body_bytes, frames))

    def put_back(self, data: bytes) -> None:
        """Let these bytes wait, behind those that wait already; they begin with a frame."""
        self._rest = self._rest[self._rest_at :] + data if self._rest else data
        self._rest_at = 0

    def put_behind(self, data: bytes) -> None:
        """As ``put_back``, for bytes that were received after everything that is held."""
        if self.pending:
            data = bytes(self.pending) + data
            self.pending = bytearray()
        self.put_back(data)

    def more(self, count_max: int, bytes_max: int = COUNT_MAX) -> Frames:
        """The next frames of those that wait, at most ``count_max``; see ``frames_of``."""
        if self._again:
            frames, self._again = self._again[:count_max], self._again[count_max:]
            self._again_bytes -= sum(map(_body_bytes, frames))
            return frames
        rest, at = self._rest, self._rest_at
        self._rest, self._rest_at = b"", 0
        return self.frames_of(rest, at, count_max, bytes_max)

    def forget_rest(self) -> None:
        """Drop all frames that wait."""
        self._rest, self._rest_at = b"", 0
        self._again, self._again_bytes = [], 0

    def whole(self, data: bytes) -> Frames:
        """The frames of bytes that are whole frames; pending bytes stay out of it."""
        return self.frames_of(data, 0, COUNT_MAX, COUNT_MAX)

    def _decoded_of(self, data: bytes, start: int, count_max: int, bytes_max: int) -> Frames:
        """As ``frames_of``, for every frame the tolerant decoder; sends have bytes, too."""
        frames: Frames = []
        at, available, self.may_join = start, len(data), False
        while available - at >= FRAME_PREFIX_BYTES and not self.failure:
            if len(frames) == count_max:
                self._rest, self._rest_at = data, at
                return frames
            total, mark = _PREFIX.unpack_from(data, at)
            frame_end = at + _TOTAL.size + total
            header_start = at + FRAME_PREFIX_BYTES
            header_end = header_start + (mark & _HEADER_LENGTH_MASK)
            if total < _TOTAL.size or total + _TOTAL.size > self._frame_bytes_max:
                self.failure = RemoteProtocolError(*_PROBLEMS[PROBLEM_TOTAL])
            elif frame_end > available:
                break
            elif header_end > frame_end:
                self.failure = RemoteProtocolError(*_PROBLEMS[PROBLEM_HEADER_LENGTH])
            elif header_end - header_start > self._header_bytes_max:
                self.failure = RemoteProtocolError(*_PROBLEMS[PROBLEM_HEADER_TOO_LONG])
            else:
                bytes_max -= frame_end - at
                if bytes_max < 0 and frames:
                    self._rest, self._rest_at = data, at
                    return frames
                item = (mark >> _TYPE_SHIFT, header_start, header_end, frame_end)
                frames += self._finished(data, [item])
                at = frame_end
        if at < available and self.failure is None:
            self._keep(data, at)
        return frames

    def _keep(self, data: bytes, consumed: int) -> None:
        """Hold the received bytes behind ``consumed``: a frame that is not finished."""
        self.pending = bytearray(memoryview(data)[consumed:])
        known = len(self.pending) >= _TOTAL.size
        total = _TOTAL.unpack_from(self.pending)[0] if known else 0
        wanted_bytes = max(FRAME_PREFIX_BYTES, total + _TOTAL.size)
        # A length beyond the limit is refused with the next bytes, not waited for.
        is_sound = wanted_bytes <= self._frame_bytes_max
        self._wanted_bytes = wanted_bytes if is_sound else FRAME_PREFIX_BYTES

    def _finished(self, data: bytes, items: list[Item]) -> Frames:
        """Items by their types; headers the kernel left alone are decoded here.

        ``tuple.__new__`` saves the calls in a named tuple's ``_make``; the kernel counts the parts.
        """
        frames: Frames = []
        for item in items:
            length = len(item)
            if length == _SEND_LENGTH:
                frames.append(send_request(item))
                continue
            if length == _PULL_LENGTH:
                frames.append(tuple.__new__(PullFrame, item))
                continue
            try:
                frames.append(self._frame(data, item))
            except RemoteProtocolError as error:
                # A new one: the caught error's traceback would keep this decoder, and every byte
                # it was given, until the collector comes by.
                self.failure = RemoteProtocolError(error.reason, str(error))
                self.forget_rest()
                return frames
        return frames

    def _frame(self, data: bytes, item: Item) -> Frame:
        if len(item) == 4:
            header_type, header_start, header_end, frame_end = item
            return decode_frame(
                header_type,
                data[header_start:header_end],
                data[header_end:frame_end],
                header_bytes_max=self._header_bytes_max,
                value_bytes_max=self._value_bytes_max,
            )
        if item[6] not in _KNOWN_LANGUAGES:
            item = (*item[:6], "OTHER", item[7])
        if item[4] & 1:
            code, opaque, fields, body, _, version, language, remark = item
            return ReceivedResponse(code, opaque, remark, fields, body, version, language)
        return tuple.__new__(Request, item)


def send_request(item: Item) -> SendRequest:
    """A send of the frame kernel with names on its parts."""
    return tuple.__new__(SendRequest, (*item[:11], tuple.__new__(MessageDraft, item[11])))


def _body_bytes(frame: Frame | SendRequest | PullFrame) -> int:
    """The bytes of the body of a request or of a send; pulls have none."""
    if isinstance(frame, Request | ReceivedResponse):
        return len(frame.body)
    return len(frame.draft.body) if isinstance(frame, SendRequest) else 0


def pull_request(pull: PullFrame) -> Request:
    """A pull of the kernel with all its fields."""
    header = pull.header
    if header.startswith(b"{"):
        # The kernel takes pulls of no body apart as pulls, others as any request.
        data = _PREFIX.pack(_TOTAL.size + len(header) + 1, len(header)) + header + b"\0"
        items = scan_frames(data, 0, FRAME_BYTES_MAX, HEADER_BYTES_MAX, b"", b"")[0]
        if items and len(items[0]) == 8:
            code, opaque, fields, _, flag, version, language, remark = items[0]
            language = language if language in _KNOWN_LANGUAGES else "OTHER"
            return Request(code, opaque, fields, b"", flag, version, language, remark)
    frame = decode_frame(0 if header.startswith(b"{") else 1, header, b"")
    assert isinstance(frame, Request), "the kernel takes apart requests only"
    return frame

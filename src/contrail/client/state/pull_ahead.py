"""Plans which ranges of a queue to pull next, with many pulls outstanding at once.

Queue offsets are dense, so the range of a pull is known before the pull before it is answered.
Brokers answer with fewer messages than requested whenever a limit of bytes or counts is reached:
the missing ones are pulled again, and messages after them are held until then.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar, cast

P = TypeVar("P")

# After this many whole answers in a row a longer range is tried again; after twice as many with
# each try that was answered with less, for brokers may have a limit of their own.
_WHOLE_ANSWERS_BEFORE_GROWTH = 16
_WHOLE_ANSWERS_BEFORE_GROWTH_MAX = 256
# The longest of this many answers shows how much a broker sends in one answer.
_RECENT_ANSWERS = 16


class Ask(NamedTuple):
    """A range of a queue to pull: its first offset, its end, and the most messages."""

    queue_offset: int
    queue_offset_end: int
    count_max: int


class Stretch(NamedTuple, Generic[P]):
    """The range that an answer covers, and its payload."""

    queue_offset: int
    queue_offset_end: int
    payload: P


class PullAhead(Generic[P]):
    """Plans the pulls of ``[start, end)`` and puts their answers in order.

    Every offset is at any time taken, held, requested, in a gap, or beyond the last pull. With
    ``in_order`` one pull is outstanding at a time, from where the last answer ended: for pulls with
    a filter, whose answers cover a range not known before.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        count_max: int = 32,
        asks_max: int = 16,
        bytes_max: int = 16 << 20,
        in_order: bool = False,
    ) -> None:
        self.position = start
        self.end = max(start, end)
        self._count_max = count_max
        self._asks_max = 1 if in_order else asks_max
        self._bytes_max = bytes_max
        self._in_order = in_order
        self._stride = count_max
        self._whole_count = 0
        self._whole_count_wanted = _WHOLE_ANSWERS_BEFORE_GROWTH
        self._recent_counts: deque[int] = deque(maxlen=_RECENT_ANSWERS)
        self._answer_bytes = 0
        self._asked_to = start
        self._gaps: list[tuple[int, int]] = []
        self._asked: dict[int, Ask] = {}
        self._held: dict[int, Stretch[P | None]] = {}

    @property
    def is_done(self) -> bool:
        """Whether the whole range has been taken."""
        return self.position >= self.end

    @property
    def asked_count(self) -> int:
        return len(self._asked)

    # Asking.

    def next_ask(self) -> Ask | None:
        """The next pull; None when enough pulls are outstanding, or the whole range is."""
        if self._gaps and self._may_fill():
            start, end = self._gaps.pop(0)
            ask = self._ask(start, end)
            if ask.queue_offset_end < end:
                insort(self._gaps, (ask.queue_offset_end, end))
            return ask
        if self._gaps or self._asked_to >= self.end or not self._has_room():
            return None
        ask = self._ask(self._asked_to, self.end)
        self._asked_to = ask.queue_offset_end
        return ask

    def _may_fill(self) -> bool:
        """Answers held behind a gap do not count: they wait for the gap to be filled."""
        count = len(self._asked)
        return count < self._asks_max and (
            not count or (count + 1) * self._answer_bytes <= self._bytes_max
        )

    def _has_room(self) -> bool:
        count = len(self._asked) + len(self._held)
        return count < self._asks_max and (
            not count or (count + 1) * self._answer_bytes <= self._bytes_max
        )

    def _ask(self, start: int, end: int) -> Ask:
        if not self._in_order:
            end = min(end, start + self._stride)
        ask = Ask(start, end, min(self._count_max, end - start))
        self._asked[start] = ask
        return ask

    # Answers.

    def answered(self, ask: Ask, queue_offset_next: int, payload: P, byte_count: int = 0) -> None:
        """``payload`` has all messages of the pull up to before ``queue_offset_next``."""
        reached = min(queue_offset_next, ask.queue_offset_end)
        self._settle(ask, reached, payload)
        # Of the last answers, so that a few large messages shorten the pulls only for a while.
        self._answer_bytes = max(byte_count, self._answer_bytes * 7 // 8)
        if not self._in_order:
            self._learn(ask, reached - ask.queue_offset)

    def _learn(self, ask: Ask, count: int) -> None:
        self._recent_counts.append(count)
        if count < ask.count_max:
            if ask.count_max == self._stride:
                self._whole_count_wanted = min(
                    2 * self._whole_count_wanted, _WHOLE_ANSWERS_BEFORE_GROWTH_MAX
                )
            # A single answer may be short by chance, such as at the end of a file.
            self._stride = max(1, *self._recent_counts)
            self._whole_count = 0
        elif ask.count_max >= self._stride:
            self._whole_count += 1
            if self._whole_count >= self._whole_count_wanted:
                self._stride = min(self._count_max, self._stride + max(1, self._stride // 8))
                self._whole_count = 0

    def missing(self, ask: Ask, queue_offset_next: int) -> None:
        """The broker has no message before ``queue_offset_next``, except those answered already."""
        self._settle(ask, min(queue_offset_next, ask.queue_offset_end), None)
        gaps, self._gaps = self._gaps, []
        for start, end in gaps:
            self._leave_out(start, min(end, queue_offset_next))
            if end > queue_offset_next:
                self._gaps.append((max(start, queue_offset_next), end))
        reached = min(queue_offset_next, self.end)
        self._leave_out(self._asked_to, reached)
        self._asked_to = max(self._asked_to, reached)

    def abandon(self) -> None:
        """The broker has no further message."""
        self.position = self._asked_to = self.end
        self._gaps.clear()
        self._asked.clear()
        self._held.clear()

    def _leave_out(self, start: int, end: int) -> None:
        if start < end:
            self._held[start] = Stretch(start, end, None)

    def again(self, ask: Ask) -> None:
        """The pull got no usable answer: plan it again."""
        del self._asked[ask.queue_offset]
        insort(self._gaps, (ask.queue_offset, ask.queue_offset_end))

    def lost(self) -> None:
        """The connection is lost, and with it all outstanding answers."""
        for ask in list(self._asked.values()):
            self.again(ask)

    def _settle(self, ask: Ask, reached: int, payload: P | None) -> None:
        if reached <= ask.queue_offset:
            raise ValueError(f"the answer to {ask} ends at {reached}: ask again instead")
        del self._asked[ask.queue_offset]
        self._held[ask.queue_offset] = Stretch(ask.queue_offset, reached, payload)
        if reached < ask.queue_offset_end:
            insort(self._gaps, (reached, ask.queue_offset_end))

    # Taking.

    def take(self) -> Iterator[Stretch[P]]:
        """The next answers, in order and without holes, as far as they have arrived.

        Ranges without messages are skipped.
        """
        while (held := self._held.pop(self.position, None)) is not None:
            self.position = held.queue_offset_end
            if held.payload is not None:
                yield cast("Stretch[P]", held)

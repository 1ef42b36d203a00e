"""Which stretches of a queue to ask for next, when many questions are on their way at once.

Queue offsets are dense, so that the place after next is known before the next one is answered.
Brokers answer with fewer messages than were asked for whenever bytes or counts run out: what is
missing is asked for again, and what comes after it is held until then.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar, cast

P = TypeVar("P")

# After so many whole answers in a row a longer stretch is tried again; twice as many after each
# try that was answered with less, for brokers may have a limit of their own.
_WHOLE_ANSWERS_BEFORE_GROWTH = 16
_WHOLE_ANSWERS_BEFORE_GROWTH_MAX = 256
# The longest of so many answers tells how much a broker gives at once.
_RECENT_ANSWERS = 16


class Ask(NamedTuple):
    """A stretch of a queue to pull: its first offset, the one after its last, messages at most."""

    queue_offset: int
    queue_offset_end: int
    count_max: int


class Stretch(NamedTuple, Generic[P]):
    """What an answer was found to cover, and what it brought."""

    queue_offset: int
    queue_offset_end: int
    payload: P


class PullAhead(Generic[P]):
    """Plans the pulls of ``[start, end)`` and puts their answers in order.

    Every offset is at any time taken, held, asked for, in a gap, or beyond the last question. With
    ``in_order`` one question is on its way at a time, from where the last answer ended: the way to
    read through a filter, where nobody knows how far an answer reaches.
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
        """Whether everything has been taken."""
        return self.position >= self.end

    @property
    def asked_count(self) -> int:
        return len(self._asked)

    # Asking.

    def next_ask(self) -> Ask | None:
        """What to ask for now; None when enough is on its way, or everything is."""
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
        """What is held behind a gap does not count: it waits for the gap to be filled."""
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
        """``payload`` has all there is from the ask's beginning to before ``queue_offset_next``."""
        reached = min(queue_offset_next, ask.queue_offset_end)
        self._settle(ask, reached, payload)
        # Of the last ones, so that a few large messages narrow what is asked for at once.
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
            # One answer may be short for reasons of its own, such as where it ends in a file.
            self._stride = max(1, *self._recent_counts)
            self._whole_count = 0
        elif ask.count_max >= self._stride:
            self._whole_count += 1
            if self._whole_count >= self._whole_count_wanted:
                self._stride = min(self._count_max, self._stride + max(1, self._stride // 8))
                self._whole_count = 0

    def missing(self, ask: Ask, queue_offset_next: int) -> None:
        """Nothing before ``queue_offset_next`` is to be had, except what was answered already."""
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
        """Nothing more is to be had."""
        self.position = self._asked_to = self.end
        self._gaps.clear()
        self._asked.clear()
        self._held.clear()

    def _leave_out(self, start: int, end: int) -> None:
        if start < end:
            self._held[start] = Stretch(start, end, None)

    def again(self, ask: Ask) -> None:
        """The answer was none: ask again."""
        del self._asked[ask.queue_offset]
        insort(self._gaps, (ask.queue_offset, ask.queue_offset_end))

    def lost(self) -> None:
        """The connection is gone, and with it all answers that were on their way."""
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
        """The next stretches, in order and without holes, as far as they are there.

        What was found missing is passed over.
        """
        while (held := self._held.pop(self.position, None)) is not None:
            self.position = held.queue_offset_end
            if held.payload is not None:
                yield cast("Stretch[P]", held)

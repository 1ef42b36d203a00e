"""Batches that were popped in order: each blocks its queue until its messages are acknowledged.

A group has at most one batch of a queue. Another pop gets nothing of the queue while a message of
the batch is neither acknowledged nor visible again; the pop that repeats the batch's attempt id
gets the same messages at once. The group's offset is the first message that is not acknowledged.

``consumerOrderInfo.json`` has the batches as RocketMQ writes them:

=======  ======================================================================
key      of a batch
=======  ======================================================================
a        the attempt id
cm       a bit for each message that is acknowledged
i        how long the messages are invisible, ms
l        when the batch was popped, by the broker's clock
o        the queue offsets: the first one, then their distances from it
oc       by queue offset, how often a message was popped before
ot       by queue offset, when a message becomes visible, where that was changed
popTime  when the batch was popped, as receipts say it
=======  ======================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from contrail.broker.state.pop_records import COUNT_MAX
from contrail.broker.state.pop_table import Queue
from contrail.model.fastjson import FastJsonError, Fields, loads, whole_number

FILE_NAME = "consumerOrderInfo.json"
KEPT_MS = 24 * 3_600_000
"""A batch that nobody has looked at for so long is forgotten, as RocketMQ forgets it."""
_FIELD = "table"
_SEPARATOR = "@"


class Settled(Enum):
    """The result of an acknowledgement."""

    # A message of the batch is acknowledged now, if it was not before.
    TAKEN = "taken"
    # It is of an older batch, or there is no batch: nothing has changed.
    IGNORED = "ignored"
    # The batch has no such message.
    ILLEGAL = "illegal"


@dataclass(slots=True)
class OrderBatch:
    """The messages of a group's last pop in order from one queue."""

    attempt_id: str | None
    pop_time_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    last_ms: int
    # A bit for each of ``offsets``.
    acked: int = 0
    # By queue offset: when it becomes visible, where that was changed.
    visible_ms: dict[int, int] = field(default_factory=dict)
    # By queue offset: how often it was popped before this batch; only those above 0.
    counts: dict[int, int] = field(default_factory=dict)
    # The address of the consumer; empty after a restart.
    holder: str = ""

    def open_offsets(self, consumer_offset: int) -> list[int]:
        """The messages that are not acknowledged; those below the group's offset are."""
        return [
            offset
            for index, offset in enumerate(self.offsets)
            if offset >= consumer_offset and not self.acked >> index & 1
        ]

    def visible_at_ms(self, queue_offset: int) -> int:
        return self.visible_ms.get(queue_offset, self.pop_time_ms + self.invisible_ms)

    def free_at_ms(self, consumer_offset: int) -> int:
        """When the batch blocks its queue no longer; 0 for one that is acknowledged."""
        open_offsets = self.open_offsets(consumer_offset)
        return max((self.visible_at_ms(offset) for offset in open_offsets), default=0)

    @property
    def next_offset(self) -> int:
        """The first message that is not acknowledged, or the one behind the batch."""
        return next(iter(self.open_offsets(0)), self.offsets[-1] + 1)

    @property
    def count_of_all(self) -> int:
        """How often each of the messages was popped before, at least."""
        if len(self.counts) < len(self.offsets):
            return 0
        return min(self.counts.values())


class OrderBatches:
    """The batches of all groups."""

    def __init__(self, batches: Mapping[Queue, OrderBatch] | None = None) -> None:
        self._batches = dict(batches or {})
        self.changed = False

    def __len__(self) -> int:
        return len(self._batches)

    def find(self, queue: Queue) -> OrderBatch | None:
        return self._batches.get(queue)

    def items(self) -> Iterator[tuple[Queue, OrderBatch]]:
        return iter(list(self._batches.items()))

    def is_blocked(
        self, queue: Queue, attempt_id: str | None, consumer_offset: int, now_ms: int
    ) -> bool:
        """Whether a pop has to leave a queue alone."""
        batch = self._batches.get(queue)
        if batch is None or (attempt_id is not None and batch.attempt_id == attempt_id):
            return False
        return now_ms < batch.free_at_ms(consumer_offset)

    def give(self, queue: Queue, batch: OrderBatch) -> None:
        """A pop gets these messages; they are counted again unless its attempt is repeated."""
        before = self._batches.get(queue)
        if before is not None:
            batch.counts = _counts(before, batch)
        self._batches[queue] = batch
        self.changed = True

    def settle(self, queue: Queue, queue_offset: int, pop_time_ms: int) -> Settled:
        """A message of a batch is acknowledged."""
        batch = self._batches.get(queue)
        if batch is None or batch.pop_time_ms != pop_time_ms:
            return Settled.IGNORED
        if queue_offset not in batch.offsets:
            return Settled.ILLEGAL
        batch.acked |= 1 << batch.offsets.index(queue_offset)
        self.changed = True
        return Settled.TAKEN

    def prolong(self, queue: Queue, queue_offset: int, pop_time_ms: int, visible_ms: int) -> bool:
        """A message of a batch becomes visible then; False for one of an older batch."""
        batch = self._batches.get(queue)
        if batch is None or batch.pop_time_ms != pop_time_ms or queue_offset not in batch.offsets:
            return False
        batch.visible_ms[queue_offset] = visible_ms
        self.changed = True
        return True

    def forget(self, is_gone: Callable[[Queue], bool]) -> None:
        """Queues were reset, or their topic or group is gone."""
        gone = [queue for queue in self._batches if is_gone(queue)]
        for queue in gone:
            del self._batches[queue]
            self.changed = True

    def forget_old(self, now_ms: int) -> None:
        """Forget batches that nobody has looked at for a day."""
        self.forget(lambda queue: now_ms - self._batches[queue].last_ms > KEPT_MS)

    def to_fields(self) -> dict[str, object]:
        """The content of the file."""
        table: dict[str, dict[int, dict[str, object]]] = {}
        for (group, topic, queue_id), batch in self._batches.items():
            of_pair = table.setdefault(f"{topic}{_SEPARATOR}{group}", {})
            of_pair[queue_id] = _batch_fields(batch)
        return {_FIELD: table}


def _counts(before: OrderBatch, batch: OrderBatch) -> dict[int, int]:
    if before.attempt_id is not None and before.attempt_id == batch.attempt_id:
        return dict(before.counts)
    both = set(before.offsets).intersection(batch.offsets)
    return {offset: before.counts.get(offset, 0) + 1 for offset in sorted(both)}


def _batch_fields(batch: OrderBatch) -> dict[str, object]:
    first = batch.offsets[0]
    fields: dict[str, object] = {
        "cm": batch.acked,
        "i": batch.invisible_ms,
        "l": batch.last_ms,
        "o": [first, *(offset - first for offset in batch.offsets[1:])],
        "popTime": batch.pop_time_ms,
    }
    if batch.attempt_id is not None:
        fields["a"] = batch.attempt_id
    if batch.counts:
        fields["oc"] = dict(batch.counts)
    if batch.visible_ms:
        fields["ot"] = dict(batch.visible_ms)
    return fields


def parse_order_batches(data: bytes) -> dict[Queue, OrderBatch]:
    """The batches of a file.

    Raises:
        FastJsonError: it is none.
    """
    found: dict[Queue, OrderBatch] = {}
    for key, queues in Fields(loads(data), FILE_NAME).children(_FIELD).items():
        topic, separator, group = key.partition(_SEPARATOR)
        if not separator:
            raise FastJsonError(f"{FILE_NAME}: {key!r} names no topic and group")
        for queue_id in queues.unknown(frozenset()):
            of_queue = queues.child(queue_id)
            batch = None if of_queue is None else _read_batch(of_queue)
            if batch is not None:
                found[group, topic, _number(queue_id)] = batch
    return found


def _read_batch(fields: Fields) -> OrderBatch | None:
    numbers = [whole_number(one, "an entry of o") for one in fields.array("o")]
    if not numbers:
        return None
    if len(numbers) > COUNT_MAX:
        raise FastJsonError(f"{FILE_NAME}: a batch of {len(numbers)} messages")
    first = numbers[0]
    offsets = (first, *(first + distance for distance in numbers[1:]))
    return OrderBatch(
        attempt_id=fields.text("a", "") or None,
        pop_time_ms=fields.integer("popTime", 0),
        invisible_ms=fields.integer("i", 0),
        offsets=offsets,
        last_ms=fields.integer("l", 0),
        acked=fields.integer("cm", 0) & (1 << len(offsets)) - 1,
        visible_ms=_by_offset(fields, "ot"),
        counts=_by_offset(fields, "oc"),
    )


def _by_offset(fields: Fields, name: str) -> dict[int, int]:
    return {_number(key): value for key, value in fields.integers(name).items()}


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise FastJsonError(f"{FILE_NAME}: {text[:40]!r} is no queue or offset")
    return int(text)

"""A consumer's offset in each queue, and which of them are not stored yet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from contrail.protocol.json_style import MessageQueue


@dataclass(slots=True)
class Progress:
    """Consumer offsets by queue: as consumed, and as last stored."""

    _current: dict[MessageQueue, int] = field(default_factory=dict)
    _stored: dict[MessageQueue, int] = field(default_factory=dict)
    _frozen: set[MessageQueue] = field(default_factory=set)

    def known(self, queue: MessageQueue) -> int | None:
        return self._current.get(queue)

    def update(self, queue: MessageQueue, consumer_offset: int, *, increase_only: bool) -> None:
        if queue in self._frozen:
            return
        if increase_only:
            consumer_offset = max(consumer_offset, self._current.get(queue, consumer_offset))
        self._current[queue] = consumer_offset

    def freeze(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Set an offset that late updates must not undo; ``remove`` ends it."""
        self._current[queue] = consumer_offset
        self._frozen.add(queue)

    def moved(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Reading goes on at another offset; the stored offset counts as unknown."""
        if queue in self._current and queue not in self._frozen:
            self._current[queue] = consumer_offset
        self._stored.pop(queue, None)

    def stored(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Take the stored offset as the current one."""
        self._stored[queue] = consumer_offset
        if queue not in self._frozen:
            self._current[queue] = consumer_offset

    def written(self, queue: MessageQueue, consumer_offset: int) -> None:
        """This offset was written; a later one stays to be written."""
        self._stored[queue] = consumer_offset

    def remove(self, queue: MessageQueue) -> None:
        self._current.pop(queue, None)
        self._stored.pop(queue, None)
        self._frozen.discard(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Write no offset but an operator's reset for a queue that another member may have."""
        if queue not in self._frozen:
            self.remove(queue)

    def changed(self, queues: Collection[MessageQueue] | None) -> dict[MessageQueue, int]:
        """The offsets to write, of these queues or of all."""
        return {
            queue: consumer_offset
            for queue, consumer_offset in self._current.items()
            if self._stored.get(queue) != consumer_offset and (queues is None or queue in queues)
        }

    def snapshot(self, topic: str | None) -> dict[MessageQueue, int]:
        return {
            queue: consumer_offset
            for queue, consumer_offset in self._current.items()
            if topic is None or queue.topic == topic
        }

"""The memories of topics that store no message twice, as a failover group's committed log has them.

Every member reads the messages of these topics, and those that wait for them, as the log grows. The
leader remembers in memories of its own, copies of these: a send that it appended may be cut from
the log, and must then be stored when it comes again.
"""

from __future__ import annotations

from collections.abc import Collection

from contrail.broker.services.send_dedupe import SendDedupe, SentMessages
from contrail.broker.state.send_memory import SendMemory

_ROWS = 512
_Queue = tuple[bytes, int]


class FollowedSends:
    """The memories of the committed log, and how far each queue was read for them."""

    def __init__(self, dedupe: SendDedupe, store: SentMessages) -> None:
        self._dedupe = dedupe
        self._store = store
        self._memories: dict[str, SendMemory] = {}
        self._next: dict[_Queue, int] = {}

    def begin(self) -> None:
        """A start has read back what is committed and derived."""
        self._take_topics()
        for name, memory in self._memories.items():
            memory.assign(self._dedupe.memories[name])
        self._read_to_end(self._memories)

    def committed(self) -> None:
        """More of the log is committed and derived."""
        is_new = self._take_topics()
        if is_new:
            # A topic has got the attribute: it is read back as by a start.
            self._read_back(is_new)
        if self._memories:
            self._read_on()

    def _take_topics(self) -> set[str]:
        """Have a memory for each topic that the tables say; returns those that are new."""
        wanted = self._dedupe.memories
        for name in self._memories.keys() - wanted.keys():
            del self._memories[name]
        if not wanted:
            self._next.clear()
        is_new = wanted.keys() - self._memories.keys()
        for name in is_new:
            self._memories[name] = SendMemory(wanted[name].window)
        for name, memory in self._memories.items():
            memory.window = wanted[name].window
        return is_new

    def _read_back(self, names: set[str]) -> None:
        self._read_on()
        self._dedupe.fill({name: self._memories[name] for name in names})
        self._read_to_end(names)

    def _read_to_end(self, names: Collection[str]) -> None:
        for queue in self._dedupe.queues_of(names):
            self._next[queue] = self._store.queue_offset_max(*queue)

    def _read_on(self) -> None:
        """Remember the messages of all queues in the log's order."""
        found = []
        for queue in self._dedupe.queues_of(self._memories):
            end = self._store.queue_offset_max(*queue)
            first = self._next.get(queue, self._store.queue_offset_min(*queue))
            while first < end:
                last = min(first + _ROWS, end)
                found += self._dedupe.sent_in(queue, first, last, self._memories)
                first = last
            self._next[queue] = end
        found.sort(key=lambda one: one[1].physical_offset)
        for name, sent in found:
            self._memories[name].remember(sent.key, sent.first)

    def topic_deleted(self, topic: str) -> None:
        """Its messages so far are dead; a new topic of the name begins with another memory."""
        self._memories.pop(topic, None)
        for queue in [queue for queue in self._next if queue[0] == topic.encode()]:
            del self._next[queue]

    def lead(self) -> None:
        """Go on for another leader, from what is committed."""
        self._take_topics()
        for name, memory in self._dedupe.memories.items():
            memory.assign(self._memories[name])

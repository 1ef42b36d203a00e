"""How far ``consumerOffset.json`` speaks for what was popped, and what the log knows beyond that.

The file has the groups' offsets and the cursors in the revive queues. A start reads the log from
the position on up to which the file knew everything when it was copied: checkpoints behind it move
the offsets of their queues on, and deliveries behind it are not made again.
"""

from __future__ import annotations

from typing import Protocol

from contrail.broker.services.pop_revive import PopRevive
from contrail.broker.services.pops import Pops
from contrail.broker.services.stored_tables import OffsetFile
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.pop_offsets import PopOffsets
from contrail.broker.state.pop_records import CK_TAG, read_checkpoint
from contrail.broker.state.pop_table import Queue
from contrail.broker.state.shares import THIS_HOST
from contrail.model.fastjson import FastJsonError
from contrail.model.message import StoredMessage
from contrail.model.properties import REAL_TOPIC, TAGS, read_property
from contrail.model.topic import TIMER_TOPIC
from contrail.store import MessageStore


class Settling(Protocol):
    """How far cursors on disk may speak of the log."""

    @property
    def settled_end(self) -> int: ...


class PopMemory:
    """Keeps the position, and takes from the log what the file does not know."""

    def __init__(
        self,
        pops: Pops,
        revive: PopRevive,
        next_offsets: PopOffsets,
        offsets: ConsumerOffsets,
        file: OffsetFile,
        deliveries: Settling,
        store: MessageStore,
        *,
        revive_topic: str,
    ) -> None:
        self._pops = pops
        self._revive = revive
        self._next_offsets = next_offsets
        self._offsets = offsets
        self._deliveries = deliveries
        self._store = store
        self._revive_topic = revive_topic
        self._mark = revive_topic.encode()
        # By queue: the last message that a pop took, and where the log says that.
        self._found: dict[Queue, tuple[int, int]] = {}
        self._copied_end = 0
        self._written_end = 0
        self._is_closing = False
        file.on_copied.append(self._note_copied)
        file.on_written.append(self._note_written)

    # While the broker runs.

    @property
    def durable_end(self) -> int:
        """The log position up to which the file speaks for everything popped and delivered."""
        changed_end = max(self._pops.appended_end, self._revive.delivered_end)
        if changed_end <= self._written_end or self._is_closing:
            return self._deliveries.settled_end
        return self._written_end

    def _note_copied(self) -> None:
        firsts = (self._next_offsets.waiting_from, self._revive.known_from)
        known = [first for first in firsts if first is not None]
        self._copied_end = min([self._deliveries.settled_end, *known])

    def _note_written(self) -> None:
        self._written_end = self._copied_end

    def close(self) -> None:
        """The log is durable, and the file is written with the others, for the last time."""
        self._is_closing = True

    # At a start.

    def take(self, message: StoredMessage) -> None:
        """Look at one record of the log, in its order; before ``recover``."""
        if message.topic not in (TIMER_TOPIC, self._revive_topic):
            return
        raw = message.raw_properties
        if message.topic == TIMER_TOPIC:
            if self._mark not in raw or read_property(raw, REAL_TOPIC) != self._revive_topic:
                return
        elif message.prepared_transaction_offset < 0:
            # It has waited in the timer topic: there it stands in its order.
            return
        if read_property(raw, TAGS) != CK_TAG:
            return
        try:
            checkpoint = read_checkpoint(message.body, 0)
        except FastJsonError:
            return
        if checkpoint.offsets:
            queue = (checkpoint.group, checkpoint.topic, checkpoint.queue_id)
            known = self._found.get(queue)
            if known is None or checkpoint.offsets[-1] >= known[0]:
                self._found[queue] = checkpoint.offsets[-1], message.physical_offset

    def begin(self, physical_start: int) -> None:
        """The file as it is speaks for everything up to here; move offsets past what is popped."""
        self._written_end = physical_start
        for (group, topic, queue_id), (last, place) in self._found.items():
            is_ahead = last >= self._offsets.query(group, topic, queue_id)
            if is_ahead and self._is_same_message(topic, queue_id, last, place):
                self._offsets.admit(group, topic, THIS_HOST, queue_id)
                self._offsets.commit(group, topic, queue_id, last + 1)
        self._found.clear()

    def _is_same_message(self, topic: str, queue_id: int, offset: int, place: int) -> bool:
        """Whether the queue still has the message that was popped then.

        A topic that was deleted and made anew has other messages, stored later, or none yet.
        """
        rows = self._store.rows(topic.encode(), queue_id, offset, 1)
        return bool(rows) and rows[0].physical_offset < place

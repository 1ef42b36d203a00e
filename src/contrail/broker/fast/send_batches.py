"""Fast batches as rows: one for each message, and one answer for each batch.

A batch is fast when nothing has to be decided about it (``SendAdmission.split_topics``) and its
messages can be stored as they came (``kernels.batch_rows``). Any other batch, and every error, is
for the general way, ``handlers.send``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrail.broker.handlers.send_answers import Sent, Stored
from contrail.broker.services.send_admission import FAST_FLAGS, SendAdmission
from contrail.kernels import send_rows
from contrail.kernels.batch_rows import batch_rows
from contrail.kernels.frame_scan import FEATURE_NO_UNIQUE_KEY
from contrail.kernels.send_records import are_admitted
from contrail.model.batch import BATCH_COUNT_MAX
from contrail.model.topic import QueueType
from contrail.protocol.frames import SendRequest
from contrail.wire.connection import Connection

if TYPE_CHECKING:
    from contrail.kernels.send_records import Chunk


class SendBatch:
    """One fast batch of a connection; its ``chunk`` has been admitted."""

    __slots__ = ("chunk", "peer", "send")

    def __init__(self, peer: Connection, send: SendRequest, chunk: Chunk) -> None:
        self.peer = peer
        self.send = send
        self.chunk = chunk

    @property
    def sent(self) -> Sent:
        """The parts that the answer needs: bodies are in the log."""
        send = self.send
        return Sent(
            self.peer,
            send.opaque,
            send.flag,
            send.code,
            send.unique_key,
            send.draft.queue_id,
            QueueType.SIMPLE,
        )

    def stored(self) -> Stored:
        """Where its messages are, once they were appended."""
        rows = self.chunk[2]
        places = rows[send_rows.PHYSICAL_OFFSET :: send_rows.ROW_NUMBERS].tolist()
        return Stored(self.sent, rows[send_rows.QUEUE_OFFSET], places)


def send_batch(
    peer: Connection, send: SendRequest, admission: SendAdmission, body_bytes_max: int
) -> SendBatch | None:
    """A send as a fast batch, if it is one."""
    if not send.is_batch or send.features & ~FEATURE_NO_UNIQUE_KEY:
        return None
    if send.draft.topic not in admission.split_topics:
        return None
    # A slice of a named tuple is a tuple, which C takes apart without an iterator.
    chunk = batch_rows(send.draft[:], body_bytes_max, BATCH_COUNT_MAX)
    if chunk is None or not are_admitted(
        chunk, admission.split_topics, admission.fast_places, FAST_FLAGS, body_bytes_max
    ):
        return None
    return SendBatch(peer, send, chunk)

"""Half messages: the form in which a transactional send is stored until its fate is known."""

from __future__ import annotations

from contrail.broker.state.placement import delay_level, wants_delay
from contrail.errors import RequestRejected
from contrail.model.message import MessageDraft
from contrail.model.properties import (
    REAL_QID,
    REAL_TOPIC,
    TRAN_MSG,
    TRANSACTION_ID,
    UNIQ_KEY,
)
from contrail.model.record import TRANSACTION_MASK
from contrail.model.topic import HALF_TOPIC
from contrail.protocol.codes import ResponseCode

_TOPIC = HALF_TOPIC.encode()


def is_half(draft: MessageDraft, properties: dict[str, str]) -> bool:
    """Whether a send opens a transaction; a retry of a consumer that kept the mark does not."""
    if properties.get(TRAN_MSG, "").lower() != "true":
        return False
    return not (draft.reconsume_times > 0 and delay_level(properties) > 0)


def as_half(draft: MessageDraft, properties: dict[str, str]) -> MessageDraft:
    """The draft as it waits in the half topic; ``properties`` remember where it is going.

    Raises:
        RequestRejected: it asks for a delay, too: RocketMQ loses such a message.
    """
    if wants_delay(properties):
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "a transactional message cannot be delayed; leave out the delay or the transaction",
        )
    properties[TRANSACTION_ID] = properties[UNIQ_KEY]
    properties[REAL_TOPIC] = draft.topic.decode("utf-8", "replace")
    properties[REAL_QID] = str(draft.queue_id)
    sys_flag = draft.sys_flag & ~TRANSACTION_MASK
    parts = (_TOPIC, 0, draft.body, draft.properties, draft.flag, sys_flag, *draft[6:])
    return tuple.__new__(MessageDraft, parts)

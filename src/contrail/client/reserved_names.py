"""RocketMQ's own property names, and the argument to use instead of each."""

from __future__ import annotations

from contrail.errors import MessageInvalid
from contrail.model import properties as names
from contrail.model.shown import shown

_SET_BY_CLIENT = "the client sets it by itself"
_OF_THE_SYSTEM = "RocketMQ uses it itself; choose another name"

# Names an application may not set, and the fix.
RESERVED_NAMES = {
    names.KEYS: "give keys= to the Message",
    names.TAGS: "give tags= to the Message",
    names.WAIT: "give wait_store_ok= to the Message",
    names.DELAY: "give delay_level= to the Message",
    names.TIMER_DELAY_SEC: "give delay= to the Message",
    names.TIMER_DELAY_MS: "give delay= to the Message",
    names.TIMER_DELIVER_MS: "give deliver_at= to the Message",
    names.UNIQ_KEY: _SET_BY_CLIENT,
    names.TRAN_MSG: "use transaction() or send_in_transaction()",
    names.PGROUP: "use transaction() or send_in_transaction()",
    names.CORRELATION_ID: "use request() and reply()",
    names.REPLY_TO_CLIENT: "use request() and reply()",
    names.TTL: "use request() and reply()",
    names.MSG_TYPE: "use request() and reply()",
    **dict.fromkeys(
        (
            names.RETRY_TOPIC,
            names.REAL_TOPIC,
            names.REAL_QID,
            names.ORIGIN_MESSAGE_ID,
            names.RECONSUME_TIME,
            names.MAX_RECONSUME_TIMES,
            names.DLQ_ORIGIN_TOPIC,
            names.DLQ_ORIGIN_MESSAGE_ID,
            names.UNREADABLE,
            names.TRAN_PREPARED_QUEUE_OFFSET,
            names.INNER_MULTI_QUEUE_OFFSET,
            names.TIMER_DELAY_LEVEL,
            names.TIMER_OUT_MS,
            names.TIMER_ENQUEUE_MS,
            names.TIMER_DEQUEUE_MS,
            names.TIMER_ROLL_TIMES,
            names.TIMER_DEL_UNIQKEY,
            names.RECALL_NONCE,
            names.POP_CK,
            names.POP_CK_OFFSET,
            names.FIRST_POP_TIME,
            names.MIN_OFFSET,
            names.MAX_OFFSET,
            names.CONSUME_START_TIME,
            names.MSG_REGION,
            names.TRACE_ON,
            names.CLUSTER,
            names.INSTANCE_ID,
            names.ARRIVE_TIME,
            names.PUSH_REPLY_TIME,
            names.BORN_HOST,
            names.BORN_TIMESTAMP,
            names.CRC32,
            names.BUYER_ID,
            names.TRANSFER_FLAG,
            names.CORRECTION_FLAG,
            names.MQ2_FLAG,
            names.EXTEND_UNIQ_INFO,
            names.DUP_INFO,
        ),
        _OF_THE_SYSTEM,
    ),
}


def check_property(name: str, value: str, topic: str) -> None:
    """Refuse a property that an application may not set, or that would not arrive.

    Raises:
        MessageInvalid: the message names the property and the fix.
    """
    if not isinstance(name, str) or not isinstance(value, str):
        raise _refused(name, topic, f"name and value must be str, the value is {shown(value)}")
    if name in RESERVED_NAMES:
        raise _refused(name, topic, RESERVED_NAMES[name])
    if name.startswith(names.TRANSIENT_PREFIX):
        raise _refused(name, topic, _OF_THE_SYSTEM)
    if not name.strip() or not value.strip():
        raise _refused(name, topic, "a blank name or value does not survive; leave it out")
    # A value may hold byte 1, the separator: readers split a name from its value at the first one
    # only.
    if "\x01" in name or "\x02" in name or "\x02" in value:
        raise _refused(name, topic, "it holds a control character (1 or 2); remove it")
    if name == names.INNER_MULTI_DISPATCH and "/" in value:
        raise _refused(name, topic, f"{shown(value)} holds a slash; remove it")


def _refused(name: object, topic: str, fix: str) -> MessageInvalid:
    return MessageInvalid(
        f"property {shown(name)} of a message for topic {shown(topic)} cannot be sent: {fix}"
    )

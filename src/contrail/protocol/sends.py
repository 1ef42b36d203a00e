"""Sends in either spelling, as the kernel hands out the fast ones.

The short spelling (codes 310, 320 and 325) names its fields by letters, the long one (10 and 324)
in full. Sends that the kernel cannot read in one pass are read here; errors name the field.
"""

from __future__ import annotations

from contrail.kernels.frame_scan import look_over
from contrail.model.message import MessageDraft
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request
from contrail.protocol.fields import HeaderFields
from contrail.protocol.frames import SendRequest

# Short letter -> full name, as RocketMQ pairs them.
LETTERS = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
_LONG_SPELLING = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})


def read_send(request: Request, born_host: bytes) -> SendRequest:
    """The send that ``request`` is; its properties are as they came.

    Raises:
        RequestRejected: a field is missing or no number.
    """
    fields = HeaderFields(_spelled_out(request))
    topic = fields.text("topic").encode("utf-8", "replace")
    properties = fields.text("properties", "").encode("utf-8", "replace")
    features, key_start, key_end = look_over(properties)
    draft = MessageDraft(
        topic=topic,
        queue_id=fields.integer("queueId"),
        body=request.body,
        properties=properties,
        flag=fields.integer("flag"),
        sys_flag=fields.integer("sysFlag"),
        born_timestamp_ms=fields.long("bornTimestamp"),
        born_host=born_host,
        reconsume_times=fields.integer("reconsumeTimes", 0),
    )
    return SendRequest(
        opaque=request.opaque,
        flag=request.flag,
        version=request.version,
        code=request.code,
        producer_group=fields.text("producerGroup").encode("utf-8", "replace"),
        default_topic=fields.text("defaultTopic").encode("utf-8", "replace"),
        default_queue_count=fields.integer("defaultTopicQueueNums"),
        is_batch=fields.boolean("batch"),
        reconsume_max=fields.integer("maxReconsumeTimes", -1),
        features=features,
        unique_key=properties[key_start:key_end],
        draft=draft,
    )


def is_unit_send(request: Request) -> bool:
    """Whether a producer of a unit (a part of a company's site) sends; the kernel leaves those."""
    return HeaderFields(_spelled_out(request)).boolean("unitMode")


def _spelled_out(request: Request) -> Request:
    if request.code in _LONG_SPELLING:
        return request
    fields = {LETTERS[name]: text for name, text in request.fields.items() if name in LETTERS}
    return request._replace(fields=fields)

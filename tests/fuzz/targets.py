"""One target for each decoder of bytes that a peer may choose.

A target decodes one input. It may return anything and raise only what its decoder documents;
everything else, and every check inside a target that fails, is a finding.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from contrail.broker.state.attributes import parse_changes
from contrail.broker.state.sql92 import compile_sql
from contrail.errors import (
    BatchIllegal,
    ConfigError,
    FilterInvalid,
    MessageIllegal,
    RemoteProtocolError,
    RequestRejected,
)
from contrail.kernels.frame_scan import look_over
from contrail.model.batch import decode_batch, encode_batch, split_batch
from contrail.model.fastjson import FastJsonError, loads
from contrail.model.message import MessageDraft
from contrail.model.message_id import (
    decode_offset_message_id,
    decode_unique_id,
    encode_offset_message_id,
)
from contrail.model.properties import decode_properties, read_property
from contrail.model.subscription import parse_subscription
from contrail.protocol.bodies.groups import decode_group, decode_group_list
from contrail.protocol.bodies.heartbeat import decode_heartbeat
from contrail.protocol.bodies.locks import decode_lock_request
from contrail.protocol.bodies.properties_text import decode_settings
from contrail.protocol.bodies.registration import RegisterBrokerBody
from contrail.protocol.bodies.routes import ClusterInfo, TopicRouteData
from contrail.protocol.bodies.tables import KVTable, TopicList
from contrail.protocol.bodies.topics import decode_topic_list
from contrail.protocol.command import (
    Request,
    decode_frame,
    encode_binary_request,
    encode_request,
)
from contrail.protocol.frames import FrameDecoder
from contrail.protocol.json_style import BODY_BYTES_MAX, BODY_TOKENS_MAX
from contrail.protocol.sends import read_send

_HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
_SEND_CODES = (10, 310, 320, 325)


@dataclass(frozen=True)
class Target:
    """A decoder, what it may raise, and inputs to begin with."""

    name: str
    decode: Callable[[bytes], object]
    raises: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]


def _stream(data: bytes) -> None:
    """Frames in two pieces; the first byte says where the stream is cut."""
    decoder = FrameDecoder(born_host=_HOST, property_suffix=b"CLUSTER\x01c\x02")
    cut = data[0] if data else 0
    for piece in (data[1 : 1 + cut], data[1 + cut :]):
        if piece and decoder.failure is None:
            for found in decoder.feed(piece):
                if isinstance(found, Request) and found.code in _SEND_CODES:
                    _read_send(found)
    assert decoder.pending_bytes <= len(data)


def _read_send(request: Request) -> None:
    try:
        read_send(request, _HOST)
    except RequestRejected:
        return


def _header(header_type: int) -> Callable[[bytes], object]:
    def decode(data: bytes) -> None:
        found = decode_frame(header_type, data, b"body")
        if isinstance(found, Request) and found.code in _SEND_CODES:
            _read_send(found)

    return decode


def _document(data: bytes) -> object:
    return loads(data, bytes_max=BODY_BYTES_MAX, tokens_max=BODY_TOKENS_MAX)


def _compressed_registration(data: bytes) -> None:
    """The first byte chooses: the stream itself or its content, and an old or new sender."""
    kind, rest = (data[0], data[1:]) if data else (0, b"")
    body = rest if kind & 1 else zlib.compress(rest)
    RegisterBrokerBody.decode(body, compressed=True, version=400 if kind & 2 else 479)


def _batch(data: bytes) -> None:
    units = decode_batch(data)
    assert decode_batch(encode_batch(units)) == units
    drafts = split_batch(MessageDraft(b"t", 0, data, b"", 0, 0, 0, _HOST, 0))
    assert [draft.body for draft in drafts] == [unit.body for unit in units]


def _properties(data: bytes) -> None:
    found = decode_properties(data)
    for name in list(found)[:3]:
        if "\ufffd" not in name:
            assert read_property(data, name) == found[name]
    features, start, end = look_over(data)
    assert 0 <= start <= end <= len(data) and features >= 0


def _expression(data: bytes) -> None:
    compiled = compile_sql(data.decode("utf-8", "replace"))
    for properties in ({}, {"a": "1", "b": "x", "c": ""}, {"a": "-1.5e3", "b": "true"}):
        compiled.matches(properties)


def _message_id(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = decode_offset_message_id(text)
    assert encode_offset_message_id(*found) == text.upper()
    decode_unique_id(text)


def _subscription(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    parse_subscription("topic", text, "TAG")
    parse_changes(text)


def _admin_bodies(data: bytes) -> None:
    refusals = 0
    decoders: tuple[Callable[[bytes], object], ...] = (
        decode_topic_list,
        decode_group,
        decode_group_list,
        TopicRouteData.decode,
        ClusterInfo.decode,
        KVTable.decode,
        TopicList.decode,
    )
    for decode in decoders:
        try:
            decode(data)
        except RequestRejected:
            refusals += 1
    assert refusals <= len(decoders)


_SEND = Request(
    310,
    7,
    {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000"}
    | {"h": "0", "i": "UNIQ_KEY\x01AC01\x02TAGS\x01x\x02", "j": "0", "m": "false"},
    b"hello",
)
_PULL = Request(11, 8, {"topic": "T", "queueId": "0", "x": 'a"b\\c é'}, b"", 2, remark="why")
_HEARTBEAT = {
    "clientID": "ip@1",
    "heartbeatFingerprint": 1,
    "producerDataSet": [{"groupName": "p"}],
    "consumerDataSet": [
        {
            "groupName": "g",
            "consumeType": 1,
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [
                {"topic": "T", "subString": "a||b", "tagsSet": ["a"], "codeSet": [97]}
                | {"subVersion": 1, "expressionType": "TAG", "classFilterMode": False}
            ],
        }
    ],
}
_REGISTRATION = {
    "filterServerList": ["f"],
    "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 1, "timestamp": 2, "stateVersion": 3},
        "mappingDataVersion": {"counter": 1, "timestamp": 2, "stateVersion": 3},
        "topicConfigTable": {
            "T": {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
            | {"topicFilterType": "SINGLE_TAG", "attributes": {"a": "b"}, "order": False}
        },
        "topicQueueMappingInfoMap": {
            "T": {"topic": "T", "bname": "b", "epoch": 1, "scope": "s", "totalQueues": 1}
            | {"currIdMap": {"0": 0}}
        },
    },
}
_ADMIN = (
    b'{"topicConfigList":[{"topicName":"T","perm":6}],"groupName":"g","groupConfigList":[{}]}',
    b'{"brokerDatas":[{"brokerAddrs":{0:"a"},"brokerName":"b","cluster":"c"}],"queueDatas":'
    b'[{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1,"topicSysFlag":0}]}',
    b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"a"}}},"clusterAddrTable":{"c":["b"]}}',
    b'{"table":{"a":"b"},"topicList":["t"],"brokerAddr":"a"}',
)


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


_INFLATED = (
    _sized(b'{"counter":1}')
    + (1).to_bytes(4, "big")
    + _sized(b'T 4 4 6 SINGLE_TAG {"a":"b"}')
    + _sized(b"[]")
    + (1).to_bytes(4, "big")
    + _sized(b'{"topic":"T","bname":"b"}')
)
_UNIT = bytes.fromhex("0000001c 00000000 00000000 00000000 00000004") + b"body\x00\x02k\x01"
_REQUESTS = (_SEND, _PULL)

TARGETS = {
    target.name: target
    for target in (
        Target(
            "frames",
            _stream,
            (),
            tuple(
                b"\x09" + encode_request(one) * 2 + encode_binary_request(one) for one in _REQUESTS
            ),
        ),
        Target(
            "json-header",
            _header(0),
            (RemoteProtocolError,),
            (
                *(encode_request(one)[8:].removesuffix(one.body) for one in _REQUESTS),
                b'{code:11,"language":0,extFields:{"a":true,b:[1,{"$ref":"$"}],3:4.5}}',
            ),
        ),
        Target(
            "binary-header",
            _header(1),
            (RemoteProtocolError,),
            tuple(encode_binary_request(one)[8:].removesuffix(one.body) for one in _REQUESTS),
        ),
        Target(
            "fastjson",
            _document,
            (FastJsonError,),
            (
                b'{0:1,{"queueId":2}:\'x\',a:[1,-2.5e3,true,null,"\\u00e9\\x41"],,}',
                b'{"a":{"b":[1]},"c":{"$ref":"$.a.b[0]"},"d":{"$ref":"$.a"}}',
            ),
        ),
        Target(
            "register-plain",
            RegisterBrokerBody.decode,
            (RequestRejected,),
            (_dumped(_REGISTRATION),),
        ),
        Target(
            "register-compressed",
            _compressed_registration,
            (RequestRejected,),
            (b"\x00" + _INFLATED, b"\x02" + _INFLATED, b"\x01" + zlib.compress(_INFLATED)),
        ),
        Target(
            "heartbeat",
            lambda data: decode_heartbeat(data, now_ms=0),
            (RequestRejected,),
            (_dumped(_HEARTBEAT),),
        ),
        Target(
            "lock",
            decode_lock_request,
            (RequestRejected,),
            (b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","queueId":1}]}',),
        ),
        Target("batch", _batch, (BatchIllegal,), (_UNIT, _UNIT * 3)),
        Target(
            "properties",
            _properties,
            (),
            (
                b"UNIQ_KEY\x01A\x02TAGS\x01x\x02WAIT\x01false\x02DELAY\x013\x02__CRC32#\x011\x02",
                b"\x01",
            ),
        ),
        Target(
            "sql92",
            _expression,
            (FilterInvalid,),
            (
                b"(a BETWEEN 1 AND 5 OR b IN ('x','y')) AND NOT c IS NULL AND a > -1.5e3",
                b"b CONTAINS 'x' AND c STARTSWITH '' OR a + 2 * 3 / 4 % 5 <> 0x1F /* c */ -- d",
            ),
        ),
        Target(
            "message-ids",
            _message_id,
            (MessageIllegal,),
            (b"7F00000100002A9F0000000000000400", b"00" * 28),
        ),
        Target(
            "properties-text",
            decode_settings,
            (RequestRejected,),
            (b"# c\na=1\nb : 2\\\n  3\n\\u0061 x\r\n!\nc",),
        ),
        Target(
            "subscriptions",
            _subscription,
            (ConfigError, RequestRejected),
            (b"TagA || TagB||*", b"+queue.type=BatchCQ,-x"),
        ),
        Target("admin-bodies", _admin_bodies, (), _ADMIN),
    )
}

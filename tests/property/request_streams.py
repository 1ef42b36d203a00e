"""Generated requests of every kind, in the forms of clients and in odd forms."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contrail.model.batch import BatchUnit, encode_batch
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import FLAG_ONE_WAY, Request, encode_binary_request
from tests.property.two_ways import CLOSED as GONE
from tests.property.two_ways import Read, Told

CONNECTIONS = 6
BODY_BYTES_MAX = 3000
# Topics that are created first; the others are created by sends, or never.
PLAIN, NARROW, DEDUPED, KEPT_WHOLE, CLOSED, MANY_TAGS = (
    "plain", "narrow", "deduped", "kept_whole", "closed", "many_tags",
)  # fmt: skip
_TOPICS = (PLAIN, PLAIN, PLAIN, NARROW, DEDUPED, KEPT_WHOLE, CLOSED, MANY_TAGS)
_ODD_TOPICS = ("made_by_a_send", "%RETRY%readers", "SCHEDULE_TOPIC_XXXX", "no such name!", "", "ä")
_GROUPS = ("readers", "readers", "others")
_TAGS = ("TagA", "TagB")
_HALF, _COMMIT, _ROLLBACK = 4, 8, 12
_COMMITS, _MAY_WAIT, _OWN_SUBSCRIPTION, _CLASS_FILTER = 1, 2, 4, 8
_SHORT = {
    "producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d",
    "queueId": "e", "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i",
    "reconsumeTimes": "j", "unitMode": "k", "maxReconsumeTimes": "l", "batch": "m", "bname": "n",
}  # fmt: skip
_ODD_PROPERTIES = (
    "KEYS\x01k1 k2\x02", "KEYS\x01\x02", "\x01empty name\x02", "no end", "no value\x02", "\x02\x02",
    "a\x01b\x01c\x02", "MSG_REGION\x01elsewhere\x02", "CLUSTER\x01mine\x02", "TAGS\x01twice\x02",
    "ünïcödé\x01日本\x02", "emoji\x01\U0001f600\x02", "quote\x01\"\\/\x02", "tab\x01\t\n\x02",
    "__SHARDINGKEY\x01s\x02", "1ST_POP_TIME\x01x\x02", "POP_CK\x01x\x02", "INNER_NUM\x013\x02",
    "WAIT\x01false\x02", "WAIT\x01true\x02", "TRAN_MSG\x01false\x02", "REAL_TOPIC\x01plain\x02",
    "TRANSACTION_CHECK_TIMES\x013\x02", "TRAN_PREPARED_QUEUE_OFFSET\x011\x02", "x\x01y",
    "CONTRAIL_RECALL_NONCE\x01abc\x02", "TIMER_ROLL_TIMES\x011\x02", "level\x013\x02",
    "TIMER_DEL_UNIQKEY\x01x\x02", "UNIQ_KEY\x01again\x02", "RETRY_TOPIC\x01plain\x02",
)  # fmt: skip
_DELAYS = (
    "DELAY\x011\x02", "DELAY\x0199\x02", "DELAY\x01x\x02", "DELAY\x010\x02",
    "TIMER_DELAY_SEC\x015\x02", "TIMER_DELAY_MS\x012500\x02", "TIMER_DELIVER_MS\x01x\x02",
    "TIMER_DELAY_SEC\x01999999999\x02",
)  # fmt: skip
_SETTINGS = (
    "brokerPermission=6", "brokerPermission=6", "brokerPermission=4", "brokerPermission=2",
    "autoCreateTopicEnable=false", "autoCreateTopicEnable=true", "traceOn=false", "traceOn=true",
    "maxTransferCountOnMessageInMemory=3", "maxTransferCountOnMessageInMemory=32",
    "maxTransferBytesOnMessageInMemory=2048", "maxTransferBytesOnMessageInMemory=262144",
    "longPollingEnable=false", "longPollingEnable=true", "rejectTransactionMessage=true",
    "rejectTransactionMessage=false", "enablePropertyFilter=false", "enablePropertyFilter=true",
    "contrailParkedPullsMax=2", "contrailParkedPullsMax=100", "litePullMessageEnable=false",
    "litePullMessageEnable=true", "autoCreateSubscriptionGroup=true",
)  # fmt: skip


def frame(
    request: Request, pairs: Mapping[str, Any] | None = None, separators: Any = (",", ":")
) -> bytes:
    """A frame with a JSON header, in the order of ``pairs`` if they are given."""
    document = pairs or {
        "code": request.code,
        "extFields": request.fields,
        "flag": request.flag,
        "language": request.language,
        "opaque": request.opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": request.version,
    }
    header = json.dumps(document, separators=separators).encode("utf-8", "surrogatepass")
    return raw_frame(header, request.body)


def raw_frame(header: bytes, body: bytes = b"", header_type: int = 0) -> bytes:
    total = 4 + len(header) + len(body)
    mark = header_type << 24 | len(header)
    return total.to_bytes(4, "big") + mark.to_bytes(4, "big") + header + body


@dataclass
class Memory:
    """The facts that the generator has learned from the answers."""

    # Half messages: queue offset, physical offset, unique key, group.
    halves: list[tuple[str, int, str]] = field(default_factory=list)
    next_offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    message_ids: list[str] = field(default_factory=list)
    # Requests, by opaque.
    asked: dict[int, tuple[str, Any]] = field(default_factory=dict)


class RequestStream:
    """Steps of one stream; ``learn`` gets the answers to the last step."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._memory = Memory()
        self._opaque = 0
        self._key = seed << 32
        self._left: dict[int, bytes] = {}
        self._consumers = [
            self._consumer(_MAY_WAIT),
            self._consumer(_MAY_WAIT | _COMMITS),
            self._consumer(_COMMITS),
            self._consumer(_MAY_WAIT, subscription="TagA"),
            self._consumer(0, topic="no_such"),
        ]
        # Whether the last reads are sends of several connections.
        self.only_sends = False
        self._now_ms = 1_760_000_000_000

    # Steps.

    def first_reads(self) -> list[Read]:
        """Topics and groups that the stream needs."""
        made = [
            self._topic(PLAIN),
            self._topic(NARROW, queues=1),
            self._topic(DEDUPED, attributes="+contrail.dedupe.window.ms=60000"),
            self._topic(KEPT_WHOLE, attributes="+queue.type=BatchCQ"),
            self._topic(CLOSED, perm=4),
            self._topic(MANY_TAGS, filter_type="MULTI_TAG"),
        ]
        return [(0, b"".join(made))]

    def reads(self) -> list[Read]:
        """The bytes that connections give in one tick.

        Either one connection gives any requests, or several give sends only, or several give no
        sends: the order of sends and other requests of one tick is not fixed, so both may only
        come from one connection.
        """
        rng = self.rng
        if rng.random() < 0.07 and not self._left:
            # The order of such a request and the others of its tick is not fixed: it has a tick of
            # its own.
            self.only_sends = False
            alone = (self._broken, self._settings_change, self._topic_change)
            return [(rng.randrange(CONNECTIONS), rng.choice(alone)())]
        kind = rng.random()
        self.only_sends = 0.25 <= kind < 0.6 and not self._left
        if kind < 0.25 or self._left:
            # The rest of a cut frame comes in a tick of its own.
            number = next(iter(self._left), rng.randrange(CONNECTIONS))
            return self._cut(number, self._left.pop(number, b"") or self._mixed(rng.randint(1, 6)))
        if kind < 0.4:
            numbers = rng.sample(range(CONNECTIONS), rng.randint(1, CONNECTIONS))
            return [(number, self._usual_send()) for number in numbers]
        if kind < 0.6:
            return self._several(self._sends)
        if kind < 0.85:
            return self._consumers_read_on()
        return self._several(self._others)

    def _consumers_read_on(self) -> list[Read]:
        """Pulls that differ from those before in their numbers alone."""
        consumers = self.rng.sample(self._consumers, self.rng.randint(1, 3))
        return [(number, frame(self._next_pull(fields))) for number, fields in consumers]

    def _next_pull(self, fields: dict[str, str]) -> Request:
        reader = (fields["consumerGroup"], fields["topic"], int(fields["queueId"]))
        queue_offset = str(self._memory.next_offsets.get(reader, 0))
        fields = {**fields, "queueOffset": queue_offset, "commitOffset": queue_offset}
        return Request(RequestCode.PULL_MESSAGE, self._number(("pull", reader)), fields)

    def _usual_send(self) -> bytes:
        return frame(self._send(self._send_fields(PLAIN, self._properties()), b"usual", flag=0))

    def _several(self, make: Callable[[int], bytes]) -> list[Read]:
        rng = self.rng
        numbers = [rng.randrange(CONNECTIONS) for _ in range(rng.randint(1, 7))]
        return [(number, make(rng.choice((1, 1, 1, 2, 4)))) for number in numbers]

    def _cut(self, number: int, data: bytes) -> list[Read]:
        """Sometimes a frame is not whole, and its rest comes with the next read."""
        if self.rng.random() < 0.15 and len(data) > 1:
            end = self.rng.randrange(1, len(data))
            data, self._left[number] = data[:end], data[end:]
        return [(number, data)]

    def _mixed(self, count: int) -> bytes:
        """Sends come last: whether a request behind a send of its tick sees it is not fixed."""
        makers = [self.rng.choice((self._sends, self._sends, self._others)) for _ in range(count)]
        makers.sort(key=lambda make: make == self._sends)
        return b"".join(make(1) for make in makers)

    def learn(self, told: Told) -> None:
        for number, frames in told.items():
            if GONE in frames:
                self._left.pop(number, None)
            for code, opaque, fields in map(_answer, filter(lambda one: one != GONE, frames)):
                what, detail = self._memory.asked.pop(opaque, ("", None))
                if what == "half" and code == 0 and "msgId" in fields:
                    place = int(fields["msgId"][-16:], 16)
                    self._memory.halves.append((fields["queueOffset"], place, detail))
                elif what == "pull" and "nextBeginOffset" in fields:
                    self._memory.next_offsets[detail] = int(fields["nextBeginOffset"])
                elif what == "send" and code == 0 and "msgId" in fields:
                    self._memory.message_ids.append(fields["msgId"].split(",")[0])

    # Sends.

    def _sends(self, count: int) -> bytes:
        makers = (
            (self._tidy_send, 50), (self._odd_send, 18), (self._batch, 8), (self._delayed, 6),
            (self._half, 6), (self._refused_send, 8), (self._binary_send, 6),
        )  # fmt: skip
        kinds, weights = zip(*makers, strict=True)
        alike = self.rng.random() < 0.6
        maker = self.rng.choices(kinds, weights)[0]
        return b"".join(
            (maker if alike else self.rng.choices(kinds, weights)[0])() for _ in range(count)
        )

    def _send_fields(self, topic: str, properties: str, **changes: str) -> dict[str, str]:
        fields = {
            "producerGroup": "producers",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(self.rng.randrange(2 if topic != NARROW else 1)),
            "sysFlag": "0",
            "bornTimestamp": str(self._now_ms + self.rng.randrange(1000)),
            "flag": "0",
            "properties": properties,
            "reconsumeTimes": "0",
            "unitMode": "false",
            "maxReconsumeTimes": "0",
            "batch": "false",
            "bname": "broker-a",
        }
        return {**fields, **changes}

    def _send(
        self,
        fields: dict[str, str],
        body: bytes,
        *,
        code: int = RequestCode.SEND_MESSAGE_V2,
        flag: int | None = None,
        what: tuple[str, Any] = ("send", None),
    ) -> Request:
        if flag is None:
            flag = FLAG_ONE_WAY if self.rng.random() < 0.1 else 0
        if code != RequestCode.SEND_MESSAGE:
            fields = {_SHORT.get(name, name): value for name, value in fields.items()}
        opaque = self._number(what)
        return Request(code, opaque, fields, body, flag)

    def _number(self, what: tuple[str, Any] = ("", None)) -> int:
        self._opaque += 1
        self._memory.asked[self._opaque] = what
        return self._opaque

    def _unique(self) -> str:
        self._key += 1
        if self.rng.random() < 0.05:
            # A producer that sends again.
            return f"{self._key - 1:032X}"
        return f"{self._key:032X}"

    def _properties(self, more: str = "") -> str:
        text = f"UNIQ_KEY\x01{self._unique()}\x02"
        if self.rng.random() < 0.7:
            text += f"TAGS\x01{self.rng.choice(_TAGS)}\x02"
        if self.rng.random() < 0.4:
            text += f"KEYS\x01key{self.rng.randrange(9)}\x02level\x01{self.rng.randrange(9)}\x02"
        return text + more

    def _body(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((1, 20, 200, 200, 1000, BODY_BYTES_MAX)))

    def _tidy_send(self) -> bytes:
        fields = self._send_fields(self.rng.choice(_TOPICS), self._properties())
        return frame(self._send(fields, self._body()))

    def _binary_send(self) -> bytes:
        fields = self._send_fields(self.rng.choice(_TOPICS), self._properties())
        return encode_binary_request(self._send(fields, self._body()))

    def _delayed(self) -> bytes:
        properties = self._properties(self.rng.choice(_DELAYS))
        return frame(self._send(self._send_fields(self.rng.choice(_TOPICS), properties), b"later"))

    def _half(self) -> bytes:
        properties = self._properties("TRAN_MSG\x01true\x02PGROUP\x01producers\x02")
        key = properties.partition("\x02")[0].partition("\x01")[2]
        fields = self._send_fields(PLAIN, properties, sysFlag=str(_HALF))
        return frame(self._send(fields, b"half", flag=0, what=("half", key)))

    def _batch(self) -> bytes:
        rng = self.rng
        units = [
            BatchUnit(self._body()[:300], self._properties().encode())
            for _ in range(rng.randint(1, 5))
        ]
        body = encode_batch(units)
        if rng.random() < 0.15:
            # A length that lies, or an end that is missing.
            at = rng.randrange(len(body))
            body = body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
        topic = rng.choice((PLAIN, PLAIN, KEPT_WHOLE, DEDUPED, CLOSED))
        more = rng.choice(("", "", "WAIT\x01false\x02", "DELAY\x011\x02"))
        fields = self._send_fields(topic, self._properties(more), batch="true")
        code = rng.choice((RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2))
        return frame(self._send(fields, body, code=code))

    def _odd_send(self) -> bytes:
        rng = self.rng
        properties = self._properties() if rng.random() < 0.7 else ""
        for _ in range(rng.randint(0, 2)):
            odd = rng.choice(_ODD_PROPERTIES)
            properties = rng.choice((properties + odd, odd + properties))
        topic = rng.choice((*_TOPICS, *_ODD_TOPICS))
        fields = self._send_fields(topic, properties)
        for _ in range(rng.randint(0, 2)):
            name = rng.choice(
                (
                    "sysFlag",
                    "flag",
                    "reconsumeTimes",
                    "queueId",
                    "bornTimestamp",
                    "maxReconsumeTimes",
                    "unitMode",
                    "batch",
                    "producerGroup",
                    "bname",
                )
            )
            fields[name] = rng.choice(
                (
                    "1",
                    "-1",
                    "16",
                    "true",
                    "0007",
                    "+1",
                    "x",
                    "",
                    " 1",
                    "2147483647",
                    "2147483648",
                    "9" * 19,
                    "1.0",
                    "é",
                )
            )
        if rng.random() < 0.3:
            del fields[rng.choice(list(fields))]
        code = rng.choice((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2))
        return self._oddly(self._send(fields, self._body(), code=code))

    def _refused_send(self) -> bytes:
        rng = self.rng
        kind = rng.randrange(5)
        topic, body, changes = PLAIN, self._body(), {}
        if kind == 0:
            topic = CLOSED
        elif kind == 1:
            body = b"x" * (BODY_BYTES_MAX + rng.choice((1, 5000)))
        elif kind == 2:
            body = b""
        elif kind == 3:
            changes = {"queueId": rng.choice(("99", "4", "-1"))}
        else:
            topic = rng.choice(_ODD_TOPICS)
        return frame(self._send(self._send_fields(topic, self._properties(), **changes), body))

    # Odd headers.

    def _oddly(self, request: Request) -> bytes:
        """The request in a form that no Java client writes."""
        rng = self.rng
        pairs: dict[str, Any] = {
            "code": request.code,
            "extFields": request.fields,
            "flag": request.flag,
            "language": rng.choice(("JAVA", "GO", "KLINGON", 3, None)),
            "opaque": request.opaque,
            "remark": rng.choice((None, "hello")),
            "serializeTypeCurrentRPC": "JSON",
            "version": rng.choice((0, 401, 479, 499)),
        }
        kind = rng.randrange(7)
        if kind == 0:
            items = list(pairs.items())
            rng.shuffle(items)
            return frame(request, dict(items))
        if kind == 1:
            return frame(request, pairs, (", ", ": "))
        if kind == 2:
            numbers = {k: int(v) if v.isdecimal() else v for k, v in request.fields.items()}
            return frame(request, {**pairs, "extFields": {**numbers, "unknown": [1, {"a": None}]}})
        if kind == 3:
            header = json.dumps(pairs, ensure_ascii=False).replace('"code"', '"c\\u006fde"')
            return raw_frame(header.encode(), request.body)
        if kind == 4:
            fields = {**request.fields, rng.choice(("z", "topic", "b", "ключ")): "other"}
            return frame(request._replace(fields=fields))
        if kind == 5 and -(1 << 15) <= request.code < 1 << 15:
            try:
                return encode_binary_request(request)
            except UnicodeError:
                return frame(request)
        return frame(request, pairs)

    # Requests that are no sends.

    def _others(self, count: int) -> bytes:
        makers = (
            (self._pull, 50), (self._odd_pull, 12), (self._end, 10), (self._heartbeat, 5),
            (self._question, 12), (self._send_back, 3), (self._reset, 2), (self._nonsense, 2),
        )  # fmt: skip
        kinds, weights = zip(*makers, strict=True)
        maker = self.rng.choices(kinds, weights)[0]
        alike = self.rng.random() < 0.6
        return b"".join(
            (maker if alike else self.rng.choices(kinds, weights)[0])() for _ in range(count)
        )

    def _consumer(self, flags: int, **changes: str) -> tuple[int, dict[str, str]]:
        """A connection, and the fields of all pulls of one consumer of a queue."""
        rng = self.rng
        fields = {
            "consumerGroup": "readers",
            "topic": PLAIN,
            "queueId": str(rng.randrange(2)),
            "queueOffset": "0",
            "maxMsgNums": rng.choice(("32", "2")),
            "sysFlag": str(_OWN_SUBSCRIPTION | flags),
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
            "bname": "broker-a",
        }
        return rng.randrange(CONNECTIONS), {**fields, **changes}

    def _pull_request(self) -> Request:
        rng = self.rng
        topic = rng.choice((PLAIN, PLAIN, PLAIN, NARROW, DEDUPED, KEPT_WHOLE, CLOSED))
        group, queue_id = rng.choice(_GROUPS), rng.randrange(1 if topic == NARROW else 2)
        reader = (group, topic, queue_id)
        queue_offset = self._memory.next_offsets.get(reader, 0)
        if rng.random() < 0.25:
            queue_offset = rng.choice((0, max(0, queue_offset - 2), queue_offset + 1, 9999))
        sys_flag = _OWN_SUBSCRIPTION
        sys_flag |= _COMMITS * (rng.random() < 0.5) | _MAY_WAIT * (rng.random() < 0.5)
        expression, kind = "*", "TAG"
        if rng.random() < 0.3:
            expression = rng.choice(("TagA", "TagB || TagA", "TagX", ""))
        elif rng.random() < 0.15:
            expression = rng.choice(("level > 5", "level is null", "level >", "TAGS = 'TagA'"))
            kind = "SQL92"
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            "maxMsgNums": rng.choice(("32", "32", "32", "1", "2", "0", "1000")),
            "sysFlag": str(sys_flag),
            "commitOffset": str(rng.choice((0, queue_offset))),
            "suspendTimeoutMillis": rng.choice(("15000", "15000", "300")),
            "subscription": expression,
            "subVersion": "0",
            "expressionType": kind,
            "bname": "broker-a",
        }
        code = RequestCode.PULL_MESSAGE
        if rng.random() < 0.1:
            code = RequestCode.LITE_PULL_MESSAGE
        return Request(code, self._number(("pull", reader)), fields)

    def _pull(self) -> bytes:
        request = self._pull_request()
        if self.rng.random() < 0.1:
            return encode_binary_request(request)
        return frame(request)

    def _odd_pull(self) -> bytes:
        rng, request = self.rng, self._pull_request()
        fields = request.fields
        for _ in range(rng.randint(0, 2)):
            name = rng.choice(list(fields))
            fields[name] = rng.choice(
                (
                    "-1",
                    "x",
                    "",
                    "2147483648",
                    "9" * 19,
                    "8",
                    "0",
                    "no_such",
                    "+1",
                    "007",
                    "SCHEDULE_TOPIC_XXXX",
                    "CID_RMQ_SYS_TRANS",
                )
            )
        if rng.random() < 0.2:
            del fields[rng.choice(list(fields))]
        body = b"a body" if rng.random() < 0.1 else b""
        flag = FLAG_ONE_WAY if rng.random() < 0.05 else 0
        request = request._replace(body=body, flag=flag)
        return self._oddly(request) if rng.random() < 0.6 else frame(request)

    def _end(self) -> bytes:
        if not self._memory.halves:
            return self._pull()
        rng = self.rng
        queue_offset, place, key = rng.choice(self._memory.halves[-6:])
        fields = {
            "producerGroup": rng.choice(("producers", "producers", "producers", "strangers")),
            "topic": PLAIN,
            "tranStateTableOffset": queue_offset,
            "commitLogOffset": str(place + (rng.random() < 0.05)),
            "commitOrRollback": str(rng.choice((_COMMIT, _COMMIT, _ROLLBACK, 0))),
            "fromTransactionCheck": "false",
            "msgId": key,
            "transactionId": key,
            "bname": "broker-a",
        }
        flag = FLAG_ONE_WAY if rng.random() < 0.4 else 0
        return frame(Request(RequestCode.END_TRANSACTION, self._number(), fields, b"", flag))

    def _settings_change(self) -> bytes:
        body = self.rng.choice(_SETTINGS).encode()
        return frame(Request(RequestCode.UPDATE_BROKER_CONFIG, self._number(), {}, body))

    def _topic(
        self,
        topic: str,
        *,
        queues: int = 2,
        perm: int = 6,
        filter_type: str = "SINGLE_TAG",
        attributes: str = "",
    ) -> bytes:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": filter_type,
            "topicSysFlag": "0",
            "order": "false",
            "attributes": attributes,
        }
        return frame(Request(RequestCode.UPDATE_AND_CREATE_TOPIC, self._number(), fields))

    def _topic_change(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.2:
            fields = {"topic": rng.choice((NARROW, "made_by_a_send"))}
            return frame(Request(RequestCode.DELETE_TOPIC_IN_BROKER, self._number(), fields))
        topic = rng.choice((PLAIN, NARROW, CLOSED))
        return self._topic(topic, queues=rng.choice((1, 2, 3)), perm=rng.choice((2, 4, 6, 6, 6)))

    def _heartbeat(self) -> bytes:
        body = {
            "clientID": f"client{self.rng.randrange(2)}",
            "producerDataSet": [{"groupName": "producers"}],
            "consumerDataSet": [
                {
                    "groupName": "readers",
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "unitMode": False,
                    "subscriptionDataSet": [
                        {
                            "topic": PLAIN,
                            "subString": "*",
                            "tagsSet": [],
                            "codeSet": [],
                            "subVersion": self.rng.randrange(3),
                            "classFilterMode": False,
                            "expressionType": "TAG",
                        }
                    ],
                }
            ],
        }
        text = json.dumps(body).encode()
        return frame(Request(RequestCode.HEART_BEAT, self._number(), {}, text))

    def _question(self) -> bytes:
        rng = self.rng
        topic, group = rng.choice((PLAIN, NARROW, "no_such")), rng.choice(_GROUPS)
        fields = {"topic": topic, "queueId": "0", "consumerGroup": group}
        code = rng.choice(
            (
                RequestCode.GET_MAX_OFFSET,
                RequestCode.GET_MIN_OFFSET,
                RequestCode.QUERY_CONSUMER_OFFSET,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                RequestCode.QUERY_MESSAGE,
                RequestCode.VIEW_MESSAGE_BY_ID,
            )
        )
        fields |= {
            "commitOffset": str(rng.randrange(5)),
            "timestamp": str(self._now_ms),
            "key": f"key{rng.randrange(9)}",
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 50),
        }
        if code == RequestCode.VIEW_MESSAGE_BY_ID and self._memory.message_ids:
            fields["offset"] = str(int(rng.choice(self._memory.message_ids)[-16:], 16))
        return frame(Request(code, self._number(), fields))

    def _send_back(self) -> bytes:
        if not self._memory.message_ids:
            return self._pull()
        message_id = self.rng.choice(self._memory.message_ids)
        fields = {
            "offset": str(int(message_id[-16:], 16)),
            "group": "readers",
            "delayLevel": self.rng.choice(("0", "3", "-1")),
            "originMsgId": message_id,
            "originTopic": PLAIN,
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        }
        return frame(Request(RequestCode.CONSUMER_SEND_MSG_BACK, self._number(), fields))

    def _reset(self) -> bytes:
        fields = {
            "topic": PLAIN,
            "group": "readers",
            "timestamp": "-1",
            "isForce": "true",
            "queueId": "0",
            "offset": "0",
        }
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return frame(Request(code, self._number(), fields))

    def _nonsense(self) -> bytes:
        rng = self.rng
        opaque = self._number()
        kind = rng.randrange(4)
        if kind == 0:
            return frame(Request(rng.choice((4711, -1, 40)), opaque, {"a": "b"}))
        if kind == 1:
            return frame(Request(0, opaque, {}, b"an answer to nothing", flag=1))
        if kind == 2:
            return raw_frame(b'{"code":310,"opaque":%d}' % opaque, b"x")
        return frame(Request(RequestCode.PULL_MESSAGE, opaque, {}))

    def _broken(self) -> bytes:
        """Bytes that end a connection."""
        rng = self.rng
        return rng.choice(
            (
                raw_frame(b"{not json"),
                raw_frame(b'{"code":310,"opaque":1,'),
                raw_frame(rng.randbytes(30), b"", rng.choice((0, 2, 77))),
                b"\xff" * 9,
                b"\0\0\0\x08\0\0\0\x77{}{}",
                b"GET / HTTP/1.1\r\n\r\n",
            )
        )


def _answer(data: bytes) -> tuple[int, int, dict[str, str]]:
    """Code, opaque and fields of an answer."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[5:8], "big")])
    return header["code"], header["opaque"], header.get("extFields") or {}

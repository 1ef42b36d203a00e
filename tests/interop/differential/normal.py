"""Answers without the fields that must differ: addresses, clocks, ids, rates, paths."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from contrail.model import fastjson
from contrail.model.message import StoredMessage
from contrail.model.message_id import decode_offset_message_id
from contrail.model.properties import decode_properties
from contrail.model.record import split_record_run
from tests.interop.differential.raw import Answer, Pushed
from tests.interop.differential.requests import Request
from tests.interop.differential.runner import Outcome, Side

Normal = dict[str, Any]

_RECORDS = frozenset({11, 361, 12, 33})
_BROKER_CONSUME_STATS = 317
_GET_TIMER_CHECK_POINT = 60
_CONSUME_MESSAGE_DIRECTLY = 309
_TOTALS = {"totalTopicNum": "topicConfigTable", "totalGroupNum": "subscriptionGroupTable"}
_PROPERTIES_TEXT = frozenset({26, 319})
# Their values are measurements; the names of the values are compared.
_MEASURED = frozenset({28, 315})
_RECORD_FIELDS = (
    "topic",
    "queue_id",
    "queue_offset",
    "record_bytes",
    "flag",
    "sys_flag",
    "body_crc",
    "born_timestamp_ms",
    "reconsume_times",
    "prepared_transaction_offset",
)
_FAKE_PORTS = frozenset({"1111", "1112", "2222", "2223", "3333"})
# From autumn 2020 the requests' own times stand still at 1,600,000,000,000.
_NOW_MS = range(1_700_000_000_000, 2_500_000_000_000)
_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")
_TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\d[# ]\d\d:\d\d:\d\d[:,]\d{3}")
_MADE_ID = re.compile(r"(?:[0-9A-F]{32}|[0-9A-F]{56})")
_OFFSET_ID = re.compile(r"7F000001[0-9A-F]{24}")
_CHOSEN = frozenset({"queueId", "queueOffset"})
_RATES = frozenset({"consumeTps", "topicPutTps", "delayTime"})
# Where a record starts depends on all that was stored before, background records included; that
# message ids lead to their messages is seen when they are asked for.
_PHYSICAL = frozenset({"indexLastUpdatePhyoffset", "physicOffset"})
# The transaction checker commits its own progress whenever it runs.
_BACKGROUND = re.compile(r"CID_RMQ_SYS_TRANS$")


def normalise(side: Side, request: Request, outcome: Outcome) -> Normal:
    """The compared part of an outcome."""
    answer = outcome.answer
    if answer is None:
        return {"instead": outcome.instead}
    text = _Texts(side)
    fields = {name: text.value(name, value) for name, value in answer.fields.items()}
    if _lets_the_broker_choose(request):
        fields = {name: "<any>" if name in _CHOSEN else fields[name] for name in fields}
    body = _body(request, answer, text)
    for total, table in _TOTALS.items():
        if total in fields and isinstance(body, dict):
            # The count of elements that are not shown: shown ones are compared separately.
            fields[total] = str(int(fields[total]) - len(body.get(table, ())))
    whole: Normal = {"code": answer.code, "fields": fields, "body": body}
    if outcome.pushed:
        whole["pushed"] = [_pushed(one, text) for one in outcome.pushed]
    return whole | {"strays": answer.stray_count} if answer.stray_count else whole


def _pushed(one: Pushed, text: _Texts) -> Normal:
    fields: Normal = {name: text.value(name, value) for name, value in one.fields.items()}
    properties = decode_properties(one.fields.get("properties", "").encode())
    fields["properties"] = text.value("", properties)
    body: Any = one.body.hex()
    if one.code == _CONSUME_MESSAGE_DIRECTLY:
        body = [_record(message, text) for message in split_record_run(one.body)]
    return {"code": one.code, "fields": fields, "body": body}


def _lets_the_broker_choose(request: Request) -> bool:
    """A message to a negative queue goes to any."""
    name = {10: "queueId", 324: "queueId"}.get(request.code, "e")
    return str((request.fields or {}).get(name, "")).startswith("-")


def _body(request: Request, answer: Answer, text: _Texts) -> Any:
    if not answer.body:
        return None
    if request.code in _RECORDS and answer.code == 0:
        messages = enumerate(split_record_run(answer.body))
        # Named by their places: records must come in the same order.
        return {f"record {index}": _record(message, text) for index, message in messages}
    if request.code == _GET_TIMER_CHECK_POINT and answer.code == 0:
        # Times and places of a timer log that each writes for itself.
        return f"{len(answer.body)} bytes"
    if request.code in _PROPERTIES_TEXT and answer.code == 0:
        lines = [line.partition("=") for line in answer.body.decode().splitlines()]
        return {name: _setting(text, name, value) for name, _, value in lines}
    try:
        parsed = text.value("", fastjson.loads(answer.body))
    except fastjson.FastJsonError:
        return answer.body.decode(errors="replace")
    if request.code == _BROKER_CONSUME_STATS and isinstance(parsed, dict):
        return parsed | _totals_beyond_rows(fastjson.loads(answer.body))
    return _names_only(parsed) if request.code in _MEASURED else parsed


def _totals_beyond_rows(stats: Any) -> dict[str, int]:
    """Drop the totals: they add nothing to the rows, which are compared separately."""
    totals = {name: stats[name] for name in ("totalDiff", "totalInflightDiff")}
    lists = [topics for entry in stats["consumeStatsList"] for topics in entry.values()]
    for topic in [topic for topics in lists for topic in topics]:
        for queue in topic["offsetTable"].values():
            totals["totalDiff"] -= queue["brokerOffset"] - queue["consumerOffset"]
            totals["totalInflightDiff"] -= queue["pullOffset"] - queue["consumerOffset"]
    # Java adds up in 64 bits.
    return {name: total % (1 << 64) for name, total in totals.items()}


def _setting(text: _Texts, name: str, value: str) -> Any:
    if name.endswith("Port"):
        return "<port>"
    return "<path>" if value.startswith("/") else text.value(name, value)


def _names_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_path(name): _names_only(inner) for name, inner in value.items()}
    return "<measured>"


def _without_path(name: str) -> str:
    return re.sub(r"_/.*", "_<path>", name)


def _record(message: StoredMessage, text: _Texts) -> Normal:
    fields: Normal = {name: text.value(name, getattr(message, name)) for name in _RECORD_FIELDS}
    if message.prepared_transaction_offset > 0:
        fields["prepared_transaction_offset"] = "<physical offset>"
    fields["body"] = message.body.hex()
    fields["properties"] = text.value("", message.properties)
    if "<made id>" in fields["properties"].values():
        # It is longer on a machine without an IPv4 address.
        fields["record_bytes"] = "<depends on the made id>"
    return fields


class _Texts:
    """Replace values that belong to one cluster alone."""

    def __init__(self, side: Side) -> None:
        self._known = {side.facts.broker_address: "<broker>", side.namesrv: "<namesrv>"}

    def value(self, name: str, value: Any) -> Any:
        if name == "filterData" and isinstance(value, str) and not value.startswith("{"):
            return "<words>"
        if name in _RATES:
            return "<rate>"
        if name == "recallHandle":
            return [self._text(word) for word in base64.urlsafe_b64decode(value).decode().split()]
        if name in _PHYSICAL:
            return "<physical offset>"
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list):
            return sorted((self.value("", one) for one in value), key=canonical)
        if isinstance(value, str):
            return self._text(value)
        return "<time>" if type(value) is int and value in _NOW_MS else value

    def _mapping(self, value: Mapping[str, Any]) -> Any:
        if value.keys() == {"counter", "stateVersion", "timestamp"}:
            return "<data version>"
        kept = {name: inner for name, inner in value.items() if not _BACKGROUND.search(name)}
        return {self._key(name): self.value(name, inner) for name, inner in kept.items()}

    def _key(self, name: str) -> str:
        if name.startswith("{"):
            return canonical(self.value("", fastjson.loads(name)))
        return self._text(name)

    def _text(self, text: str) -> str:
        if text.isdigit() and len(text) == 13 and int(text) in _NOW_MS:
            return "<time>"
        if text.startswith('{"counter"'):
            return "<data version>"
        text = _OFFSET_ID.sub(self._offset_id, text)
        if _MADE_ID.fullmatch(text):
            return "<made id>"
        text = _ADDRESS.sub(self._address, text)
        return _TIME_TEXT.sub("<time>", text)

    def _offset_id(self, found: re.Match[str]) -> str:
        """An id that leads to the broker; a made id may begin with the same address."""
        place = decode_offset_message_id(found[0])
        address = f"127.0.0.1:{int.from_bytes(place.store_host[4:], 'big')}"
        return f"<message {self._known[address]}>" if address in self._known else found[0]

    def _address(self, found: re.Match[str]) -> str:
        if found[1] in _FAKE_PORTS:
            return found[0]
        return self._known.get(found[0], "<peer>")


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)

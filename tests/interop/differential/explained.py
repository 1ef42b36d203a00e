"""The differences we stand by: each rule names its row in ``docs/reference/differences.md``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from contrail.broker.state.system_names import NAMED
from contrail.model.properties import decode_properties
from tests.interop.differential.requests import Reference, Request
from tests.interop.differential.specs import QUEUES_WITH_MESSAGES, WRONG_BROKER
from tests.interop.differential.specs_kinds import kind_of_field

ABSENT = "<absent>"
SEND_MESSAGE = 10
_MARKS = 0x04 | 0x40 | 0x80
_CLASS_FILTER = 0x08
_NUMBER_LIMITS = {"int": 1 << 31, "long": 1 << 63}

Condition = Callable[[Request, Any, Any], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """Explains differences of some codes at some paths, where a condition holds."""

    row: str
    codes: frozenset[int]
    path: str
    holds: Condition

    def explains(self, request: Request, path: str, theirs: Any, ours: Any) -> bool:
        return (
            (not self.codes or request.code in self.codes)
            and re.fullmatch(self.path, path) is not None
            and self.holds(request, theirs, ours)
        )


def _rule(row: str, codes: set[int], path: str, holds: Condition) -> Rule:
    return Rule(row, frozenset(codes), path, holds)


def _is_loopback(request: Request, theirs: Any, ours: Any) -> bool:
    return theirs == "" and ours == "127.0.0.1"


def _is_not_set(request: Request, theirs: Any, ours: Any) -> bool:
    return theirs == "1" and ours == "0"


# Requests that are wrong in themselves.


def _refused_by_us_alone(request: Request, theirs: Any, ours: Any) -> bool:
    """A required field is missing, or a value is not of its type: ours refuses it."""
    return ours == 1 and theirs != 1 and _is_malformed(request)


def _is_malformed(request: Request) -> bool:
    if request.what.startswith(("without ", "body ", "no fields")):
        return True
    name, found, _ = request.what.partition("=")
    return bool(found) and _is_wrong_value(request, name)


def _is_wrong_value(request: Request, name: str) -> bool:
    text = str((request.fields or {}).get(name, ""))
    limit = _NUMBER_LIMITS.get(kind_of_field(request.code, name))
    if not text.strip() or name == "dataVersion":
        return True
    if limit is None:
        return False
    return re.fullmatch(r"-?\d+", text) is None or not -limit <= int(text) < limit


# Names used by wrong requests only: one server alone may have carried such a request out.
_ASIDE_NAMES = (
    r"WrongTopic|WrongTopicToo|WrongGroup|WrongBacks|WrongReset|wrong-broker|WrongCluster"
)
_LISTING = {21, 43, 106, 201, 206, 224, 300, 304, 311, 312, 313, 317}


def _names_one_aside(request: Request, theirs: Any, ours: Any) -> bool:
    """An element of a list is an aside name, or is all about one."""
    shown = [one for one in (theirs, ours) if one != ABSENT]
    return all(re.match(rf'\W*"(?:{_ASIDE_NAMES})"', str(one)) for one in shown)


def _about_the_wrong_broker(request: Request, theirs: Any, ours: Any) -> bool:
    fields = request.fields or {}
    named = fields.get("brokerName") == WRONG_BROKER["brokerName"]
    return named or fields.get("brokerAddr") == WRONG_BROKER["brokerAddr"]


def _any(request: Request, theirs: Any, ours: Any) -> bool:
    return True


def _only_theirs(request: Request, theirs: Any, ours: Any) -> bool:
    return bool(ours == ABSENT)


def _one_is_absent(request: Request, theirs: Any, ours: Any) -> bool:
    return ABSENT in (theirs, ours)


def _what_is(what: str, then: Condition = _any) -> Condition:
    return lambda request, theirs, ours: request.what == what and then(request, theirs, ours)


def _codes_are(theirs_code: int, *ours_codes: int) -> Condition:
    return lambda request, theirs, ours: theirs == theirs_code and ours in ours_codes


def _field_is(name: str, pattern: str, then: Condition) -> Condition:
    """Where the request says so; a field that is not there reads as an empty text."""

    def holds(request: Request, theirs: Any, ours: Any) -> bool:
        text = str((request.fields or {}).get(name, ""))
        return re.fullmatch(pattern, text) is not None and then(request, theirs, ours)

    return holds


def _unchangeable(request: Request, theirs: Any, ours: Any) -> bool:
    """Outside the closed list: fixed settings answer 16, unknown names 1."""
    body = request.body if isinstance(request.body, bytes) else b""
    if b"Path=" in body:
        return theirs in (0, 16) and ours == 16
    return bool(theirs == 0 and ours == 1 and b"brokerPermission" not in body)


def _impossible_settings(request: Request, theirs: Any, ours: Any) -> bool:
    name, found, _ = request.what.partition("=")
    named = name in ("topicFilterType", "readQueueNums", "writeQueueNums", "perm", "topicSysFlag")
    return bool(found and named and ours == 29)


def _broken_filter(request: Request, theirs: Any, ours: Any) -> bool:
    kind = str((request.fields or {}).get("expressionType", ""))
    return ours == 23 and kind not in ("", "TAG")


def _class_filtered(request: Request, theirs: Any, ours: Any) -> bool:
    text = str((request.fields or {}).get("sysFlag", ""))
    is_flag = re.fullmatch(r"-?\d+", text) is not None and bool(int(text) & _CLASS_FILTER)
    return is_flag and ours == 1


def _left_by_a_heartbeat(request: Request, theirs: Any, ours: Any) -> bool:
    """Groups of the run whose clients say in a heartbeat that they want a topic no more."""
    return ours == ABSENT and json.loads(theirs) in ("Extra", "Leaver")


def _nothing_stored(request: Request, theirs: Any, ours: Any) -> bool:
    """A queue without messages: whether it exists depends on earlier requests."""
    fields = request.fields or {}
    empty = (fields.get("topic"), fields.get("queueId")) not in QUEUES_WITH_MESSAGES
    return empty and {theirs, ours} == {0, 1}


def _ours_is_empty(request: Request, theirs: Any, ours: Any) -> bool:
    return ours is None


def _marked(request: Request, theirs: Any, ours: Any) -> bool:
    """Marked as an inner batch, which only the broker writes, or as half of a transaction."""
    fields = request.fields or {}
    sys_flag = str(fields.get("sysFlag" if request.code == SEND_MESSAGE else "f", ""))
    if re.fullmatch(r"\d+", sys_flag) is None:
        return False
    return bool(int(sys_flag) & _MARKS and (theirs, ours) == (0, 13))


def _short_heartbeat(request: Request, theirs: Any, ours: Any) -> bool:
    body = request.body if isinstance(request.body, bytes) else b""
    return bool(b'"withoutSub": true' in body and (theirs, ours) == ("false", "true"))


def _only_ours(request: Request, theirs: Any, ours: Any) -> bool:
    return bool(theirs == ABSENT)


def _unreadable_level(request: Request, theirs: Any, ours: Any) -> bool:
    """Both refuse the send; the original by an exception, so that its answer has no fields."""
    properties = decode_properties(str((request.fields or {}).get("i", "")).encode())
    text = properties.get("DELAY", "0")
    is_number = re.fullmatch(r"[+-]?\d+", text) is not None
    return theirs == ABSENT and not (is_number and abs(int(text)) < _NUMBER_LIMITS["int"])


def _is_ordered_here(request: Request, theirs: Any, ours: Any) -> bool:
    return theirs is False and ours is True


def _names_its_cause(request: Request, theirs: Any, ours: Any) -> bool:
    """Delivered by a delay level or a timer."""
    return theirs == 0 and isinstance(ours, int) and ours < 0


def _rocksdb_topic(request: Request, theirs: Any, ours: Any) -> bool:
    return ours == ABSENT and json.loads(theirs) in _ROCKSDB_TOPICS


_CLOSED_NAMES = (
    r"TBW102|SCHEDULE_TOPIC_XXXX|RMQ_SYS_TRANS_\w+|TRANS_CHECK_MAX_TIME_TOPIC|SELF_TEST_TOPIC"
    r"|OFFSET_MOVED_EVENT|CHECKPOINT_TOPIC|rmq_sys_(?!TRACE_DATA_).*|CID_RMQ_SYS_.*"
    r"|%(?:RETRY|DLQ)%CID_RMQ_SYS_.*"
)


def _names_the_system_at_all(request: Request, theirs: Any, ours: Any) -> bool:
    """A data request whose header names a topic or a group of the system: ours is refused."""
    names = NAMED.get(request.code)  # type: ignore[call-overload]
    fields = request.fields or {}
    return names is not None and any(
        re.fullmatch(_CLOSED_NAMES, str(fields.get(name, "")))
        for name in (*names.topics, *names.groups)
    )


def _names_the_system(request: Request, theirs: Any, ours: Any) -> bool:
    return ours == 16 and _names_the_system_at_all(request, theirs, ours)


def _made_by_hand(request: Request, theirs: Any, ours: Any) -> bool:
    """A handle that no send of the run was answered with."""
    is_given = isinstance((request.fields or {}).get("recallHandle"), Reference)
    return not is_given and (theirs, ours) == (0, 604)


_SENDS = {10, 310, 320, 324, 325}
_UNWRITABLE_TOPICS = ("ReadOnly", "Closed", "ShutBroker")


def _of_unwritable_topic(request: Request, theirs: Any, ours: Any) -> bool:
    """About a topic without the write bit, or one that a broker without it was sent to."""
    fields = request.fields or {}
    return fields.get("topic", fields.get("b")) in _UNWRITABLE_TOPICS


def _sent_without_permission(request: Request, theirs: Any, ours: Any) -> bool:
    return ours == 16 and theirs in (0, 1) and _of_unwritable_topic(request, theirs, ours)


def _blank(codes: Condition, *names: str) -> Condition:
    """One of these fields, which name an entry of a persisted table, is blank."""

    def holds(request: Request, theirs: Any, ours: Any) -> bool:
        fields = request.fields or {}
        blank = any(name in fields and not str(fields[name]).strip() for name in names)
        return blank and codes(request, theirs, ours)

    return holds


_ROCKSDB_TOPICS = (
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
)
_ROCKSDB_NAMES = "|".join(_ROCKSDB_TOPICS)
_RETRY_ORDER = r"body\.topicConfigTable\.%RETRY%\w+\.order"
_PREPARED_OFFSET = r"body\.record \d+\.prepared_transaction_offset"
_OURS_ANSWER = _codes_are(1, 0, 22)

RULES: tuple[Rule, ...] = (
    _rule("malformed-requests", set(), "code", _refused_by_us_alone),
    _rule("malformed-requests", _LISTING, rf".*\b(?:{_ASIDE_NAMES})\b.*", _any),
    _rule("malformed-requests", _LISTING, r".*\[\]", _names_one_aside),
    _rule("malformed-requests", {322}, r"fields\.changed|body", _about_the_wrong_broker),
    _rule("malformed-requests", {205, 327}, r"fields\.\w+TopicCount", _about_the_wrong_broker),
    # Only wrong requests have something wait at this level.
    _rule("malformed-requests", {45}, r"body\.offsetTable\.17", _only_theirs),
    _rule("their-exceptions", {12}, "code", _field_is("maxNum", r"-\d+", _OURS_ANSWER)),
    _rule("their-exceptions", {345}, "code", _field_is("topic", "", _OURS_ANSWER)),
    _rule("their-exceptions", {18, 42, 225}, "code", _what_is("body b'{}'", _OURS_ANSWER)),
    _rule(
        "their-exceptions", {21, 201}, "code", _field_is("dataVersion", r"\s*|\{\}", _OURS_ANSWER)
    ),
    _rule("their-exceptions", {905}, "code", _codes_are(1, 3)),
    _rule("their-exceptions", {36}, "code", _field_is("originTopic", "", _codes_are(1, 0))),
    _rule("malformed-requests", {310, 320}, r"fields\.(?:MSG_REGION|TRACE_ON)", _unreadable_level),
    _rule("topic-settings-checked", {17}, "code", _impossible_settings),
    _rule("stored-names-checked", {15}, "code", _field_is("queueId", r"-\d+", _codes_are(0, 29))),
    # Entries that the original stores for such a commit, and for a prohibition without a name.
    _rule("stored-names-checked", {308}, r"body\.correctionOffsets\.-\d+", _only_theirs),
    _rule("stored-names-checked", {353}, "code", _blank(_codes_are(0, 29), "group", "topic")),
    _rule("stored-names-checked", {201}, r"body\.forbiddenTable\.\s*", _only_theirs),
    _rule("kv-names-checked", {100}, "code", _blank(_codes_are(0, 29), "namespace", "key")),
    _rule("kv-names-checked", {101}, "code", _blank(_codes_are(0, 22), "namespace", "key")),
    _rule("kv-names-checked", {219}, "code", _blank(_codes_are(0, 22), "namespace")),
    _rule("names-as-paths", {215}, "code", _field_is("topic", ".*/.*", _codes_are(0, 29))),
    _rule("broken-sql-in-a-pull", {11, 361}, "code", _broken_filter),
    _rule("class-filters", {11, 361}, "code", _class_filtered),
    _rule("left-topics", {300}, r"body\.groupList\[\]", _left_by_a_heartbeat),
    _rule("settings-listed", {26, 319}, r"body\.\w+", _one_is_absent),
    _rule("runtime-info-own", {28}, r"body\.table\.contrail\w+", _only_ours),
    _rule("slave-tables", {45}, r"fields\.contrailLogEnd", _only_ours),
    _rule("sync-master-waits", {26}, r"body\.inSyncReplicas", _is_not_set),
    _rule("metrics-on", {26}, r"body\.metricsPromExporterHost", _is_loopback),
    _rule("settings-changed", {25, 318}, "code", _unchangeable),
    _rule("system-topics", {21}, rf"body\.topicConfigTable\.(?:{_ROCKSDB_NAMES})", _only_theirs),
    _rule("system-topics", {206, 224, 305}, r"body\.topicList\[\]", _rocksdb_topic),
    _rule("locks-of-what-is-there", {41}, r"body\.lockOKMQSet.*", _only_theirs),
    _rule("unseen-queues", {321}, "code", _nothing_stored),
    _rule("wrapped-index", {321}, "body", _field_is("index", r"-?\d{19,}", _ours_is_empty)),
    _rule("marks-without-meaning", {10, 310, 320}, "code", _marked),
    _rule("short-heartbeat", {34}, r"fields\.IS_SUB_CHANGE", _short_heartbeat),
    _rule("forbidden-kept", {353}, r"body\.readable", _what_is("story two forbidden")),
    _rule("forbidden-kept", {201}, r"body\.forbiddenTable\.TwoForbidden", _any),
    _rule("commit-against-a-reset", {14}, r"fields\.offset", _what_is("story stale commit")),
    _rule("commit-against-a-reset", {43}, r"body\.offsetTable\.Alpha@Moved\.0", _any),
    _rule(
        "deleted-topic-pulls",
        {43},
        r"body\.pullOffsetTable\.Beta@\w+",
        _what_is("story topic deleted", _only_theirs),
    ),
    _rule("moved-broker", {106}, r"body\.clusterAddrTable\.FirstCluster", _only_theirs),
    _rule(
        "refused-single-topic",
        {106},
        r"body\.(?:brokerAddrTable\.single|clusterAddrTable\.SingleCluster)",
        _only_theirs,
    ),
    _rule("lists-all-or-nothing", {351}, "code", _what_is("story list half known")),
    _rule("deleted-group", {201}, r"body\.subscriptionGroupTable\.Gone", _only_theirs),
    # The message kinds.
    _rule("send-back-received", {36}, "code", _what_is("story hidden", _codes_are(0, 1))),
    _rule("send-back-received", {36}, "code", _what_is("story of others", _codes_are(0, 16))),
    _rule("send-back-received", {36}, "code", _what_is("story forbidden", _codes_are(0, 16))),
    _rule("retry-topic-order", {351}, r"body\.order", _what_is("story order", _is_ordered_here)),
    _rule("retry-topic-order", {21}, _RETRY_ORDER, _is_ordered_here),
    _rule("delivered-cause", {11, 12}, _PREPARED_OFFSET, _names_its_cause),
    _rule("timer-horizons", {61}, r"body\.timingDistribution", _only_ours),
    _rule("recall-handles", {370}, "code", _what_is("story loose handle", _codes_are(0, 604))),
    _rule("system-names-closed", set(), "code", _names_the_system),
    _rule("system-names-closed", set(), r"(?:fields|body).*", _names_the_system_at_all),
    _rule("recall-sealed", {370}, "code", _made_by_hand),
    _rule("recall-sealed", {370}, r"fields\.msgId", _only_theirs),
    _rule("recall-sealed", {310}, r"fields\.recallHandle\[\]", _only_ours),
    _rule("write-permission", _SENDS, "code", _sent_without_permission),
    _rule("write-permission", set(), r"(?:fields|body|pushed).*", _of_unwritable_topic),
    _rule("write-permission", {21, 202}, r"body\..*(?:ReadOnly|Closed|ShutBroker).*", _any),
    _rule("wrapped-times", {310}, "code", _what_is("story wrapped time", _codes_are(0, 13))),
    _rule("delayed-halves", {310}, "code", _what_is("story delayed half", _codes_are(0, 13))),
    _rule("batches-never-wait", {320}, "code", _what_is("story waiting batch", _codes_are(0, 13))),
    _rule("one-fate", {37}, "code", _what_is("story another fate", _codes_are(0, 604))),
    _rule("resumed-halves", {323}, "code", _what_is("story resumed", _codes_are(0, 1, 604))),
    _rule("replies-never-wait", {325}, r"fields\.queueOffset", _what_is("story waiting reply")),
)

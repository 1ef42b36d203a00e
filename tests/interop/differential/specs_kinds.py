"""The request codes and sends of the message kinds: retries, delays, timers, transactions, replies.

Their messages are never due while the run lasts, so that no answer depends on the time;
``stories_kinds.py`` covers messages that become due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.interop.differential.requests import BROKER, FieldValue, Moment, Reference, Request
from tests.interop.differential.runner import ASKER
from tests.interop.differential.specs import (
    ANY_MESSAGE,
    BOOL,
    GROUP,
    INT,
    LONG,
    SEND_LONG,
    SPECS,
    TEXT,
    TOPIC,
    Field,
    Spec,
    encode_properties,
    needed,
    optional,
)

# The first level is over soon; nothing of the others is delivered while the run lasts.
DELAY_LEVELS = " ".join(["1s", *["2h"] * 17])
HOUR_MS = 3_600_000
TIMER_S_MAX = 259_200
WAIT_QUEUES = 128
NOW = Moment("{at}", 0)
NOT_A_NUMBER = ("", " ", "abc", " 2", "2.0", "0x2", "99999999999999999999")
_LONG_MAX = str((1 << 63) - 1)
_LONG_MIN = str(-(1 << 63))

_SEND_BACK = {
    "offset": needed(LONG, *ANY_MESSAGE),
    "group": needed(GROUP, "Retriers"),
    "delayLevel": needed(INT, "0", "2", "5", "18", "19", "1000", "-1"),
    "originMsgId": optional(TEXT, "origin-1"),
    # Without it Apache gives no message up: see the stories.
    "originTopic": needed(TOPIC, "Alpha", required=False),
    "unitMode": optional(BOOL, "false", "true"),
    "maxReconsumeTimes": optional(INT, "16", "1", "0", "-1"),
}
_REPLY = {"CORRELATION_ID": "c-1", "TTL": "3000", "MSG_TYPE": "reply", "UNIQ_KEY": "reply-1"}
_REPLY_LONG = SEND_LONG | {
    "topic": needed(TOPIC, "DefaultCluster_REPLY_TOPIC"),
    "queueId": needed(INT, "0"),
    "sysFlag": needed(INT, "0"),
    "properties": needed(TEXT, encode_properties(_REPLY | {"REPLY_TO_CLIENT": ASKER})),
    "batch": optional(BOOL),
}
_REPLY_SHORT = dict(zip("abcdefghijklm", _REPLY_LONG.values(), strict=True))
_REPLY_TO_NOBODY = _REPLY_SHORT | {
    "i": optional(
        TEXT, "", encode_properties(_REPLY), encode_properties({"REPLY_TO_CLIENT": "nobody"})
    )
}
_RECALL = {
    "producerGroup": optional(GROUP, "Writers"),
    "topic": needed(TOPIC, "Timed"),
    "recallHandle": needed(
        TEXT, *(Reference(f"timed-{number}", "recallHandle") for number in range(3))
    ),
}


def end_fields(label: str, fate: str) -> dict[str, FieldValue]:
    """The fields that end the transaction of a labelled half message."""
    return {
        "producerGroup": "Deciders",
        "tranStateTableOffset": Reference(label, "queueOffset"),
        "commitLogOffset": Reference(label, "msgId", physical=True),
        "commitOrRollback": fate,
        "msgId": "unique-1",
    }


def _end_spec(number: int, *, bad: bool = False) -> Spec:
    """Each half message is ended once; a story covers a second end."""
    half = f"half-{number}"
    fate = "8" if number % 2 == 0 else "12"
    kinds = (GROUP, LONG, LONG, INT, TEXT)
    named = zip(kinds, end_fields(half, fate).items(), strict=True)
    fields = {name: Field(kind, (value,)) for kind, (name, value) in named}
    fields |= {"topic": optional(TOPIC, "Halves"), "transactionId": optional(TEXT, "unique-1")}
    fields |= {"fromTransactionCheck": optional(BOOL, "false", "true")}
    return Spec(BROKER, 37, fields, valid_count=3, bad=bad)


def _resume_spec() -> Spec:
    """A resumed half message goes on as a copy: no other request may end these."""
    ids = (Reference("resumed-0", "msgId"), Reference("resumed-1", "msgId"))
    fields = {"topic": optional(TOPIC, "Halves"), "msgId": needed(TEXT, *ids)}
    return Spec(BROKER, 323, fields, valid_count=4)


# Sends that wait, or seem to: each to a queue of its own.


def _delays() -> Iterator[Mapping[str, FieldValue]]:
    for level in ("2", "18", "19", "1000000", "2147483647", "0", "-1", "-2147483648", "+3"):
        yield {"DELAY": level}
    for level in (*NOT_A_NUMBER, "2147483648"):
        yield {"DELAY": level}
    yield {"DELAY": "2", "TIMER_DELAY_SEC": "3600"}
    yield {"DELAY": "2", "TIMER_DELIVER_MS": "nonsense"}
    yield {"DELAY": "0", "TIMER_DELAY_SEC": "3600"}
    yield {"DELAY": "-1", "TIMER_DELAY_SEC": "3600"}
    yield {"DELAY": "2", "REAL_TOPIC": "Elsewhere", "REAL_QID": "9"}


def _timers() -> Iterator[Mapping[str, FieldValue]]:
    for name, factor in (("TIMER_DELAY_SEC", 1), ("TIMER_DELAY_MS", 1000)):
        for seconds in (3600, TIMER_S_MAX - 60, TIMER_S_MAX, TIMER_S_MAX + 60, 0, -1, -3600):
            yield {name: str(seconds * factor)}
        for text in (*NOT_A_NUMBER, _LONG_MIN, "+3600000", "-0"):
            yield {name: text}
    for after_ms in (HOUR_MS, (TIMER_S_MAX - 60) * 1000, (TIMER_S_MAX + 60) * 1000, -1, -HOUR_MS):
        yield {"TIMER_DELIVER_MS": Moment("{at}", after_ms)}
    for text in (*NOT_A_NUMBER, _LONG_MAX, _LONG_MIN, "0", "-1"):
        yield {"TIMER_DELIVER_MS": text}
    yield {"TIMER_DELIVER_MS": Moment("+{at}", HOUR_MS)}
    yield from _several_times()


def _several_times() -> Iterator[Mapping[str, FieldValue]]:
    """The property that counts among several; and the properties of a message that has waited."""
    far = {"TIMER_DELAY_SEC": str(TIMER_S_MAX + 60)}
    yield far | {"TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1"}
    yield {"TIMER_DELAY_SEC": "3600", "TIMER_DELAY_MS": "nonsense"}
    yield {"TIMER_DELAY_MS": "3600000", "TIMER_DELIVER_MS": "nonsense"}
    yield {"TIMER_DELAY_MS": "nonsense", "TIMER_DELIVER_MS": Moment("{at}", HOUR_MS)}
    yield {"TIMER_OUT_MS": "1"}
    yield far | {"TIMER_OUT_MS": "1"}
    yield {"TIMER_DELAY_SEC": "3600", "TIMER_OUT_MS": "nonsense"}
    yield {"TIMER_DEL_UNIQKEY": "Waits+nobody"}
    yield {"TIMER_DEL_UNIQKEY": "Waits+nobody", "TIMER_DELAY_SEC": "0"}
    yield {"TIMER_DEL_UNIQKEY": "Waits+nobody", "TIMER_DELIVER_MS": "5"}
    yield {"TIMER_DELAY_LEVEL": "3"}
    yield {"TIMER_ROLL_TIMES": "3", "TIMER_DELAY_SEC": "3600"}


def _halves() -> Iterator[Mapping[str, FieldValue]]:
    for said in ("true", "TRUE", "false", "yes", "", "1"):
        yield {"TRAN_MSG": said, "PGROUP": "Deciders"}
    yield {"TRAN_MSG": "true"}
    yield {"TRAN_MSG": "true", "PGROUP": ""}
    yield {"TRAN_MSG": "true", "REAL_TOPIC": "Elsewhere", "REAL_QID": "9", "UNIQ_KEY": ""}
    yield {"TRAN_MSG": "true", "DELAY": "0"}
    yield {"TRAN_MSG": "true", "DELAY": "-1", "__transactionId__": "mine"}
    yield {"TRAN_MSG": "true", "CHECK_IMMUNITY_TIME_IN_SECONDS": "nonsense"}


def _waiting_fields(properties: Mapping[str, FieldValue], queue_id: int) -> dict[str, FieldValue]:
    """A send of code 310; a time that is not known yet makes the whole text one."""
    moments = [value for value in properties.values() if isinstance(value, Moment)]
    texts = {
        name: value.text if isinstance(value, Moment) else str(value)
        for name, value in properties.items()
    }
    texts = {"UNIQ_KEY": f"waits-{queue_id}"} | texts
    encoded: FieldValue = encode_properties(texts)
    if moments:
        encoded = Moment(str(encoded), moments[0].after_ms)
    named = {"a": "Deciders", "b": "Waits", "c": "TBW102", "d": "4", "e": str(queue_id), "h": "0"}
    return {**named, "f": "0", "g": NOW, "i": encoded}


def waiting_sends() -> list[Request]:
    """Every kind of message that waits, right and wrong, as requests of the mixed run."""
    kinds = [*_delays(), *_timers(), *_halves()]
    sends = [
        Request(BROKER, 310, _waiting_fields(properties, index), b"waits", "waiting send")
        for index, properties in enumerate(kinds)
    ]
    for number, sys_flag in enumerate(("4", "8", "12", "0", "5", "772")):
        fields = _waiting_fields({"TRAN_MSG": "true", "PGROUP": "Deciders"}, WAIT_QUEUES - 1)
        fields |= {"e": str(WAIT_QUEUES - 1 - number), "f": sys_flag}
        sends.append(Request(BROKER, 310, fields, b"half", "waiting send"))
    return sends


def kinds_opening() -> Iterator[Request]:
    """Messages that wait, which the requests of the run are about."""
    for number in range(8):
        yield half_message(f"half-{number}")
    for number in range(2):
        yield half_message(f"resumed-{number}")
    for number in range(3):
        yield timed_message(f"timed-{number}", after_ms=HOUR_MS)


def half_message(label: str, **more: FieldValue) -> Request:
    """Half of a transaction of the group ``Deciders``, which has no client: no check is sent."""
    properties = encode_properties({"TRAN_MSG": "true", "PGROUP": "Deciders", "UNIQ_KEY": label})
    named: dict[str, FieldValue] = {"a": "Deciders", "b": "Halves", "c": "TBW102", "d": "4"}
    named |= {"e": "1", "f": "4", "g": NOW, "h": "0", "i": properties}
    return Request(BROKER, 310, named | more, b"half", "opening", label=label)


def timed_message(label: str, *, after_ms: int, topic: str = "Timed") -> Request:
    """A message that is due at a time."""
    properties = encode_properties({"TIMER_DELIVER_MS": "{at}", "UNIQ_KEY": label, "TAGS": "T"})
    named: dict[str, FieldValue] = {"a": "Writers", "b": topic, "c": "TBW102", "d": "4", "e": "0"}
    named |= {"f": "0", "g": "1600000000000", "h": "0", "i": Moment(properties, after_ms)}
    return Request(BROKER, 310, named, b"timed", "opening", label=label)


KIND_SPECS: tuple[Spec, ...] = (
    Spec(BROKER, 36, _SEND_BACK, valid_count=40),
    _end_spec(0, bad=True),
    *(_end_spec(number) for number in range(1, 8)),
    _resume_spec(),
    Spec(BROKER, 324, _REPLY_LONG, (b"reply",), 6),
    Spec(BROKER, 325, _REPLY_SHORT, (b"reply",), 6),
    Spec(BROKER, 325, _REPLY_TO_NOBODY, (b"reply",), 8, bad=False),
    Spec(BROKER, 370, _RECALL, valid_count=10),
    Spec(BROKER, 60, valid_count=2),
    Spec(BROKER, 61, valid_count=2),
)
ALL_SPECS = SPECS + KIND_SPECS

# As in ``specs.py``: no other request sees a wrong request's effect. No other message waits at
# level 17.
KIND_ASIDE: Mapping[int, Mapping[str, FieldValue]] = {
    36: {"group": "WrongBacks", "delayLevel": "17"},
    324: {"topic": "Wrongs"},
    325: {"b": "Wrongs"},
}


def kind_of_field(code: int, name: str) -> str:
    """The kind of a request field's value; empty for a field that no spec names."""
    found = (spec for spec in ALL_SPECS if spec.code == code and name in spec.fields)
    return next((spec.fields[name].kind for spec in found), "")

"""The seeded run of requests: the opening, then valid and wrong requests of every code, mixed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random

from tests.interop.differential.opening import heartbeats, opening
from tests.interop.differential.requests import (
    BROKER,
    NAMESRV,
    FieldValue,
    Moment,
    Reference,
    Request,
)
from tests.interop.differential.specs import (
    ASIDE,
    BOOL,
    GROUP,
    INT,
    LATER_SPECS,
    LONG,
    TEXT,
    TOPIC,
    UNHANDLED,
    UNHANDLED_ELSEWHERE,
    WRONG_BODIES,
    WRONG_QUEUES,
    Spec,
)
from tests.interop.differential.specs_kinds import (
    ALL_SPECS,
    KIND_ASIDE,
    kinds_opening,
    waiting_sends,
)
from tests.interop.differential.stories import stories
from tests.interop.differential.stories_kinds import kind_stories

_BAD_NUMBERS = ("", "abc", "-1", "2147483648", "99999999999999999999", " 1", "1.5", "+2", "0x10")
BAD_VALUES: dict[str, tuple[FieldValue, ...]] = {
    TOPIC: ("", " ", "bad name", "a/b", "x" * 128, "Unknown", "TBW102", "%RETRY%Nobody", "é"),
    GROUP: ("", " ", "bad group", "g" * 256, "Nobody", "é", "%RETRY%Online"),
    TEXT: ("", " ", "x" * 300, "{}", "é"),
    INT: (*_BAD_NUMBERS, "1000000", "-2147483648"),
    LONG: (*_BAD_NUMBERS, "9223372036854775807", "-9223372036854775808"),
    BOOL: ("", "TRUE", "yes", "0", "1", True),
}
_BAD_VALUES_EACH = 3
_BAD_BODIES = (b"", b"nonsense", b"{}", b"[]", b"null", b'{"a":', b"\xff\xfe\x00", b'"text"')
_ODD_HEADERS: tuple[dict[str, str | int], ...] = (
    {"language": "CPP"},
    {"language": "PYTHON", "version": 0},
    {"version": 2_000_000},
    {"flag": 4},
    {"remark": "a request may have a remark"},
)
# Wrong values there are not answered, or take effect at a time of the server's choosing.
_FIELDS_KEPT_VALID = {
    (309, "consumerGroup"),
    (223, "group"),
    (11, "commitOffset"),
    (361, "commitOffset"),
    (103, "heartbeatTimeoutMillis"),
    (103, "brokerName"),
    (103, "brokerAddr"),
    (103, "clusterName"),
    (904, "heartbeatTimeoutMills"),
    (222, "group"),
    (314, "destGroup"),
    # A story covers a group that is deleted without its offsets.
    (207, "groupName"),
    (207, "cleanOffset"),
}
# A broker brings its topics back whenever it registers the next time.
_VALUES_NOT_SENT = {(216, "TBW102"), (216, "Unknown"), (216, "%RETRY%Nobody")}
_QUEUE_FIELDS = {10: "queueId", 310: "e", 320: "e", 324: "queueId", 325: "e"}
_TOPIC_FIELDS = {10: "topic", 310: "b", 320: "b", 324: "topic", 325: "b"}
_ASIDE = {**ASIDE, **KIND_ASIDE}
_REQUESTS_BETWEEN_HEARTBEATS = 150
_BINARY_SHARE = 1 / 8
_UNREGISTER_BROKER = 104


class _Choices(Random):
    """Seeded choices; each wrong message gets a queue of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.wrong_queue_ids = iter(range(WRONG_QUEUES))


def generate(seed: int) -> list[Request]:
    """The whole run; the same seed gives the same run."""
    random = _Choices(seed)
    mixed = [request for spec in ALL_SPECS for request in _of_spec(random, spec)]
    mixed += waiting_sends()
    mixed += _unhandled()
    random.shuffle(mixed)
    mixed = [_maybe_binary(random, request) for request in mixed]
    return [
        *opening(),
        *kinds_opening(),
        *_with_heartbeats(mixed),
        *kind_stories(),
        *heartbeats(),
        *stories(),
    ]


def _maybe_binary(random: _Choices, request: Request) -> Request:
    """One in eight of the requests that fit a binary header gets one."""
    values = (request.fields or {}).values()
    fits = abs(request.code) < 1 << 15 and not request.header
    fits = fits and all(isinstance(value, str | Reference | Moment) for value in values)
    return dataclasses.replace(request, binary=fits and random.random() < _BINARY_SHARE)


def _with_heartbeats(requests: list[Request]) -> Iterator[Request]:
    """On a slow machine the run outlasts the heartbeat timeout of both servers."""
    for index, request in enumerate(requests):
        if index % _REQUESTS_BETWEEN_HEARTBEATS == 0:
            yield from heartbeats()
        yield request
        if request.code == _UNREGISTER_BROKER:
            # The original forgets a broker a moment after its answer.
            yield Request(NAMESRV, 106, what="settled")


def generate_later(seed: int) -> list[Request]:
    """Valid requests of the codes that are not built yet."""
    random = _Choices(seed)
    return [_valid(random, spec) for spec in LATER_SPECS for _ in range(spec.valid_count)]


def _of_spec(random: _Choices, spec: Spec) -> Iterator[Request]:
    for _ in range(spec.valid_count):
        yield _valid(random, spec)
    if not spec.bad:
        return
    yield from _with_wrong_fields(random, spec)
    yield from _with_odd_headers(random, spec)
    if spec.json_body:
        for body in _BAD_BODIES:
            yield _variant(random, spec, f"body {body!r}", body=body)


def _with_wrong_fields(random: _Choices, spec: Spec) -> Iterator[Request]:
    for name, field in spec.fields.items():
        if (spec.code, name) in _FIELDS_KEPT_VALID:
            continue
        if field.required:
            yield _variant(random, spec, f"without {name}", without=name)
        values = [bad for bad in BAD_VALUES[field.kind] if (spec.code, bad) not in _VALUES_NOT_SENT]
        for bad in random.sample(values, _BAD_VALUES_EACH):
            yield _variant(random, spec, f"{name}={str(bad)[:40]!r}", changed={name: bad})


def _with_odd_headers(random: _Choices, spec: Spec) -> Iterator[Request]:
    valid = _valid(random, spec)
    for header in random.sample(_ODD_HEADERS, 2):
        yield Request(spec.target, spec.code, valid.fields, valid.body, "odd header", header)
    extra = dict(valid.fields or {}) | {"ns": "", "unknownField": "1"}
    yield Request(spec.target, spec.code, extra, valid.body, "unknown field")
    if spec.fields:
        yield Request(spec.target, spec.code, None, valid.body, "no fields at all")


def _valid(random: _Choices, spec: Spec) -> Request:
    chosen = {name: random.choice(field.values) for name, field in spec.fields.items()}
    fields = {name: value for name, value in chosen.items() if value is not None}
    body = random.choice(spec.bodies) if spec.bodies else b""
    return Request(spec.target, spec.code, fields or None, body)


def _variant(
    random: _Choices,
    spec: Spec,
    what: str,
    *,
    without: str | None = None,
    changed: dict[str, FieldValue] | None = None,
    body: bytes | None = None,
) -> Request:
    valid = _valid(random, spec)
    fields = {**(valid.fields or {}), **_ASIDE.get(spec.code, {})}
    queue = _QUEUE_FIELDS.get(spec.code)
    if queue is not None:
        fields[queue] = str(next(random.wrong_queue_ids))
    fields.pop(without or "", None)
    fields |= changed or {}
    if queue is not None and str(fields.get(queue, "")).startswith("-"):
        # The broker chooses: among queues that no other wrong message is sent to.
        fields[_TOPIC_FIELDS[spec.code]] = "WrongChoice"
    sent = WRONG_BODIES.get(spec.code, valid.body) if body is None else body
    return Request(spec.target, spec.code, fields or None, sent, what, connection="wrong")


def _unhandled() -> list[Request]:
    codes = UNHANDLED + UNHANDLED_ELSEWHERE
    both = [
        Request(target, code, what="unhandled") for code in codes for target in (BROKER, NAMESRV)
    ]
    astray = [Request(NAMESRV, code, what="astray") for code in (10, 11, 34, 200, 17)]
    return both + astray + [Request(BROKER, code, what="astray") for code in (105, 103, 100, 206)]

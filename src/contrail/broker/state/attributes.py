"""Topic attributes: which exist, and the effect of a change list, like ``+key=value,-key``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from contrail.errors import RequestRejected
from contrail.model.topic import (
    CLEANUP_POLICY_ATTRIBUTE,
    MESSAGE_TYPE_ATTRIBUTE,
    QUEUE_TYPE_ATTRIBUTE,
    RESERVE_TIME_ATTRIBUTE,
)
from contrail.protocol.codes import ResponseCode

MIXED = "MIXED"
MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED)
_LONG_MAX = (1 << 63) - 1

# Attributes of our own: a topic that has one of them stores no message twice (``send_memory``).
DEDUPE_MS_ATTRIBUTE = "contrail.dedupe.window.ms"
DEDUPE_COUNT_ATTRIBUTE = "contrail.dedupe.window.count"
DEDUPE_MS_DEFAULT = 600_000
DEDUPE_COUNT_DEFAULT = 100_000
# A week, and as many keys as take 680 MB of memory.
DEDUPE_MS_MAX = 604_800_000
DEDUPE_COUNT_MAX = 10_000_000


class Attribute(NamedTuple):
    """One attribute; ``refusal`` says why a value is not allowed, or nothing."""

    changeable: bool
    refusal: Callable[[str], str | None]


def _one_of(*allowed: str) -> Callable[[str], str | None]:
    return lambda value: None if value in allowed else f"must be one of {', '.join(allowed)}"


def _reserve_time_refusal(value: str) -> str | None:
    digits = value.removeprefix("-")
    if digits.isascii() and digits.isdigit() and -1 <= int(value) <= _LONG_MAX:
        return None
    return f"must be a whole number from -1 to {_LONG_MAX}"


def is_whole_number(text: str, maximum: int) -> bool:
    """Whether this is a number from 1 to ``maximum``, in ASCII digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(maximum))):
        return False
    return 1 <= int(text) <= maximum


def _up_to(maximum: int) -> Callable[[str], str | None]:
    problem = f"must be a whole number from 1 to {maximum}"
    return lambda value: None if is_whole_number(value, maximum) else problem


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    QUEUE_TYPE_ATTRIBUTE: Attribute(False, _one_of("BatchCQ", "SimpleCQ")),
    CLEANUP_POLICY_ATTRIBUTE: Attribute(False, _one_of("DELETE", "COMPACTION")),
    MESSAGE_TYPE_ATTRIBUTE: Attribute(True, _one_of(*MESSAGE_TYPES)),
    RESERVE_TIME_ATTRIBUTE: Attribute(True, _reserve_time_refusal),
    DEDUPE_MS_ATTRIBUTE: Attribute(True, _up_to(DEDUPE_MS_MAX)),
    DEDUPE_COUNT_ATTRIBUTE: Attribute(True, _up_to(DEDUPE_COUNT_MAX)),
}
# RocketMQ lets groups carry attributes but defines none.
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {}


def parse_changes(text: str) -> dict[str, str]:
    """``+key=value,-key`` as a mapping whose keys keep their sign.

    Raises:
        RequestRejected: an entry is neither an addition nor a removal, or a key comes twice.
    """
    changes: dict[str, str] = {}
    for entry in _entries(text):
        key, equals, value = entry.partition("=")
        sign = "+" if equals else "-"
        if sign not in key:
            wanted = "+key=value" if equals else "-key"
            raise _refused(f"attribute change {entry!r} must look like {wanted}")
        if key in changes:
            raise _refused(f"attribute {key!r} is changed twice; name it once")
        changes[key] = value
    return changes


def _entries(text: str) -> Iterable[str]:
    """As Java splits: empty entries at the end do not count."""
    return text.rstrip(",").split(",") if text.rstrip(",") else ()


def alter_attributes(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    known: Mapping[str, Attribute],
) -> dict[str, str]:
    """The attributes after ``changes``; ``current`` is None for a topic that is being created.

    Raises:
        RequestRejected: a change is malformed, unknown, not allowed any more, or its value wrong.
    """
    altered = dict(current or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        _check_key(key, seen)
        if sign == "+":
            _check_value(key, value, known, creating=current is None)
            altered[key] = value
        else:
            _check_removal(sign, key, current, known)
            del altered[key]
    return altered


def _check_key(key: str, seen: set[str]) -> None:
    if not key or "+" in key or "-" in key:
        raise _refused(f"attribute key {key!r} is malformed; write +key=value or -key")
    if key in seen:
        raise _refused(f"attribute {key!r} is changed twice; name it once")
    seen.add(key)


def _check_value(key: str, value: str, known: Mapping[str, Attribute], *, creating: bool) -> None:
    attribute = _changeable(key, known, creating=creating)
    refusal = attribute.refusal(value)
    if refusal is not None:
        raise _refused(f"attribute {key}={value!r} {refusal}")


def _check_removal(
    sign: str, key: str, current: Mapping[str, str] | None, known: Mapping[str, Attribute]
) -> None:
    if current is None:
        raise _refused(f"attribute {key!r}: only additions are possible while creating")
    if sign != "-":
        raise _refused(f"attribute key {key!r} must start with + or -")
    if key not in current:
        raise _refused(f"attribute {key!r} is not set, so it cannot be removed")
    _changeable(key, known, creating=False)


def _changeable(key: str, known: Mapping[str, Attribute], *, creating: bool) -> Attribute:
    attribute = known.get(key)
    if attribute is None:
        raise _refused(f"attribute {key!r} is unknown; known are: {', '.join(known) or 'none'}")
    if not creating and not attribute.changeable:
        raise _refused(f"attribute {key!r} can only be given when the topic is created")
    return attribute


def _refused(remark: str) -> RequestRejected:
    return RequestRejected(ResponseCode.SYSTEM_ERROR, remark)

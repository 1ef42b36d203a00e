"""The rules for entries of persisted tables: one rule for each kind of entry.

The reader of a file and the table in memory call the same rule. A table refuses an entry that its
file's reader would refuse, before any client gets an answer; a reader that meets such an entry in
an old file leaves it out, keeps it aside and reads on. Each rule raises ``EntryIllegal``, which
names the entry and the bound.

The rules are wider than those for new names (``check_topic_name``, ``check_group_name``): a folder
of Apache's broker, or of an older release, may hold names that may no longer be created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from contrail.errors import EntryIllegal, MessageIllegal
from contrail.model.fastjson import (
    DEPTH_MAX,
    REFERENCE_KEY,
    FastJsonError,
    JsonValue,
    dumps,
    is_long,
)
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.topic import TopicConfig, check_topic_folder

QUEUE_ID_MAX = (1 << 31) - 1
DELAYS_COUNT_MAX = 1024
"""How many delays a group's retry policy may list."""
ENTRY_BYTES_MAX = 1 << 20
"""How many bytes an entry may have that holds arbitrary JSON of its writer."""

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
# Entries are two levels deep in their files.
_KEPT_DEPTH_MAX = DEPTH_MAX - 4
# Half of a surrogate pair has no UTF-8 form, and a control character would break a log line.
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SHOWN_CHARACTERS = 120


def check_entry_name(what: str, name: str) -> None:
    """The rule for every name that is a key of a persisted table."""
    if not name.strip():
        raise EntryIllegal(f"the {what} is blank; name one")
    if _UNWRITABLE.search(name) is not None:
        raise EntryIllegal(
            f"{what} {_shown(name)} holds a control character or half of a surrogate pair"
        )
    if name == REFERENCE_KEY:
        raise EntryIllegal(f"{what} {name!r} stands for a reference in RocketMQ's files; rename it")


def check_topic_entry(name: str, config: TopicConfig) -> None:
    """The rule for an entry of ``topics.json``."""
    check_entry_name("topic", name)
    try:
        check_topic_folder(name)
    except MessageIllegal as error:
        raise EntryIllegal(str(error)) from error
    _check_named("topic", name, config.topic)
    for field, count in (
        ("readQueueNums", config.read_queue_count),
        ("writeQueueNums", config.write_queue_count),
    ):
        _check_range(f"topic {name!r}: {field}", count, 0, _INT_MAX)
    _check_int(f"topic {name!r}: perm", config.perm)
    _check_int(f"topic {name!r}: topicSysFlag", config.sys_flag)
    _check_kept(f"topic {name!r}", config.attributes, config.unknown)


def check_group_entry(name: str, config: SubscriptionGroupConfig) -> None:
    """The rule for an entry of ``subscriptionGroup.json``."""
    check_entry_name("group", name)
    _check_named("group", name, config.group)
    for field, number in (
        ("retryQueueNums", config.retry_queue_count),
        ("retryMaxTimes", config.retry_count_max),
        ("groupSysFlag", config.sys_flag),
        ("consumeTimeoutMinute", config.consume_timeout_minutes),
    ):
        _check_int(f"group {name!r}: {field}", number)
    customized = config.retry_policy.customized
    if customized is not None and len(customized.delays_ms) > DELAYS_COUNT_MAX:
        raise EntryIllegal(
            f"group {name!r}: customizedRetryPolicy lists {len(customized.delays_ms)} delays, "
            f"at most {DELAYS_COUNT_MAX} are kept"
        )
    _check_kept(f"group {name!r}", config.attributes, config.unknown, config.subscriptions or ())


def check_forbidden_entry(group: str, topic: str, bits: int) -> None:
    """The rule for the forbidden bits of a group on a topic."""
    check_entry_name("group", group)
    check_entry_name("topic", topic)
    _check_int(f"forbidden bits of group {group!r} on topic {topic!r}", bits)


def check_offset_entry(key: str, queue_id: int, consumer_offset: int) -> None:
    """The rule for a group's offset on one queue; ``key`` names topic and group."""
    if not key.strip() or key == REFERENCE_KEY or _UNWRITABLE.search(key) is not None:
        check_entry_name("key of consumer offsets", key)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise EntryIllegal(
            f"queue {queue_id} of {_shown(key)} cannot exist: queue ids are from 0 to "
            f"{QUEUE_ID_MAX}"
        )
    if not is_long(consumer_offset):
        raise EntryIllegal(
            f"offset {consumer_offset} of queue {queue_id} of {_shown(key)} is no 64-bit number"
        )


def check_delay_entry(level: int, queue_offset: int) -> None:
    """The rule for the cursor of a delay level."""
    _check_range("delay level", level, 0, QUEUE_ID_MAX)
    if not is_long(queue_offset):
        raise EntryIllegal(f"offset {queue_offset} of delay level {level} is no 64-bit number")


def check_filter_entry(topic: str, group: str, numbers: Sequence[int]) -> None:
    """The rule for a consumer's filter; ``numbers`` are its times, version and bloom bits."""
    check_entry_name("topic", topic)
    check_entry_name("group", group)
    for number in numbers:
        if not is_long(number):
            raise EntryIllegal(
                f"filter of group {group!r} on topic {topic!r}: {number} is no 64-bit number"
            )


def check_kv_entry(namespace: str, key: str, value: str) -> None:
    """The rule for an entry of ``kvConfig.json``."""
    check_entry_name("namespace", namespace)
    check_entry_name("key", key)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EntryIllegal(
            f"the value of key {key!r} in namespace {namespace!r} holds half of a surrogate pair "
            f"at character {error.start}"
        ) from error


def _check_named(what: str, name: str, inner: str) -> None:
    if inner != name:
        raise EntryIllegal(f"{what} {name!r} stands under another name: {_shown(inner)}")


def _check_int(place: str, number: int) -> None:
    _check_range(place, number, _INT_MIN, _INT_MAX)


def _check_range(place: str, number: int, lowest: int, highest: int) -> None:
    if not lowest <= number <= highest:
        raise EntryIllegal(f"{place} {number} must be from {lowest} to {highest}")


def _check_kept(
    place: str,
    attributes: Mapping[str, str],
    unknown: Mapping[str, JsonValue],
    more: Sequence[JsonValue] = (),
) -> None:
    """The rule for parts of an entry that are kept as their writer sent them."""
    if not (attributes or unknown or more):
        return
    kept: list[JsonValue] = [dict(attributes), dict(unknown), list(more)]
    if _holds_reference(kept, 0):
        raise EntryIllegal(
            f"{place} holds the field {REFERENCE_KEY!r}, which stands for a reference; rename it"
        )
    try:
        size = len(dumps(kept, pretty=False))
    except FastJsonError as error:
        raise EntryIllegal(f"{place}: {error}") from error
    if size > ENTRY_BYTES_MAX:
        raise EntryIllegal(f"{place} has {size} bytes, at most {ENTRY_BYTES_MAX} are kept")


def _holds_reference(value: JsonValue, depth: int) -> bool:
    if depth > _KEPT_DEPTH_MAX:
        raise EntryIllegal(f"an entry is nested deeper than {_KEPT_DEPTH_MAX} levels")
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get(REFERENCE_KEY), str):
            return True
        return any(_holds_reference(item, depth + 1) for item in value.values())
    if isinstance(value, list):
        return any(_holds_reference(item, depth + 1) for item in value)
    return False


def _shown(name: str) -> str:
    """A name as an error text shows it: never longer than a line."""
    text = repr(name)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."

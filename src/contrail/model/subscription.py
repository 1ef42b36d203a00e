"""A consumer group's subscription to a topic: all messages, some tags, or an SQL expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from contrail.errors import ConfigError
from contrail.kernels.java_hash import java_hash
from contrail.model.fastjson import FastJsonError, Fields, JsonValue, whole_number
from contrail.model.shown import shown

TAG = "TAG"
SQL92 = "SQL92"
ALL_TAGS = "*"
TAG_SEPARATOR = "||"

# The characters that Java's String.trim removes: all up to the space.
_JAVA_SPACES = "".join(map(chr, range(33)))
_INT_SPAN = 1 << 32
_INT_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """A group's subscription to one topic; a larger ``sub_version`` replaces a smaller one."""

    topic: str
    sub_string: str = ALL_TAGS
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = TAG
    class_filter_mode: bool = False

    @property
    def by_tag(self) -> bool:
        """Whether the expression lists tags; no expression type means tags too."""
        return is_tag_type(self.expression_type)

    @property
    def takes_all(self) -> bool:
        return self.by_tag and self.sub_string == ALL_TAGS

    @classmethod
    def from_fields(cls, fields: Fields, *, version_default: int = 0) -> Self:
        """Read RocketMQ's field names; the C++ and Go clients write numbers as text.

        Raises:
            FastJsonError: a field has another type.
        """
        return cls(
            topic=fields.text("topic", ""),
            sub_string=fields.text("subString", ""),
            tags=frozenset(_text(tag) for tag in fields.array("tagsSet")),
            codes=frozenset(_code(code) for code in fields.array("codeSet")),
            sub_version=fields.integer("subVersion", version_default),
            expression_type=fields.text("expressionType", TAG),
            class_filter_mode=fields.boolean("classFilterMode", False),
        )

    def to_fields(self) -> dict[str, object]:
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }


def is_tag_type(expression_type: str | None) -> bool:
    return not expression_type or expression_type == TAG


def parse_subscription(
    topic: str,
    expression: str | None,
    expression_type: str | None = None,
    *,
    sub_version: int = 0,
) -> SubscriptionData:
    """The subscription that a client would send for this expression.

    Raises:
        ConfigError: a tag expression has separators only, or another expression is empty.
    """
    if expression_type is not None and not is_tag_type(expression_type):
        if not expression:
            raise ConfigError(f"the {expression_type} expression for topic {topic!r} is empty")
        return SubscriptionData(
            topic, expression, sub_version=sub_version, expression_type=expression_type
        )
    if not expression or expression == ALL_TAGS:
        return SubscriptionData(topic, sub_version=sub_version)
    pieces = expression.split(TAG_SEPARATOR)
    if not any(pieces):
        raise ConfigError(f"the tag expression {shown(expression)} names no tag; write tags or *")
    tags = frozenset(piece.strip(_JAVA_SPACES) for piece in pieces) - {""}
    codes = frozenset(java_hash(tag.encode("utf-8", "replace")) for tag in tags)
    return SubscriptionData(topic, expression, tags, codes, sub_version)


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise FastJsonError(f"a tag must be text, it is {value!r}"[:120])
    return value


def _code(value: JsonValue) -> int:
    """A tag's hash as a signed 32-bit number, to compare with queue rows."""
    return (whole_number(value, "an entry of codeSet") + _INT_LIMIT) % _INT_SPAN - _INT_LIMIT

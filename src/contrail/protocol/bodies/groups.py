"""Bodies about consumer groups: settings of one or all, a list to create, read permissions."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from contrail.model.data_version import DataVersion
from contrail.model.fastjson import FastJsonError, Fields
from contrail.model.group import SubscriptionGroupConfig
from contrail.protocol.json_style import (
    at_once,
    body_errors,
    decode_body,
    encode_body,
    rendered_object,
)

PULL_MODE = "PULL"
POP_MODE = "POP"


class RequestMode(NamedTuple):
    """Whether a group pulls or pops a topic's messages."""

    topic: str
    group: str
    mode: str
    # With how many members behind it a member shares its queues when the group pops.
    pop_share_count: int = 0


def encode_group(config: SubscriptionGroupConfig) -> bytes:
    """The answer to GET_SUBSCRIPTIONGROUP_CONFIG."""
    return encode_body(config.to_fields())


def encode_group_table(
    groups: Mapping[str, SubscriptionGroupConfig],
    forbidden: Mapping[str, Mapping[str, int]],
    data_version: DataVersion,
) -> bytes:
    """The answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return at_once(group_table_steps(groups, forbidden, data_version))


def group_table_steps(
    groups: Mapping[str, SubscriptionGroupConfig],
    forbidden: Mapping[str, Mapping[str, int]],
    data_version: DataVersion,
) -> Generator[None, None, bytes]:
    """As ``encode_group_table``, with a step for each group."""
    table = yield from rendered_object(groups, SubscriptionGroupConfig.to_fields)
    closed = yield from rendered_object(forbidden)
    return encode_body(
        {
            "dataVersion": data_version.to_fields(),
            "forbiddenTable": closed,
            "subscriptionGroupTable": table,
        }
    )


def decode_group(body: bytes) -> SubscriptionGroupConfig:
    """The group of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.

    Raises:
        RequestRejected: the body is no group's settings.
    """
    what = "a group's settings"
    fields = decode_body(body, what)
    with body_errors(what):
        return SubscriptionGroupConfig.from_fields(fields, "")


def decode_group_table(body: bytes) -> dict[str, SubscriptionGroupConfig]:
    """The answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG, by group.

    Raises:
        RequestRejected: the body is no such table.
    """
    what = "a table of groups"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        table = fields.children("subscriptionGroupTable")
        return {
            name: SubscriptionGroupConfig.from_fields(child, name) for name, child in table.items()
        }


def decode_group_list(body: bytes) -> list[SubscriptionGroupConfig]:
    """The groups of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.

    Raises:
        RequestRejected: the body is no such list.
    """
    what = "a list of groups"
    fields = decode_body(body, what)
    with body_errors(what):
        return [
            SubscriptionGroupConfig.from_fields(Fields(entry, "a group"), "")
            for entry in fields.array("groupConfigList")
        ]


def encode_group_readable(group: str, topic: str, readable: bool) -> bytes:
    """The answer to UPDATE_AND_GET_GROUP_FORBIDDEN."""
    return encode_body({"group": group, "readable": readable, "topic": topic})


def decode_request_mode(body: bytes) -> RequestMode:
    """The body of SET_MESSAGE_REQUEST_MODE; the mode is PULL if the body names none.

    Raises:
        RequestRejected: the body is no such setting, lacks a name, or has an unknown mode.
    """
    what = "a message request mode"
    fields = decode_body(body, what)
    with body_errors(what):
        mode = fields.text("mode", PULL_MODE)
        if mode not in (PULL_MODE, POP_MODE):
            raise FastJsonError(f"mode {mode!r} is neither {PULL_MODE} nor {POP_MODE}")
        topic, group = fields.text("topic", ""), fields.text("consumerGroup", "")
        if not topic or not group:
            raise FastJsonError("topic and consumerGroup must both be named")
        return RequestMode(topic, group, mode, fields.integer("popShareQueueNum", 0))

"""One message with all its facts, its body in a file, and which groups have consumed it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from contrail.cli.mqadmin.java_text import comma_time, map_text, value_text
from contrail.client.admin_values import GroupConnections
from contrail.client.blocking.admin import Admin
from contrail.client.message import ReceivedMessage
from contrail.errors import ClientError, ConfigError
from contrail.model.properties import KEYS
from contrail.model.subscription import ALL_TAGS

_PULL_TYPE = "CONSUME_ACTIVELY"
_BROADCASTING = "BROADCASTING"
_OFFLINE_CODE = 206


def print_message(
    admin: Admin,
    message: ReceivedMessage,
    *,
    with_offset_id: bool = True,
    charset: str | None = None,
    suffix: str = "",
) -> None:
    """The facts a line each, then the groups that consume the topic."""
    if with_offset_id:
        _print_fact("OffsetID", message.offset_message_id)
    for name, value in _facts(message).items():
        _print_fact(name, value)
    _print_fact("Message Body Path", str(_write_body(message, suffix)))
    if charset is not None:
        _print_fact("Message Body", body_text(message.body, charset))
    tracks = list(_tracks(admin, message))
    print("\n")
    for track in tracks or ["WARN: No Consumer"]:
        print(track)


def _print_fact(name: str, value: object) -> None:
    print(f"{name + ':':<20} {value}")


def _facts(message: ReceivedMessage) -> dict[str, object]:
    return {
        "Topic": message.topic,
        "Tags": f"[{value_text(message.tags)}]",
        "Keys": f"[{value_text(message.properties.get(KEYS))}]",
        "Queue ID": message.queue.queue_id,
        "Queue Offset": message.queue_offset,
        "CommitLog Offset": message.physical_offset,
        "Reconsume Times": message.reconsume_times,
        "Born Timestamp": comma_time(message.born_timestamp_ms),
        "Store Timestamp": comma_time(message.store_timestamp_ms),
        "Born Host": message.born_host,
        "Store Host": message.store_host,
        "System Flag": message.sys_flag,
        "Properties": map_text(message.properties),
    }


def body_text(body: bytes, charset: str) -> str:
    """Raises ``ConfigError`` for an unknown charset."""
    try:
        return body.decode(charset, "replace")
    except LookupError:
        raise ConfigError(f"there is no charset {charset!r}: try UTF-8 or GBK") from None


def _write_body(message: ReceivedMessage, suffix: str) -> Path:
    """Where Apache's tool writes it, so that scripts find it there."""
    folder = Path(tempfile.gettempdir()) / "rocketmq" / "msgbodys"
    path = folder / f"{message.message_id.replace('/', '_')}{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(message.body)
    except OSError as error:
        raise ConfigError(f"the body cannot be written to {path}: {error}") from error
    return path


def _tracks(admin: Admin, message: ReceivedMessage) -> Iterator[str]:
    for group in admin.topic_consumers(message.topic):
        members = admin.group_connections(group, allow_partial=True)
        kind, reason = _track(admin, message, members)
        yield (
            f"MessageTrack [consumerGroup={group}, trackType={kind}, "
            f"exceptionDesc={value_text(reason)}]"
        )


def _track(
    admin: Admin, message: ReceivedMessage, members: GroupConnections
) -> tuple[str, str | None]:
    if not members.is_online:
        return "NOT_ONLINE", f"CODE:{_OFFLINE_CODE} DESC:the group is not online"
    if members.consume_type == _PULL_TYPE:
        return "PULL", None
    if members.message_model == _BROADCASTING:
        return "CONSUME_BROADCASTING", None
    try:
        queues = admin.lag(members.group, message.topic).queues
    except ClientError as error:
        return "UNKNOWN", str(error)
    reached = {one.queue: one.consumer_offset for one in queues}
    if reached.get(message.queue, 0) <= message.queue_offset:
        return "NOT_CONSUME_YET", None
    subscription = members.subscriptions.get(message.topic)
    tags = subscription.tags if subscription is not None else frozenset()
    is_wanted = not tags or ALL_TAGS in tags or message.tags in tags
    return ("CONSUMED" if is_wanted else "CONSUMED_BUT_FILTERED"), None

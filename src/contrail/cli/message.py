"""``contrail message``: get one, find some by key, draw the trace of one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any

import typer

from contrail.cli.completion import topic_names
from contrail.cli.exits import NotFound
from contrail.cli.message_format import for_terminal, message_fields
from contrail.cli.message_output import Format, MessagePrinter, open_printer
from contrail.cli.output import AsJson, complain, print_facts, print_json, print_rich, time_text
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.times import parse_time
from contrail.client.admin_messages import KEY_COUNT_MAX
from contrail.client.blocking.admin import Admin
from contrail.client.message import ReceivedMessage
from contrail.errors import BrokerRefused, ConfigError
from contrail.insight.damage import DamageNoted
from contrail.insight.messages import (
    elsewhere,
    ids_by_key,
    names_a_broker,
    story_of,
    unknown_broker,
)
from contrail.insight.story import Step, Story
from contrail.model.topic import TRACE_TOPIC

app = typer.Typer(no_args_is_help=True, add_completion=False)

_END_OF_TIME_MS = (1 << 63) - 1
_STORIES_MAX = 16
# 32 digits with the address of an IPv4 host, 56 with that of an IPv6 one, 34 from newer clients.
_ID = re.compile(r"[0-9A-Fa-f]{32,56}")


@app.callback()
def message() -> None:
    """Single messages: get one, find some by key, draw the trace of one."""


@app.command()
def get(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="An id of either kind.")],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            autocompletion=topic_names,
            help="Its topic; a producer's id needs it.",
        ),
    ] = None,
    format: Format = None,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Show a message by its id: the producer's, or the broker's offset id."""
    printer, damage = _printer(format, as_json=as_json), DamageNoted()
    with open_admin(namesrv, ctx) as admin:
        found = _get(admin, message_id, topic, damage)
    if as_json:
        print_json(message_fields(found))
    elif format is not None:
        printer.print(found)
    else:
        _show(found)
    damage.require_none()


@app.command()
def find(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="Where to look.")
    ],
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", show_default=False, help="The key they carry.")
    ] = None,
    key_option: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="The key, if it is not behind TOPIC.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Stored then or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Stored then or before.")
    ] = None,
    count: Annotated[
        int,
        typer.Option("-c", "--count", min=1, max=KEY_COUNT_MAX, help="This many of the newest."),
    ] = KEY_COUNT_MAX,
    format: Format = None,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Show the newest messages with a key, the oldest of them first."""
    wanted = _one_key(topic, key, key_option)
    printer, damage = _printer(format, as_json=as_json), DamageNoted()
    begin_ms = parse_time("--since", since) or 0
    end_ms = parse_time("--until", until)
    with open_admin(namesrv, ctx) as admin:
        found = damage.sound(
            lambda: admin.messages_by_key(
                topic,
                wanted,
                count_max=count,
                begin=begin_ms,
                end=_END_OF_TIME_MS if end_ms is None else end_ms,
            )
        )
    if not found:
        damage.require_none()
    if not found and since is None and until is None:
        raise NotFound(f"no message of topic {topic!r} has the key {wanted!r}")
    if as_json:
        print_json([message_fields(one) for one in found])
    else:
        for one in found:
            printer.print(one)
        if not found:
            print(f"no message of topic {topic} has key {wanted} and that time", file=sys.stderr)
    damage.require_none()


@app.command()
def trace(
    message_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="An id of either kind.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="All messages with this key.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            autocompletion=topic_names,
            help="Their topic, if they were not traced.",
        ),
    ] = None,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", metavar="TOPIC", help="Where traces are written.")
    ] = TRACE_TOPIC,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Draw the way of a message: sent, stored, delivered, retried, given up; with times."""
    if (message_id is None) == (key is None):
        raise ConfigError("give the ID of a message, or --key")
    damage = DamageNoted()
    with open_admin(namesrv, ctx) as admin:
        ids = (
            [message_id]
            if message_id
            else admin.run(ids_by_key, key or "", topic, trace_topic, damage)
        )
        if not ids:
            damage.require_none()
            where = f"topic {topic}" if topic else "the traces: give --topic to look there"
            raise NotFound(f"no message with key {key!r} in {where}")
        stories = [
            admin.run(story_of, one, topic, trace_topic, damage, complain)
            for one in ids[-_STORIES_MAX:]
        ]
    if as_json:
        print_json([story.fields() for story in stories])
    else:
        for story in stories:
            print_rich(_drawn(story))
    damage.require_none()


def _one_key(topic: str, key: str | None, option: str | None) -> str:
    if (key is None) == (option is None):
        raise ConfigError(f"give one key: `contrail message find {topic} KEY`")
    return key or option or ""


def _printer(format: str | None, *, as_json: bool) -> MessagePrinter:
    """Made before any request, so that a wrong format is refused at once."""
    if as_json and format is not None:
        raise ConfigError("--json and --format: give one of the two")
    return open_printer(format, as_json=False)


def _get(admin: Admin, message_id: str, topic: str | None, damage: DamageNoted) -> ReceivedMessage:
    if admin.run(names_a_broker, message_id):
        try:
            return admin.message_by_offset_id(message_id)
        except BrokerRefused as refusal:
            raise NotFound(
                f"no message is at the place that {message_id!r} tells: {refusal.remark}"
            ) from refusal
    if topic is None:
        raise _needs_topic(message_id)
    found = damage.sound(lambda: admin.messages_by_unique_key(topic, message_id))
    if not found:
        damage.require_none()
        raise NotFound(f"topic {topic!r} has no message {message_id!r}{elsewhere(message_id)}")
    return found[0]


def _needs_topic(message_id: str) -> ConfigError | NotFound:
    if not _ID.fullmatch(message_id):
        return ConfigError(
            f"{message_id!r} is no message id: give the 32 hexadecimal digits that `contrail send` "
            "prints, or --topic if its producer makes ids of another form"
        )
    address = unknown_broker(message_id)
    if address is not None:
        return NotFound(
            f"message {message_id!r}: the id names the broker at {address}, which this cluster "
            f"does not know; if it is a producer's, say `contrail message get {message_id} "
            "--topic TOPIC`"
        )
    return ConfigError(
        f"message {message_id!r}: the id is a producer's, which does not tell where the message "
        f"is: say `contrail message get {message_id} --topic TOPIC`"
    )


def _show(found: ReceivedMessage) -> None:
    fields = message_fields(found)
    fields["born"] = time_text(found.born_timestamp_ms)
    fields["stored"] = time_text(found.store_timestamp_ms)
    del fields["born_timestamp_ms"], fields["store_timestamp_ms"]
    body = fields.pop("body", None)
    fields.pop("body_base64", None)
    numbers = ("queue_id", "queue_offset", "reconsume_times", "body_bytes")
    fields |= {name: str(fields[name]) for name in numbers}
    print_facts({name.replace("_", " "): value for name, value in fields.items()})
    print()
    is_text = body is not None
    print(for_terminal(found.body) if is_text else found.body.hex(" "))


# Drawing.


def _drawn(story: Story) -> Any:
    from rich.tree import Tree

    tree = Tree(_title(story))
    for step in story.steps:
        if step.group is None:
            tree.add(_line(step))
    of_groups = sorted((one for one in story.steps if one.group is not None), key=_group)
    for group, steps in groupby(of_groups, _group):
        _add_all(tree.add(f"group {group}"), steps)
    return tree


def _title(story: Story) -> str:
    parts = [f"message {story.message_id}"]
    parts += [f"of topic {story.topic}"] if story.topic else []
    parts += [f"tags {story.tags}"] if story.tags else []
    parts += [f"keys {' '.join(story.keys)}"] if story.keys else []
    return ", ".join(parts)


def _add_all(branch: Any, steps: Iterable[Step]) -> None:
    for step in steps:
        branch.add(_line(step))


def _line(step: Step) -> str:
    return f"{time_text(step.timestamp_ms):<24} {step.kind:<11} {step.text} ({step.source})"


def _group(step: Step) -> str:
    return step.group or ""

"""``contrail dlq``: messages that a group gave up."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TextIO

import typer

from contrail.cli.completion import group_names, topic_names
from contrail.cli.dead_letters import Outcome, Replay, letter_fields
from contrail.cli.exits import CommandFailed
from contrail.cli.message_format import for_terminal
from contrail.cli.message_output import Format, open_printer
from contrail.cli.output import (
    COUNT_MAX,
    AsJson,
    DryRun,
    Yes,
    agree,
    print_json,
    print_rows,
    time_text,
)
from contrail.cli.target import ContextName, NameServers, Target, open_admin, target
from contrail.cli.times import parse_time
from contrail.client.blocking.producer import Producer
from contrail.client.dead_letters import origin_topic, reason_of, retries_max_of
from contrail.client.message import ReceivedMessage
from contrail.clock import SystemClock
from contrail.errors import ConfigError
from contrail.insight.dead_letters import (
    Wanted,
    groups_with_letters,
    letters_of,
    replay_plan,
    require_letters,
)
from contrail.model.topic import Perm, dlq_topic

app = typer.Typer(no_args_is_help=True, add_completion=False)

Group = Annotated[
    str,
    typer.Argument(
        metavar="GROUP", autocompletion=group_names, help="The group whose letters they are."
    ),
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", metavar="TAG", help="Only this tag; may be repeated.")
]
Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="KEY", help="Only this key; may be repeated.")
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Only this message, by its old or its present id."),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only those given up then or later.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only those given up before.")
]

_GROUP = "contrail-cli"
_OPEN = int(Perm.READ | Perm.WRITE)
_BODY_SHOWN = 60
_STANDARD_OUTPUT = Path("-")


@app.callback()
def dlq() -> None:
    """Dead letters, which a group could not consume: list, show, replay, export, open."""


@app.command("list")
def list_groups(
    as_json: AsJson = False, namesrv: NameServers = None, ctx: ContextName = None
) -> None:
    """List the groups that have dead letters."""
    with open_admin(namesrv, ctx) as admin:
        rows = admin.run(groups_with_letters)
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            **row,
            "may be read": "no: `contrail dlq open`" if row["closed_on"] else "yes",
            "oldest": time_text(_number(row["oldest_timestamp_ms"])),
            "newest": time_text(_number(row["newest_timestamp_ms"])),
        }
        for row in rows
    ]
    print_rows(
        shown,
        ["group", "count", "oldest", "newest", "may be read"],
        empty="no group has dead letters",
    )


@app.command()
def show(
    group: Group,
    count: Annotated[
        int, typer.Option("-c", "--count", min=1, help="Show at most this many, the newest.")
    ] = 20,
    tag: Tags = None,
    key: Keys = None,
    id: Ids = None,
    since: Since = None,
    until: Until = None,
    format: Format = None,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Show a group's dead letters: where they came from, why and when they were given up."""
    if as_json and format is not None:
        raise ConfigError("--json and --format: give one of the two")
    wanted = _wanted(tag, key, id, since, until)
    with open_admin(namesrv, ctx) as admin:
        letters = sorted(admin.run(letters_of, group, wanted), key=_stored)[-count:]
        retries_max = retries_max_of(admin, group)
    if as_json:
        print_json([letter_fields(letter, retries_max) for letter in letters])
    elif format is not None:
        printer = open_printer(format, as_json=False)
        for letter in letters:
            printer.print(letter)
    else:
        rows = [_row(letter, retries_max) for letter in letters]
        print_rows(rows, list(rows[0]) if rows else [], empty="no dead letter fits")


@app.command("open")
def open_letters(
    group: Group, as_json: AsJson = False, namesrv: NameServers = None, ctx: ContextName = None
) -> None:
    """Let a group's dead letters be read and written, where contrailDeadLetterPerm closed them."""
    topic = dlq_topic(group)
    with open_admin(namesrv, ctx) as admin:
        admin.run(require_letters, group)
        perms = {name: config.perm for name, config in admin.topic_config(topic).items()}
        opened = sorted(name for name, perm in perms.items() if perm & _OPEN != _OPEN)
        for name in opened:
            admin.update_topic(topic, perm=perms[name] | _OPEN, broker=name)
    if as_json:
        print_json({"group": group, "topic": topic, "opened_on": opened})
    elif opened:
        print(f"dead letters of group {group} are open on {', '.join(opened)}")
    else:
        print(f"dead letters of group {group} were open already")


@app.command()
def replay(
    group: Group,
    tag: Tags = None,
    key: Keys = None,
    id: Ids = None,
    since: Since = None,
    until: Until = None,
    to_topic: Annotated[
        str | None,
        typer.Option(
            "--to-topic",
            metavar="TOPIC",
            autocompletion=topic_names,
            help="There, and not to where they came from.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, max=COUNT_MAX, help="At most this many, the oldest first."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="At most this many messages a second."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Send dead letters back to the topics they came from.

    They stay in the dead letter topic: a letter that is replayed twice is sent twice. For more than
    some ten thousand use `contrail pipeline replay`, which goes on where it was stopped.
    """
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"--rate {rate:g}: it must be a number that is more than 0")
    if to_topic == dlq_topic(group):
        raise ConfigError(f"--to-topic {to_topic!r}: there the letters are; choose another topic")
    wanted = _wanted(tag, key, id, since, until)
    cluster = target(namesrv, ctx)
    with cluster.admin() as admin:
        if to_topic is not None:
            admin.topic_route(to_topic)
        letters = sorted(admin.run(letters_of, group, wanted), key=_stored)[:limit]
    if letters or dry_run:
        agree(replay_plan(letters, to_topic), yes=yes, dry_run=dry_run, as_json=as_json)
    _replay(cluster, letters, to_topic, rate, as_json=as_json)


@app.command()
def export(
    group: Group,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A new file, such as dead.jsonl; - is standard output."
        ),
    ],
    tag: Tags = None,
    key: Keys = None,
    id: Ids = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, max=COUNT_MAX, help="At most this many messages."),
    ] = None,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Write dead letters to a file, a JSON object a line."""
    is_stdout = file == _STANDARD_OUTPUT
    if is_stdout and as_json:
        raise ConfigError("FILE - and --json: both write to standard output; give one of the two")
    wanted = _wanted(tag, key, id, since, until)
    with open_admin(namesrv, ctx) as admin:
        retries_max = retries_max_of(admin, group)
        # Raises for a group without dead letters before the file is created.
        letters = admin.run(letters_of, group, wanted, count_max=limit)
        if is_stdout:
            _write(sys.stdout, letters, retries_max)
            return
        try:
            with file.open("x", encoding="utf-8") as out:
                count = _write(out, letters, retries_max)
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror or error}") from error
    if as_json:
        print_json({"group": group, "file": str(file), "count": count})
    else:
        print(f"dead letters of group {group} written to {file}: {count:,}")


def _write(out: TextIO, letters: Iterable[ReceivedMessage], retries_max: int) -> int:
    """Write a line for each, and return how many."""
    count = 0
    for letter in letters:
        out.write(json.dumps(letter_fields(letter, retries_max), ensure_ascii=False) + "\n")
        count += 1
    return count


def _wanted(
    tags: list[str] | None,
    keys: list[str] | None,
    ids: list[str] | None,
    since: str | None,
    until: str | None,
) -> Wanted:
    return Wanted(
        tags or (),
        keys or (),
        ids or (),
        parse_time("--since", since),
        parse_time("--until", until),
    )


def _replay(
    cluster: Target,
    letters: list[ReceivedMessage],
    to_topic: str | None,
    rate: float | None,
    *,
    as_json: bool,
) -> None:
    told = _Told(as_json=as_json)
    try:
        with Producer(_GROUP, cluster.namesrv, **cluster.client_options()) as producer:
            job_id = f"cli-{SystemClock().now_ms()}"
            run = Replay(producer, to_topic=to_topic, rate=rate, job_id=job_id)
            try:
                for one in run.run(letters):
                    told.add(one)
            finally:
                if run.interrupted is not None:
                    told.add(run.interrupted)
    finally:
        # After an interrupt a person needs the letters that must not be sent again.
        told.end()
    failed = told.counts["failed"]
    if failed:
        raise CommandFailed(f"{failed} of {len(letters)} dead letters were not replayed")


class _Told:
    """Results of letters, as lines at once or as one JSON object at the end."""

    def __init__(self, *, as_json: bool) -> None:
        self.counts = Counter(replayed=0, skipped=0, failed=0)
        self._as_json = as_json
        self._messages: list[dict[str, object]] = []

    def add(self, one: Outcome) -> None:
        if one.outcome in self.counts:
            self.counts[one.outcome] += 1
        if self._as_json:
            self._messages.append(one.fields())
        else:
            print(_line(one.fields()))

    def end(self) -> None:
        if self._as_json:
            print_json({**self.counts, "messages": self._messages})
        else:
            print(", ".join(f"{name} {count:,}" for name, count in self.counts.items()))


def _line(fields: dict[str, object]) -> str:
    line = f"{fields['outcome']} {fields['dead_message_id']}"
    if fields["message_id"] is not None:
        place = f"{fields['broker_name']}:{fields['queue_id']}@{fields['queue_offset']}"
        line += f" -> {fields['topic']} {place} {fields['message_id']}"
    return line if fields["reason"] is None else f"{line}: {fields['reason']}"


def _row(letter: ReceivedMessage, retries_max: int) -> dict[str, object]:
    return {
        "given up": time_text(letter.store_timestamp_ms),
        "sent": time_text(letter.born_timestamp_ms),
        "origin": origin_topic(letter.properties),
        "reason": reason_of(letter.properties, letter.reconsume_times, retries_max),
        "retries": letter.reconsume_times,
        "message id": letter.message_id,
        "tags": letter.tags or "",
        "keys": letter.keys,
        "body": for_terminal(letter.body[:_BODY_SHOWN]).replace("\n", "\\n"),
    }


def _stored(letter: ReceivedMessage) -> int:
    return letter.store_timestamp_ms


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None

"""``contrail tail``: messages of topics without touching any group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

import typer

from contrail.cli.completion import topic_names
from contrail.cli.exits import ExitCode
from contrail.cli.filters import Sql, Tags, expression_of, no_expression
from contrail.cli.message_output import (
    AsJsonLines,
    Format,
    MessagePrinter,
    open_printer,
    until_reader_leaves,
)
from contrail.cli.places import StartPlace, parse_place
from contrail.cli.target import ContextName, NameServers, Target, target
from contrail.cli.topic_reading import TopicReader, queues_named, require_readable
from contrail.client.admin import Admin
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.subscriptions import Sql92
from contrail.errors import BrokerRefused

app = typer.Typer(add_completion=False)

_Show = Callable[[ReceivedMessage], None]


@app.command()
def tail(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", autocompletion=topic_names, help="Topics to read."),
    ],
    start: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            metavar="PLACE",
            help="Where to start: -10 (the newest ten), earliest, latest, @TIME, or an offset.",
        ),
    ] = "-10",
    exit_at_end: Annotated[
        bool, typer.Option("-e", "--exit", help="End at the present end, do not follow.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("-c", "--count", min=1, help="End after this many messages.")
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="BROKER:ID", help="Only this queue; may be repeated."),
    ] = None,
    tags: Tags = None,
    sql: Sql = None,
    format: Format = None,
    as_json: AsJsonLines = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Show messages of topics, then new ones, without touching any group."""
    printer = open_printer(format, as_json=as_json)
    wanted = _Wanted(
        topics, parse_place("-o", start), exit_at_end, count, queue or (), expression_of(tags, sql)
    )
    with until_reader_leaves():
        try:
            asyncio.run(_show(target(namesrv, ctx), wanted, printer))
        except KeyboardInterrupt:
            # Ctrl-C is the usual end of following.
            printer.flush()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The messages to show, and the condition that ends it."""

    topics: Sequence[str]
    start: StartPlace
    exit_at_end: bool
    count: int | None
    queues: Sequence[str]
    expression: str | Sql92


async def _show(cluster: Target, wanted: _Wanted, printer: MessagePrinter) -> None:
    async with Admin(cluster.namesrv, **cluster.client_options()) as admin:
        reader = TopicReader(admin, await _queues(admin, wanted), wanted.expression)
        ends = await reader.ends()
        starts = await reader.starts(wanted.start, ends)
        show = _shower(printer, wanted.count)
        async with aclosing(reader.stored(starts, ends)) as messages:
            async for message in messages:
                show(message)
        printer.flush()
        if wanted.exit_at_end:
            if reader.gap_count:
                raise typer.Exit(ExitCode.FAILED)
            return
        after = {one: max(starts[one], ends[one]) for one in ends}
        await reader.follow(after, _flushed(show, printer))


async def _queues(admin: Admin, wanted: _Wanted) -> list[MessageQueue]:
    every = []
    for topic in dict.fromkeys(wanted.topics):
        queues = await admin.queues(topic)
        require_readable(topic, queues)
        every += queues
        if isinstance(wanted.expression, Sql92):
            try:
                await admin.check_expression(topic, wanted.expression)
            except BrokerRefused as refusal:
                raise no_expression(wanted.expression, refusal) from refusal
    return queues_named(every, wanted.queues)


def _shower(printer: MessagePrinter, count: int | None) -> _Show:
    def show(message: ReceivedMessage) -> None:
        printer.print(message)
        if printer.count == count:
            printer.flush()
            raise typer.Exit

    return show


def _flushed(show: _Show, printer: MessagePrinter) -> _Show:
    def shown(message: ReceivedMessage) -> None:
        show(message)
        printer.flush()

    return shown

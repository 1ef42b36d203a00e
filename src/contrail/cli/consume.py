"""``contrail consume``: messages of a topic as a member of a group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from contrail.cli.completion import group_names, topic_names
from contrail.cli.filters import Sql, Tags, expression_of, no_expression
from contrail.cli.message_output import (
    AsJsonLines,
    Format,
    MessagePrinter,
    open_printer,
    until_reader_leaves,
)
from contrail.cli.places import PlaceKind, StartPlace, parse_place
from contrail.cli.target import ContextName, NameServers, Target, target
from contrail.cli.topic_reading import require_readable
from contrail.client.blocking.admin import Admin
from contrail.client.blocking.pull_consumer import PullConsumer
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.client.options import StartName
from contrail.client.subscriptions import Sql92
from contrail.errors import BrokerRefused, OptionInvalid
from contrail.model.topic import retry_topic

app = typer.Typer(add_completion=False)

_POLL_MS = 500
# With --until-end the end of a queue should be noticed soon.
_POLL_MS_TO_END = 100
_BATCH = 32
# How long a member waits for its share of the queues before it counts as having none.
_SHARE_WAIT_S = 30.0
_FROM_WHERE: dict[PlaceKind, StartName] = {
    PlaceKind.EARLIEST: "first",
    PlaceKind.LATEST: "last",
    PlaceKind.TIME: "timestamp",
}


@app.command()
def consume(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="The topic to consume."),
    ],
    group: Annotated[
        str,
        typer.Option(
            "-g",
            "--group",
            metavar="GROUP",
            autocompletion=group_names,
            help="The group to be a member of.",
        ),
    ],
    count: Annotated[
        int | None, typer.Option("-c", "--count", min=1, help="End after this many messages.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("-e", "--exit", help="End at the present end of the topic.")
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            metavar="PLACE",
            help="Where a group starts that has no offset yet: earliest, latest or @TIME.",
        ),
    ] = "earliest",
    tags: Tags = None,
    sql: Sql = None,
    format: Format = None,
    as_json: AsJsonLines = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Receive messages as a member of a group; each counts as consumed once it is printed."""
    printer = open_printer(format, as_json=as_json)
    printer.holds = True
    place, expression = _group_place(start), expression_of(tags, sql)
    cluster = target(namesrv, ctx)
    with cluster.admin() as admin, _consumer(cluster, group, place) as consumer:
        _require_readable(admin, topic, expression)
        consumer.subscribe(topic, expression)
        # Members share the retries of their group too: no other member reads its share of them.
        consumer.subscribe(retry_topic(group))
        reading = _Reading(consumer, topic, printer, count)
        with until_reader_leaves():
            reading.run(exit_at_end=exit_at_end)


def _group_place(start: str) -> StartPlace:
    place = parse_place("-o", start)
    if place.kind not in _FROM_WHERE:
        raise OptionInvalid(
            f"-o {start!r}: a new group starts at earliest, latest or @2026-11-15T10:00; "
            "`contrail tail` reads from any place, `contrail group seek` moves a group"
        )
    return place


def _require_readable(admin: Admin, topic: str, expression: str | Sql92) -> None:
    """Raise for a missing topic at once; a member would wait for it."""
    require_readable(topic, admin.queues(topic))
    if isinstance(expression, Sql92):
        try:
            admin.check_expression(topic, expression)
        except BrokerRefused as refusal:
            raise no_expression(expression, refusal) from refusal


def _consumer(cluster: Target, group: str, place: StartPlace) -> PullConsumer:
    options: dict[str, Any] = cluster.client_options()
    if place.kind is PlaceKind.TIME:
        options["consume_timestamp"] = place.number
    return PullConsumer(
        group,
        cluster.namesrv,
        auto_commit=False,
        consume_from_where=_FROM_WHERE[place.kind],
        **options,
    )


class _Reading:
    """Prints the messages of the member's share, and commits the printed ones."""

    def __init__(
        self,
        consumer: PullConsumer,
        topic: str,
        printer: MessagePrinter,
        count: int | None,
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._printer = printer
        self._count = count
        # Of a batch that is being printed.
        self._printed: dict[MessageQueue, int] = {}
        self._ends: dict[MessageQueue, int] = {}
        self._started_s = time.monotonic()

    def run(self, *, exit_at_end: bool) -> None:
        """Run until the count or the end is reached, or an interrupt."""
        try:
            self._read(exit_at_end=exit_at_end)
        except KeyboardInterrupt:
            # Ctrl-C is the usual end: the printed messages of a batch count.
            self._printer.flush()
            self._commit_printed()

    def _read(self, *, exit_at_end: bool) -> None:
        while self._left() > 0:
            if exit_at_end:
                self._note_ends()
            wait_ms = _POLL_MS_TO_END if exit_at_end else _POLL_MS
            messages = self._consumer.poll(wait_ms, min(_BATCH, self._left()))
            if messages:
                self._print(messages)
            else:
                # Messages that a filter left out count as well, and the start offset of a new
                # group.
                self._consumer.commit()
                if exit_at_end and self._is_at_end():
                    return

    def _print(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            self._printer.print(message)
            self._printed[message.queue] = message.queue_offset + 1
        self._printer.flush()
        self._commit_printed()

    def _commit_printed(self) -> None:
        """By name: a queue that was lost and assigned again meanwhile would be set back."""
        mine = set(self._consumer.assignment())
        printed = {queue: place for queue, place in self._printed.items() if queue in mine}
        if printed:
            self._consumer.commit(printed)
        self._printed.clear()

    def _left(self) -> int:
        return _BATCH if self._count is None else self._count - self._printer.count

    def _share(self) -> list[MessageQueue]:
        return [queue for queue in self._consumer.assignment() if queue.topic == self._topic]

    def _note_ends(self) -> None:
        for queue in self._share():
            if queue not in self._ends:
                self._ends[queue] = self._consumer.queue_offset_max(queue)

    def _is_at_end(self) -> bool:
        """Whether the share is read up to the queues' ends at the time of its assignment."""
        share = self._share()
        if not share:
            return time.monotonic() - self._started_s > _SHARE_WAIT_S
        return all(
            queue in self._ends and (self._consumer.committed(queue) or 0) >= self._ends[queue]
            for queue in share
        )

"""``contrail send``: messages from arguments, standard input or files."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from contrail.cli.completion import topic_names
from contrail.cli.exits import ExitCode
from contrail.cli.output import COUNT_MAX, AsJson
from contrail.cli.send_bodies import gather
from contrail.cli.sending import Sending, Tally
from contrail.cli.target import ContextName, NameServers, target
from contrail.cli.times import parse_duration, parse_time
from contrail.cli.topic_reading import queues_named
from contrail.client.blocking.producer import Producer
from contrail.client.message import Message, MessageQueue, SendReceipt
from contrail.errors import ConfigError

app = typer.Typer(add_completion=False)

_GROUP = "contrail-cli"
_DELAY_LEVEL_MAX = 18


@app.command()
def send(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="Where to send to.")
    ],
    body: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BODY]...", help="Bodies; - for lines of standard input."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="PATH", help="A file that is one body; may be repeated."),
    ] = None,
    lines: Annotated[
        list[Path] | None,
        typer.Option("--lines", metavar="PATH", help="A file with a body a line."),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", "--count", min=1, max=COUNT_MAX, help="Send each body this many times."
        ),
    ] = 1,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="At most this many messages a second."),
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", metavar="TAG", help="Their tag.")] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--keys", metavar="KEYS", help="Their keys, by which they are found."),
    ] = None,
    property: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property; may be repeated."),
    ] = None,
    sharding_key: Annotated[
        str | None,
        typer.Option("--sharding-key", metavar="KEY", help="Keep their order: a key, a queue."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="BROKER:ID", help="Into this queue.")
    ] = None,
    delay_level: Annotated[
        int | None,
        typer.Option("--delay-level", metavar="LEVEL", help="A delay of the broker's, 1-18."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="DURATION", help="Deliver after 10s, 5m, 2h.")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option("--deliver-at", metavar="TIME", help="Deliver then.")
    ] = None,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Send messages: arguments, lines of standard input, or files."""
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"--rate {rate:g}: it must be a number that is more than 0")
    if delay_level is not None and not 1 <= delay_level <= _DELAY_LEVEL_MAX:
        raise ConfigError(f"--delay-level {delay_level}: it must be 1 to {_DELAY_LEVEL_MAX}")
    bodies = gather(body or (), file or (), lines or (), repeat)
    model = Message(
        topic,
        b"",
        tags=tags,
        keys=[key for given in keys or () for key in given.split()],
        properties=dict(map(_pair, property or ())),
        sharding_key=sharding_key,
        delay_level=delay_level or 0,
        delay=None if delay is None else parse_duration("--delay", delay),
        deliver_at=parse_time("--deliver-at", deliver_at),
    )
    cluster = target(namesrv, ctx)
    with Producer(_GROUP, cluster.namesrv, **cluster.client_options()) as producer:
        place = None if queue is None else _place(producer, topic, queue)
        in_batches = not as_json and (bodies.is_stream or repeat > 1) and not _waits(model)
        show = None if in_batches else _print_json if as_json else _print_line
        sending = Sending(producer, model, place, rate=rate, on_receipt=show)
        try:
            sending.run(bodies.chunks(), in_batches=in_batches)
        finally:
            _sum_up(sending.tally, is_stream=bodies.is_stream)
    if sending.tally.failed:
        raise typer.Exit(ExitCode.FAILED)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"--property {text!r}: write it as name=value")
    return name, value


def _place(producer: Producer, topic: str, name: str) -> MessageQueue:
    (found,) = queues_named(producer.publish_queues(topic), [name])
    return found


def _waits(model: Message) -> bool:
    """Brokers take no batch of messages that wait for their time."""
    return bool(model.delay_level or model.delay is not None or model.deliver_at is not None)


def _sum_up(tally: Tally, *, is_stream: bool) -> None:
    """No summary for a single message, nor for an immediate failure, which has its own line."""
    if tally.sent + tally.failed > 1 or (is_stream and tally.sent):
        print(tally, file=sys.stderr)


def _print_line(receipt: SendReceipt) -> None:
    queue = receipt.queue
    handle = f" recall={receipt.recall_handle}" if receipt.recall_handle else ""
    place = f"{queue.broker_name}:{queue.queue_id}@{receipt.queue_offset}"
    print(f"{receipt.message_id} {place} {receipt.status.value}{handle}")


def _print_json(receipt: SendReceipt) -> None:
    fields = {
        "status": receipt.status.value,
        "message_id": receipt.message_id,
        "offset_message_id": receipt.offset_message_id,
        "topic": receipt.queue.topic,
        "broker_name": receipt.queue.broker_name,
        "queue_id": receipt.queue.queue_id,
        "queue_offset": receipt.queue_offset,
        "recall_handle": receipt.recall_handle,
    }
    print(json.dumps(fields, ensure_ascii=False))

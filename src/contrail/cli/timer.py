"""``contrail timer``: messages that wait for their time."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from contrail.cli.completion import topic_names
from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.output import (
    AsJson,
    DryRun,
    Yes,
    agree,
    complain,
    print_json,
    print_rows,
    time_text,
)
from contrail.cli.target import ContextName, NameServers, Target, open_admin, target
from contrail.cli.topic_facts import require_topic
from contrail.client.admin_messages import TimerCounts
from contrail.client.blocking.admin import Admin
from contrail.client.blocking.producer import Producer
from contrail.clock import SystemClock
from contrail.errors import BrokerRefused, MessageIllegal
from contrail.insight.pending_timers import PendingMessage, pending_messages
from contrail.model.recall_handle import RecallHandle
from contrail.protocol.codes import ResponseCode

app = typer.Typer(no_args_is_help=True, add_completion=False)

_GROUP = "contrail-cli"
_SCAN_MAX = 10_000

Scan = Annotated[
    int,
    typer.Option("--scan", min=1, help="How many of a broker's newest timed messages to read."),
]


@app.callback()
def timer() -> None:
    """Messages that wait for their time: list, recall."""


@app.command("list")
def list_timers(
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            autocompletion=topic_names,
            help="Only messages for this topic.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("-c", "--count", min=1, help="At most this many, the first due ones.")
    ] = 100,
    scan: Scan = _SCAN_MAX,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """List messages that wait, the one that is due first in front."""
    with open_admin(namesrv, ctx) as admin:
        counts = _counts(admin)
        waiting = admin.run(pending_messages, SystemClock().now_ms(), scan_max=scan)
        wanted = [one for one in waiting if topic is None or one.topic == topic]
        if topic is not None and not wanted:
            require_topic(admin, topic)
    if as_json:
        print_json(_fields(wanted[:count], len(wanted), counts))
        return
    rows = [_row(one) for one in wanted[:count]]
    print_rows(rows, list(rows[0]) if rows else [], empty="no message waits for its time")
    if len(wanted) > count:
        complain(f"{len(wanted) - count:,} more wait: see them with --count")
    _tell_unread(waiting, counts)


@app.command()
def recall(
    which: Annotated[
        str,
        typer.Argument(metavar="HANDLE|ID", help="The handle that its send returned, or its id."),
    ],
    scan: Scan = _SCAN_MAX,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Take a message back before it is delivered."""
    cluster = target(namesrv, ctx)
    text = _handle(cluster, which, scan)
    handle = RecallHandle.decode(text)
    due = time_text(handle.deliver_ms)
    what = f"message {handle.unique_key} for topic {handle.topic}"
    agree([f"drop {what}, due at {due}"], yes=yes, dry_run=dry_run, as_json=as_json)
    _take_back(cluster, handle, text)
    if not as_json:
        print(f"recalled: {what}")
        return
    told = {"topic": handle.topic, "message_id": handle.unique_key, "recall_handle": text}
    print_json({**told, "due_timestamp_ms": handle.deliver_ms, "recalled": True})


def _take_back(cluster: Target, handle: RecallHandle, text: str) -> None:
    """Recall as the producer with the handle, or else as an operator on the broker's host."""
    if not handle.seal:
        with cluster.admin() as admin:
            if admin.recall_timer(text):
                return
    with Producer(_GROUP, cluster.namesrv, **cluster.client_options()) as producer:
        producer.recall(handle.topic, text)


def _handle(cluster: Target, which: str, scan: int) -> str:
    try:
        RecallHandle.decode(which)
        return which
    except MessageIllegal:
        return _handle_of(cluster, which, scan)


def _handle_of(cluster: Target, message_id: str, scan: int) -> str:
    with cluster.admin() as admin:
        waiting = admin.run(pending_messages, SystemClock().now_ms(), scan_max=scan)
    ids = {one.message.message_id: one for one in waiting}
    found = ids.get(message_id)
    if found is None:
        raise NotFound(
            f"no message {message_id!r} waits for its time: see `contrail timer list`, or --scan "
            f"more than the newest {scan:,} of a broker"
        )
    handle = found.recall_handle
    if handle is None:
        raise CommandFailed(
            f"message {message_id} waits for delay level {found.delay_level}: brokers recall only "
            "messages that were sent with a time or a delay of their own"
        )
    return handle


def _counts(admin: Admin) -> dict[str, TimerCounts]:
    """Counts by broker name; empty where brokers are too old to count."""
    try:
        return admin.timer_counts()
    except BrokerRefused as refusal:
        if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return {}


def _fields(
    shown: list[PendingMessage], total: int, counts: dict[str, TimerCounts]
) -> dict[str, object]:
    return {
        "messages": [one.fields() for one in shown],
        "waiting_count": total,
        "brokers": [
            {
                "broker_name": name,
                "count_by_topic": dict(one.by_topic),
                "count_by_horizon_s": {str(s): count for s, count in one.by_horizon_s.items()},
            }
            for name, one in sorted(counts.items())
        ],
    }


def _row(one: PendingMessage) -> dict[str, object]:
    level = one.delay_level
    return {
        "due": time_text(one.due_timestamp_ms),
        "topic": one.topic,
        "message id": one.message.message_id,
        "tags": one.message.tags or "",
        "keys": one.message.keys,
        "waits for": f"level {level}" if level else "its time",
        "broker": one.message.queue.broker_name,
    }


def _tell_unread(waiting: list[PendingMessage], counts: dict[str, TimerCounts]) -> None:
    """The messages that brokers count and the scan did not reach."""
    read = Counter(one.message.queue.broker_name for one in waiting if not one.delay_level)
    for name, one in sorted(counts.items()):
        unread = sum(one.by_topic.values()) - read[name]
        if unread > 0:
            complain(f"broker {name} counts {unread:,} more timed messages: read on with --scan")

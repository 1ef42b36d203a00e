"""``contrail group inflight``, ``return`` and ``ack``: messages that were popped."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from contrail.cli.completion import group_names, topic_names
from contrail.cli.group_facts import require_group
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
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.protocol.bodies.in_flight import InFlight

Group = Annotated[
    str,
    typer.Argument(metavar="GROUP", autocompletion=group_names, help="The consumer group's name."),
]
Handle = Annotated[
    str,
    typer.Argument(metavar="HANDLE", help="The message's handle, as `group inflight` shows it."),
]


def inflight(
    group: Group,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="TOPIC", autocompletion=topic_names, help="Only this topic."
        ),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "-c", "--count", min=1, max=1000, help="Of each broker, at most this many messages."
        ),
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """List popped messages: who has them, until when, and how often they were tried."""
    with open_admin(namesrv, ctx) as admin:
        require_group(admin, group)
        pages = admin.in_flight(group, topic, count_max=count)
    listed = [one for page in pages for one in page.messages]
    if as_json:
        print_json([_fields(one) for one in listed])
        return
    rows = [_row(one) for one in sorted(listed, key=lambda one: one.visible_ms)]
    print_rows(rows, list(rows[0]) if rows else [], empty="no message is in flight")
    for page in pages:
        if page.total > len(page.messages):
            more = page.total - len(page.messages)
            complain(f"broker {page.broker_name} has {more:,} more: see them with --count")


def _fields(one: InFlight) -> dict[str, object]:
    fields = asdict(one)
    del fields["pop_time_ms"], fields["visible_ms"]
    return {
        **fields,
        "pop_timestamp_ms": one.pop_time_ms,
        "visible_timestamp_ms": one.visible_ms,
    }


def _row(one: InFlight) -> dict[str, object]:
    return {
        "topic": one.topic,
        "queue": one.queue_id,
        "offset": one.queue_offset,
        "attempt": one.attempts,
        "held by": one.client_id or one.holder or "unknown since a restart",
        "until": time_text(one.visible_ms),
        "message id": one.message_id,
        "handle": one.handle,
    }


def return_message(
    group: Group,
    handle: Handle,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Take a popped message from its consumer: another member gets it now."""
    with open_admin(namesrv, ctx) as admin:
        require_group(admin, group)
        agree(
            [f"let others of group {group} have {handle}"],
            yes=yes, dry_run=dry_run, as_json=as_json,
        )  # fmt: skip
        admin.return_in_flight(group, handle)
    _tell(group, handle, "returned", as_json=as_json)


def ack_message(
    group: Group,
    handle: Handle,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    namesrv: NameServers = None,
    ctx: ContextName = None,
) -> None:
    """Acknowledge a popped message for its consumer: it does not come again."""
    with open_admin(namesrv, ctx) as admin:
        require_group(admin, group)
        agree(
            [f"acknowledge {handle} for group {group}"],
            yes=yes, dry_run=dry_run, as_json=as_json,
        )  # fmt: skip
        admin.ack_in_flight(group, handle)
    _tell(group, handle, "acknowledged", as_json=as_json)


def _tell(group: str, handle: str, decision: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"group": group, "handle": handle, "decision": decision})
    else:
        print(f"{decision} for group {group}: {handle}")

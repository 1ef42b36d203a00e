"""``contrail client``: connected clients, and a consumer's own running info."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from contrail.cli.client_facts import CONSUMER, PRODUCER, Client, clients, running_facts
from contrail.cli.completion import group_names
from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.group_facts import require_group
from contrail.cli.output import AsJson, print_facts, print_json, print_rows, time_text
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError

app = typer.Typer(no_args_is_help=True, add_completion=False)

GroupName = Annotated[
    str | None,
    typer.Option(
        "-g", "--group", metavar="GROUP", autocompletion=group_names, help="Only in this group."
    ),
]


@app.callback()
def client() -> None:
    """Connected producers and consumers, of all languages."""


@app.command("list")
def list_clients(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    group: GroupName = None,
    as_json: AsJson = False,
) -> None:
    """List all producers and consumers with their groups."""
    with open_admin(namesrv, ctx) as admin:
        rows = [one.row() for one in clients(admin, group)]
        if group is not None and not rows:
            # A producer group exists by its members alone, a consumer group also without any.
            require_group(admin, group, may_be_made=False)
    if as_json:
        print_json(rows)
        return
    columns = ["kind", "group", "client_id", "address", "language", "release", "brokers"]
    empty = "nobody is connected" if group is None else f"nobody is connected for group {group}"
    print_rows(rows, columns, empty=empty)


@app.command()
def show(
    client_id: Annotated[
        str, typer.Argument(metavar="ID", help="A client id, as `contrail client list` shows it.")
    ],
    namesrv: NameServers = None,
    ctx: ContextName = None,
    group: GroupName = None,
    stack: Annotated[
        bool,
        typer.Option(
            "--stack", help="Also the stacks of its threads; not every client sends them."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a client: its groups and, of a consumer, its queues, rates and settings."""
    with open_admin(namesrv, ctx) as admin:
        found = [one for one in clients(admin, group) if one.connection.client_id == client_id]
        if not found:
            where = "" if group is None else f" for group {group!r}"
            raise NotFound(
                f"no client {client_id!r} is connected{where}: `contrail client list` shows them "
                "all"
            )
        facts = _facts(admin, found, stack)
    if as_json:
        print_json(facts)
    else:
        _print(facts, with_stack=stack)


def _facts(admin: Admin, found: list[Client], stack: bool) -> dict[str, Any]:
    row = found[0].row()
    return {
        **{name: row[name] for name in ("client_id", "address", "language", "version", "release")},
        "produces_for": [one.group for one in found if one.kind == PRODUCER],
        "consumes_for": [_consumer(admin, one, stack) for one in found if one.kind == CONSUMER],
    }


def _consumer(admin: Admin, one: Client, stack: bool) -> dict[str, Any]:
    try:
        info = admin.running_info(one.group, one.connection.client_id, jstack=stack)
    except ClientError as error:
        raise CommandFailed(f"the client is connected, but does not tell: {error}") from error
    return {"group": one.group, **one.details, **running_facts(info)}


def _print(facts: dict[str, Any], *, with_stack: bool) -> None:
    head = {name: facts[name] for name in ("client_id", "address", "language", "release")}
    head["produces for"] = facts["produces_for"] or None
    head["consumes for"] = [one["group"] for one in facts["consumes_for"]] or None
    print_facts(head)
    for one in facts["consumes_for"]:
        _print_consumer(one, with_stack=with_stack)


def _print_consumer(one: dict[str, Any], *, with_stack: bool) -> None:
    print(f"\ngroup {one['group']}: {one['message_model']}, {one['consume_type']}")
    print_rows(one["subscriptions"], ["topic", "expression", "expression_type"], empty="")
    queues = [
        {
            "queue": f"{row['topic']} {row['broker']}:{row['queue_id']}",
            "offset": row["consumer_offset"],
            "held": row["cached_count"],
            "locked": row["is_locked"],
            "last pull": time_text(row["last_pull_ms"]),
            "last consume": time_text(row["last_consume_ms"]),
        }
        for row in one["queues"]
    ]
    print_rows(queues, list(queues[0]) if queues else [], empty="it has no queues")
    rates = [{name: row[name] for name in row if name != "pull_per_second"} for row in one["rates"]]
    print_rows(rates, list(rates[0]) if rates else [], empty="it consumed nothing yet")
    print_facts(one["properties"])
    if with_stack:
        print()
        print(one["stack"] or "this client does not send the stacks of its threads")

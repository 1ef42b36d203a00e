"""``contrail group``: consumer groups, their members, offsets and settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from contrail.cli.completion import group_names, topic_names
from contrail.cli.exits import CommandFailed
from contrail.cli.group_facts import member_words, require_group, total
from contrail.cli.group_in_flight import ack_message, inflight, return_message
from contrail.cli.group_seek import clone, seek
from contrail.cli.output import (
    AsJson,
    DryRun,
    Yes,
    agree,
    print_facts,
    print_json,
    print_rows,
    time_text,
)
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.client.blocking.admin import Admin
from contrail.errors import ConfigError, RouteMissing
from contrail.insight.groups import described, lag_rows, listed, setting_values
from contrail.model.group import check_not_system_group
from contrail.model.topic import RETRY_PREFIX, dlq_topic, retry_topic

app = typer.Typer(no_args_is_help=True, add_completion=False)

Group = Annotated[
    str,
    typer.Argument(metavar="GROUP", autocompletion=group_names, help="The consumer group's name."),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster.")
]
_LISTED = ("group", "members", "model", "consume_type", "topics", "lag", "consumed_per_second")
_QUEUE_COLUMNS = ["topic", "broker", "queue_id", "queue_offset_max", "consumer_offset", "lag"]


@app.callback()
def group() -> None:
    """Consumer groups: list, describe, lag, seek, clone, in flight, create, delete."""


@app.command("list")
def list_groups(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    cluster: Cluster = None,
    internal: Annotated[bool, typer.Option("--internal", help="Also the system's groups.")] = False,
    as_json: AsJson = False,
) -> None:
    """List all groups: members, model, topics and lag."""
    with open_admin(namesrv, ctx) as client:
        found = client.run(listed, cluster=cluster, internal=internal)
    rows = [{name: getattr(row, name) for name in _LISTED} for row in found]
    if as_json:
        print_json(rows)
        return
    columns = ["group", "members", "model", "topics", "lag", "consumed_per_second"]
    print_rows(rows, columns, empty="there are no consumer groups")


@app.command()
def describe(
    group: Group, namesrv: NameServers = None, ctx: ContextName = None, as_json: AsJson = False
) -> None:
    """Show members, subscriptions, offsets, settings, and where members disagree."""
    with open_admin(namesrv, ctx) as client:
        require_group(client, group)
        told = client.run(described, group)
    if as_json:
        print_json(told)
    else:
        _print_group(told)


def _print_group(told: dict[str, Any]) -> None:
    names = ("group", "model", "consume_type", "consume_from", "lag", "consumed_per_second")
    print_facts({name.replace("_", " "): told[name] for name in (*names, "dead_letter_topic")})
    columns = ["client_id", "address", "language", "brokers", "queues"]
    print_rows(told["members"], columns, empty="nobody is on line")
    print_rows(told["subscriptions"], ["topic", "type", "expression"], empty="no subscriptions")
    _print_disagreements(told["disagreements"])
    queues = [{**row, "last": time_text(row["last_timestamp_ms"])} for row in told["queues"]]
    columns = [*_QUEUE_COLUMNS, "in_flight", "last", "client_id"]
    print_rows(queues, columns, empty="it has not consumed anything yet")
    settings = [{"broker": broker, **row} for broker, row in told["settings"].items()]
    columns = ["broker", "consume_enable", "retry_count_max", "consume_message_orderly"]
    print_rows(settings, [*columns, "consume_broadcast_enable"], empty="it has no settings")
    if told["settings_differ"]:
        print(f"its brokers have different settings: contrail group create {told['group']} …")


def _print_disagreements(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(f"members disagree about topic {row['topic']}: messages are lost to the group")
        for one in row["members"]:
            print(f"  {one['client_id']}: {one['expression'] or 'does not subscribe'}")


@app.command()
def lag(
    group: Group,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="TOPIC", autocompletion=topic_names, help="Only this topic."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how far a group is behind, by queue and in all."""
    with open_admin(namesrv, ctx) as client:
        require_group(client, group)
        if topic is not None:
            client.topic_route(topic)
        found = client.lag(group, topic)
    rows = [row for row in lag_rows(found) if topic is None or row["topic"] == topic]
    for row in rows:
        del row["client_id"]
    told = {
        "group": group,
        "lag": total(rows, "lag"),
        "consumed_per_second": found.consumed_per_second,
        "queues": rows,
    }
    if as_json:
        print_json(told)
        return
    shown = [{**row, "last": time_text(row["last_timestamp_ms"])} for row in rows]
    columns = [*_QUEUE_COLUMNS, "in_flight", "last"]
    print_rows(shown, columns, empty="it has not consumed anything yet")
    print(f"lag of {group}: {told['lag']:,}")


app.command()(seek)
app.command()(clone)
app.command()(inflight)
app.command("return")(return_message)
app.command("ack")(ack_message)


@app.command()
def create(
    group: Group,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    cluster: Cluster = None,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="NAME", help="Only on this broker.")
    ] = None,
    retry_max: Annotated[
        int | None,
        typer.Option("--retry-max", min=-1, metavar="N", help="Retries before a dead letter."),
    ] = None,
    orderly: Annotated[
        bool | None, typer.Option("--orderly/--no-orderly", help="Messages come in order.")
    ] = None,
    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether it may consume at all.")
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option("--broadcast/--no-broadcast", help="Whether members may broadcast."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a group on every broker; an existing one gets the given settings."""
    if cluster is not None and broker is not None:
        raise ConfigError("--cluster and --broker: give one of the two")
    check_not_system_group(group)
    wanted: dict[str, Any] = {
        "retry_count_max": retry_max,
        "consume_message_orderly": orderly,
        "consume_enable": consume,
        "consume_broadcast_enable": broadcast,
    }
    settings = {name: value for name, value in wanted.items() if value is not None}
    with open_admin(namesrv, ctx) as client:
        names = _set_group(client, group, settings, cluster, broker)
        tables = client.group_configs()
    rows = {name: setting_values(tables[name][group]) for name in names}
    if as_json:
        print_json({"group": group, "settings": rows})
        return
    print(f"group {group} is set on {', '.join(names)}")


def _set_group(
    client: Admin,
    group: str,
    settings: dict[str, Any],
    cluster: str | None,
    broker: str | None,
) -> list[str]:
    tables = client.group_configs(cluster=cluster)
    chosen = list(tables) if broker is None else [client.broker_runtime(broker).broker.broker_name]
    for name in chosen:
        if group in tables[name]:
            client.update_group(group, broker=name, **settings)
        else:
            client.create_group(group, broker=name, **settings)
    return chosen


@app.command()
def delete(
    group: Group,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    cluster: Cluster = None,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Forget its settings only.")
    ] = False,
    topics: Annotated[
        bool, typer.Option("--topics", help="Also delete its retry and dead-letter topics.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Also while members are on line.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete a group's settings and offsets, after a look at what is lost."""
    check_not_system_group(group)
    with open_admin(namesrv, ctx) as client:
        require_group(client, group, may_be_made=False)
        agree(
            _deletion(client, group, keep_offsets, topics),
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
        )
        members = client.group_connections(group, cluster=cluster)
        if members.is_online and not force:
            raise CommandFailed(
                f"group {group!r} has {member_words(members)}, which would create it again: stop "
                "them first, or say --force"
            )
        tables = client.group_configs(cluster=cluster)
        client.delete_group(
            group, cluster=cluster, remove_offsets=not keep_offsets, remove_topics=topics
        )
    if not as_json:
        print(f"deleted: {group}")
        return
    told = {"group": group, "brokers": sorted(name for name in tables if group in tables[name])}
    print_json({**told, "offsets": not keep_offsets, "topics": topics, "deleted": True})


def _deletion(client: Admin, group: str, keep_offsets: bool, topics: bool) -> list[str]:
    members = client.group_connections(group)
    lines = [f"group {group} will be deleted ({member_words(members)})"]
    if not keep_offsets:
        behind = client.lag(group)
        read = [topic for topic in behind.by_topic if not topic.startswith(RETRY_PREFIX)]
        lines.append(f"  its offsets on {', '.join(read) or 'no topic'} are lost")
    if topics:
        for name in (retry_topic(group), dlq_topic(group)):
            count = _message_count(client, name)
            lines.append(f"  topic {name} is deleted with {count:,} messages")
    return lines


def _message_count(client: Admin, topic: str) -> int:
    try:
        return client.topic_stats(topic).count
    except RouteMissing:
        return 0

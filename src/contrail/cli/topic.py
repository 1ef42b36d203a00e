"""``contrail topic``: lists, routes and changes of topics."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from contrail.cli.assignments import parse_pairs
from contrail.cli.completion import topic_names
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
from contrail.cli.perms import parse_perm, perm_words
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.topic_facts import require_topic
from contrail.cli.topic_queues import grow, require_queue_count, shrink
from contrail.client.blocking.admin import Admin
from contrail.errors import ConfigError, OptionInvalid, RouteMissing
from contrail.insight.topics import described, listed, listed_with_stats, queue_rows, route_rows
from contrail.insight.words import perm_text
from contrail.model.topic import MESSAGE_TYPE_ATTRIBUTE, TopicConfig, check_not_system_topic

app = typer.Typer(no_args_is_help=True, add_completion=False)

_MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
_QUEUES_DEFAULT = 8

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="The topic's name.")
]


@app.callback()
def topic() -> None:
    """Create topics, list and describe them, grow, shrink and delete them."""


@app.command()
def create(
    topic: Topic,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues",
            min=1,
            metavar="N",
            help=f"Queues on each broker; {_QUEUES_DEFAULT} for a new topic.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME", help="On every broker of this cluster, alike."),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="NAME", help="Only on this broker."),
    ] = None,
    perm: Annotated[
        str | None,
        typer.Option("--perm", metavar="PERM", help="Permission: rw (default), r, w, none."),
    ] = None,
    order: Annotated[
        bool | None,
        typer.Option("--order/--no-order", help="Keep its queues in place while a broker is away."),
    ] = None,
    message_type: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help=f"Message type: {', '.join(_MESSAGE_TYPES)}."),
    ] = None,
    attributes: Annotated[
        list[str] | None,
        typer.Option("--attribute", metavar="NAME=VALUE", help="An attribute; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic on every broker; an existing one gets more queues or other settings."""
    check_not_system_topic(topic)
    require_queue_count(queues)
    given = parse_pairs("--attribute", attributes)
    if message_type is not None:
        given[MESSAGE_TYPE_ATTRIBUTE] = _message_type(message_type)
    settings: dict[str, Any] = {
        "perm": None if perm is None else parse_perm("--perm", perm),
        "order": order,
        "attributes": given or None,
    }
    with open_admin(namesrv, ctx) as client:
        names = _set_topic(client, topic, queues, settings, cluster=cluster, broker=broker)
        configs = client.topic_config(topic)
    rows = [{"broker": name, **_config_row(configs[name])} for name in names]
    if as_json:
        print_json({"topic": topic, "brokers": rows})
        return
    for count, sharers in _by_count(rows).items():
        print(f"topic {topic} has {count} queues on {', '.join(sharers)}")


def _set_topic(
    client: Admin,
    topic: str,
    queues: int | None,
    settings: dict[str, Any],
    *,
    cluster: str | None,
    broker: str | None,
) -> list[str]:
    """Create the topic where it is missing, and change only the given settings where it exists."""
    if cluster is not None and broker is not None:
        raise ConfigError("--cluster and --broker: give one of the two")
    given = {name: value for name, value in settings.items() if value is not None}
    known = _configs(client, topic)
    if not known:
        return client.create_topic(
            topic, queues=queues or _QUEUES_DEFAULT, cluster=cluster, broker=broker, **given
        )
    chosen = _chosen(client, cluster, broker)
    _require_no_fewer(topic, queues, {name: known[name] for name in chosen if name in known})
    for name in chosen:
        if name not in known:
            client.create_topic(topic, queues=queues or _QUEUES_DEFAULT, broker=name, **given)
        else:
            client.update_topic(topic, queues=queues, broker=name, **given)
    return chosen


def _configs(client: Admin, topic: str) -> dict[str, TopicConfig]:
    try:
        return client.topic_config(topic)
    except RouteMissing:
        return {}


def _chosen(client: Admin, cluster: str | None, broker: str | None) -> list[str]:
    if broker is not None:
        return [client.broker_runtime(broker).broker.broker_name]
    return [one.broker_name for one in client.brokers(cluster=cluster) if one.is_master]


def _require_no_fewer(topic: str, queues: int | None, known: dict[str, TopicConfig]) -> None:
    for name, config in known.items():
        has = max(config.read_queue_count, config.write_queue_count)
        if queues is not None and queues < has:
            raise ConfigError(
                f"topic {topic!r} has {has} queues on {name}, and messages may wait in them: "
                f"use `contrail topic shrink {topic} --queues {queues}`"
            )


def _message_type(text: str) -> str:
    if text.upper() not in _MESSAGE_TYPES:
        raise OptionInvalid(f"--type {text!r} is none of {', '.join(_MESSAGE_TYPES)}")
    return text.upper()


def _config_row(config: TopicConfig) -> dict[str, Any]:
    return {
        "read_queues": config.read_queue_count,
        "write_queues": config.write_queue_count,
        "perm": perm_text(config.perm),
        "order": config.order,
        "attributes": dict(config.attributes),
    }


def _by_count(rows: list[dict[str, Any]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for row in rows:
        found.setdefault(row["write_queues"], []).append(row["broker"])
    return found


@app.command("list")
def list_topics(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal", help="Also topics of the system, of retries and of dead letters."
        ),
    ] = False,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Only topics of this cluster.")
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="With queues, messages, rates and last times.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics of all brokers, a line each."""
    with open_admin(namesrv, ctx) as client:
        ask = listed_with_stats if stats else listed
        rows = client.run(ask, cluster=cluster, internal=internal)
    if as_json:
        print_json(rows)
    elif stats:
        _print_stats(rows)
    else:
        for row in rows:
            print(row["topic"])


def _print_stats(rows: list[dict[str, Any]]) -> None:
    shown = [{**row, "last": time_text(row["last_store_timestamp_ms"])} for row in rows]
    columns = ["topic", "kind", "queues", "messages", "put_per_second", "last"]
    print_rows(shown, columns, empty="there are no topics")


@app.command()
def describe(
    topic: Topic, namesrv: NameServers = None, ctx: ContextName = None, as_json: AsJson = False
) -> None:
    """Show a topic's brokers and settings, how far each queue reaches, and its consumer groups."""
    with open_admin(namesrv, ctx) as client:
        told = client.run(described, topic)
    if as_json:
        print_json(told)
        return
    names = ("topic", "clusters", "messages", "put_per_second", "groups", "order_config")
    print_facts({name.replace("_", " "): _or_none(told[name]) for name in names})
    columns = ["broker", "addresses", "read_queues", "write_queues", "perm", "order", "attributes"]
    print_rows(told["brokers"], columns, empty="no broker has it")
    queues = [{**row, "last": time_text(row["last_store_timestamp_ms"])} for row in told["queues"]]
    columns = ["broker", "queue_id", "queue_offset_min", "queue_offset_max", "messages", "last"]
    print_rows(queues, columns, empty="it has no queues that may be read")


def _or_none(value: Any) -> Any:
    """An empty value is shown as nothing, a zero as 0."""
    return None if value in ([], {}) else value


@app.command()
def route(
    topic: Topic, namesrv: NameServers = None, ctx: ContextName = None, as_json: AsJson = False
) -> None:
    """Show which brokers have a topic, with how many queues, and with which permission."""
    with open_admin(namesrv, ctx) as client:
        found = client.topic_route(topic)
    rows = route_rows(found)
    if as_json:
        print_json({"topic": topic, "order_config": found.order_config or None, "brokers": rows})
        return
    shown = [
        {
            "broker": row["broker"],
            "addresses": [row["addresses"][broker_id] for broker_id in sorted(row["addresses"])],
            "read queues": row["read_queues"],
            "write queues": row["write_queues"],
            "may be": perm_words(parse_perm("perm", row["perm"])),
        }
        for row in rows
    ]
    print_rows(shown, ["broker", "addresses", "read queues", "write queues", "may be"], empty="")


app.command()(grow)
app.command()(shrink)


@app.command()
def delete(
    topic: Topic,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Only from this cluster.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with all its messages, after a look at what is lost."""
    check_not_system_topic(topic)
    with open_admin(namesrv, ctx) as client:
        require_topic(client, topic)
        agree(_deletion(client, topic), yes=yes, dry_run=dry_run, as_json=as_json)
        brokers = _holders(client, topic, cluster)
        client.delete_topic(topic, cluster=cluster)
    if as_json:
        print_json({"topic": topic, "brokers": brokers, "deleted": True})
    else:
        print(f"deleted: {topic}")


def _holders(client: Admin, topic: str, cluster: str | None) -> list[str]:
    """The brokers that have the topic, of one cluster if given."""
    chosen = {one.broker_name for one in client.brokers(cluster=cluster)}
    return sorted({row["broker"] for row in route_rows(client.topic_route(topic))} & chosen)


def _deletion(client: Admin, topic: str) -> list[str]:
    rows = client.run(queue_rows, topic)
    brokers = sorted({row["broker"] for row in rows})
    count = sum(row["messages"] for row in rows)
    lines = [
        f"topic {topic} will be deleted from {', '.join(brokers)}: "
        f"{count:,} messages in {len(rows)} queues are lost"
    ]
    for group in client.topic_consumers(topic, allow_partial=True):
        members = len(client.group_connections(group, allow_partial=True).connections)
        state = f"{members} members on line" if members else "nobody on line"
        lines.append(f"  group {group} consumes it ({state})")
    return lines

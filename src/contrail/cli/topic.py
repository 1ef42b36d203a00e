"""``contrail topic``: what topics there are, where they are, and new ones."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.model.topic import Perm
from contrail.protocol.bodies.routes import TopicRouteData

app = typer.Typer(no_args_is_help=True, add_completion=False)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.callback()
def topic() -> None:
    """Create topics, list them, and see which brokers have them."""


@app.command()
def create(
    topic: Topic,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    queues: Annotated[
        int, typer.Option("--queues", min=1, metavar="N", help="Queues on each broker.")
    ] = 8,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME", help="Only on the brokers of this cluster."),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="NAME", help="Only on this broker."),
    ] = None,
) -> None:
    """Create a topic on every broker, or change how many queues it has."""
    with open_admin(namesrv, ctx) as client:
        made = client.create_topic(topic, queues=queues, cluster=cluster, broker=broker)
    print(f"topic {topic} has {queues} queues on {', '.join(made)}")


@app.command("list")
def list_topics(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also those of the system, retries, dead letters.")
    ] = False,
) -> None:
    """List the topics of all brokers, a line each."""
    with open_admin(namesrv, ctx) as client:
        names = client.topics(internal=internal)
    for name in names:
        print(name)


@app.command()
def route(topic: Topic, namesrv: NameServers = None, ctx: ContextName = None) -> None:
    """Show which brokers have a topic, with how many queues, and what may be done there."""
    with open_admin(namesrv, ctx) as client:
        found = client.topic_route(topic)
    Console().print(_table(found))


def _table(route: TopicRouteData) -> Table:
    addresses = {
        broker.broker_name: ", ".join(
            broker.addresses[number] for number in sorted(broker.addresses)
        )
        for broker in route.brokers
    }
    table = Table("broker", "addresses", "read queues", "write queues", "may be")
    for queue in route.queues:
        may_be = [
            word for word, bit in (("read", Perm.READ), ("written", Perm.WRITE)) if queue.perm & bit
        ]
        table.add_row(
            queue.broker_name,
            addresses.get(queue.broker_name, ""),
            str(queue.read_queue_count),
            str(queue.write_queue_count),
            " and ".join(may_be) or "neither read nor written",
        )
    return table

"""``contrail cluster``: the brokers of a cluster and how they are."""

from __future__ import annotations

from typing import Annotated

import typer

from contrail.cli.broker_figures import print_figures
from contrail.cli.output import AsJson, print_json
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.clock import SystemClock
from contrail.insight.brokers import broker_rows, totals_of

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def cluster() -> None:
    """The brokers of a cluster and how they are."""


@app.command()
def status(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each broker's address, version, rates, disk, messages of today and permission."""
    with open_admin(namesrv, ctx) as client:
        now_ms = SystemClock().now_ms()
        rows = client.run(broker_rows, client.brokers(cluster=cluster), now_ms)
        servers = list(client.name_servers)
    totals = totals_of(rows)
    if as_json:
        print_json({"name_servers": servers, "brokers": rows, "totals": totals})
    else:
        print_figures(rows, totals)

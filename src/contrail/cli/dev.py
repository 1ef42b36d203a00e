"""``contrail dev``: a NameServer and a broker in one process, to try things out."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrail.cli.assignments import parse_pairs
from contrail.cli.logs import LogLevel, set_up_logs
from contrail.cli.output import AsJson
from contrail.cli.server_options import LogLevelOption, Settings
from contrail.errors import ConfigError

if TYPE_CHECKING:
    from contrail.cli.dev_servers import DevServers

_NAMESRV_PORT = 9876

app = typer.Typer(add_completion=False)

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="Keep everything here and go on with it the next time; else a temporary folder.",
    ),
]
Port = Annotated[
    int,
    typer.Option("--port", metavar="N", help="The NameServer's port; 0 takes free ones.", min=0),
]
BrokerPort = Annotated[
    int | None,
    typer.Option(
        "--broker-port",
        metavar="N",
        help="The broker's port, with its fast port two below; 0 takes free ones. "
        "By default 10911, or free ones when it is taken.",
        min=0,
    ),
]


ReplicaCount = Annotated[
    int,
    typer.Option(
        "--replicas",
        metavar="N",
        help="Slaves of the broker; each broker is then a process that can be killed.",
        min=0,
        max=8,
    ),
]
Failover = Annotated[
    bool,
    typer.Option(
        "--failover",
        help="Three brokers that elect their leader; each is a process that can be killed.",
    ),
]
RestartAfter = Annotated[
    float,
    typer.Option(
        "--restart-after",
        metavar="SECONDS",
        help="With --replicas or --failover: how long a killed broker stays away.",
        min=0.0,
    ),
]


@app.command()
def dev(
    folder: Folder = None,
    port: Port = _NAMESRV_PORT,
    broker_port: BrokerPort = None,
    replicas: ReplicaCount = 0,
    failover: Failover = False,
    restart_after: RestartAfter = 20.0,
    console: Annotated[
        bool,
        typer.Option("--console", help="Also the web console's server, with a link to log in."),
    ] = False,
    settings: Settings = None,
    as_json: AsJson = False,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Run a NameServer and a broker on this host, and say what to try; Ctrl-C ends all."""
    assignments = parse_pairs("--set", settings)
    set_up_logs(level=log_level)
    if console:
        from contrail.cli.console import require_parts

        require_parts()
    # Nothing that is made until the servers are ready is garbage; they switch it on again.
    gc.disable()
    # The servers are most of this command's imports; its help needs none of them.
    from contrail.cli.dev_servers import DevServers, Wanted
    from contrail.cli.serving import serve

    if failover and replicas:
        raise ConfigError("--failover and --replicas exclude each other: a group has no slaves")
    wanted = Wanted(
        folder, port, broker_port, assignments, replicas, restart_after, console, failover
    )
    raise typer.Exit(
        serve(
            lambda: DevServers(wanted),
            on_ready=_ready_json if as_json else _ready_text,
            failed_event=lambda servers: servers.failed,
        )
    )


def _ready_json(servers: DevServers) -> None:
    from contrail.cli.output import print_json

    print_json(servers.facts())
    _hand_over()


def _ready_text(servers: DevServers) -> None:
    from contrail.cli.dev_text import ready_text

    print(ready_text(servers.facts()))
    _hand_over()


def _hand_over() -> None:
    """A program that waits for the first line reads it through a pipe."""
    sys.stdout.flush()

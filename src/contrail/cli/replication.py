"""``contrail replication``: how masters, slaves and groups stand, and their secret."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from contrail.broker.services.cluster_secret import (
    SECRET_BYTES,
    read_cluster_secret,
    write_cluster_secret,
)
from contrail.cli.output import AsJson, print_facts, print_json
from contrail.cli.replication_detach import detach
from contrail.cli.replication_members import init, replace
from contrail.cli.replication_status import status
from contrail.cli.replication_transfer import transfer
from contrail.protocol.handshake import fingerprint_of

app = typer.Typer(add_completion=False, no_args_is_help=True)

# A text, not a path: a blank one would name the working folder.
SecretFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The file of contrailClusterSecretFile.")
]


@app.callback()
def replication() -> None:
    """Masters, slaves and failover groups: how they stand, who leads, and their secret."""


app.command()(status)
app.command()(transfer)
app.command()(init)
app.command()(replace)
app.command()(detach)


@app.command()
def secret(
    file: SecretFile,
    show: Annotated[
        bool,
        typer.Option("--show", help="Make none: show the fingerprint of the file's secret."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the secret that the brokers of a cluster share, and show its fingerprint."""
    path = Path(file)
    if not show:
        write_cluster_secret(path, secrets.token_bytes(SECRET_BYTES))
    facts = {"file": file, "fingerprint": fingerprint_of(read_cluster_secret(path))}
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)

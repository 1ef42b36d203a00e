"""``contrail audit``: who changed users and rights of a broker, and who was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contrail.broker.services.audit_trail import DONE, FILE_NAME, REFUSED, read_trail
from contrail.cli.exits import NotFound
from contrail.cli.output import AsJson, print_json, print_rows
from contrail.errors import ConfigError

app = typer.Typer(add_completion=False)

_LINES = 50
_COLUMNS = ["time", "outcome", "user", "address", "what"]


@app.command()
def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The store folder of a broker on this machine.")
    ],
    last: Annotated[
        int, typer.Option("--last", metavar="COUNT", min=1, help="How many lines, the newest.")
    ] = _LINES,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Of this user only.")] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Refusals only.")] = False,
    changes: Annotated[bool, typer.Option("--changes", help="Changes only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read the audit trail in a store folder, of a broker that runs or stands still."""
    if refused and changes:
        raise ConfigError("say --refused or --changes; without both there are all lines")
    if not (folder / FILE_NAME).exists():
        raise NotFound(f"{folder} has no {FILE_NAME}: a broker with access control writes it")
    outcome = REFUSED if refused else DONE if changes else ""
    try:
        lines = read_trail(folder, last, user=user, outcome=outcome)
    except OSError as error:
        raise ConfigError(f"the audit trail in {folder} cannot be read: {error}") from error
    if as_json:
        print_json(lines)
    else:
        print_rows(lines, _COLUMNS, empty="there are no such lines")

"""``contrail ctx``: named clusters, so that no address is typed twice."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from contrail.cli.contexts import (
    Context,
    Contexts,
    change_contexts,
    contexts_path,
    load_contexts,
)
from contrail.cli.output import AsJson, print_json, print_rows
from contrail.client.settings import ClientSettings

app = typer.Typer(no_args_is_help=True, add_completion=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.")]


@app.callback()
def ctx() -> None:
    """Named clusters, Contrail's or Apache's: add, list, use, show, remove."""


@app.command()
def add(
    name: Name,
    namesrv: Annotated[
        str, typer.Argument(metavar="ADDRESSES", help="NameServers, as host:port;host:port.")
    ],
    tls: Annotated[bool, typer.Option("--tls", help="Speak TLS with its servers.")] = False,
    tls_ca: Annotated[
        str | None,
        typer.Option("--tls-ca", metavar="FILE", help="Check servers against these certificates."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a cluster, or change one; the first one added is in use at once."""
    ClientSettings.of(namesrv)
    made = Context(namesrv, tls or tls_ca is not None, tls_ca)
    contexts = change_contexts(contexts_path(), lambda known: known.with_context(name, made))
    if as_json:
        print_json(_row(contexts, name))
    else:
        print(f"context {name}: {namesrv}")


@app.command("list")
def list_contexts(as_json: AsJson = False) -> None:
    """List all contexts; a star marks the one in use."""
    contexts = load_contexts(contexts_path())
    rows = [_row(contexts, name) for name in sorted(contexts.by_name)]
    if as_json:
        print_json(rows)
        return
    shown = [{**row, "in use": "*" if row["current"] else ""} for row in rows]
    print_rows(
        shown,
        ["in use", "name", "namesrv", "tls"],
        empty="no contexts yet; add one: contrail ctx add NAME HOST:9876",
    )


@app.command()
def use(name: Name, as_json: AsJson = False) -> None:
    """Make a context the default of all commands."""
    contexts = change_contexts(contexts_path(), lambda known: known.using(name))
    if as_json:
        print_json(_row(contexts, name))
    else:
        print(f"in use: {name}")


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A context; else the one in use.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a context's addresses."""
    contexts = load_contexts(contexts_path())
    shown = name or contexts.current
    if shown is None:
        print_json(None) if as_json else print("no context is in use")
        return
    contexts.named(shown)
    if as_json:
        print_json(_row(contexts, shown))
    else:
        print_rows([_row(contexts, shown)], ["name", "namesrv", "tls", "tls_ca"], empty="")


@app.command()
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forget a context; the cluster is not touched."""
    contexts = change_contexts(contexts_path(), lambda known: known.without(name))
    if as_json:
        print_json({"name": name, "current": contexts.current, "removed": True})
    else:
        print(f"forgotten: {name}")


def _row(contexts: Contexts, name: str) -> dict[str, object]:
    fields = asdict(contexts.by_name[name])
    return {"name": name, **fields, "current": name == contexts.current}

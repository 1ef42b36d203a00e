"""``contrail pipeline sql``: ask live topics, archives and store folders."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from contrail.cli.assignments import parse_pairs
from contrail.cli.output import complain
from contrail.cli.pipeline.ending import is_ending, quiet_end
from contrail.cli.pipeline.shared import (
    AsJson,
    Conf,
    DryRun,
    Master,
    ProgressBar,
    clear,
    failures,
    print_summary,
    reached,
    require_spark,
    shown_progress,
)
from contrail.cli.store_folder import found_store
from contrail.cli.target import ContextName, NameServers

if TYPE_CHECKING:
    from contrail.pipeline.jobs.sql import SqlSettings
    from contrail.pipeline.jobs.summary import Summary

_OUTPUTS = ("table", "csv", "json", "parquet")


def sql(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="Spark SQL over topic.NAME, archive.NAME and store.NAME.",
        ),
    ],
    namesrv: NameServers = None,
    ctx: ContextName = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="DIR", help="The archive that archive.NAME reads."),
    ] = None,
    store_path: Annotated[
        str | None,
        typer.Option(
            "--store-path",
            metavar="DIR",
            callback=found_store,
            help="The store that store.NAME reads.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", metavar="FORM", help="table, csv, json or parquet.")
    ] = "table",
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="Write the result: one file if the name ends in .csv, .json, .jsonl or .parquet, "
            "else a folder.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="At most this many rows."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="An option of the source for live topics."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Run a query with Spark and print its result, or write it."""
    if output not in _OUTPUTS:
        raise typer.BadParameter(
            f"{output!r} is none of {', '.join(_OUTPUTS)}", param_hint="--output"
        )
    require_spark()
    with failures():
        cluster = reached(namesrv, ctx, option)
    from contrail.pipeline.jobs.sql import SqlSettings
    from contrail.pipeline.jobs.sql_output import Output

    settings = SqlSettings(
        query=query,
        namesrv=cluster.namesrv,
        archive=archive,
        store_path=store_path,
        output=Output(output),
        out=out,
        limit=limit,
        options=cluster.options,
        dry_run=dry_run,
    )
    bars: list[ProgressBar] = []
    with quiet_end(lambda: clear(bars)), failures():
        summary = _run(settings, master, conf, bars)
    if as_json:
        typer.echo(summary.as_json())
    elif dry_run or out is not None:
        print_summary(summary, as_json=False)
    elif output == "table":
        _print_table(summary)


def _run(
    settings: SqlSettings, master: str | None, conf: list[str] | None, bars: list[ProgressBar]
) -> Summary:
    from contrail.pipeline.jobs.session import SessionToOpen
    from contrail.pipeline.jobs.sql import sql
    from contrail.pipeline.jobs.sql_output import Output

    spark = SessionToOpen("contrail sql", master=master, conf=parse_pairs("--conf", conf))
    try:
        # Printed lines and a progress bar would run into each other.
        if settings.output is not Output.TABLE and settings.out is None:
            return sql(settings, spark=spark, emit=typer.echo)
        with shown_progress() as progress:
            bars.append(progress)
            return sql(settings, spark=spark, progress=progress)
    finally:
        if not is_ending():
            spark.stop()


def _print_table(summary: Summary) -> None:
    """The rows unformatted, so that text that looks like a number stays as it is."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    if summary.table:
        table = Table(*(escape(name) for name in summary.table[0]))
        for row in summary.table:
            table.add_row(*(Text(_cell(value)) for value in row.values()))
        Console(soft_wrap=not sys.stdout.isatty()).print(table)
    rows = summary.facts["rows"]
    typer.echo(f"{rows} row{'' if rows == 1 else 's'}")
    if "more" in summary.facts:
        complain(str(summary.facts["more"]))


def _cell(value: object) -> str:
    return "null" if value is None else str(value)

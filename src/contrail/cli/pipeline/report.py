"""``contrail pipeline report``: traffic, lag, failures, latency and skew as a page and as data."""

from __future__ import annotations

from typing import Annotated

import typer

from contrail.cli.assignments import parse_pairs
from contrail.cli.pipeline.shared import (
    AsJson,
    Cluster,
    Conf,
    DryRun,
    Folders,
    LogRounds,
    Master,
    Running,
    failures,
    reached,
    require_spark,
    run,
)
from contrail.cli.store_folder import found_store
from contrail.cli.target import ContextName, NameServers
from contrail.cli.times import parse_time
from contrail.model.topic import TRACE_TOPIC


def report(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Only these; else all that applications use."),
    ] = None,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="DIR", help="Read an archive, too.")
    ] = None,
    store_path: Annotated[
        str | None,
        typer.Option(
            "--store-path",
            metavar="DIR",
            callback=found_store,
            help="Read a store, not a live cluster.",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Messages stored from then on.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Messages stored before then.")
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Where report.html and its data go.")
    ] = "contrail-report",
    moments: Annotated[
        int, typer.Option("--moments", min=1, max=500, metavar="N", help="Points on a time axis.")
    ] = 60,
    hot_keys: Annotated[
        int, typer.Option("--hot-keys", min=1, max=1000, metavar="N", help="Keys of each topic.")
    ] = 10,
    trace: Annotated[
        bool, typer.Option("--trace/--no-trace", help="Read message traces, if there are any.")
    ] = True,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", metavar="TOPIC", help="Where the traces are.")
    ] = TRACE_TOPIC,
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
    log_rounds: LogRounds = False,
) -> None:
    """Report on a time: traffic, lag, retries, dead letters, latency, skew and hot keys."""
    require_spark()
    is_offline = archive is not None or store_path is not None
    with failures():
        cluster: Cluster | Folders = Folders(parse_pairs("--option", option))
        if namesrv is not None or ctx is not None or not is_offline:
            cluster = reached(namesrv, ctx, option)
    from contrail.pipeline.jobs.report import ReportSettings, check
    from contrail.pipeline.jobs.report import report as job

    with failures():
        settings = ReportSettings(
            out=out,
            namesrv=cluster.namesrv,
            archive=archive,
            store_path=store_path,
            topics=tuple(topics or ()),
            start_ms=parse_time("--since", since),
            end_ms=parse_time("--until", until),
            moments=moments,
            hot_keys=hot_keys,
            trace=trace,
            trace_topic=trace_topic,
            options=cluster.options,
            dry_run=dry_run,
        )
        check(settings)
    run(job, settings, Running(master=master, conf=conf, as_json=as_json, log_rounds=log_rounds))

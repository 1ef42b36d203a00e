"""``contrail pipeline archive``: topics to Parquet files, or to an Iceberg or Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from contrail.cli.assignments import parse_pairs
from contrail.cli.output import complain
from contrail.cli.pipeline import shared
from contrail.cli.store_folder import found_store
from contrail.cli.target import ContextName, NameServers
from contrail.cli.times import parse_duration, parse_time

if TYPE_CHECKING:
    from contrail.pipeline.jobs.summary import Summary


def archive(
    archive: Annotated[
        str,
        typer.Argument(
            metavar="ARCHIVE", help="A folder or s3://BUCKET/PREFIX; made if it is missing."
        ),
    ],
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="The topics that are archived.")
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Topics whose whole name matches."),
    ] = None,
    store_path: Annotated[
        str | None,
        typer.Option(
            "--store-path",
            metavar="DIR",
            callback=found_store,
            help="Read a store folder, without any broker.",
        ),
    ] = None,
    broker: Annotated[
        str,
        typer.Option("--broker", metavar="NAME", help="Whose store it is, with --store-path."),
    ] = "",
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Where queues begin that are new to it."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new messages, until interrupted.")
    ] = False,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="How often --follow looks.")
    ] = "10s",
    round_rows: Annotated[
        int, typer.Option("--round", min=1, metavar="N", help="Messages that count together.")
    ] = 1_000_000,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Go on if messages were deleted before their turn."),
    ] = False,
    allow_away: Annotated[
        bool, typer.Option("--allow-away", help="Exit with 0 although brokers are down.")
    ] = False,
    compression: Annotated[
        str, typer.Option("--compression", metavar="NAME", help="zstd, snappy, gzip, lz4 or none.")
    ] = "zstd",
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="parquet, iceberg or delta; parquet for a new archive, else the one it has.",
        ),
    ] = "",
    target_mb: Annotated[
        int,
        typer.Option("--target-mb", min=1, metavar="N", help="Merge small files up to this size."),
    ] = 256,
    merge_every: Annotated[
        str,
        typer.Option("--merge-every", metavar="DURATION", help="How often --follow merges files."),
    ] = "10m",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the source; repeatable."),
    ] = None,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    dry_run: shared.DryRun = False,
    as_json: shared.AsJson = False,
    master: shared.Master = None,
    conf: shared.Conf = None,
    log_rounds: shared.LogRounds = False,
) -> None:
    """Keep topics as files or a table, each message once, before retention deletes them."""
    shared.require_spark()
    with shared.failures():
        cluster: shared.Cluster | shared.Folders = shared.Folders(parse_pairs("--option", option))
        if store_path is None:
            cluster = shared.reached(namesrv, ctx, option)
    from contrail.pipeline.jobs.archive import ArchiveSettings
    from contrail.pipeline.jobs.archive import archive as job

    settings = ArchiveSettings(
        archive=archive,
        topics=tuple(topics or ()),
        topic_pattern=pattern,
        namesrv=cluster.namesrv,
        store_path=store_path,
        broker_name=broker,
        since_ms=parse_time("--since", since),
        follow=follow,
        poll_ms=int(parse_duration("--every", every).total_seconds() * 1000),
        round_rows=round_rows,
        allow_loss=allow_loss,
        compression=compression,
        format=format,
        target_bytes=target_mb << 20,
        merge_ms=int(parse_duration("--merge-every", merge_every).total_seconds() * 1000),
        options=cluster.options,
        dry_run=dry_run,
    )

    away: list[str] = []

    def archive_until(settings: ArchiveSettings, **around: Any) -> Summary:
        if not settings.follow or settings.dry_run:
            summary = job(settings, **around)
        else:
            with shared.interrupts() as is_interrupted:
                summary = job(settings, stop=is_interrupted.is_set, **around)
        away.extend(cast("list[str]", summary.facts["away"]))
        return summary

    archive_until.__name__ = "archive"
    shared.run(
        archive_until, settings, shared.Running(master, conf, as_json, log_rounds=log_rounds)
    )
    if away and not (allow_away or dry_run):
        complain(
            f"brokers are away, and their queues are not archived up to now: {'; '.join(away)}; "
            "run again when they are back, or accept it with --allow-away"
        )
        raise typer.Exit(1)

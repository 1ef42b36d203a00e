"""``contrail pipeline restore``: a range of an archive, back to its topics or to another."""

from __future__ import annotations

from typing import Annotated

import typer

from contrail.cli.pipeline import shared
from contrail.cli.target import ContextName, NameServers
from contrail.cli.times import parse_time


def restore(
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="The archive's folder.")],
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics in it.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Another topic than their own.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Stored at this time or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Stored before this time.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="BROKER:ID", help="Of this queue only.")
    ] = None,
    from_offset: Annotated[
        int | None,
        typer.Option("--from-offset", min=0, metavar="N", help="From this queue offset on."),
    ] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, metavar="N", help="Before this one.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="With this tag; repeatable.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="With this key; repeatable.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="For which this condition holds."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="At most this many messages a second."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the sink; repeatable."),
    ] = None,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    checkpoint: shared.CheckpointFolder = None,
    dry_run: shared.DryRun = False,
    yes: shared.Yes = False,
    as_json: shared.AsJson = False,
    master: shared.Master = None,
    conf: shared.Conf = None,
    log_rounds: shared.LogRounds = False,
) -> None:
    """Send a range of an archive back, in each queue's order, nothing twice."""
    shared.require_spark()
    with shared.failures():
        cluster = shared.reached(namesrv, ctx, option)
    from contrail.pipeline.jobs.restore import RestoreSettings
    from contrail.pipeline.jobs.restore import restore as job

    settings = RestoreSettings(
        archive=archive,
        topics=tuple(topics),
        namesrv=cluster.namesrv,
        to_topic=to,
        since_ms=parse_time("--since", since),
        until_ms=parse_time("--until", until),
        queue=queue,
        queue_offset_start=from_offset,
        queue_offset_end=to_offset,
        tags=tuple(tag or ()),
        keys=tuple(key or ()),
        where=where,
        rate=rate,
        checkpoint=shared.checkpoint_folder(checkpoint, dry_run),
        options=cluster.options,
        dry_run=dry_run,
    )
    shared.run(
        job, settings, shared.Running(master, conf, as_json, confirm=not yes, log_rounds=log_rounds)
    )

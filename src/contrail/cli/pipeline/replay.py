"""``contrail pipeline replay``: dead letters, back to where they came from."""

from __future__ import annotations

from typing import Annotated

import typer

from contrail.cli.pipeline import shared
from contrail.cli.target import ContextName, NameServers
from contrail.cli.times import parse_time


def replay(
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="The consumer group whose dead letters it is.")
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TOPIC", help="Another topic than where they came from."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Dead at this time or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Dead before this time.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="With this tag; repeatable.")
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="TOPIC", help="That came from this topic; repeatable."),
    ] = None,
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", metavar="NAME", help="exhausted or given-up; repeatable."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="For which this condition holds."),
    ] = None,
    retries_max: Annotated[
        int | None,
        typer.Option(
            "--retries-max", min=0, metavar="N", help="More retries than this are 'exhausted'."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="At most this many messages a second."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="How the cluster is reached, as TLS."),
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
    """Send a group's dead letters back, rate-limited, with an outcome for each of them."""
    shared.require_spark()
    with shared.failures():
        cluster = shared.reached(namesrv, ctx, option)
    from contrail.pipeline.jobs.replay import ReplaySettings
    from contrail.pipeline.jobs.replay import replay as job

    settings = ReplaySettings(
        group=group,
        namesrv=cluster.namesrv,
        to_topic=to,
        since_ms=parse_time("--since", since),
        until_ms=parse_time("--until", until),
        tags=tuple(tag or ()),
        origins=tuple(origin or ()),
        reasons=tuple(reason or ()),
        where=where,
        retries_max=retries_max,
        rate=rate,
        checkpoint=shared.checkpoint_folder(checkpoint, dry_run),
        options=cluster.options,
        dry_run=dry_run,
    )
    shared.run(
        job, settings, shared.Running(master, conf, as_json, confirm=not yes, log_rounds=log_rounds)
    )

"""``contrail pipeline dedupe``: a topic to another without repeats of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrail.cli.pipeline import shared
from contrail.cli.target import ContextName, NameServers

if TYPE_CHECKING:
    from contrail.pipeline.jobs.summary import Summary


def dedupe(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic with repeats.")],
    to_topic: Annotated[str, typer.Argument(metavar="TARGET", help="The topic without.")],
    namesrv: NameServers = None,
    ctx: ContextName = None,
    to_namesrv: Annotated[
        str | None,
        typer.Option(
            "--to-namesrv", metavar="ADDRESSES", help="The NameServers of another cluster."
        ),
    ] = None,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues", min=1, metavar="N", help="Queues on each broker, if TARGET must be made."
        ),
    ] = None,
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="KEY",
            help="The key of repeats: keys, sharding-key, a property's name, or a path into a JSON "
            "body such as $.order.id.",
        ),
    ] = "keys",
    window: Annotated[
        str,
        typer.Option("--window", metavar="TIME", help="How far apart repeats may be: 30s, 2h."),
    ] = "1h",
    by: Annotated[
        str,
        typer.Option("--time", metavar="WHICH", help="The time of a message: store or born."),
    ] = "store",
    starting: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="Where to begin: earliest or latest."),
    ] = "earliest",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on with new messages, until SIGINT.")
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Messages in a micro-batch.")
    ] = 200_000,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="How the cluster is reached, as TLS."),
    ] = None,
    checkpoint: shared.CheckpointFolder = None,
    dry_run: shared.DryRun = False,
    yes: shared.Yes = False,
    as_json: shared.AsJson = False,
    master: shared.Master = None,
    conf: shared.Conf = None,
    log_rounds: shared.LogRounds = False,
) -> None:
    """Copy a topic to another, dropping repeats of a key within a window."""
    shared.require_spark()
    with shared.failures():
        cluster = shared.reached(namesrv, ctx, option)
    from contrail.pipeline.jobs.dedupe import DedupeSettings
    from contrail.pipeline.jobs.dedupe import dedupe as job

    settings = DedupeSettings(
        namesrv=cluster.namesrv,
        topic=topic,
        to_topic=to_topic,
        checkpoint=shared.checkpoint_folder(checkpoint, dry_run),
        to_namesrv=to_namesrv,
        queues=queues,
        key=key,
        window=window,
        time=by,
        starting=starting,
        continuous=continuous,
        rows_per_batch=batch,
        options=cluster.options,
        dry_run=dry_run,
    )

    def dedupe(settings: DedupeSettings, **around: Any) -> Summary:
        if not settings.continuous or settings.dry_run:
            return job(settings, **around)
        with shared.interrupts() as is_interrupted:
            return job(settings, stop=is_interrupted.is_set, **around)

    shared.run(
        dedupe,
        settings,
        shared.Running(master, conf, as_json, confirm=not yes, log_rounds=log_rounds),
    )

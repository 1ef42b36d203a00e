"""``contrail pipeline migrate``: a backlog to a wider topic or another cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrail.cli.pipeline import shared
from contrail.cli.target import ContextName, NameServers

if TYPE_CHECKING:
    from contrail.pipeline.jobs.summary import Summary


def migrate(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that is moved.")],
    to_topic: Annotated[str, typer.Argument(metavar="TARGET", help="Where it is moved to.")],
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
            help="The key that keeps its order: sharding-key, keys, a property's name; auto is "
            "the sharding key, else the first of the keys.",
        ),
    ] = "auto",
    groups: Annotated[
        str | None,
        typer.Option(
            "--groups",
            metavar="NAMES",
            help="Groups whose offsets are mapped, with commas; all that consumed TOPIC unless "
            "said, '' for none.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new messages, until the cut-over.")
    ] = False,
    cut_over_after: Annotated[
        float | None,
        typer.Option(
            "--cut-over-after",
            min=0,
            metavar="SECONDS",
            help="Cut over once no message was left to copy for this long.",
        ),
    ] = None,
    cut_over_file: Annotated[
        str | None,
        typer.Option("--cut-over-file", metavar="FILE", help="Cut over once this file exists."),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Messages in a micro-batch.")
    ] = 200_000,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="How both clusters are reached, such as tls.enable=true; or idempotence=none. "
            "Repeatable.",
        ),
    ] = None,
    checkpoint: shared.CheckpointFolder = None,
    dry_run: shared.DryRun = False,
    yes: shared.Yes = False,
    as_json: shared.AsJson = False,
    master: shared.Master = None,
    conf: shared.Conf = None,
    log_rounds: shared.LogRounds = False,
) -> None:
    """Move a backlog to a wider topic or another cluster, with its groups' offsets."""
    shared.require_spark()
    with shared.failures():
        cluster = shared.reached(namesrv, ctx, option)
    from contrail.pipeline.jobs.migrate import MigrateSettings
    from contrail.pipeline.jobs.migrate import migrate as job

    settings = MigrateSettings(
        namesrv=cluster.namesrv,
        topic=topic,
        to_topic=to_topic,
        checkpoint=shared.checkpoint_folder(checkpoint, dry_run),
        to_namesrv=to_namesrv,
        queues=queues,
        key=key,
        groups=None if groups is None else tuple(name for name in groups.split(",") if name),
        follow=follow,
        cut_over_after_s=cut_over_after,
        cut_over_file=cut_over_file,
        rows_per_batch=batch,
        options=cluster.options,
        dry_run=dry_run,
    )

    def migrate(settings: MigrateSettings, **around: Any) -> Summary:
        if not settings.follow or settings.dry_run:
            return job(settings, **around)
        with shared.interrupts() as is_interrupted:
            return job(settings, cut_over=is_interrupted.is_set, **around)

    shared.run(
        migrate,
        settings,
        shared.Running(master, conf, as_json, confirm=not yes, log_rounds=log_rounds),
    )

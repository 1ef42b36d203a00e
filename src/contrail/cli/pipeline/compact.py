"""``contrail pipeline compact``: the small files of an archive, merged."""

from __future__ import annotations

from typing import Annotated

import typer

from contrail.cli.pipeline import shared
from contrail.cli.times import parse_duration


def compact(
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="The archive's folder.")],
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics.")
    ] = None,
    target_mb: Annotated[
        int, typer.Option("--target-mb", min=1, metavar="N", help="Files of about this size.")
    ] = 256,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="DURATION", help="How long an hour must be over."),
    ] = "1h",
    compression: Annotated[
        str, typer.Option("--compression", metavar="NAME", help="zstd, snappy, gzip, lz4 or none.")
    ] = "zstd",
    dry_run: shared.DryRun = False,
    as_json: shared.AsJson = False,
    master: shared.Master = None,
    conf: shared.Conf = None,
    log_rounds: shared.LogRounds = False,
) -> None:
    """Merge the small files of closed hours; readers see each message once at any moment."""
    shared.require_spark()
    from contrail.pipeline.jobs.compact import CompactSettings
    from contrail.pipeline.jobs.compact import compact as job

    settings = CompactSettings(
        archive=archive,
        topics=tuple(topics or ()),
        target_bytes=target_mb << 20,
        grace=parse_duration("--grace", grace),
        compression=compression,
        dry_run=dry_run,
    )
    shared.run(job, settings, shared.Running(master, conf, as_json, log_rounds=log_rounds))

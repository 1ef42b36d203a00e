"""The ``compact`` job: the small files of closed hours, merged into files of a useful size.

An hour's new folder is made beside the archive: merged files, and links to unchanged files. Then
the two folders are exchanged in one step. Whenever the job is killed, a reader finds all messages
of an hour once, in the old files or in the new; the next run deletes leftovers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from contrail.clock import SystemClock
from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.jobs.archive_folder import ArchiveFolder, files_of, sync_path
from contrail.pipeline.jobs.archive_layout import Hour, Sized, is_closed, plan_merges
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.jobs.folder_swap import swap_folders
from contrail.pipeline.jobs.merged_files import merge_files
from contrail.pipeline.jobs.progress import SILENT, Progress
from contrail.pipeline.jobs.session import Spark, job_session
from contrail.pipeline.jobs.summary import Summary
from contrail.pipeline.jobs.table_target import TableTarget
from contrail.pipeline.row_groups import COMPRESSIONS
from contrail.runtime.crashpoints import crashpoint

_MERGE_DDL = "place string, rows bigint, bytes bigint"
_MERGE_SCHEMA = pa.schema([("place", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
# Hours that one Spark job merges; their folders are then exchanged one by one.
_HOURS_AT_ONCE = 64
_MARK = "-m"


@dataclass(frozen=True, kw_only=True)
class CompactSettings:
    """The archive, and the size and compression of its merged files."""

    archive: str
    topics: tuple[str, ...] = ()
    target_bytes: int = 256 << 20
    # An hour counts as closed this long after its end.
    grace: timedelta = timedelta(hours=1)
    compression: str = "zstd"
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.target_bytes < 1:
            raise OptionInvalid(f"target_bytes {self.target_bytes}: it must be 1 or more")
        if self.compression not in COMPRESSIONS:
            raise OptionInvalid(f"compression {self.compression!r}: give {', '.join(COMPRESSIONS)}")


class HourPlan(NamedTuple):
    """The files of one hour: groups to merge, and files to keep."""

    hour: Hour
    folder: Path
    files: list[Sized]
    merges: list[list[Sized]]

    @property
    def kept(self) -> list[Sized]:
        merged = {file for group in self.merges for file in group}
        return [file for file in self.files if file not in merged]


def compact(
    settings: CompactSettings,
    *,
    spark: Spark | None = None,
    progress: Progress = SILENT,
    now: datetime | None = None,
) -> Summary:
    """Merge small files in hours that are closed by ``now``; safe beside a running archive job.

    Raises:
        OptionInvalid: no archive, or a file system that cannot exchange folders.
        JobFailed: another compaction or a restore is running, or a merged file has wrong rows.
    """
    moment = now or datetime.fromtimestamp(SystemClock().now_ms() / 1000).astimezone()
    table = TableArchive.found(settings.archive)
    if table is not None:
        return _table_compacted(settings, table, spark, progress, moment)
    folder = ArchiveFolder(settings.archive)
    folder.require()
    if settings.dry_run:
        return _summary(folder, "planned", plan_hours(settings, folder, moment), skipped=0)
    with folder.lock("layout", wait=False), job_session(spark, "contrail compact") as session:
        # Some files of the last round may still be staged: move them first.
        folder.finish()
        shutil.rmtree(folder.merging, ignore_errors=True)
        plans = plan_hours(settings, folder, moment)
        return _compacted(settings, folder, session, plans, progress)


def _table_compacted(
    settings: CompactSettings,
    table: TableArchive,
    spark: Spark | None,
    progress: Progress,
    now: datetime,
) -> Summary:
    """Merge a table's small files, as a run of the archive job that follows does."""
    if settings.topics:
        raise OptionInvalid("topics: small files of a table are merged for all topics together")
    target = TableTarget(
        table,
        compression=settings.compression,
        target_bytes=settings.target_bytes,
        grace=settings.grace,
    )
    facts: dict[str, object] = {"archive": target.address, "files before": target.file_count()}
    if settings.dry_run:
        facts["to merge"] = sum(len(group) for group in target.plan(now))
        return Summary("compact", "planned", facts)
    with table.lock(), job_session(spark, "contrail compact") as session:
        target.merge(session, progress, int(now.timestamp() * 1000))
        return Summary("compact", "done", {**facts, "files after": target.file_count()})


def plan_hours(settings: CompactSettings, folder: ArchiveFolder, now: datetime) -> list[HourPlan]:
    """The closed hours that have files to merge."""
    plans = []
    for hour, path in folder.hours().items():
        if settings.topics and hour.topic not in settings.topics:
            continue
        if is_closed(hour, now, settings.grace):
            files = files_of(path)
            plans.append(HourPlan(hour, path, files, plan_merges(files, settings.target_bytes)))
    return [plan for plan in plans if plan.merges]


def merged_name(group: list[Sized]) -> str:
    """A name that sorts like the first of the merged files."""
    stem = group[0].name.removesuffix(".parquet").removesuffix(_MARK)
    return f"{stem}{_MARK}.parquet"


def _compacted(
    settings: CompactSettings,
    folder: ArchiveFolder,
    session: SparkSession,
    plans: list[HourPlan],
    progress: Progress,
) -> Summary:
    done: list[HourPlan] = []
    progress.begin("compact", len(plans))
    for first in range(0, len(plans), _HOURS_AT_ONCE):
        some = plans[first : first + _HOURS_AT_ONCE]
        _merge(settings, folder, session, some)
        crashpoint("compact.merged")
        done += [plan for plan in some if _put_in_place(folder, plan, progress)]
        progress.at(first + len(some))
    progress.end()
    shutil.rmtree(folder.merging, ignore_errors=True)
    return _summary(folder, "done", done, skipped=len(plans) - len(done))


def _merge(
    settings: CompactSettings, folder: ArchiveFolder, session: SparkSession, plans: list[HourPlan]
) -> None:
    """Have Spark's tasks write the merged files of some hours."""
    tasks = []
    for plan in plans:
        target = _new_folder(folder, plan)
        target.mkdir(parents=True)
        tasks += [
            json.dumps(
                {
                    "parts": [str(plan.folder / file.name) for file in group],
                    "target": str(target / merged_name(group)),
                    "compression": settings.compression,
                }
            )
            for group in plan.merges
        ]
    frame = session.createDataFrame([(task,) for task in tasks], "task string")
    merged = frame.repartition(len(tasks)).mapInArrow(_merged, _MERGE_DDL).collect()
    if len(merged) != len(tasks):
        raise JobFailed(f"{len(tasks)} files were to be merged, and {len(merged)} were")


def _merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [_merge_one(task) for task in batch.column(0).to_pylist()]
        columns = (
            [
                pa.array(values, kind.type)
                for values, kind in zip(zip(*rows, strict=True), _MERGE_SCHEMA, strict=True)
            ]
            if rows
            else [pa.array([], kind.type) for kind in _MERGE_SCHEMA]
        )
        yield pa.RecordBatch.from_arrays(columns, schema=_MERGE_SCHEMA)


def _merge_one(task: str) -> tuple[str, int, int]:
    asked = json.loads(task)
    target = Path(asked["target"])
    # Written under a unique name, since a task that Spark gave up on may still write.
    written = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    merged = merge_files([Path(part) for part in asked["parts"]], written, asked["compression"])
    os.replace(written, target)
    return str(target), merged.rows, merged.size_bytes


def _new_folder(folder: ArchiveFolder, plan: HourPlan) -> Path:
    return folder.merging / plan.folder.relative_to(folder.path)


def _put_in_place(folder: ArchiveFolder, plan: HourPlan, progress: Progress) -> bool:
    """Exchange an hour's folder with the new one, unless the archive job has added to it."""
    new = _new_folder(folder, plan)
    for file in plan.kept:
        os.link(plan.folder / file.name, new / file.name)
    for leftover in new.glob("*.tmp"):
        leftover.unlink()
    sync_path(new)
    with folder.lock("places"):
        if files_of(plan.folder) != plan.files:
            progress.note(f"{plan.folder} has got new files meanwhile: the next run merges it")
            shutil.rmtree(new)
            return False
        swap_folders(new, plan.folder)
    crashpoint("compact.swapped")
    sync_path(plan.folder.parent)
    shutil.rmtree(new)
    return True


def _summary(
    folder: ArchiveFolder, outcome: str, plans: Iterable[HourPlan], *, skipped: int
) -> Summary:
    table: list[dict[str, object]] = [
        {
            "topic": plan.hour.topic,
            "date": plan.hour.date,
            "hour": plan.hour.hour,
            "files before": len(plan.files),
            "files after": len(plan.kept) + len(plan.merges),
            "bytes before": sum(file.size_bytes for file in plan.files),
        }
        for plan in plans
    ]
    facts: dict[str, object] = {
        "archive": str(folder.path),
        "hours": len(table),
        "files before": sum(int(str(row["files before"])) for row in table),
        "files after": sum(int(str(row["files after"])) for row in table),
        "hours left": skipped,
    }
    return Summary("compact", "planned" if outcome == "planned" else "done", facts, table)

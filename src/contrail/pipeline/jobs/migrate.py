"""Move a backlog to a wider topic or another cluster, and its groups' progress with it.

The steps, each of which may be killed and run again:

    1  plan      look at both topics; create the target if it is missing
    2  copy      a streaming query from source to sink, with a checkpoint; with ``follow`` it goes
                 on until the cut-over, then a last pass copies the rest
    3  verify    counts and checksums of every source queue against the copies
    4  groups    each group begins where its first unconsumed copy is

A message with a key goes to the queue that RocketMQ's clients choose by its hash, so a key's order
holds across the cut-over too. All messages without a key of a source queue go to one queue.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from contrail.client.blocking.admin import Admin
from contrail.errors import JobFailed
from contrail.pipeline.jobs.checkpoints import Checkpoint, look
from contrail.pipeline.jobs.copying import cluster_settings, open_admin
from contrail.pipeline.jobs.migrate_copy import COLUMNS, copies_of
from contrail.pipeline.jobs.migrate_groups import GroupMover
from contrail.pipeline.jobs.migrate_plan import (
    CutOver,
    MigratePlan,
    MigrateSettings,
    QueueCheck,
    away_text,
    brokers_text,
    committed_offsets,
    differences_text,
    ends,
    offsets_option,
    plan_migration,
    ranges,
    ranges_or_none,
    starts,
)
from contrail.pipeline.jobs.migrate_verify import Stretch, checked_queues
from contrail.pipeline.jobs.progress import SILENT, Progress, lag_of, run_query
from contrail.pipeline.jobs.session import Spark, job_session
from contrail.pipeline.jobs.summary import Summary
from contrail.pipeline.jobs.targets import offers_idempotence

__all__ = ["MigrateSettings", "migrate"]

_JOB = "migrate"
_QUERY = "copy"
_FOLLOW_TRIGGER = "1 second"
_MODES = {
    "dedupe": "dedupe: repeated messages are dropped",
    "none": "none: brokers do not tell what was sent before, as those of Apache RocketMQ cannot, "
    "so a resumed migration may have copied some messages again",
}


def migrate(
    settings: MigrateSettings,
    *,
    spark: Spark | None = None,
    progress: Progress = SILENT,
    cut_over: Callable[[], bool] | None = None,
) -> Summary:
    """Run or resume a migration; ``cut_over`` is called about once a second.

    Raises:
        OptionInvalid: a setting is invalid, or the checkpoint belongs to another migration.
        JobFailed: a queue and its copies differ, or a broker of the migration is away; no
            group's offsets are changed.
    """
    settings.check()
    with ExitStack() as stack:
        source = stack.enter_context(_opened(settings.namesrv, settings))
        target = stack.enter_context(_opened(settings.target_namesrv, settings))
        notes = look(settings.checkpoint, _JOB, settings.fixed())
        _require_brokers(source, settings.topic, _begun_queues(settings, notes))
        _require_brokers(target, settings.to_topic, notes.get("target_start", ()))
        plan = plan_migration(settings, source, target, notes)
        if settings.dry_run:
            return _planned(settings, plan)
        checkpoint = _checkpoint(settings, plan, target)
        run = _Run(settings, plan.groups, source, target, checkpoint, progress)
        return run.carry_out(stack.enter_context(job_session(spark, f"contrail {_JOB}")), cut_over)


def _opened(namesrv: str, settings: MigrateSettings) -> Admin:
    return open_admin(cluster_settings(namesrv, settings.cluster_options))


def _begun_queues(settings: MigrateSettings, notes: Mapping[str, Any]) -> set[str]:
    """The source queues of a migration: those of its plan, and later ones."""
    if not notes:
        return set()
    copied = _copied_to(Checkpoint(settings.checkpoint), settings.topic)
    return {*notes["source_start"], *(copied or ())}


def _copied_to(checkpoint: Checkpoint, topic: str) -> dict[str, int] | None:
    return committed_offsets(Path(checkpoint.spark(_QUERY)), topic)


def _require_brokers(admin: Admin, topic: str, noted: Iterable[str]) -> None:
    """Refuse to go on if a broker of the migration is away: the NameServer drops its routes."""
    now = [one.name for one in ranges_or_none(admin, topic)]
    if set(noted) <= set(now):
        return
    away = away_text(noted, now, {one.broker_name for one in admin.brokers()})
    if away:
        raise JobFailed(f"topic {topic!r}: {away}")


def _planned(settings: MigrateSettings, plan: MigratePlan) -> Summary:
    facts = {
        **_sides(settings),
        "from brokers": brokers_text(starts(plan.source)),
        "queues": len(plan.source),
        "target queues": len(plan.target) or f"{settings.queues} on each broker, to be made",
        "backlog": plan.backlog,
        "groups": list(plan.groups),
    }
    table: list[dict[str, object]] = [
        {
            "queue": one.name,
            "from": one.queue_offset_min,
            "to": one.queue_offset_max,
            "messages": one.count,
        }
        for one in plan.source
    ]
    return Summary(_JOB, "planned", facts, table)


def _sides(settings: MigrateSettings) -> dict[str, object]:
    return {
        "from": f"{settings.topic} at {settings.namesrv}",
        "to": f"{settings.to_topic} at {settings.target_namesrv}",
    }


def _checkpoint(settings: MigrateSettings, plan: MigratePlan, target: Admin) -> Checkpoint:
    """The claimed checkpoint, with the first run's queue offsets of source and target."""
    checkpoint = Checkpoint(settings.checkpoint)
    checkpoint.claim(_JOB, settings.fixed())
    if not plan.target and "migration" not in checkpoint.notes:
        target.create_topic(settings.to_topic, queues=settings.queues or 1)
    if "migration" not in checkpoint.notes:
        checkpoint.note(
            migration=uuid.uuid4().hex,
            source_start=starts(plan.source),
            target_start=ends(plan.target or ranges(target, settings.to_topic)),
            groups_set=[],
        )
    return checkpoint


@dataclass(frozen=True)
class _Run:
    """One run of a migration, from its plan to its summary."""

    settings: MigrateSettings
    groups: tuple[str, ...]
    source: Admin
    target: Admin
    checkpoint: Checkpoint
    progress: Progress

    def carry_out(self, spark: SparkSession, cut_over: Callable[[], bool] | None) -> Summary:
        mode = self._mode()
        rows = self._copy(spark, mode, cut_over)
        copied = self._copied_to()
        # A broker that went away during the copy is not in the last pass.
        _require_brokers(self.source, self.settings.topic, copied)
        _require_brokers(self.target, self.settings.to_topic, self.checkpoint.notes["target_start"])
        checks = self._verified(spark, copied)
        groups = self._moved_groups(spark)
        left = sum(
            max(0, end - copied.get(name, 0))
            for name, end in ends(ranges(self.source, self.settings.topic)).items()
        )
        facts = {
            **_sides(self.settings),
            "from brokers": brokers_text(copied),
            "idempotence": _MODES[mode],
            "copied by this run": rows,
            "verified": sum(check.messages for check in checks),
            "repeats": sum(check.repeats for check in checks),
            "arrived at the source since": left,
            "groups": groups,
        }
        return Summary(_JOB, "done", facts, [check.as_row() for check in checks])

    def _mode(self) -> str:
        """The idempotence of the copies; if one run could not drop repeats, all later runs know."""
        best = "dedupe" if offers_idempotence(self.target) else "none"
        mode = self.settings.idempotence or best
        if mode == "none":
            self.checkpoint.note(is_plain=True)
        return mode

    @property
    def _is_plain(self) -> bool:
        """Whether some copies may be stored twice, and without their flags."""
        return bool(self.checkpoint.notes.get("is_plain"))

    # Copying.

    def _copy(self, spark: SparkSession, mode: str, cut_over: Callable[[], bool] | None) -> int:
        rows = 0
        if self.settings.follow:
            self.progress.begin(f"following {self.settings.topic}", None)
            start = partial(self._started, spark, mode, following=True)
            rows = run_query(start, self.progress, self._cut_over_test(cut_over))
        # The present messages, and after following those that arrived while its query was stopped.
        self.progress.begin(f"copying {self.settings.topic}", self._backlog())
        rows += run_query(partial(self._started, spark, mode, following=False), self.progress)
        self.progress.end()
        return rows

    def _backlog(self) -> int:
        done = self._copied_to()
        now = ranges(self.source, self.settings.topic)
        return sum(one.queue_offset_max - done.get(one.name, one.queue_offset_min) for one in now)

    def _started(self, spark: SparkSession, mode: str, *, following: bool) -> StreamingQuery:
        settings = self.settings
        notes = self.checkpoint.notes
        messages = (
            spark.readStream.format("rocketmq")
            .schema(COLUMNS)
            .options(**settings.cluster_options)
            .option("namesrvAddr", settings.namesrv)
            .option("subscribe", settings.topic)
            .option("startingOffsets", offsets_option(settings.topic, self._starts()))
            .option("maxOffsetsPerTrigger", settings.rows_per_batch)
            .load()
        )
        rows = copies_of(
            messages,
            settings.key,
            notes["migration"],
            list(notes["target_start"]),
        )
        writer = (
            rows.writeStream.format("rocketmq")
            .options(**settings.cluster_options)
            .option("namesrvAddr", settings.target_namesrv)
            .option("topic", settings.to_topic)
            .option("idempotence", mode)
            .option("checkpointLocation", self.checkpoint.spark(_QUERY))
        )
        if following:
            return writer.trigger(processingTime=_FOLLOW_TRIGGER).start()
        return writer.trigger(availableNow=True).start()

    def _starts(self) -> dict[str, int]:
        """The first queue offset of each queue; a broker added after the plan is copied whole."""
        now = starts(ranges(self.source, self.settings.topic))
        return {**now, **self.checkpoint.notes["source_start"]}

    def _cut_over_test(self, asked: Callable[[], bool] | None) -> Callable[[StreamingQuery], bool]:
        rule = CutOver(self.settings.cut_over_after_s)
        file = self.settings.cut_over_file

        def is_due(query: StreamingQuery) -> bool:
            wanted = (asked is not None and asked()) or (file is not None and Path(file).exists())
            return rule.is_due(self._lag(query), time.monotonic(), asked=wanted)

        return is_due

    def _lag(self, query: StreamingQuery) -> int | None:
        """How many messages of the source the query has not copied, by the present ends."""
        last = query.lastProgress
        if last is None or lag_of(last) is None:
            return None
        ended = json.loads(last["sources"][0]["endOffset"])
        done: dict[str, int] = ended.get(self.settings.topic, {})
        now = ends(ranges(self.source, self.settings.topic))
        return sum(max(0, end - done.get(name, 0)) for name, end in now.items())

    def _copied_to(self) -> dict[str, int]:
        """The queue offset up to which each source queue is copied."""
        done = _copied_to(self.checkpoint, self.settings.topic)
        return done if done is not None else dict(self.checkpoint.notes["source_start"])

    # Checking.

    def _verified(self, spark: SparkSession, copied: dict[str, int]) -> list[QueueCheck]:
        self.progress.begin("verifying", None)
        source = self._source_stretch(copied)
        checks = checked_queues(
            spark,
            source,
            self._target_stretch(),
            self.checkpoint.notes["migration"],
        )
        self.progress.end()
        wrong = differences_text(checks, allow_repeats=self._is_plain)
        if wrong:
            raise JobFailed(
                f"{self.settings.topic!r} and its copies in {self.settings.to_topic!r} differ, and "
                f"no group was moved: {wrong}"
            )
        return checks

    def _moved_groups(self, spark: SparkSession) -> list[str]:
        """Set the offsets of groups that no earlier run has set: those groups may have gone on."""
        self.progress.begin("moving groups", None)
        mover = GroupMover(
            self.source,
            self.target,
            self.settings.topic,
            self.checkpoint.notes["migration"],
            self.checkpoint,
            self._older(),
        )
        moves = mover.move(spark, list(self.groups), self._target_stretch())
        self.progress.end()
        before = [one for one in self.groups if one not in {move.group for move in moves}]
        return [
            *(f"{one.group}: {one}" for one in moves),
            *(f"{group}: set by a run before" for group in before),
        ]

    def _source_stretch(self, copied: dict[str, int]) -> Stretch:
        """The copied messages that the source still has: retention may have deleted the first."""
        noted = self.checkpoint.notes["source_start"]
        now = starts(ranges(self.source, self.settings.topic))
        first = {
            name: min(end, max(noted.get(name, 0), now.get(name, 0)))
            for name, end in copied.items()
        }
        gone = sum(first[name] - noted.get(name, 0) for name in first if name in noted)
        if gone > 0:
            self.progress.note(
                f"{gone} messages were deleted from the source since; their copies are not checked"
            )
        return self._stretch(self.settings.namesrv, self.settings.topic, first, copied)

    def _target_stretch(self) -> Stretch:
        now = ranges(self.target, self.settings.to_topic)
        noted = self.checkpoint.notes["target_start"]
        first = {one.name: max(noted[one.name], one.queue_offset_min) for one in now}
        namesrv, topic = self.settings.target_namesrv, self.settings.to_topic
        return self._stretch(namesrv, topic, first, ends(now))

    def _stretch(
        self, namesrv: str, topic: str, first: dict[str, int], end: dict[str, int]
    ) -> Stretch:
        return Stretch(namesrv, topic, first, end, self.settings.cluster_options)

    def _older(self) -> dict[str, int]:
        """The first message of each target queue that had messages before the migration."""
        noted = self.checkpoint.notes["target_start"]
        return {
            one.name: one.queue_offset_min
            for one in ranges(self.target, self.settings.to_topic)
            if one.queue_offset_min < noted[one.name]
        }

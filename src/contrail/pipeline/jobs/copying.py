"""Passes of a copy job on the driver: the settings of their tasks, and their outcomes.

The content of a pass is noted before it begins, so that a run after a kill sends the same messages
again, under the same number. Its outcomes are a folder of Parquet files in the checkpoint, written
by the executors and replaced whole when the pass runs again. A later run makes a pass of the
messages that failed or had no topic. The driver sees counts only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.errors import PySparkAttributeError, PySparkNotImplementedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from contrail.client.blocking.admin import Admin
from contrail.errors import JobFailed
from contrail.pipeline.cluster import client_settings
from contrail.pipeline.jobs.checkpoints import Checkpoint
from contrail.pipeline.jobs.copy_sender import (
    ALREADY,
    COPIED_COLUMNS,
    OUTCOME_DDL,
    CopyPlan,
    Decision,
    Targets,
    send_copies,
)
from contrail.pipeline.jobs.targets import offers_idempotence, writable_queues
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import CLUSTER_OPTIONS, ClusterSettings, SinkSettings
from contrail.runtime.crashpoints import crashpoint

QUEUE_COLUMNS = ("topic", "brokerName", "queueId")
# Messages skipped because their topic is missing name it; messages that a filter left out do not.
_TO_RETRY = "outcome = 'failed' or (outcome = 'skipped' and toTopic is not null)"
_REPEATS_DROPPED = "brokers drop repeats"
_REPEATS_POSSIBLE = "this cluster is not Contrail: messages under way at a kill may be sent twice"


def cluster_settings(namesrv: str, options: Mapping[str, str]) -> ClusterSettings:
    """The target's cluster; ``options`` are options of the sink, such as TLS."""
    return SinkSettings.of({**options, "namesrvAddr": namesrv}).cluster


def cluster_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a source or sink that describe its cluster."""
    known = {name.lower() for name in CLUSTER_OPTIONS if name != "namesrvAddr"}
    return {name: value for name, value in options.items() if name.lower() in known}


def admin_of(namesrv: str, options: Mapping[str, str]) -> Admin:
    """An admin client of the cluster that ``options`` of a source or sink describe."""
    return open_admin(cluster_settings(namesrv, cluster_options(options)))


def open_admin(cluster: ClusterSettings) -> Admin:
    """An admin client for a cluster, to be used in ``with``."""
    settings = client_settings(cluster)
    return Admin(list(settings.namesrv), tls=settings.tls, credentials=settings.credentials)


def job_id(checkpoint: Checkpoint) -> str:
    """The sink id of this job at the brokers, the same for each of its runs."""
    known = checkpoint.notes.get("jobId")
    if known is None:
        known = uuid.uuid4().hex
        checkpoint.note(jobId=known)
    return str(known)


def settled_targets(
    checkpoint: Checkpoint, admin: Admin, topics: Iterable[str]
) -> tuple[Targets, bool]:
    """Each topic's queues, and whether brokers drop repeats: as the first run found them.

    A topic that does not exist, or may not be written, is left out; the next run checks it again.
    """
    notes = checkpoint.notes
    known: dict[str, list[list[Any]]] = dict(notes.get("targets", {}))
    for topic in topics:
        if topic not in known and (queues := writable_queues(admin, topic)):
            known[topic] = [[broker_name, queue_id] for broker_name, queue_id in queues]
    remembered = notes.get("remembered")
    if remembered is None:
        remembered = offers_idempotence(admin)
    checkpoint.note(targets=known, remembered=remembered)
    return {
        topic: tuple((str(name), int(number)) for name, number in queues)
        for topic, queues in known.items()
    }, bool(remembered)


def settled_lanes(checkpoint: Checkpoint, queues: Iterable[QueueKey]) -> tuple[QueueKey, ...]:
    """All source queues of the job so far; new queues are added at the end."""
    known = [QueueKey(str(a), str(b), int(c)) for a, b, c in checkpoint.notes.get("lanes", [])]
    new = sorted(set(queues) - set(known))
    if new:
        checkpoint.note(lanes=[list(lane) for lane in (*known, *new)])
    return (*known, *new)


def task_count(spark: SparkSession, lane_count: int) -> int:
    """As many tasks as run at the same time, so that each gets its part of a rate."""
    return max(1, min(lane_count, _parallelism(spark)))


def _parallelism(spark: SparkSession) -> int:
    try:
        return spark.sparkContext.defaultParallelism
    except (PySparkAttributeError, PySparkNotImplementedError):
        # A Connect session has no context; its program sets spark.default.parallelism.
        return int(spark.conf.get("spark.default.parallelism", "2") or "2")


def copy_step(
    messages: DataFrame, plan: CopyPlan, decide: Decision, tasks: int, outcomes: Path
) -> None:
    """Send ``messages``, each queue's in order, and write the outcome of each."""
    if "skipped" not in messages.columns:
        messages = messages.withColumn("skipped", sql.lit(None).cast("string"))
    ordered = (
        messages.select(*COPIED_COLUMNS)
        .repartition(tasks, "topic", "brokerName", "queueId")
        .sortWithinPartitions("topic", "brokerName", "queueId", "queueOffset")
    )
    sent = ordered.mapInArrow(partial(_sent, plan=plan, decide=decide), OUTCOME_DDL)
    sent.write.mode("overwrite").parquet(str(outcomes))
    crashpoint("copying.step_sent")


def _sent(
    batches: Iterator[pa.RecordBatch], plan: CopyPlan, decide: Decision
) -> Iterator[pa.RecordBatch]:
    return send_copies(batches, plan, decide)


class Sent(NamedTuple):
    """A run's outcomes: sent messages, repeats that brokers dropped, facts for the summary."""

    counts: list[dict[str, object]]
    done: int
    already: int
    facts: dict[str, object]


class CopyPasses:
    """The passes of a job over all its runs, from its checkpoint."""

    def __init__(self, checkpoint: Checkpoint, session: SparkSession) -> None:
        self._checkpoint = checkpoint
        self._session = session
        self._first = self._done_count

    @property
    def _done_count(self) -> int:
        return int(self._checkpoint.notes.get("passesDone", 0))

    @property
    def under_way(self) -> dict[str, Any] | None:
        """The content of the pass that an earlier run began and did not finish."""
        found: dict[str, Any] | None = self._checkpoint.notes.get("underWay")
        return found

    @property
    def retryable(self) -> list[int]:
        """The finished passes with messages to try again, without the pass under way."""
        known = [int(number) for number in self._checkpoint.notes.get("toRetry", [])]
        busy = (self.under_way or {}).get("retried", [])
        return [number for number in known if number not in busy]

    def unsent(self, numbers: Sequence[int]) -> DataFrame:
        """The outcomes of these passes whose messages are to be tried again."""
        return _outcomes(self._session, [self._folder(one) for one in numbers]).where(_TO_RETRY)

    def send(
        self,
        work: Mapping[str, object],
        messages: DataFrame,
        plan: CopyPlan,
        decide: Decision,
        **reached: object,
    ) -> None:
        """Send ``messages``, the content of ``work``, and note the finished pass."""
        number, is_resumed = self._done_count, self.under_way is not None
        if not is_resumed:
            self._checkpoint.note(underWay=dict(work))
        plan = replace(plan, pass_number=number, resumed=is_resumed)
        tasks = task_count(self._session, len(plan.lanes))
        copy_step(messages, plan, decide, tasks, self._folder(number))
        to_retry = self.retryable
        if not self.unsent([number]).isEmpty():
            to_retry.append(number)
        self._checkpoint.note(underWay=None, passesDone=number + 1, toRetry=to_retry, **reached)

    def counts(self) -> list[dict[str, object]]:
        """The outcomes of this run, counted."""
        return self._counts(range(self._first, self._done_count))

    def counts_before(self) -> list[dict[str, object]]:
        """The outcomes of earlier runs, counted."""
        return self._counts(range(self._first))

    def sent(self, done: str, things: str) -> Sent:
        """The sums of this run.

        Raises:
            JobFailed: brokers refused some messages; the next run tries these again.
        """
        counts = self.counts()
        where = str(self._checkpoint.folder / "outcomes")
        before = _already(counts)
        count = total(counts, done) - before
        failed = total(counts, "failed")
        if failed:
            reasons = [str(row["reason"]) for row in counts if row["outcome"] == "failed"]
            raise JobFailed(
                f"{failed} {things} were refused, such as: {reasons[0]}; all are in {where!r}, "
                f"{count} others were {done}, and the next run with this checkpoint tries the "
                "refused ones again"
            )
        remembered = bool(self._checkpoint.notes.get("remembered", True))
        repeats = _REPEATS_DROPPED if remembered else _REPEATS_POSSIBLE
        return Sent(counts, count, before, {"repeats": repeats, "outcomes": where})

    def _counts(self, numbers: Iterable[int]) -> list[dict[str, object]]:
        return counted(self._session, [self._folder(number) for number in numbers])

    def _folder(self, number: int) -> Path:
        return self._checkpoint.folder / "outcomes" / f"{number:06d}"


def only(messages: DataFrame, unsent: DataFrame) -> DataFrame:
    """The ``messages`` that are in ``unsent``; ``skipped`` names those that were deleted."""
    keys = [*QUEUE_COLUMNS, "queueOffset"]
    if "skipped" not in messages.columns:
        messages = messages.withColumn("skipped", sql.lit(None).cast("string"))
    wanted = unsent.select(*keys, sql.col("msgId").alias("unsentId"))
    joined = wanted.join(messages.withColumn("isThere", sql.lit(True)), keys, "left")
    gone = sql.when(sql.col("isThere").isNull(), "it was deleted before it could be sent")
    return (
        joined.withColumn("skipped", gone.otherwise(sql.col("skipped")))
        .withColumn("msgId", sql.coalesce("msgId", "unsentId"))
        .withColumn(
            "storeTimestamp", sql.coalesce("storeTimestamp", sql.timestamp_millis(sql.lit(0)))
        )
    )


def _outcomes(spark: SparkSession, folders: Sequence[Path]) -> DataFrame:
    return spark.read.schema(OUTCOME_DDL).parquet(*map(str, folders))


def counted(spark: SparkSession, folders: Sequence[Path]) -> list[dict[str, object]]:
    """Counts of messages by outcome, topics and reason; largest first."""
    there = [folder for folder in folders if folder.is_dir()]
    if not there:
        return []
    rows = (
        _outcomes(spark, there)
        .groupBy("topic", "toTopic", "outcome", "reason")
        .agg(sql.count("*").alias("messages"))
        .orderBy(sql.desc("messages"))
        .limit(_ROWS_MAX)
        .collect()
    )
    return [row.asDict() for row in rows]


# A reason with details of each message would make a row for each.
_ROWS_MAX = 200


def total(rows: Iterable[Mapping[str, object]], outcome: str) -> int:
    """How many messages had this outcome, including those that brokers had before."""
    return sum(int(str(row["messages"])) for row in rows if row["outcome"] == outcome)


def _already(rows: Iterable[Mapping[str, object]]) -> int:
    """How many messages brokers had before they were sent."""
    return sum(int(str(row["messages"])) for row in rows if row["reason"] == ALREADY)


def without_topic(rows: Iterable[Mapping[str, object]]) -> int:
    """How many messages were skipped because their target topic is missing or not writable."""
    lacking = (row for row in rows if row["outcome"] == "skipped" and row["toTopic"] is not None)
    return sum(int(str(row["messages"])) for row in lacking)

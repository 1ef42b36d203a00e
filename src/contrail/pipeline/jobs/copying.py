"""Steps of a copy job on the driver: what the tasks are told, and what they said.

The outcomes of a step are a folder of Parquet files in the checkpoint, written by the executors and
replaced whole when a step is run again. The driver sees counts only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from contrail.client.blocking.admin import Admin
from contrail.errors import OptionInvalid, RouteMissing
from contrail.pipeline.cluster import client_settings
from contrail.pipeline.jobs.checkpoints import Checkpoint
from contrail.pipeline.jobs.copy_sender import (
    COPIED_COLUMNS,
    OUTCOME_DDL,
    CopyPlan,
    Decision,
    Targets,
    send_copies,
)
from contrail.pipeline.jobs.targets import offers_idempotence
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import ClusterSettings, SinkSettings
from contrail.runtime.crashpoints import crashpoint

REPEATS_DROPPED = "brokers drop repeats"
REPEATS_POSSIBLE = "this cluster is not Contrail: what was under way at a kill may be sent twice"


def cluster_settings(namesrv: str, options: Mapping[str, str]) -> ClusterSettings:
    """How the target is reached; ``options`` are those of the sink, such as TLS."""
    return SinkSettings.of({**options, "namesrvAddr": namesrv}).cluster


def open_admin(cluster: ClusterSettings) -> Admin:
    """An admin client for a cluster, to be used in ``with``."""
    settings = client_settings(cluster)
    return Admin(list(settings.namesrv), tls=settings.tls)


def job_id(checkpoint: Checkpoint) -> str:
    """The name under which brokers know this job, the same for each of its runs."""
    known = checkpoint.notes.get("jobId")
    if known is None:
        known = uuid.uuid4().hex
        checkpoint.note(jobId=known)
    return str(known)


def settled_targets(
    checkpoint: Checkpoint, admin: Admin, topics: Iterable[str]
) -> tuple[Targets, bool]:
    """Each topic's queues, and whether brokers drop repeats: as the first run found them.

    A topic that does not exist is left out, and looked for again by the next run.
    """
    notes = checkpoint.notes
    known: dict[str, list[list[Any]]] = dict(notes.get("targets", {}))
    for topic in topics:
        if topic not in known and (queues := _writable_queues(admin, topic)):
            known[topic] = [[broker_name, queue_id] for broker_name, queue_id in queues]
    remembered = notes.get("remembered")
    if remembered is None:
        remembered = offers_idempotence(admin)
    checkpoint.note(targets=known, remembered=remembered)
    return {
        topic: tuple((str(name), int(number)) for name, number in queues)
        for topic, queues in known.items()
    }, bool(remembered)


def _writable_queues(admin: Admin, topic: str) -> list[tuple[str, int]]:
    try:
        route = admin.topic_route(topic)
    except RouteMissing:
        return []
    return sorted(
        (queue.broker_name, number)
        for queue in route.queues
        for number in range(queue.write_queue_count)
    )


def require_topic(admin: Admin, topic: str) -> None:
    """Refuse a target that does not exist.

    Raises:
        OptionInvalid: nobody has the topic.
    """
    if not _writable_queues(admin, topic):
        raise OptionInvalid(f"topic {topic!r} does not exist on the target: create it first")


def settled_lanes(checkpoint: Checkpoint, queues: Iterable[QueueKey]) -> tuple[QueueKey, ...]:
    """All source queues of the job so far; new ones are added at the end."""
    known = [QueueKey(str(a), str(b), int(c)) for a, b, c in checkpoint.notes.get("lanes", [])]
    new = sorted(set(queues) - set(known))
    if new:
        checkpoint.note(lanes=[list(lane) for lane in (*known, *new)])
    return (*known, *new)


def task_count(spark: SparkSession, lane_count: int) -> int:
    """As many tasks as run at once, so that each has its part of a rate."""
    return max(1, min(lane_count, _parallelism(spark)))


def _parallelism(spark: SparkSession) -> int:
    try:
        return spark.sparkContext.defaultParallelism
    except Exception as error:
        # A Connect session has no context; a program that uses one says how wide it is.
        if type(error).__name__ not in {"PySparkNotImplementedError", "PySparkAttributeError"}:
            raise
        return int(spark.conf.get("spark.default.parallelism", "2") or "2")


def copy_step(
    messages: DataFrame, plan: CopyPlan, decide: Decision, tasks: int, outcomes: Path
) -> None:
    """Send ``messages``, each queue's in order, and write what became of each."""
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


def counted(spark: SparkSession, folders: Sequence[Path]) -> list[dict[str, object]]:
    """How many messages had which outcome, by topics and reason; most first."""
    there = [str(folder) for folder in folders if folder.is_dir()]
    if not there:
        return []
    rows = (
        spark.read.schema(OUTCOME_DDL)
        .parquet(*there)
        .groupBy("topic", "toTopic", "outcome", "reason")
        .agg(sql.count("*").alias("messages"))
        .orderBy(sql.desc("messages"))
        .limit(_ROWS_MAX)
        .collect()
    )
    return [row.asDict() for row in rows]


# A reason that holds something of each message would make a row of each.
_ROWS_MAX = 200


def total(rows: Iterable[Mapping[str, object]], outcome: str) -> int:
    return sum(int(str(row["messages"])) for row in rows if row["outcome"] == outcome)

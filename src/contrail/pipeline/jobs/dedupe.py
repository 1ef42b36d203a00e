"""Copy a topic to another without the messages whose key was there a short while ago.

The keys of the last ``window`` are kept in Spark's state store, in the JVM. Rows are shuffled by
key for that, so a batch that is run again may give them in another order: the sink is told to show
a batch at once or not at all, which needs Contrail's brokers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from contrail.client.blocking.admin import Admin
from contrail.errors import OptionInvalid, RouteMissing
from contrail.pipeline.jobs.checkpoints import Checkpoint
from contrail.pipeline.jobs.migrate_copy import key_column, user_properties
from contrail.pipeline.jobs.migrate_plan import KEY_AUTO, QueueRange, ranges
from contrail.pipeline.jobs.progress import SILENT, BatchSum, Progress, run_query
from contrail.pipeline.jobs.session import job_session
from contrail.pipeline.jobs.summary import Summary
from contrail.pipeline.jobs.targets import offers_idempotence

__all__ = ["DedupeSettings", "dedupe"]

_JOB = "dedupe"
_QUERY = "copy"
_TRIGGER = "1 second"
_JSON_PATH = "$"
_DROPPED = "numDroppedDuplicateRows"
_TIMES = {"born": "bornTimestamp", "store": "storeTimestamp"}
_WINDOW = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_COLUMNS = (
    "brokerName string, queueId int, queueOffset bigint, keys string, tags string, body binary, "
    "{time} timestamp, properties map<string,string>"
)


@dataclass(frozen=True, kw_only=True)
class DedupeSettings:
    """``key`` is ``keys``, ``sharding-key``, a property's name or a JSON path such as ``$.id``."""

    namesrv: str
    topic: str
    to_topic: str
    checkpoint: str
    to_namesrv: str | None = None
    # On each broker, for a target that does not exist yet.
    queues: int | None = None
    key: str = "keys"
    window: str = "1h"
    # By which of a message's times the window is measured: ``born`` or ``store``.
    time: str = "store"
    starting: str = "earliest"
    # Go on until stopped, not only to what is there now.
    continuous: bool = False
    rows_per_batch: int = 200_000
    dry_run: bool = False

    @property
    def target_namesrv(self) -> str:
        return self.to_namesrv or self.namesrv

    def fixed(self) -> dict[str, object]:
        """What a resumed run may not change."""
        names = ("topic", "to_topic", "to_namesrv", "key", "window", "time")
        return {name: getattr(self, name) for name in names}

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            OptionInvalid: it says which setting, and what to do.
        """
        if self.topic == self.to_topic and self.to_namesrv in (None, self.namesrv):
            raise OptionInvalid(f"topic {self.topic!r} cannot be its own target: name another")
        if self.time not in _TIMES:
            raise OptionInvalid(f"time is {self.time!r}: it is born or store")
        if self.starting not in ("earliest", "latest"):
            raise OptionInvalid(f"starting is {self.starting!r}: it is earliest or latest")
        if self.key == KEY_AUTO or not self.key:
            raise OptionInvalid(f"key is {self.key!r}: keys, a property's name or a path like $.id")
        spark_interval(self.window)


def spark_interval(window: str) -> str:
    """``10m`` in Spark's words.

    Raises:
        OptionInvalid: it is no length of time.
    """
    found = _WINDOW.fullmatch(window)
    if found is None or int(found[1]) == 0:
        raise OptionInvalid(f"window is {window!r}: give a time such as 30s, 10m, 2h or 1d")
    return f"{found[1]} {_UNITS[found[2]]}"


def dedupe(
    settings: DedupeSettings,
    *,
    spark: SparkSession | None = None,
    progress: Progress = SILENT,
    stop: Callable[[], bool] | None = None,
) -> Summary:
    """Copy what is there, or with ``continuous`` go on until ``stop`` says so.

    Raises:
        OptionInvalid: a setting cannot be, or the checkpoint is of another run.
    """
    settings.check()
    with ExitStack() as stack:
        source = stack.enter_context(Admin(settings.namesrv))
        target = stack.enter_context(Admin(settings.target_namesrv))
        queues = ranges(source, settings.topic)
        width = _target_width(settings, target)
        if settings.dry_run:
            return _planned(settings, queues, width)
        checkpoint = Checkpoint(settings.checkpoint)
        checkpoint.claim(_JOB, settings.fixed())
        if not width:
            target.create_topic(settings.to_topic, queues=settings.queues or 1)
        mode = "transactional" if offers_idempotence(target) else "none"
        session = stack.enter_context(job_session(spark, f"contrail {_JOB}"))
        progress.begin(f"{settings.topic} to {settings.to_topic}", _count(settings, queues))
        start = partial(_started, session, settings, checkpoint, mode)
        return _run(settings, start, mode, progress, stop)


def _target_width(settings: DedupeSettings, target: Admin) -> int:
    try:
        return len(ranges(target, settings.to_topic))
    except RouteMissing:
        if settings.queues is None:
            raise OptionInvalid(
                f"topic {settings.to_topic!r} does not exist: say with queues how many each "
                "broker shall have"
            ) from None
        return 0


def _count(settings: DedupeSettings, queues: tuple[QueueRange, ...]) -> int | None:
    return None if settings.continuous else sum(queue.count for queue in queues)


def _planned(settings: DedupeSettings, queues: tuple[QueueRange, ...], width: int) -> Summary:
    facts: dict[str, object] = {
        **_facts(settings),
        "messages": sum(queue.count for queue in queues),
        "target queues": width or f"{settings.queues} on each broker, to be made",
    }
    table: list[dict[str, object]] = [
        {"queue": queue.name, "messages": queue.count} for queue in queues
    ]
    return Summary(_JOB, "planned", facts, table)


def _facts(settings: DedupeSettings) -> dict[str, object]:
    return {
        "from": f"{settings.topic} at {settings.namesrv}",
        "to": f"{settings.to_topic} at {settings.target_namesrv}",
        "key": settings.key,
        "window": f"{settings.window} by {settings.time} time",
    }


def _started(
    spark: SparkSession, settings: DedupeSettings, checkpoint: Checkpoint, mode: str
) -> StreamingQuery:
    messages = (
        spark.readStream.format("rocketmq")
        .schema(_COLUMNS.format(time=_TIMES[settings.time]))
        .option("namesrvAddr", settings.namesrv)
        .option("subscribe", settings.topic)
        .option("startingOffsets", settings.starting)
        .option("maxOffsetsPerTrigger", settings.rows_per_batch)
        .load()
    )
    writer = (
        first_ones(messages, settings)
        .writeStream.format("rocketmq")
        .option("namesrvAddr", settings.target_namesrv)
        .option("topic", settings.to_topic)
        .option("idempotence", mode)
        .option("checkpointLocation", checkpoint.spark(_QUERY))
    )
    if settings.continuous:
        return writer.trigger(processingTime=_TRIGGER).start()
    return writer.trigger(availableNow=True).start()


def first_ones(messages: DataFrame, settings: DedupeSettings) -> DataFrame:
    """The first message of each key within the window, as rows for the sink.

    A message without a key repeats nothing: its own place stands in for the key.
    """
    place = F.concat_ws(":", F.lit(""), "brokerName", "queueId", "queueOffset")
    kept = (
        messages.withColumn("repeatKey", F.coalesce(repeat_key(settings.key), place))
        .withWatermark(_TIMES[settings.time], spark_interval(settings.window))
        .dropDuplicatesWithinWatermark(["repeatKey"])
    )
    sharding = key_column("sharding-key").alias("shardingKey")
    return kept.select("body", "keys", "tags", sharding, user_properties().alias("properties"))


def repeat_key(key: str) -> Column:
    """By what repeats are known; null for a message that has none.

    All keys count together, since ``A B`` is another message than ``A C``.
    """
    if key == "keys":
        return F.when(F.length(F.trim("keys")) > 0, F.col("keys"))
    if key.startswith(_JSON_PATH):
        return F.get_json_object(F.col("body").cast("string"), key)
    return key_column(key)


def _run(
    settings: DedupeSettings,
    start: Callable[[], StreamingQuery],
    mode: str,
    progress: Progress,
    stop: Callable[[], bool] | None,
) -> Summary:
    dropped = BatchSum(_dropped_in)
    is_over = None if stop is None else lambda _: stop()
    rows = run_query(start, progress, is_over, also=[dropped])
    progress.end()
    facts = {
        **_facts(settings),
        "idempotence": mode,
        "read by this run": rows,
        "repeats dropped": dropped.total,
        "sent": rows - dropped.total,
    }
    return Summary(_JOB, "stopped" if settings.continuous else "done", facts)


def _dropped_in(batch: Mapping[str, Any]) -> int:
    """How many repeats a batch had, as Spark's own operator counts them."""
    operators = batch.get("stateOperators") or []
    return sum(int(one["customMetrics"].get(_DROPPED, 0)) for one in operators)

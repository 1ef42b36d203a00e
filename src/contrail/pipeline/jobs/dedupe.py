"""Copy a topic to another without messages whose key was copied within the window.

Spark's own ``dropDuplicatesWithinWatermark`` also drops messages older than its watermark, which
are most of a queue that is read later than the others: so the job keeps its own state
(``dedupe_memory``), without a watermark. Rows are shuffled by key for it, so a batch that runs
again may have another order: the sink commits a batch as a whole, which needs Contrail's brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

from contrail.client.blocking.admin import Admin
from contrail.clock import SystemClock
from contrail.errors import JobFailed, OptionInvalid
from contrail.model.duration import duration_ms
from contrail.pipeline.jobs.checkpoints import Checkpoint, look
from contrail.pipeline.jobs.copying import admin_of, cluster_options
from contrail.pipeline.jobs.decode_errors import with_errors_as_properties
from contrail.pipeline.jobs.dedupe_memory import (
    HAS_KEY,
    IS_REPEAT,
    REPEAT_KEY,
    ROWS,
    STATE,
    TIME,
    marker,
)
from contrail.pipeline.jobs.migrate_copy import key_column, user_properties
from contrail.pipeline.jobs.migrate_plan import (
    KEY_AUTO,
    QueueRange,
    committed_offsets,
    queue_starts,
    ranges,
    ranges_or_none,
)
from contrail.pipeline.jobs.progress import SILENT, BatchSum, Progress, run_query
from contrail.pipeline.jobs.session import Spark, job_session
from contrail.pipeline.jobs.summary import Summary
from contrail.pipeline.jobs.targets import (
    check_target,
    offers_idempotence,
    require_readable,
    require_topic,
)
from contrail.pipeline.options import CLUSTER_OPTIONS
from contrail.protocol.json_style import MessageQueue

__all__ = ["DedupeSettings", "dedupe"]

_JOB = "dedupe"
_QUERY = "copy"
_TRIGGER = "1 second"
_JSON_PATH = "$"
_TIMES = {"born": "bornTimestamp", "store": "storeTimestamp"}
# A larger difference between clocks of brokers and this machine may miss a repeat.
_CLOCKS_APART_MS = 300_000
# Messages without a key form no group: they are only spread.
_KEYLESS_PARTS = 64
_COUNTS = "dedupe"
_FIRST_ONES = "firstOnes"
_REPEATS = "repeats"
_QUERY_SETTINGS = {
    # With timeouts of state Spark would run empty batches without end.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Bodies go through Python: 10,000 at a time may exceed the memory.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}
_COLUMNS = (
    "brokerName string, queueId int, queueOffset bigint, keys string, tags string, body binary, "
    "{time} timestamp, properties map<string,string>, decodeError string"
)


@dataclass(frozen=True, kw_only=True)
class DedupeSettings:
    """``key`` is ``keys``, ``sharding-key``, a property's name or a JSON path such as ``$.id``."""

    namesrv: str
    topic: str
    to_topic: str
    checkpoint: str
    to_namesrv: str | None = None
    # Queues on each broker, for a target that does not exist yet.
    queues: int | None = None
    key: str = "keys"
    window: str = "1h"
    # The message time by which the window is measured: ``born`` or ``store``.
    time: str = "store"
    starting: str = "earliest"
    # Go on until stopped, not only up to the present end.
    continuous: bool = False
    rows_per_batch: int = 200_000
    # Options of both clusters: TLS, timeouts.
    options: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False

    @property
    def target_namesrv(self) -> str:
        return self.to_namesrv or self.namesrv

    @property
    def window_ms(self) -> int:
        return duration_ms(self.window) or 0

    def fixed(self) -> dict[str, object]:
        """The settings that a resumed run may not change."""
        names = ("topic", "to_topic", "to_namesrv", "key", "window", "time")
        return {name: getattr(self, name) for name in names}

    def check(self) -> None:
        """Refuse contradicting settings.

        Raises:
            OptionInvalid: the text names the setting and a remedy.
        """
        if self.topic == self.to_topic and self.to_namesrv in (None, self.namesrv):
            raise OptionInvalid(f"topic {self.topic!r} cannot be its own target: name another")
        if self.time not in _TIMES:
            raise OptionInvalid(f"time is {self.time!r}: it is born or store")
        if self.starting not in ("earliest", "latest"):
            raise OptionInvalid(f"starting is {self.starting!r}: it is earliest or latest")
        if self.key == KEY_AUTO or not self.key.strip():
            raise OptionInvalid(f"key is {self.key!r}: keys, a property's name or a path like $.id")
        if not self.window_ms:
            raise OptionInvalid(
                f"window is {self.window!r}: give a time such as 30s, 10m, 2h or 1d"
            )
        for name in self.options.keys() - cluster_options(self.options).keys():
            known = ", ".join(one for one in CLUSTER_OPTIONS if one != "namesrvAddr")
            raise OptionInvalid(f"option {name!r} is none of a dedupe: it takes {known}")


def dedupe(
    settings: DedupeSettings,
    *,
    spark: Spark | None = None,
    progress: Progress = SILENT,
    stop: Callable[[], bool] | None = None,
) -> Summary:
    """Copy the present messages, or with ``continuous`` go on until ``stop`` is true.

    Raises:
        OptionInvalid: a setting is invalid, or the checkpoint belongs to another run.
    """
    settings.check()
    with ExitStack() as stack:
        source = stack.enter_context(admin_of(settings.namesrv, settings.options))
        target = stack.enter_context(admin_of(settings.target_namesrv, settings.options))
        queues = ranges(source, settings.topic)
        require_readable(source, queue_starts(settings.topic, queues))
        width = len(ranges_or_none(target, settings.to_topic))
        check_target(settings.to_topic, settings.queues, is_there=width > 0)
        if width:
            require_topic(target, settings.to_topic)
        look(settings.checkpoint, _JOB, settings.fixed())
        if settings.dry_run:
            return _planned(settings, queues, width)
        checkpoint = Checkpoint(settings.checkpoint)
        checkpoint.claim(_JOB, settings.fixed())
        if not width:
            target.create_topic(settings.to_topic, queues=settings.queues or 1)
        mode = "transactional" if offers_idempotence(target) else "none"
        session = stack.enter_context(job_session(spark, f"contrail {_JOB}"))
        progress.begin(f"{settings.topic} to {settings.to_topic}", _count(settings, queues))
        lag_ms = _lag_ms(settings, source, queues, checkpoint)
        start = partial(_started, session, settings, checkpoint, mode, lag_ms)
        return _run(settings, start, mode, progress, stop)


def _lag_ms(
    settings: DedupeSettings,
    source: Admin,
    queues: tuple[QueueRange, ...],
    checkpoint: Checkpoint,
) -> int:
    """The age of the oldest message that this run has still to read.

    Keys are kept that much longer than the window, since the queue with that message may have
    repeats of messages that other queues gave long ago.
    """
    done = committed_offsets(Path(checkpoint.spark(_QUERY)), settings.topic)
    if done is None and settings.starting == "latest":
        return _CLOCKS_APART_MS
    oldest = [
        message.store_timestamp_ms
        for queue in queues
        for message in source.messages_from(
            MessageQueue(settings.topic, queue.broker_name, queue.queue_id),
            max(queue.queue_offset_min, (done or {}).get(queue.name, 0)),
            1,
        )
    ]
    now_ms = SystemClock().now_ms()
    return max(0, now_ms - min(oldest, default=now_ms)) + _CLOCKS_APART_MS


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
    spark: SparkSession, settings: DedupeSettings, checkpoint: Checkpoint, mode: str, lag_ms: int
) -> StreamingQuery:
    messages = (
        spark.readStream.format("rocketmq")
        .schema(_COLUMNS.format(time=_TIMES[settings.time]))
        .options(**settings.options)
        .option("namesrvAddr", settings.namesrv)
        .option("subscribe", settings.topic)
        .option("startingOffsets", settings.starting)
        .option("maxOffsetsPerTrigger", settings.rows_per_batch)
        .load()
    )
    writer = (
        first_ones(with_errors_as_properties(messages), settings, lag_ms)
        .writeStream.format("rocketmq")
        .options(**settings.options)
        .option("namesrvAddr", settings.target_namesrv)
        .option("topic", settings.to_topic)
        .option("idempotence", mode)
        .option("checkpointLocation", checkpoint.spark(_QUERY))
    )
    if settings.continuous:
        writer = writer.trigger(processingTime=_TRIGGER)
    else:
        writer = writer.trigger(availableNow=True)
    with _set(spark, _QUERY_SETTINGS):
        return writer.start()


@contextmanager
def _set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set a session's settings for the start of a query, which copies them."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def first_ones(messages: DataFrame, settings: DedupeSettings, lag_ms: int) -> DataFrame:
    """The first message of each key within the window, as rows for the sink.

    First messages and repeats are counted in the same step.
    """
    marked = (
        _keyed(messages, settings)
        .groupBy(HAS_KEY, REPEAT_KEY)
        .applyInPandasWithState(
            marker(settings.window_ms, lag_ms),
            ROWS,
            STATE,
            "append",
            GroupStateTimeout.ProcessingTimeTimeout,
        )
        .observe(
            _COUNTS,
            F.count_if(IS_REPEAT).alias(_REPEATS),
            F.count_if(~F.col(IS_REPEAT)).alias(_FIRST_ONES),
        )
    )
    return marked.where(~F.col(IS_REPEAT)).drop(IS_REPEAT)


def _keyed(messages: DataFrame, settings: DedupeSettings) -> DataFrame:
    """The rows for the sink with their key."""
    key = repeat_key(settings.key)
    part = F.pmod("queueOffset", F.lit(_KEYLESS_PARTS))
    return messages.select(
        key.isNotNull().alias(HAS_KEY),
        F.coalesce(key, F.concat_ws(":", "brokerName", "queueId", part)).alias(REPEAT_KEY),
        F.unix_millis(_TIMES[settings.time]).alias(TIME),
        "body",
        "keys",
        "tags",
        key_column("sharding-key").alias("shardingKey"),
        user_properties().alias("properties"),
    )


def repeat_key(key: str) -> Column:
    """The key of a message by which repeats are found; null without one.

    All keys count together, since ``A B`` and ``A C`` are different messages.
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
    dropped, sent = BatchSum(partial(_counted, _REPEATS)), BatchSum(partial(_counted, _FIRST_ONES))
    is_over = None if stop is None else lambda _: stop()
    rows = run_query(start, progress, is_over, also=[BatchSum(_late), dropped, sent])
    progress.end()
    facts = {
        **_facts(settings),
        "idempotence": mode,
        "read by this run": rows,
        "repeats dropped": dropped.total,
        "sent": sent.total,
    }
    return Summary(_JOB, "stopped" if settings.continuous else "done", facts)


def _counted(name: str, batch: Mapping[str, Any]) -> int:
    """How many messages of a kind a batch had, as counted on the way to the sink."""
    counts = (batch.get("observedMetrics") or {}).get(_COUNTS)
    return 0 if counts is None else int(counts[name] or 0)


def _late(batch: Mapping[str, Any]) -> int:
    """How many messages Spark dropped as too late: always 0.

    Raises:
        JobFailed: Spark dropped some.
    """
    operators = batch.get("stateOperators") or []
    late = sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in operators)
    if late:
        raise JobFailed(
            f"Spark dropped {late} messages of batch {batch['batchId']} as too late, which are "
            "missing in the target: copy the topic to another target with a new checkpoint"
        )
    return late

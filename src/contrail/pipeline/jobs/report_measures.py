"""The aggregates of a report. Spark makes them; the driver gets rows for topics, queues, groups
and buckets of time, never for messages."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from contrail.client.dead_letters import ORIGIN_PROPERTIES
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX
from contrail.pipeline.jobs.report_figures import PERCENTILES, Buckets, Row

# Percentiles are exact to a 2000th of the messages.
_ACCURACY = 2000
# The most frequent keys are chosen among this many candidates; more give more exact counts.
_KEYS_TRACKED = 20_000
_LINE_END, _FIELD_END = "\u0002", "\u0001"
MESSAGE_COLUMNS = (
    *("topic", "brokerName", "queueId", "keys", "msgId"),
    *("bornTimestamp", "storeTimestamp", "storeSize", *ORIGIN_PROPERTIES),
)


def narrow(messages: DataFrame, start_ms: int | None, end_ms: int | None) -> DataFrame:
    """The columns that the measures need, of messages stored in ``[start_ms, end_ms)``."""
    stored_ms = f.unix_millis("storeTimestamp")
    rows = messages.select(
        "topic",
        f.concat_ws(":", "brokerName", "queueId").alias("queue"),
        stored_ms.alias("stored_ms"),
        f.greatest(stored_ms - f.unix_millis("bornTimestamp"), f.lit(0)).alias("latency_ms"),
        f.col("storeSize").cast("bigint").alias("size"),
        "keys",
        "msgId",
        f.coalesce(*ORIGIN_PROPERTIES).alias("origin"),
    )
    if start_ms is not None:
        rows = rows.where(f.col("stored_ms") >= start_ms)
    return rows if end_ms is None else rows.where(f.col("stored_ms") < end_ms)


def ordinary(rows: DataFrame) -> DataFrame:
    """Messages that applications sent, without retries and dead letters."""
    return rows.where(~_is_again())


def _is_again() -> Column:
    topic = f.col("topic")
    return topic.startswith(RETRY_PREFIX) | topic.startswith(DLQ_PREFIX)


def span(rows: DataFrame) -> Row:
    """The first and the last store time; None without messages."""
    first, last = f.min("stored_ms").alias("first_ms"), f.max("stored_ms").alias("last_ms")
    return _collected(rows.agg(first, last))[0]


def by_topic(rows: DataFrame) -> list[Row]:
    return _traffic(ordinary(rows), "topic")


def by_queue(rows: DataFrame) -> list[Row]:
    return _traffic(ordinary(rows), "topic", "queue")


def by_time(rows: DataFrame, buckets: Buckets) -> list[Row]:
    return _traffic(_bucketed(ordinary(rows), buckets), "topic", "bucket")


def again(rows: DataFrame) -> list[Row]:
    """Messages of retry and dead-letter topics, by topic and origin."""
    return _traffic(rows.where(_is_again()), "topic", "origin")


def latency_by_topic(rows: DataFrame) -> list[Row]:
    return _latency(ordinary(rows), "topic")


def latency_by_time(rows: DataFrame, buckets: Buckets) -> list[Row]:
    return _latency(_bucketed(ordinary(rows), buckets), "bucket")


def hot_keys(rows: DataFrame, count: int) -> list[Row]:
    """By topic, the ``count`` most frequent keys with approximate counts."""
    keys = ordinary(rows).where("keys is not null")
    single = keys.select("topic", f.explode(f.split("keys", " ")).alias("key")).where("key <> ''")
    top = f.call_function("approx_top_k", f.col("key"), f.lit(count), f.lit(_KEYS_TRACKED))
    return _collected(single.groupBy("topic").agg(top.alias("keys")))


def consumptions(traces: DataFrame) -> DataFrame:
    """The consumptions in a trace topic's bodies: a row for each time a group handled a message.

    Damaged lines and lines of other kinds are skipped; invalid numbers are null.
    """
    line = f.explode(f.split(f.col("body").cast("string"), _LINE_END)).alias("line")
    fields = traces.select(line).select(f.split("line", _FIELD_END).alias("fields"))
    kind = f.col("fields")[0]
    said = fields.where(kind.isin("SubBefore", "SubAfter")).select(
        _by_kind(kind, before=4, after=1).alias("request"),
        _by_kind(kind, before=5, after=2).alias("msgId"),
        _by_kind(kind, before=3, after=8).alias("group"),
        f.when(kind == "SubBefore", _number(1)).alias("begun_ms"),
        f.when(kind == "SubAfter", _number(3)).alias("cost_ms"),
        f.when(kind == "SubAfter", f.lower(_field(4)) == "true").alias("success"),
    )
    return said.groupBy("request", "msgId").agg(
        f.max("group").alias("group"),
        f.min("begun_ms").alias("begun_ms"),
        f.max("cost_ms").alias("cost_ms"),
        f.max("success").alias("success"),
    )


def _by_kind(kind: Column, *, before: int, after: int) -> Column:
    return f.when(kind == "SubBefore", _field(before)).otherwise(_field(after))


def _field(number: int) -> Column:
    return f.get("fields", f.lit(number))


def _number(number: int) -> Column:
    return _field(number).try_cast("bigint")


def handling(consumed: DataFrame) -> list[Row]:
    """By group: how often messages were handled, how many failed, and how long it took."""
    by_group = consumed.where("success is not null").groupBy("group")
    measured = by_group.agg(
        f.count("*").alias("handled"),
        f.count_if(~f.col("success")).alias("failed"),
        _percentiles("cost_ms").alias("percentiles"),
        f.max("cost_ms").alias("max_ms"),
    )
    return _collected(measured.orderBy("group"))


def waiting(rows: DataFrame, consumed: DataFrame) -> list[Row]:
    """By topic and group: from the store time to the first begin of a handler."""
    first = (
        consumed.where("begun_ms is not null")
        .groupBy("msgId", "group")
        .agg(f.min("begun_ms").alias("begun_ms"))
    )
    stored = ordinary(rows).select("topic", "msgId", "stored_ms")
    waited = f.greatest(f.col("begun_ms") - f.col("stored_ms"), f.lit(0))
    met = stored.join(first, "msgId").withColumn("latency_ms", waited)
    return _latency(met, "topic", "group")


def _traffic(rows: DataFrame, *by: str) -> list[Row]:
    size = f.coalesce(f.sum("size"), f.lit(0)).alias("bytes")
    return _collected(rows.groupBy(*by).agg(f.count("*").alias("messages"), size))


def _latency(rows: DataFrame, *by: str) -> list[Row]:
    measured = rows.groupBy(*by).agg(
        f.count("latency_ms").alias("messages"),
        _percentiles("latency_ms").alias("percentiles"),
        f.max("latency_ms").alias("max_ms"),
    )
    return _collected(measured.orderBy(*by))


def _percentiles(column: str) -> Column:
    return f.percentile_approx(column, list(PERCENTILES), _ACCURACY)


def _bucketed(rows: DataFrame, buckets: Buckets) -> DataFrame:
    passed = (f.col("stored_ms") - buckets.start_ms) / buckets.width_ms
    return rows.withColumn("bucket", f.floor(passed).cast("int"))


def _collected(aggregates: DataFrame) -> list[Row]:
    return [row.asDict(recursive=True) for row in aggregates.collect()]

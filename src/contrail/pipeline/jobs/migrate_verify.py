"""Checks a migration with Spark: counts of queues and their copies, and offsets of groups.

The driver gets one row for each queue, or for each group and queue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from contrail.pipeline.jobs.migrate_copy import user_properties
from contrail.pipeline.jobs.migrate_plan import (
    MIGRATION_PROPERTY,
    ORIGIN_PROPERTY,
    QueueCheck,
    offsets_option,
    queue_of,
)

_PLACE = "brokerName string, queueId int, queueOffset bigint"
_CONTENT = "keys string, tags string, flag int, body binary, properties map<string,string>"
_ORIGINS = f"{ORIGIN_PROPERTY} string, {MIGRATION_PROPERTY} string"
_LOW_BITS = 0xFFFFFFFF
# A broker's name may hold colons; the last two pieces are numbers.
_ORIGIN = r"^(.*):(\d+):(\d+)$"
_NOTHING = (0, 0, 0)


@dataclass(frozen=True)
class Stretch:
    """A topic between two offsets of each queue; queues by name."""

    namesrv: str
    topic: str
    start: Mapping[str, int]
    end: Mapping[str, int]
    # Options of the cluster, without its address. May hold a password.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


def checked_queues(
    spark: SparkSession, source: Stretch, target: Stretch, migration: str
) -> list[QueueCheck]:
    """Count the messages and copies of every source queue, and sum their checksums."""
    checksum = _checksum()
    both = _source_sums(spark, source, checksum).union(
        _copied_sums(spark, source, target, migration, checksum)
    )
    sums = {
        (row.isCopied, f"{row.brokerName}:{row.queueId}"): (
            row.messages,
            (row.high << 32) + row.low,
            row.repeats,
        )
        for row in both.collect()
    }
    checks = []
    for name in sorted(source.end, key=lambda name: queue_of(source.topic, name)):
        messages, checksum, _ = sums.get((False, name), _NOTHING)
        copies, copied_checksum, repeats = sums.get((True, name), _NOTHING)
        checks.append(
            QueueCheck(
                name=name,
                queue_offset_start=source.start.get(name, 0),
                queue_offset_end=source.end[name],
                messages=messages,
                copies=copies,
                repeats=repeats,
                checksum=checksum,
                copied_checksum=copied_checksum,
            )
        )
    return checks


def first_places(
    spark: SparkSession,
    target: Stretch,
    migration: str,
    consumed: Mapping[str, Mapping[str, int]],
) -> FirstPlaces:
    """The first unconsumed message of each target queue, by group and for messages of no group.

    ``consumed`` is each group's offset on each source queue.
    """
    rows = [
        (group, *queue_of("", name)[1:], place)
        for group, places in consumed.items()
        for name, place in places.items()
    ]
    groups = spark.createDataFrame(
        rows, "grp string, originBroker string, originQueue int, consumed bigint"
    )
    # A message that is no copy has no origin, and so no group here; the same holds for a copy of a
    # queue that the source no longer has. No group is known to have consumed either.
    firsts = (
        with_origins(spark, target, migration, _PLACE)
        .join(F.broadcast(groups), ["originBroker", "originQueue"], "left")
        .where("consumed is null or originOffset >= consumed")
        .groupBy("grp", "brokerName", "queueId")
        .agg(F.min("queueOffset").alias("place"))
        .collect()
    )
    named = {(row.grp, f"{row.brokerName}:{row.queueId}"): row.place for row in firsts}
    return FirstPlaces(
        unconsumed={(group, name): place for (group, name), place in named.items() if group},
        foreign={name: place for (group, name), place in named.items() if group is None},
    )


@dataclass(frozen=True)
class FirstPlaces:
    """The first unconsumed copy by group and target queue, and the first that is no copy."""

    unconsumed: Mapping[tuple[str, str], int]
    foreign: Mapping[str, int]


def stretch(spark: SparkSession, what: Stretch, schema: str) -> DataFrame:
    """The messages of a stretch, with the columns of ``schema``."""
    return (
        spark.read.format("rocketmq")
        .schema(schema)
        .options(**what.options)
        .option("namesrvAddr", what.namesrv)
        .option("assign", json.dumps({what.topic: sorted(what.end)}))
        .option("startingOffsets", offsets_option(what.topic, what.start))
        .option("endingOffsets", offsets_option(what.topic, what.end))
        .load()
    )


def with_origins(spark: SparkSession, target: Stretch, migration: str, columns: str) -> DataFrame:
    """The target's messages, with the origin of each copy of one migration beside ``columns``."""
    is_copy = F.col(MIGRATION_PROPERTY) == migration
    origin = F.when(is_copy, F.col(ORIGIN_PROPERTY))
    return (
        stretch(spark, target, f"{columns}, {_ORIGINS}")
        .withColumn("originBroker", F.regexp_extract(origin, _ORIGIN, 1))
        .withColumn("originQueue", F.regexp_extract(origin, _ORIGIN, 2).try_cast("int"))
        .withColumn("originOffset", F.regexp_extract(origin, _ORIGIN, 3).try_cast("bigint"))
    )


def _source_sums(spark: SparkSession, source: Stretch, checksum: Column) -> DataFrame:
    return (
        stretch(spark, source, f"{_PLACE}, {_CONTENT}")
        .withColumn("checksum", checksum)
        .groupBy("brokerName", "queueId")
        .agg(
            F.lit(False).alias("isCopied"),
            F.count(F.lit(1)).alias("messages"),
            *_sums(),
            F.lit(0).cast("bigint").alias("repeats"),
        )
    )


def _copied_sums(
    spark: SparkSession, source: Stretch, target: Stretch, migration: str, checksum: Column
) -> DataFrame:
    """Counts each origin once, so that a repeat cannot hide a missing copy."""
    once = (
        with_origins(spark, target, migration, f"{_PLACE}, {_CONTENT}")
        .join(F.broadcast(_bounds(spark, source)), ["originBroker", "originQueue"])
        .where("originOffset >= first and originOffset < end")
        .groupBy("originBroker", "originQueue", "originOffset")
        .agg(F.count(F.lit(1)).alias("times"), F.min(checksum).alias("checksum"))
    )
    return once.groupBy(
        F.col("originBroker").alias("brokerName"), F.col("originQueue").alias("queueId")
    ).agg(
        F.lit(True).alias("isCopied"),
        F.count(F.lit(1)).alias("messages"),
        *_sums(),
        (F.sum("times") - F.count(F.lit(1))).alias("repeats"),
    )


def _bounds(spark: SparkSession, source: Stretch) -> DataFrame:
    rows = [
        (*queue_of("", name)[1:], source.start.get(name, 0), end)
        for name, end in source.end.items()
    ]
    return spark.createDataFrame(
        rows, "originBroker string, originQueue int, first bigint, end bigint"
    )


def _checksum() -> Column:
    """One hash of the content that a copy shares with its message."""
    properties = F.array_sort(F.map_entries(user_properties()))
    body = F.coalesce(F.col("body"), F.lit(b""))
    return F.xxhash64(body, _stored("keys"), _stored("tags"), properties, "flag")


def _stored(text: str) -> Column:
    """Blank texts count as null: no broker stores them, and null leaves the hash unchanged."""
    return F.coalesce(F.when(F.length(F.trim(text)) > 0, F.col(text)), F.lit(""))


def _sums() -> list[Column]:
    """The sums of the halves of 64-bit checksums: the sum of the whole would not fit 64 bits."""
    checksum = F.col("checksum")
    return [
        F.sum(F.shiftrightunsigned(checksum, 32)).alias("high"),
        F.sum(checksum.bitwiseAND(F.lit(_LOW_BITS))).alias("low"),
    ]

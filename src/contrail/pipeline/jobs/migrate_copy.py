"""Makes copies of messages: the columns of the sink from those of the source."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from contrail.model.properties import KEY_SEPARATOR, SHARDING_KEY, TRANSIENT_PREFIX
from contrail.pipeline.jobs.decode_errors import DECODE_ERROR_PROPERTY, decode_error_property
from contrail.pipeline.jobs.migrate_plan import (
    KEY_AUTO,
    KEY_KEYS,
    KEY_SHARDING,
    MIGRATION_PROPERTY,
    ORIGIN_BORN_PROPERTY,
    ORIGIN_PROPERTY,
)
from contrail.pipeline.sink_rows import RESERVED_PROPERTIES

# The columns of the source that ``copies_of`` needs.
COLUMNS = (
    "brokerName string, queueId int, queueOffset bigint, keys string, tags string, flag int, "
    "body binary, bornTimestamp timestamp, properties map<string,string>, decodeError string"
)
# Properties that the sink sets from a column, the broker sets, or ``copies_of`` sets.
_NOT_COPIED = sorted(
    RESERVED_PROPERTIES
    | {ORIGIN_PROPERTY, ORIGIN_BORN_PROPERTY, MIGRATION_PROPERTY, DECODE_ERROR_PROPERTY}
)


def copies_of(messages: DataFrame, key: str, migration: str, target_queues: list[str]) -> DataFrame:
    """The rows for the sink: the messages' content, origin and target queue."""
    origin_queue = F.concat_ws(":", "brokerName", "queueId")
    keyed = messages.withColumn("shardingKey", key_column(key)).withColumn(
        "target", F.when(F.col("shardingKey").isNull(), keyless_target(origin_queue, target_queues))
    )
    return keyed.select(
        "body",
        "keys",
        "tags",
        "shardingKey",
        F.regexp_extract("target", r"^(.*):\d+$", 1).alias("brokerName"),
        F.regexp_extract("target", r":(\d+)$", 1).cast("int").alias("queueId"),
        F.map_concat(
            user_properties(), _origin(origin_queue, migration), decode_error_property()
        ).alias("properties"),
        "flag",
    )


def key_column(key: str) -> Column:
    """The key of a message whose order counts; null without one."""
    properties = F.col("properties")
    sharding = _filled(F.element_at(properties, F.lit(SHARDING_KEY)))
    first_key = _filled(F.split_part(F.trim("keys"), F.lit(KEY_SEPARATOR), F.lit(1)))
    if key == KEY_AUTO:
        return F.coalesce(sharding, first_key)
    known = {KEY_SHARDING: sharding, KEY_KEYS: first_key}
    return known.get(key, _filled(F.element_at(properties, F.lit(key))))


def keyless_target(origin_queue: Column, target_queues: list[str]) -> Column:
    """One target queue for each source queue, chosen by the source queue's name alone."""
    choices = F.array(*(F.lit(name) for name in target_queues))
    number = F.pmod(F.crc32(origin_queue.cast("binary")), F.lit(len(target_queues)))
    return F.element_at(choices, (number + 1).cast("int"))


def _filled(text: Column) -> Column:
    return F.when(F.length(text) > 0, text)


def user_properties() -> Column:
    kept = F.map_filter("properties", _is_copied)
    return F.coalesce(kept, F.create_map().cast("map<string,string>"))


def _is_copied(name: Column, value: Column) -> Column:
    # The sink refuses a blank value, which no broker would store.
    is_ours = name.isin(*_NOT_COPIED) | name.startswith(TRANSIENT_PREFIX)
    return ~is_ours & (F.length(F.trim(value)) > 0)


def _origin(origin_queue: Column, migration: str) -> Column:
    born_ms = F.unix_millis("bornTimestamp").cast("string")
    return F.create_map(
        F.lit(ORIGIN_PROPERTY),
        F.concat_ws(":", origin_queue, F.col("queueOffset").cast("string")),
        F.lit(ORIGIN_BORN_PROPERTY),
        born_ms,
        F.lit(MIGRATION_PROPERTY),
        F.lit(migration),
    )

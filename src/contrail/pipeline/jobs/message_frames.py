"""Messages of live topics, archives and store folders as DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX
from contrail.pipeline.columns import DECODE_ERROR_COLUMN, MESSAGE_COLUMNS, schema_of
from contrail.pipeline.jobs.archive_folder import ArchiveFolder
from contrail.pipeline.jobs.archive_reading import reading_of
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.jobs.copying import admin_of
from contrail.pipeline.jobs.decode_errors import DECODE_ERROR_PROPERTY
from contrail.store.reader import StoreReader

# The column of a scan that needs only the number of messages.
COUNTED_COLUMN = "queueOffset"


def live_frame(
    spark: SparkSession,
    namesrv: str,
    topics: Iterable[str],
    columns: Sequence[str],
    options: Mapping[str, str],
) -> DataFrame:
    """``columns`` of the messages of live topics; only these are decoded and sent to Spark."""
    wanted = {"namesrvAddr": namesrv, "subscribe": ",".join(topics), **options}
    return _source(spark, columns, wanted)


def store_frame(
    spark: SparkSession,
    store_path: str,
    topics: Iterable[str],
    columns: Sequence[str],
    options: Mapping[str, str],
) -> DataFrame:
    """``columns`` of the messages of a store folder's topics, read without a broker."""
    wanted = {
        "storePath": str(Path(store_path).absolute()),
        "subscribe": ",".join(topics),
        "internalTopics": "true",
        **options,
    }
    return _source(spark, columns, wanted)


def _source(spark: SparkSession, columns: Sequence[str], options: Mapping[str, str]) -> DataFrame:
    known = [column for column in columns if column in MESSAGE_COLUMNS]
    schema = schema_of(known or [COUNTED_COLUMN])
    for column in columns:
        if column not in MESSAGE_COLUMNS:
            schema = schema.add(column, "string")  # A message property.
    return spark.read.format("rocketmq").schema(schema).options(**options).load()


def archive_frame(
    spark: SparkSession, archive: str, topic: str, columns: Sequence[str]
) -> DataFrame:
    """``columns`` of an archived topic; a column that is not in the archive is null."""
    folder = archived_topics(archive)[topic]
    if folder is None:
        there = table_frame(spark, archive, topic)
    else:
        there = spark.read.parquet(local_url(folder)).withColumn("topic", f.lit(topic))
    has_properties = "properties" in there.columns
    return there.select(
        *(_archived(column, set(there.columns), has_properties) for column in columns)
    )


def table_frame(spark: SparkSession, archive: str, topic: str) -> DataFrame:
    """The messages of a topic of an archive that is a table."""
    reading = reading_of(archive)
    hours = [hour for hour in reading.hours() if hour.topic == topic]
    return reading.rows(spark, hours)


def _archived(column: str, there: set[str], has_properties: bool) -> Column:
    if column in there:
        return f.col(column)
    if column == DECODE_ERROR_COLUMN and has_properties:
        return f.col("properties")[DECODE_ERROR_PROPERTY].alias(column)
    if column not in MESSAGE_COLUMNS and has_properties:
        return f.col("properties")[column].alias(column)
    return f.lit(None).cast(MESSAGE_COLUMNS.get(column, "string")).alias(column)


def local_url(path: Path) -> str:
    """A local path as Spark reads it: unlike in a URL, per cent signs are literal."""
    return f"file://{path}"


def live_topics(namesrv: str, options: Mapping[str, str]) -> list[str]:
    """The names of all topics of a cluster, including internal topics."""
    with admin_of(namesrv, options) as admin:
        return admin.topics()


def application_topics(namesrv: str, options: Mapping[str, str]) -> list[str]:
    """The application topics of a cluster, with retry and dead-letter topics."""
    with admin_of(namesrv, options) as admin:
        again = [name for name in admin.topics() if name.startswith((RETRY_PREFIX, DLQ_PREFIX))]
        return sorted({*admin.topics(internal=False), *again})


def archived_topics(archive: str) -> dict[str, Path | None]:
    """The topics of an archive and their folders; a table has none.

    Raises:
        OptionInvalid: the folder is no archive.
    """
    if TableArchive.found(archive) is not None:
        return dict.fromkeys(sorted({hour.topic for hour in reading_of(archive).hours()}))
    folder = ArchiveFolder(archive)
    folder.require()
    return {hour.topic: found.parents[1] for hour, found in folder.hours().items()}


def stored_topics(store_path: str) -> list[str]:
    """The topics of a store folder.

    Raises:
        StoreLayoutError: the folder is no store.
    """
    return sorted(StoreReader.open(Path(store_path)).topics())

"""A view of every topic of a cluster, for SQL and for the catalog of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from contrail.errors import NotThere, OptionInvalid
from contrail.pipeline.cluster import ClusterView
from contrail.pipeline.options import SourceSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_views(
    spark: SparkSession, namesrv: str, pattern: str, schema: str | None, options: Mapping[str, str]
) -> list[str]:
    """Make a temporary view for each topic; returns the topics.

    Raises:
        NotThere: no topic matches.
        OptionInvalid: two topics would have the same view.
    """
    given = {**options, "namesrvAddr": namesrv}
    settings = SourceSettings.of({**given, "subscribePattern": pattern}, streaming=False)
    with closing(ClusterView(settings)) as view:
        topics = sorted({queue.topic for queue in view.queues()})
    if not topics:
        raise NotThere(f"no topic matches {pattern!r} as a whole")
    _require_distinct(topics)
    for topic in topics:
        reader = spark.read.format("rocketmq").options(**given, subscribe=topic)
        frame = (reader if schema is None else reader.schema(schema)).load()
        frame.createOrReplaceTempView(f"`{topic}`")
    return topics


def _require_distinct(topics: Sequence[str]) -> None:
    """Spark's names do not tell large letters from small ones."""
    seen: dict[str, str] = {}
    for topic in topics:
        other = seen.setdefault(topic.lower(), topic)
        if other != topic:
            raise OptionInvalid(
                f"topics {other!r} and {topic!r} would have one view: Spark's names do not tell "
                "large letters from small ones: give a pattern that one of them does not match"
            )

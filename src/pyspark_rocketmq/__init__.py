"""The module in which Spark finds ``format("rocketmq")`` by itself.

Spark imports every top-level module named ``pyspark_*`` when a query names an unknown format, so
this one imports as little as it can.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from contrail.errors import PipelineError
from contrail.pipeline.source import RocketMqSource as DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from contrail.pipeline.stream_listener import StreamMetrics
    from contrail.pipeline.table_sink import TableSink

__all__ = [
    "DefaultSource",
    "check",
    "commit_as_group",
    "register",
    "table_sink",
    "views",
    "watch",
]

_LOOK_TIMEOUT_S = 60


def register(spark: SparkSession) -> None:
    """Register ``format("rocketmq")`` with a session.

    Raises:
        PipelineError: the Python that Spark starts for the source cannot import it.
    """
    if _is_here(spark):
        _require_importable(spark.sparkContext.pythonExec)
    spark.dataSource.register(DefaultSource)


def check(spark: SparkSession) -> None:
    """Raises ``PipelineError`` if Spark starts a Python without this package.

    The usual reason is a virtual environment that was not activated: Spark then starts ``python3``
    of the PATH, not the interpreter that runs the script.
    """
    if _is_here(spark):
        named = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON")
        _require_importable(named or "python3")


def views(
    spark: SparkSession,
    namesrv: str,
    pattern: str = ".*",
    *,
    schema: str | None = None,
    **options: str,
) -> list[str]:
    """Make a temporary view, named like the topic, of each topic that matches ``pattern`` whole.

    A view reads when it is queried: what the topic holds then. ``schema`` and ``options`` are those
    of a batch read. Returns the topics.

    Raises:
        NotThere: no topic matches.
    """
    from contrail.pipeline.views import make_views

    return make_views(spark, namesrv, pattern, schema, options)


def commit_as_group(
    query: StreamingQuery, *, namesrv: str, group: str, **options: str
) -> dict[str, dict[str, int]]:
    """Commit where a query has ended as the offsets of a consumer group; returns the offsets.

    Raises:
        OptionInvalid: the query still runs, or finished no batch of ``format("rocketmq")``.
        PipelineError: a broker did not take an offset.
    """
    from contrail.pipeline import group_progress

    return group_progress.commit_as_group(query, namesrv=namesrv, group=group, **options)


def table_sink(address: str, format: str, *, name: str) -> TableSink:
    """A function for ``foreachBatch`` that adds each batch to an Iceberg or a Delta table, once.

    Raises:
        OptionInvalid: another format, or its library is not installed.
    """
    from contrail.pipeline.table_sink import TableSink

    return TableSink(address, format, name=name)


def watch(spark: SparkSession, *, host: str = "127.0.0.1", port: int = 0) -> StreamMetrics:
    """Show the session's streaming queries to Prometheus, from now on; ``close`` what it returns.

    ``address`` of what it returns is the address of ``/metrics``; port 0 takes a free one.

    Raises:
        OSError: the port is taken.
    """
    from contrail.pipeline.stream_listener import StreamMetrics

    metrics = StreamMetrics(spark, host=host, port=port)
    metrics.start()
    return metrics


def _is_here(spark: SparkSession) -> bool:
    """Whether Spark runs on this machine; a Connect server's Python is unknown to its clients."""
    return hasattr(spark, "_jvm")


def _require_importable(python: str) -> None:
    path = shutil.which(python)
    if path is not None and os.path.abspath(path) == os.path.abspath(sys.executable):
        return
    reason = _failure(path) if path is not None else _absence(python)
    if reason is not None:
        raise PipelineError(
            f"Spark starts {python!r} for format('rocketmq'), and that Python cannot import "
            f"pyspark_rocketmq: {reason}. Set PYSPARK_PYTHON={sys.executable} before the session "
            "is made (or activate the environment), or install contrail-mq[spark] for that Python"
        )


def _absence(python: str) -> str:
    if os.path.dirname(python) and not os.path.isabs(python):
        return (
            f"the driver has none in {os.getcwd()}, and Spark uses one name on the driver and on "
            "the executors: start the driver where its own environment has that name"
        )
    return "there is no such program on the PATH"


def _failure(path: str) -> str | None:
    """Why another Python cannot import this package; None if it can."""
    try:
        done = subprocess.run(
            [path, "-c", "import pyspark_rocketmq"],
            capture_output=True,
            text=True,
            timeout=_LOOK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_LOOK_TIMEOUT_S} s"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]

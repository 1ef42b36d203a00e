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

__all__ = ["DefaultSource", "check", "register"]

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

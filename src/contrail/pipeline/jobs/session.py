"""The Spark session of a job: embedded by default, else the one that was asked for."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from contrail.errors import PipelineError

EMBEDDED_MASTER = "local[*]"
JAVA_VERSION_MIN = 17
# Spark is started by spark-submit, or somewhere else: then it is not ours to choose where.
_DECIDED_ELSEWHERE = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
# An embedded session needs no more shuffle tasks than cores, and is reached by nobody else.
_EMBEDDED_DEFAULTS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def open_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session that knows ``format("rocketmq")``; ``conf`` is stronger than our own settings.

    ``master`` is what Spark calls so, or a Spark Connect address (``sc://host``). Without it the
    session is embedded in this process, unless spark-submit or ``SPARK_REMOTE`` has chosen.

    Raises:
        PipelineError: there is no Java for an embedded Spark, or Spark does not start.
    """
    chosen = master if master or _is_decided_elsewhere() else EMBEDDED_MASTER
    if chosen is not None and not chosen.startswith("sc://"):
        require_java()
    if chosen is not None and chosen.startswith("local"):
        use_this_interpreter()
        # Else Spark looks for an address that others would reach, and warns about what it finds.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = _started(name, chosen, dict(conf or {}))
    _register_source(spark)
    return spark


@contextmanager
def job_session(spark: SparkSession | None, name: str) -> Iterator[SparkSession]:
    """The given session or the one that is there, left open; else one that ends with the job."""
    spark = spark or SparkSession.getActiveSession()
    if spark is not None:
        _register_source(spark)
        yield spark
        return
    own = open_session(name)
    try:
        yield own
    finally:
        own.stop()


def session_settings(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """All settings of a session at ``master``: ours, then the given ones."""
    embedded = master is not None and master.startswith("local")
    return {**_DEFAULTS, **(_EMBEDDED_DEFAULTS if embedded else {}), **conf}


def use_this_interpreter() -> None:
    """Have Spark's Python workers be what runs this: Spark itself takes ``python3`` of the PATH."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def require_java() -> None:
    """Refuse in one line where Spark itself would fail with a page.

    Raises:
        PipelineError: no Java, or one that is too old.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    found = java_version(program) if program else None
    # An unknown one is given a chance: Spark itself says if it does not do.
    if found is None or 0 < found < JAVA_VERSION_MIN:
        is_there = "no Java was found" if found is None else f"{program} is Java {found}"
        raise PipelineError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {is_there}: install it with "
            f"`sudo apt-get install openjdk-{JAVA_VERSION_MIN}-jre-headless`, or set JAVA_HOME"
        )


def java_version(program: str) -> int | None:
    """The feature release of a Java, by the ``release`` file of its folder.

    0 when that file is missing or does not tell: a Java may be there without one. None when there
    is no such program.
    """
    path = Path(program)
    if not path.exists():
        return None
    try:
        return parsed_java_version((path.resolve().parent.parent / "release").read_text("utf-8"))
    except OSError:
        return 0


def parsed_java_version(text: str) -> int:
    """``17`` of ``JAVA_VERSION="17.0.15"``; Java 8 calls itself 1.8; 0 if it does not tell."""
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else 0


def _is_decided_elsewhere() -> bool:
    return any(os.environ.get(name) for name in _DECIDED_ELSEWHERE)


def _started(name: str, master: str | None, conf: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    for key, value in session_settings(master, conf).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        # Py4J, gRPC and Spark each have their own families; all mean the same to a user.
        first_line = str(error).strip().partition("\n")[0]
        raise PipelineError(
            f"Spark does not start at {master or 'the place that its environment names'}: "
            f"{first_line}"
        ) from error


def _register_source(spark: SparkSession) -> None:
    from pyspark_rocketmq import register

    register(spark)

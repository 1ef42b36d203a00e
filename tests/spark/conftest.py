"""One Spark session for all tests of a process, and one cluster for each module."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from contrail.errors import PipelineError
from contrail.pipeline.jobs.session import require_java
from contrail.testing import LocalCluster
from tests.interop.peers import unavailable
from tests.spark.quick_jvm import QUICK_JVM

# A session, its workers and often a second JVM share two cores with whatever else runs.
_TIMEOUT_S = 900
_INSTALL_JAVA = "apt-get install --no-install-recommends openjdk-17-jre-headless"

# For the drivers of this process and of the jobs that it starts.
os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark" in item.path.as_posix() and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    """Spark runs on it."""
    try:
        require_java()
    except PipelineError as missing:
        unavailable(str(missing), _INSTALL_JAVA)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two threads; its Python workers are this interpreter."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("contrail-tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One broker that also answers SQL92 subscriptions."""
    with LocalCluster(properties={"enablePropertyFilter": "true"}) as running:
        yield running

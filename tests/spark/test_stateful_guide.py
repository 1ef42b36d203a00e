"""The recipes of docs/guide/spark-stateful.md, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from contrail.testing import LocalCluster
from tests.spark.test_guide import recipes

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "spark-stateful.md"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture
def own_views(spark: SparkSession) -> Iterator[None]:
    """The session is shared: the state store and the views of the recipes end with the test."""
    yield
    spark.conf.unset(PROVIDER)
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)


@pytest.mark.proves("spark.tables.stateful-recipes")
@pytest.mark.usefixtures("own_views")
def test_every_stateful_recipe_runs(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    # Spark sends the classes of a program's main module by value.
    names: dict[str, Any] = {
        "__name__": "__main__",
        "spark": spark,
        "namesrv": cluster.namesrv,
        "folder": str(tmp_path),
    }
    found = recipes(PAGE.read_text(encoding="utf-8"))
    assert [title for title, _ in found[1:]] == [
        "Drop late data",
        "Drop repeats",
        "Join two topics",
        "Group into sessions",
        "Keep your own state",
    ]
    for title, code in found:
        started = time.monotonic()
        exec(compile(code, str(PAGE), "exec"), names)
        print(f"{title}: {time.monotonic() - started:.1f} s")

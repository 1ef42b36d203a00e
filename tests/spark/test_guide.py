"""The recipes of docs/guide/spark.md run, one after the other, and its errors are the real ones."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from contrail import Admin, Message
from contrail.testing import LocalCluster
from tests.spark.traffic import make_topic, send_rows

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "spark.md"
JOB_PAGES = ["query-with-sql.md", "traffic-report.md"]
# The block that makes these names is marked "setup" and not run.
RECIPE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
ERROR_ROW = re.compile(r"^\| `(.+?)` \|", re.MULTILINE)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def without_pushdown(spark: SparkSession) -> Iterator[None]:
    """The session is shared: a recipe's settings and views end with it."""
    spark.conf.unset(PUSHDOWN)
    yield
    spark.conf.unset(PUSHDOWN)
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)


def recipes(text: str) -> list[tuple[str, str]]:
    """Every recipe after the lines before it, so that a failure names the line of the page."""
    found = []
    for block in RECIPE.finditer(text):
        before = text[: block.start(1)]
        found.append((HEADING.findall(before)[-1], "\n" * before.count("\n") + block[1]))
    return found


@pytest.mark.proves(
    "spark.shown.guide",
    "spark.tables.views",
    "spark.tables.group-commit",
    "spark.scale.prometheus",
)
@pytest.mark.timeout(1_200)
def test_every_recipe_of_the_guide_runs(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, without_pushdown: None
) -> None:
    names: dict[str, Any] = {
        "spark": spark,
        "namesrv": cluster.namesrv,
        "folder": str(tmp_path),
        "store_folder": str(cluster.brokers[0].folder / "store"),
    }
    found = recipes(GUIDE.read_text(encoding="utf-8"))
    assert len(found) > 15
    for title, code in found:
        started = time.monotonic()
        exec(compile(code, str(GUIDE), "exec"), names)
        print(f"{title}: {time.monotonic() - started:.1f} s")
    with Admin(cluster.namesrv) as admin:
        assert "orders-by-spark" in admin.group_configs()["broker-a"]


@pytest.mark.parametrize("page", JOB_PAGES)
def test_the_examples_of_a_job_s_page_run(
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
) -> None:
    """In the session that is there, which the job leaves open."""
    send_rows(cluster, [Message(make_topic(cluster, "orders"), b"{}", tags="paid")])
    monkeypatch.chdir(tmp_path)
    text = (GUIDE.parent / page).read_text(encoding="utf-8")
    found = recipes(text.replace("127.0.0.1:9876", cluster.namesrv))
    assert found
    for _, code in found:
        exec(compile(code, page, "exec"), {"spark": spark})
    assert spark.range(1).count() == 1


def test_the_example_of_the_readme_runs(spark: SparkSession, cluster: LocalCluster) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = [code for code in RECIPE.findall(readme) if "rocketmq" in code]
    topic = make_topic(cluster, "readme-orders")
    messages = [Message(topic, b"x", tags="paid", properties={"region": "eu"}) for _ in range(6)]
    messages += [Message(topic, b"x", tags="open", properties={"region": "us"})]
    send_rows(cluster, messages)
    names: dict[str, Any] = {}
    exec(compile(example.replace('"orders"', f'"{topic}"'), "README.md", "exec"), names)
    assert names["paid_by_region"](spark, cluster.namesrv).collect() == [("eu", 6)]


def without_mode(spark: SparkSession, namesrv: str) -> None:
    frame = spark.range(1).selectExpr("'x' as body")
    frame.write.format("rocketmq").options(namesrvAddr=namesrv, topic="orders").save()


def with_overwrite(spark: SparkSession, namesrv: str) -> None:
    frame = spark.range(1).selectExpr("'x' as body")
    writer = frame.write.format("rocketmq").options(namesrvAddr=namesrv, topic="orders")
    writer.mode("overwrite").save()


def without_setting(spark: SparkSession, namesrv: str) -> None:
    reader = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe="orders")
    reader.option("pushdown", "true").load().where("queueId = 0").collect()


def with_a_misspelled_option(spark: SparkSession, namesrv: str) -> None:
    reader = spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe="orders")
    reader.option("startingOffset", "earliest").load()


def to_no_topic(spark: SparkSession, namesrv: str) -> None:
    frame = spark.range(1).selectExpr("'x' as body")
    writer = frame.write.format("rocketmq").options(namesrvAddr=namesrv, topic="nobody-made-it")
    writer.option("writeId", "w").mode("append").save()


@pytest.mark.parametrize(
    ("shown", "attempt"),
    [
        ("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", without_mode),
        ('mode("overwrite"), outputMode("complete")', with_overwrite),
        ("DATA_SOURCE_PUSHDOWN_DISABLED", without_setting),
        ("there is no such option", with_a_misspelled_option),
        ("topic 'orders' has no route", to_no_topic),
    ],
)
def test_an_error_is_shown_as_the_guide_says(
    spark: SparkSession, cluster: LocalCluster, without_pushdown: None, shown: str, attempt: Any
) -> None:
    make_topic(cluster, "orders")
    assert shown in ERROR_ROW.findall(GUIDE.read_text(encoding="utf-8"))
    with pytest.raises(Exception, match=re.escape(shown.replace("'orders'", "'nobody-made-it'"))):
        attempt(spark, cluster.namesrv)

"""The recipes of docs/guide/spark-clusters.md, run on a cluster that cannot see the driver.

The commands are those of the page; only addresses and folders are put in, and ``pip install`` is
done from the environment that runs the tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from contrail.testing import LocalCluster
from tests.interop.peers import unavailable
from tests.spark.standalone import (
    Standalone,
    fill,
    hidden_folders,
    reason_not_to_run,
    run,
    server,
    standalone,
)
from tests.spark.stored import stored
from tests.spark.traffic import make_topic, orders, send_rows

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "spark-clusters.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
INSTALL = re.compile(r"^(\S+)/bin/pip install (.+)$")
MASTER = "spark://spark.example:7077"
CONNECT = "sc://spark.example:15002"
CONNECT_READY = re.compile(r"Spark Connect server started at: \S+?:(\d+)")

JOB = """
import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
reached = {"namesrvAddr": NAMESRV}
rows = spark.range(200).selectExpr("cast(id as string) as body", "concat('k', id) as keys")
written = rows.write.format("rocketmq").options(**reached, topic="packed", writeId="one")
written.mode("append").save()

arriving = spark.readStream.format("rocketmq").options(**reached, subscribe="packed")
copy = arriving.option("startingOffsets", "earliest").load().select("body", "keys")
query = copy.writeStream.format("rocketmq").options(**reached, topic="copied")
query = query.option("checkpointLocation", FOLDER + "/copy").trigger(availableNow=True).start()
query.awaitTermination()

read = spark.read.format("rocketmq").options(**reached, subscribe="copied").load()


def seen(batches):
    import os

    import contrail
    import pyarrow as pa
    import pyspark

    count = sum(batch.num_rows for batch in batches)
    facts = [sys.executable, contrail.__file__, pyspark.__file__, *map(os.listdir, HIDDEN)]
    yield pa.RecordBatch.from_pylist([{"count": count, "facts": json.dumps(facts)}])


found = read.mapInArrow(seen, "count bigint, facts string").collect()
print("FOUND", json.dumps([[row["count"], json.loads(row.facts)] for row in found]))
"""


def blocks(title: str) -> list[str]:
    """The commands of a section of the page."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return BLOCK.findall(section)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's commands are typed."""
    return tmp_path_factory.mktemp("clusters")


@pytest.fixture(scope="module")
def environments(folder: Path) -> list[str]:
    """Both environments made as the page says; the commands that are left of the recipe."""
    (recipe, *_) = blocks("Pack the environment")
    commands = recipe.replace("\\\n", " ").splitlines()
    left = []
    for command in filter(None, commands):
        install = INSTALL.match(command)
        if install is not None:
            fill(folder / install[1], *install[2].replace("'", "").split())
        elif "spark-submit" in command:
            left.append(command)
        elif "-m venv" in command:
            run(f"{command} --without-pip", folder, log="make.log")
        else:
            # The archive is unpacked on this machine again: no time is spent on making it small.
            run(f"{command} --compress-level 0", folder, log="make.log")
    assert (folder / "contrail-env.tar.gz").stat().st_size < 450 << 20
    return left


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    reason = reason_not_to_run()
    if reason is not None:
        unavailable(reason, "run the tests as root, from a virtual environment")
    with standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.mark.proves("spark.clusters.packed-environment", "spark.clusters.extra")
def test_the_packed_environment_runs_where_the_driver_s_is_out_of_sight(
    environments: list[str], folder: Path, spark_cluster: Standalone, cluster: LocalCluster
) -> None:
    make_topic(cluster, "packed")
    make_topic(cluster, "copied")
    names = {
        "NAMESRV": cluster.namesrv,
        "FOLDER": str(folder),
        "HIDDEN": [str(one) for one in hidden_folders()],
    }
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    (folder / "my_job.py").write_text(given + JOB, encoding="utf-8")
    (command,) = environments
    assert MASTER in command
    out = run(command.replace(MASTER, spark_cluster.master), folder, log="submit.log")
    (line,) = [line for line in out.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    assert sum(count for count, _ in found) == 200
    assert sorted(int(one.body) for one in stored(cluster, "copied")) == list(range(200))
    work = str(spark_cluster.folder / "work")
    for _, (python, package, spark, *hidden) in found:
        assert "/env/bin/python" in python
        assert package.startswith(work) and "/env/lib/" in package
        assert spark.startswith(str(spark_cluster.folder / "spark-home"))
        assert hidden == [[] for _ in hidden_folders()]


@pytest.mark.proves("spark.clusters.masters")
@pytest.mark.usefixtures("environments")
def test_a_job_runs_on_a_master_as_the_page_says(
    folder: Path, spark_cluster: Standalone, cluster: LocalCluster
) -> None:
    send_rows(cluster, orders(make_topic(cluster, "orders"), 100))
    command = blocks("Pack the environment")[1]
    for shown, real in (
        (MASTER, spark_cluster.master),
        ("ns1:9876", cluster.namesrv),
        (" /archive ", f" {folder}/archive "),
    ):
        assert shown in command
        command = command.replace(shown, real)
    out = run(command, folder, log="archive.log")
    assert "archive: done" in out
    files = sorted((folder / "archive").rglob("*.parquet"))
    assert sum(pq.read_metadata(file).num_rows for file in files) == 100


@pytest.mark.proves("spark.clusters.masters")
@pytest.mark.usefixtures("environments")
def test_a_client_of_spark_connect_runs_as_the_page_says(
    folder: Path, cluster: LocalCluster
) -> None:
    send_rows(cluster, orders(make_topic(cluster, "orders"), 10))
    start, ask = blocks("Spark Connect")
    # A free port of loopback, and not more of this machine than needed.
    ours = (
        "--conf spark.connect.grpc.binding.port=0 --conf spark.ui.enabled=false "
        "--conf spark.connect.grpc.binding.address=127.0.0.1 spark-internal"
    )
    start = "exec env " + start.replace("spark-internal", ours).replace("local[*]", "local[1]")
    with server(start, folder, log="connect.log", ready=CONNECT_READY) as port:
        assert CONNECT in ask
        ask = ask.replace(CONNECT, f"sc://127.0.0.1:{port}").replace("ns1:9876", cluster.namesrv)
        out = run(ask.strip() + " --json", folder, log="ask.log")
    assert "WARN" not in (folder / "ask.log").read_text(encoding="utf-8").upper()
    (row,) = json.loads(out)["table"]
    assert list(row.values()) == [len(stored(cluster, "orders"))]

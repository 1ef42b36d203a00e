"""The cells that run inside the Spark session of the Spark suite: each is one action, timed.

A session of its own process runs all cells in turn, round by round, after a warm round: a cold
JVM would be measured instead of the source. CPU is that of the whole family: driver, JVM and
Python workers, those that have ended included.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import BenchError, Figures
from contrail.pipeline.jobs.archive import ArchiveSettings, archive
from contrail.pipeline.jobs.archive_layout import PARTITION_COLUMNS

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# Places in /proc/PID/stat behind the name: parent, and CPU of its own and of reaped children.
_PARENT = 1
_CPU = slice(11, 15)
_DRIVER_MEMORY = "3g"


def run_cells(
    cells: Sequence[str],
    round_count: int,
    row_count: int,
    places: Mapping[str, str],
    jars: str = "",
) -> dict[str, list[Figures]]:
    """Every cell once to warm up, then ``round_count`` rounds of all, in alternating order."""
    spark = _session(jars)
    try:
        actions = {name: _action(spark, name, places) for name in cells}
        taken: dict[str, list[Figures]] = {name: [] for name in cells}
        for number in range(round_count + 1):
            order = list(cells) if number % 2 == 0 else list(reversed(cells))
            for name in order:
                figures = _timed(actions[name], row_count)
                if number:
                    taken[name].append(figures)
        return taken
    finally:
        spark.stop()


def write_parquet(places: Mapping[str, str]) -> Figures:
    """The same rows as Parquet and as an archive, made by Spark from the store's files."""
    spark = _session("")
    try:
        _offline(spark, places).write.mode("overwrite").parquet(places["parquet"])
        if "archive" in places:
            _archive_to(spark, places, places["archive"])
        return {"record_count": spark.read.parquet(places["parquet"]).count()}
    finally:
        spark.stop()


def write_kafka(places: Mapping[str, str], jars: str) -> Figures:
    """The same bodies and keys as a Kafka topic with as many partitions."""
    spark = _session(jars)
    try:
        rows = spark.read.parquet(places["parquet"])
        rows.selectExpr("keys as key", "body as value").write.format("kafka").options(
            **{"kafka.bootstrap.servers": places["kafka"], "topic": "rows"}
        ).save()
        return {"record_count": _kafka(spark, places).count()}
    finally:
        spark.stop()


def _session(jars: str) -> Any:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": _DRIVER_MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    } | ({"spark.jars": jars} if jars else {})
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _offline(spark: Any, places: Mapping[str, str], schema: str | None = None) -> Any:
    reading = spark.read.format("rocketmq").options(
        storePath=places["store"], subscribe=places["topic"]
    )
    return (reading.schema(schema) if schema else reading).load()


def _network(spark: Any, places: Mapping[str, str]) -> Any:
    return (
        spark.read.format("rocketmq")
        .options(namesrvAddr=places["namesrv"], subscribe=places["topic"])
        .load()
    )


def _kafka(spark: Any, places: Mapping[str, str]) -> Any:
    named = {"kafka.bootstrap.servers": places["kafka"], "subscribe": "rows"}
    return spark.read.format("kafka").options(**named).load()


def _scanned(rows: Any) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _archive_to(spark: Any, places: Mapping[str, str], folder: str) -> None:
    settings = ArchiveSettings(
        archive=folder,
        topics=(places["topic"],),
        store_path=places["store"],
        broker_name=places["broker"],
    )
    summary = archive(settings, spark=spark)
    if summary.facts["messages"] != int(places["row_count"]):
        raise BenchError(f"the archive has {summary.facts['messages']} messages: {places}")


def _archived(spark: Any, places: Mapping[str, str], folder: Path) -> None:
    """The job itself: every column, by topic and hour, in one committed round."""
    try:
        _archive_to(spark, places, str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copied(spark: Any, places: Mapping[str, str], folder: Path) -> None:
    """Copy an archive in the form in which the job writes it."""
    rows = spark.read.parquet(places["archive"])
    try:
        writer = rows.write.mode("overwrite").partitionBy(*PARTITION_COLUMNS)
        writer.option("compression", "zstd").parquet(str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _action(spark: Any, name: str, places: Mapping[str, str]) -> Callable[[], None]:
    copy = Path(places["parquet"]).with_name("copy")
    read_parquet = spark.read.parquet
    actions: dict[str, Callable[[], None]] = {
        "parquet full": lambda: _scanned(read_parquet(places["parquet"])),
        "parquet one": lambda: _scanned(read_parquet(places["parquet"]).select("queueOffset")),
        "parquet copy": lambda: _copied(spark, places, copy),
        "offline full": lambda: _scanned(_offline(spark, places)),
        "offline one": lambda: _scanned(_offline(spark, places, "queueOffset bigint")),
        "offline copy": lambda: _archived(spark, places, copy),
        "network full": lambda: _scanned(_network(spark, places)),
        "kafka full": lambda: _scanned(_kafka(spark, places)),
        "sink": lambda: _sent(read_parquet(places["parquet"]), places),
    }
    return actions[name]


def _sent(rows: Any, places: Mapping[str, str]) -> None:
    """Each time under another name: a repeated one would store nothing."""
    named = {
        "namesrvAddr": places["namesrv"],
        "topic": places["sink_topic"],
        "writeId": f"bench-{time.time_ns()}",
        "idempotence": "dedupe",
    }
    chosen = rows.select("body", "keys", "tags")
    chosen.write.format("rocketmq").options(**named).mode("append").save()


def _timed(action: Callable[[], None], row_count: int) -> Figures:
    cpu_s, wall_s = family_cpu_s(os.getpid()), time.perf_counter()
    action()
    wall_s = time.perf_counter() - wall_s
    cpu_s = family_cpu_s(os.getpid()) - cpu_s
    return {"wall_s": wall_s, "cpu_s": cpu_s, "record_count": row_count}


def family_cpu_s(root: int) -> float:
    """CPU of a process and all its descendants so far."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            # It has ended since; its parent has its CPU.
            continue
        fields = stat.rpartition(")")[2].split()
        parents[int(entry)] = int(fields[_PARENT])
        ticks[int(entry)] = sum(map(int, fields[_CPU]))
    family = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(ticks.get(pid, 0) for pid in family) / _TICKS_A_SECOND


def micro_batches(places: Mapping[str, str], batch_count: int) -> dict[str, list[Figures]]:
    """How long one small micro-batch of four tasks takes, by source."""
    spark = _session("")
    try:
        taken: dict[str, list[Figures]] = {"rocketmq": [], "rate": []}
        for number in range(2):
            for name in taken:
                figures = _small_batches(spark, name, places, batch_count)
                if number:
                    taken[name] = figures
        return taken
    finally:
        spark.stop()


def _small_batches(
    spark: Any, name: str, places: Mapping[str, str], batch_count: int
) -> list[Figures]:
    checkpoint = Path(places["parquet"]).with_name(f"checkpoint-{time.time_ns()}")
    query = _stream(spark, name, places).writeStream.format("noop")
    running = query.option("checkpointLocation", str(checkpoint)).trigger(
        processingTime="0 seconds"
    )
    started = running.start()
    try:
        deadline = time.monotonic() + 120
        while len(_with_rows(started)) < batch_count + 2:
            if time.monotonic() > deadline or started.exception():
                raise BenchError(f"{name} made {len(_with_rows(started))} batches: {started}")
            time.sleep(0.1)
        # The first two start workers.
        walls_ms = [one["durationMs"]["triggerExecution"] for one in _with_rows(started)[2:]]
    finally:
        started.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    return [{"wall_s": ms / 1000, "cpu_s": 0.0, "record_count": 1} for ms in walls_ms]


def _with_rows(query: Any) -> list[Any]:
    return [one for one in query.recentProgress if one["numInputRows"]]


def _stream(spark: Any, name: str, places: Mapping[str, str]) -> Any:
    if name == "rate":
        return (
            spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch="40", numPartitions="4")
            .load()
        )
    return (
        spark.readStream.format("rocketmq")
        .schema("queueOffset bigint")
        .options(
            namesrvAddr=places["namesrv"],
            subscribe=places["small_topic"],
            startingOffsets="earliest",
            maxOffsetsPerTrigger="40",
        )
        .load()
    )

"""A Spark driver in a process of its own, which a test gives work, stops at a gate and kills.

``python -m tests.spark.crash_program MASTER FOLDER`` takes one request a line, as JSON, and leaves
the answer to each in a file of the folder. The format it registers is the product's, except that
its reads, writes and commits halt at a gate: a few files by which the test and the halted process
see each other.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from contrail.pipeline.batch_reader import BatchReader
from contrail.pipeline.options import SinkSettings, SourceSettings
from contrail.pipeline.sink_calls import connection_for
from contrail.pipeline.source import RocketMqSource
from contrail.pipeline.stream_reader import StreamReader
from contrail.pipeline.task_identity import BATCH_ID_PROPERTY
from contrail.pipeline.writers import BatchWriter, StreamWriter, batch_writer, stream_writer
from tests.spark.quick_jvm import QUICK_JVM

FORMAT = "gated"
# One that halts is not there for ever, even if the test that would open the gate is gone.
_HALT_S_MAX = 900
_POLL_S = 0.02


class GateError(Exception):
    """The error of a task that fails on request."""


@dataclass(frozen=True)
class Gate:
    """Where the first task or commit halts: in which batch, at which point, after how many rows.

    Points: ``read`` and ``write`` of a task; ``commit`` before it begins, ``decided`` when the
    decision is made and not carried out, ``committed`` before Spark gets the result.
    """

    folder: str = ""
    point: str = ""
    batch_id: int = 0
    row_count: int = 0
    fails: bool = False

    # The test's side.

    def close(self) -> None:
        self._file("armed").parent.mkdir(parents=True)
        self._file("armed").touch()
        self._file("closed").touch()

    def open(self) -> None:
        for name in ("armed", "closed"):
            self._file(name).unlink(missing_ok=True)

    def halted_pid(self) -> int | None:
        """The process that halts at the gate; None when none came yet."""
        with suppress(FileNotFoundError):
            return int(self._file("halted").read_text())
        return None

    def tasks(self) -> list[tuple[str, int, int, int]]:
        """The tasks that ran: their work, partition, attempt and worker."""
        found = []
        for path in sorted(Path(self.folder).glob("task *")):
            _, what, partition, attempt, parent = path.name.split(" ")
            found.append((what, int(partition), int(attempt), int(parent)))
        return found

    # The program's side.

    def note_task(self, what: str) -> None:
        context = TaskContext.get()
        if self.folder and context is not None:
            name = f"task {what} {context.partitionId()} {context.attemptNumber()} {os.getppid()}"
            self._file(name).touch()

    def halt(self, point: str, batch_id: int) -> None:
        """Wait here, if this is the point and no process has waited at it."""
        if point != self.point or batch_id != self.batch_id:
            return
        try:
            os.rename(self._file("armed"), self._file("taken"))
        except FileNotFoundError:
            return
        self._file("coming").write_text(str(os.getpid()))
        os.rename(self._file("coming"), self._file("halted"))
        if self.fails:
            raise GateError("this task was told to fail once")
        deadline = time.monotonic() + _HALT_S_MAX
        while self._file("closed").exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def between_rows(
        self, point: str, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The same rows, with a halt after some of them, or after the last."""
        self.note_task(point)
        left = self.row_count
        if not left:
            self.halt(point, _batch_id())
        for batch in batches:
            if 0 < left < batch.num_rows:
                yield batch.slice(0, left)
                self.halt(point, _batch_id())
                yield batch.slice(left)
            else:
                yield batch
            left -= batch.num_rows
        self.halt(point, _batch_id())

    def _file(self, name: str) -> Path:
        return Path(self.folder) / name


def _batch_id() -> int:
    """The micro-batch of this task; 0 in a batch job."""
    context = TaskContext.get()
    return int((context and context.getLocalProperty(BATCH_ID_PROPERTY)) or 0)


class GatedSource(RocketMqSource):
    """``format("rocketmq")`` with gates; the option ``gate`` is one as JSON."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({name: options[name] for name in options if name.lower() != "gate"})
        given = {name.lower(): options[name] for name in options}.get("gate")
        self._gate = Gate(**json.loads(given)) if given else Gate()

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        reader = GatedBatchReader(SourceSettings.of(self.options, streaming=False), schema)
        reader.gate = self._gate
        return reader

    def streamReader(self, schema: StructType) -> StreamReader:
        reader = GatedStreamReader(SourceSettings.of(self.options, streaming=True), schema)
        reader.gate = self._gate
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        made = batch_writer(schema, SinkSettings.of(self.options))
        writer = GatedBatchWriter(made._plan, made._settings)
        writer.gate = self._gate
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        made = stream_writer(schema, SinkSettings.of(self.options))
        writer = GatedStreamWriter(made._plan, made._settings)
        writer.gate = self._gate
        return writer


class GatedBatchReader(BatchReader):
    gate = Gate()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.gate.between_rows("read", super().read(partition))


class GatedStreamReader(StreamReader):
    gate = Gate()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.gate.between_rows("read", super().read(partition))


class GatedBatchWriter(BatchWriter):
    gate = Gate()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self.gate.between_rows("write", iterator))


class GatedStreamWriter(StreamWriter):
    gate = Gate()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self.gate.between_rows("write", iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.gate.halt("commit", batchId)
        connection = connection_for(self._settings)
        plain = connection.commit

        def commit_and_halt(*arguments: Any, decide: bool) -> None:
            plain(*arguments, decide=decide)
            if decide:
                self.gate.halt("decided", batchId)

        vars(connection)["commit"] = commit_and_halt
        try:
            super().commit(messages, batchId)
        finally:
            del vars(connection)["commit"]
        self.gate.halt("committed", batchId)


# Requests of the test.


def stream(
    spark: SparkSession,
    *,
    namesrv: str,
    source: str,
    sink: str,
    checkpoint: str,
    mode: str,
    rows_per_batch: int,
    gate: Mapping[str, Any],
) -> None:
    """Copy a topic into another to its present end, ordered by the key of each message."""
    options = {"namesrvAddr": namesrv, "gate": json.dumps(gate)}
    rows = (
        spark.readStream.format(FORMAT)
        .schema("body binary, keys string")
        .options(**options, subscribe=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", rows_per_batch)
        .load()
    )
    query = (
        copied(rows)
        .writeStream.format(FORMAT)
        .options(**options, topic=sink, idempotence=mode, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def copied(rows: DataFrame) -> DataFrame:
    """Each message as the sink gets it; its place in the order goes with it."""
    return rows.select(
        F.concat(F.lit("copy of "), F.col("body").cast("string")).alias("body"),
        F.col("keys").alias("shardingKey"),
    )


def read(
    spark: SparkSession, *, namesrv: str, topic: str, gate: Mapping[str, Any]
) -> dict[str, object]:
    """Every message of a topic: queue id, queue offset and body."""
    options = {"namesrvAddr": namesrv, "subscribe": topic, "gate": json.dumps(gate)}
    rows = (
        spark.read.format(FORMAT)
        .schema("queueId int, queueOffset bigint, body binary")
        .options(**options)
        .load()
    )
    found = rows.withColumn("body", F.col("body").cast("string")).collect()
    return {"rows": [list(row) for row in found]}


def write(
    spark: SparkSession,
    *,
    namesrv: str,
    topic: str,
    row_count: int,
    tasks: int,
    options: Mapping[str, str],
    gate: Mapping[str, Any],
) -> None:
    """Write the numbers below ``row_count``."""
    rows = spark.range(0, row_count, 1, tasks).select(F.col("id").cast("string").alias("body"))
    given = {"namesrvAddr": namesrv, "topic": topic, "gate": json.dumps(gate), **options}
    rows.write.format(FORMAT).options(**given).mode("append").save()


_REQUESTS: Mapping[str, Callable[..., dict[str, object] | None]] = {
    "stream": stream,
    "read": read,
    "write": write,
}


# The process.


def open_session(master: str, folder: Path) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        # Executors are killed often here, and both are to be there before anything is run.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    builder = SparkSession.builder.master(master).appName("crash-program")
    spark = builder.config(map=settings).getOrCreate()
    # By the name that workers can import, not as ``__main__``.
    from tests.spark.crash_program import GatedSource as source

    spark.dataSource.register(source)
    return spark


def serve(spark: SparkSession, folder: Path, lines: queue.SimpleQueue[str]) -> None:
    """Answer requests, one after the other, until there are no more."""
    number = 0
    while line := lines.get():
        request = json.loads(line)
        answer: dict[str, object] = {"error": None}
        try:
            answer |= _REQUESTS[request.pop("do")](spark, **request) or {}
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        path = folder / f"answer-{number}.json"
        path.with_suffix(".tmp").write_text(json.dumps(answer))
        os.rename(path.with_suffix(".tmp"), path)
        number += 1


def take_lines(lines: queue.SimpleQueue[str]) -> None:
    """Pass on requests; at the end of input the test process is gone."""
    for line in sys.stdin:
        lines.put(line)
    # Spark's own processes end when they see that the driver is gone.
    os._exit(0)


def main() -> None:
    master, folder = sys.argv[1], Path(sys.argv[2])
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=take_lines, args=(lines,), daemon=True).start()
    serve(open_session(master, folder), folder, lines)


if __name__ == "__main__":
    main()

"""``df.writeStream.format("rocketmq")``: each micro-batch once, also when it is replayed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from contrail.testing import LocalCluster
from tests.spark.stored import stored
from tests.spark.traffic import make_topic

ROWS_PER_FILE = 500
_FIRST_FILE_S = 1_700_000_000


class Lines:
    """A stream of text files, read by a query again and again from its checkpoint."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, topic: str, folder: Path):
        self._spark = spark
        self._cluster = cluster
        self._topic = topic
        self._input = folder / "input"
        self._input.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.count = 0

    def add_file(self) -> None:
        lines = range(self.count, self.count + ROWS_PER_FILE)
        path = self._input / f"{self.count:08}.txt"
        path.write_text("".join(f"{number}\n" for number in lines))
        # Spark takes files by their times: two of one millisecond would come in any order.
        os.utime(path, (_FIRST_FILE_S + self.count, _FIRST_FILE_S + self.count))
        self.count += ROWS_PER_FILE

    def run(self, frame_of: object = None, **options: str) -> None:
        """One micro-batch for each file."""
        lines = (
            self._spark.readStream.option("maxFilesPerTrigger", 1)
            .text(str(self._input))
            .withColumnRenamed("value", "body")
        )
        frame = frame_of(lines) if callable(frame_of) else lines
        given = {"namesrvAddr": self._cluster.namesrv, "topic": self._topic, **options}
        query = (
            frame.writeStream.format("rocketmq")
            .options(**given)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """As if the driver had died after the sink's commit and before Spark's own record."""
        commits = self.checkpoint / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=_number)
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)

    def query_id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def stored(self) -> list[int]:
        return sorted(int(message.body) for message in stored(self._cluster, self._topic))


def _number(path: Path) -> int:
    return int(path.name)


@pytest.fixture
def lines(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Lines:
    topic = make_topic(cluster, f"stream-{abs(hash(request.node.name))}")
    return Lines(spark, cluster, topic, tmp_path)


@pytest.mark.proves("spark.sink.idempotence")
@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_a_replayed_batch_adds_no_row(lines: Lines, mode: str) -> None:
    for _ in range(3):
        lines.add_file()
    lines.run(idempotence=mode)
    assert lines.stored() == list(range(3 * ROWS_PER_FILE))
    lines.forget_last_commit()
    lines.add_file()
    lines.run(idempotence=mode)
    assert lines.stored() == list(range(4 * ROWS_PER_FILE))


@pytest.mark.proves("spark.sink.idempotence")
def test_without_idempotence_a_replayed_batch_is_there_twice(lines: Lines) -> None:
    lines.add_file()
    lines.run(idempotence="none")
    lines.forget_last_commit()
    lines.run(idempotence="none")
    assert lines.stored() == sorted([*range(ROWS_PER_FILE)] * 2)


@pytest.mark.proves("spark.source.four-ways")
def test_dedupe_is_the_default_and_rows_name_their_writer(
    lines: Lines, cluster: LocalCluster
) -> None:
    lines.add_file()
    lines.run()
    messages = stored(cluster, lines._topic)
    keys = {message.properties["SPARK_SINK_KEY"] for message in messages}
    assert keys == {f"{lines.query_id()}/0/0"}
    seqs = sorted(int(message.properties["SPARK_SINK_SEQ"]) for message in messages)
    assert seqs == list(range(ROWS_PER_FILE))


@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_a_batch_that_failed_half_way_is_completed_by_the_next_run(lines: Lines, mode: str) -> None:
    def broken(frame: DataFrame) -> DataFrame:
        bad = F.raise_error(F.lit("bad luck"))
        body = F.when(F.col("body") == "700", bad).otherwise(F.col("body"))
        return frame.select(body.cast("string").alias("body"))

    lines.add_file()
    lines.add_file()
    with pytest.raises(Exception, match="bad luck"):
        lines.run(broken, idempotence=mode)
    assert lines.stored()[:ROWS_PER_FILE] == list(range(ROWS_PER_FILE))
    lines.run(idempotence=mode)
    assert lines.stored() == list(range(2 * ROWS_PER_FILE))


def test_a_new_checkpoint_under_an_old_sink_id_is_refused(lines: Lines) -> None:
    for _ in range(2):
        lines.add_file()
    lines.run(sinkId="orders-copy")
    lines.checkpoint = lines.checkpoint.with_name("other")
    with pytest.raises(Exception, match="batch 0 of sink 'orders-copy' is older than batch 1"):
        lines.run(sinkId="orders-copy")
    assert lines.stored() == list(range(2 * ROWS_PER_FILE))

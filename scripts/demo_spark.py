"""The part of the demo about Spark: a stream of live orders, dead letters again, an archive."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow.dataset as arrow_dataset
from pyspark.sql import SparkSession

from contrail import Admin, Message, Producer, PushConsumer
from contrail.pipeline.jobs.archive import ArchiveSettings, archive
from contrail.pipeline.jobs.replay import ReplaySettings, replay
from contrail.pipeline.jobs.session import open_session
from contrail.testing import LocalCluster

ORDERS, DEAD_COUNT = 900, 12
TOPIC, GROUP = "spark-orders", "spark-billing"
TAGS = ("created", "paid", "shipped")
PATIENCE_S = 60.0
Row = tuple[str, str, bool]


def show_spark(cluster: LocalCluster, folder: Path) -> Iterable[Row]:
    """Read and write the cluster's messages as a data engineer would."""
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(TOPIC, queues=4)
    began = time.monotonic()
    spark = open_session("demo", master="local[2]", conf={"spark.driver.memory": "1g"})
    try:
        yield f"a session of Spark {spark.version}", f"{time.monotonic() - began:.1f} s", True
        yield streamed(cluster, spark, folder)
        yield replayed(cluster, spark, folder)
        yield archived(cluster, spark, folder)
    finally:
        spark.stop()


def streamed(cluster: LocalCluster, spark: SparkSession, folder: Path) -> Row:
    """Count orders by tag while they are being sent."""
    orders = (
        spark.readStream.format("rocketmq")
        .schema("tags string, queueOffset bigint")
        .options(namesrvAddr=cluster.namesrv, subscribe=TOPIC, startingOffsets="earliest")
        .load()
    )
    query = (
        orders.groupBy("tags")
        .count()
        .writeStream.format("memory")
        .queryName("orders_by_tag")
        .outputMode("complete")
        .option("checkpointLocation", str(folder / "stream"))
        .start()
    )
    try:
        sending = threading.Thread(target=send_orders, args=(cluster.namesrv,))
        sending.start()
        sending.join()
        query.processAllAvailable()
        counts = {row["tags"]: row["count"] for row in spark.table("orders_by_tag").collect()}
    finally:
        query.stop()
    wanted = Counter(TAGS[number % 3] for number in range(ORDERS))
    text = ", ".join(f"{tag} {count:,}" for tag, count in sorted(counts.items()))
    return "orders by tag, counted while they were sent", text, counts == wanted


def send_orders(namesrv: str) -> None:
    with Producer("demo-live", namesrv, send_timeout_ms=20_000) as producer:
        for begin in range(0, ORDERS, 100):
            producer.send_many(
                Message(TOPIC, b'{"order": %d}' % number, tags=TAGS[number % 3], keys=f"o-{number}")
                for number in range(begin, begin + 100)
            )
            time.sleep(0.1)


def replayed(cluster: LocalCluster, spark: SparkSession, folder: Path) -> Row:
    """Give up on some orders, then send their dead letters back to where they came from."""
    dead: set[str] = set()
    came_back: set[str] = set()
    buried = threading.Event()
    consumer = PushConsumer(GROUP, cluster.namesrv, consume_from_where="first")

    @consumer.on_message
    def handle(message) -> None:  # type: ignore[no-untyped-def]
        key = message.keys[0]
        if buried.is_set() and key in dead:
            came_back.add(key)
        elif not buried.is_set() and len(dead) < DEAD_COUNT:
            dead.add(key)
            message.dead_letter()

    consumer.subscribe(TOPIC)
    with consumer, Admin(cluster.namesrv) as admin:
        wait_until(lambda: dead_letters(admin) >= DEAD_COUNT)
        buried.set()
        summary = replay(
            ReplaySettings(group=GROUP, namesrv=cluster.namesrv, checkpoint=str(folder / "replay")),
            spark=spark,
        )
        wait_until(lambda: came_back == dead)
    text = f"{len(came_back)} of {len(dead)} handled again, job {summary.outcome}"
    return "dead letters of a group, replayed", text, len(dead) == DEAD_COUNT and came_back == dead


def dead_letters(admin: Admin) -> int:
    topic = f"%DLQ%{GROUP}"
    if topic not in admin.topics():
        return 0
    return admin.topic_stats(topic).count


def wait_until(holds) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.1)


def archived(cluster: LocalCluster, spark: SparkSession, folder: Path) -> Row:
    """The topic as Parquet, read again without Spark."""
    target = folder / "archive"
    archive(
        ArchiveSettings(archive=str(target), topics=(TOPIC,), namesrv=cluster.namesrv),
        spark=spark,
    )
    rows = arrow_dataset.dataset(target, format="parquet", partitioning="hive").count_rows()
    files = sum(1 for _ in target.rglob("*.parquet"))
    wanted = ORDERS + DEAD_COUNT
    return "the topic archived as Parquet", f"{rows:,} messages in {files} files", rows == wanted

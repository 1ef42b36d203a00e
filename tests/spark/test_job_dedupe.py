"""A topic to another without repeats: by key, by property, by body, and over a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from contrail import Message
from contrail.clock import ManualClock
from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.dedupe import DedupeSettings, dedupe, repeat_key
from contrail.testing import LocalCluster
from tests.spark.job_kills import finish_job, kill_after_batches, send_large
from tests.spark.traffic import make_topic, queues_of, send_rows


def settings(cluster: LocalCluster, topic: str, folder: Path, **more: Any) -> DedupeSettings:
    given: dict[str, Any] = {
        "namesrv": cluster.namesrv,
        "topic": topic,
        "to_topic": f"{topic}-once",
        "queues": 2,
        "checkpoint": str(folder / "checkpoint"),
    }
    return DedupeSettings(**{**given, **more})


def keys_in(spark: SparkSession, cluster: LocalCluster, topic: str) -> list[str | None]:
    found = (
        spark.read.format("rocketmq")
        .schema("keys string, number string")
        .option("namesrvAddr", cluster.namesrv)
        .option("subscribe", topic)
        .load()
        .collect()
    )
    assert all(row.number for row in found)
    return [row["keys"] for row in found]


def message(topic: str, key: str | None, number: int) -> Message:
    return Message(
        topic, b"x", keys=[key] if key else [], tags="t", properties={"number": f"n{number}"}
    )


@pytest.mark.proves("spark.jobs.dedupe")
def test_repeats_are_dropped_over_all_batches_and_runs_and_messages_without_a_key_are_kept(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "noisy", queues=2)
    send_rows(cluster, [message(topic, f"k{number % 40}", number) for number in range(120)])
    send_rows(cluster, [message(topic, None, number) for number in range(6)])
    wish = settings(cluster, topic, tmp_path, rows_per_batch=70)
    summary = dedupe(wish, spark=spark)
    assert summary.outcome == "done"
    assert summary.facts["read by this run"] == 126
    assert summary.facts["repeats dropped"] == 80
    assert summary.facts["idempotence"] == "transactional"

    send_rows(cluster, [message(topic, f"k{number}", number) for number in range(38, 42)])
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return {"k40", "k41"} <= set(keys_in(spark, cluster, "noisy-once"))

    again = dedupe(replace(wish, continuous=True), spark=spark, stop=stop)
    assert again.outcome == "stopped"
    found = keys_in(spark, cluster, "noisy-once")
    assert sorted(key for key in found if key) == sorted(f"k{number}" for number in range(42))
    assert found.count(None) == 6
    with pytest.raises(OptionInvalid, match="window was '1h' and is now '2h'"):
        dedupe(replace(wish, window="2h"), spark=spark)


@pytest.mark.proves("spark.jobs.dedupe")
def test_a_key_is_forgotten_after_the_window(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "slow", queues=1)
    # Each of these is a connection of its own, which takes longer than the window.
    send_rows(cluster, [message(topic, "a", 1)])
    send_rows(cluster, [message(topic, f"later-{number}", number) for number in range(3)])
    send_rows(cluster, [message(topic, "a", 2), message(topic, "a", 3)])
    wish = settings(cluster, topic, tmp_path, rows_per_batch=1, window="1ms")
    dedupe(wish, spark=spark)
    found = keys_in(spark, cluster, "slow-once")
    assert sorted(key or "" for key in found) == ["a", "a", "later-0", "later-1", "later-2"]


def hours_pass(cluster: LocalCluster, hours: float) -> None:
    """Move the clock, and wait for the broker that the NameServer took for a silent one."""
    cluster.advance(hours=hours)
    for broker in cluster.brokers:
        cluster.wait_for_routes(broker)


@pytest.mark.proves("spark.jobs.dedupe")
def test_no_message_is_lost_of_a_queue_that_is_hours_behind_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LocalCluster(clock=ManualClock()) as apart:
        topic = make_topic(apart, "apart", queues=2)
        behind, ahead = queues_of(apart, topic)
        send_rows(apart, [message(topic, f"old-{n}", n) for n in range(3_000)], queues=[behind])
        # The other queue gives these again half an hour later, and is read hours before.
        hours_pass(apart, 1.5)
        send_rows(apart, [message(topic, f"new-{n}", n) for n in range(290)], queues=[behind])
        hours_pass(apart, 0.5)
        # The first of these are keys of two hours ago, and one is there twice.
        keys = [*(f"old-{n}" for n in range(10)), *(f"new-{n}" for n in range(290)), "new-7"]
        send_rows(apart, [message(topic, key, n) for n, key in enumerate(keys)], queues=[ahead])
        summary = dedupe(settings(apart, topic, tmp_path, rows_per_batch=1_000), spark=spark)
        found = keys_in(spark, apart, "apart-once")
    expected = [f"old-{n}" for n in range(3_000)] + keys[:-1]
    assert sorted(key or "" for key in found) == sorted(expected)
    assert summary.facts["read by this run"] == 3_591
    assert summary.facts["sent"] == len(found) == 3_300
    assert summary.facts["repeats dropped"] == 291


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("keys", ["A B", None, None]),
        ("sharding-key", [None, "s", None]),
        ("region", ["eu", None, None]),
        ("$.order.id", ["7", None, None]),
    ],
)
def test_the_key_of_repeats_is_found_in_keys_properties_or_the_body(
    spark: SparkSession, key: str, expected: list[str | None]
) -> None:
    body = json.dumps({"order": {"id": 7}}).encode()
    rows = [
        (0, "A B", bytearray(body), {"region": "eu"}),
        (1, None, bytearray(b"{broken"), {"__SHARDINGKEY": "s"}),
        (2, "  ", bytearray(b"\xff\xfe"), {}),
    ]
    frame = spark.createDataFrame(
        rows, "n int, keys string, body binary, properties map<string,string>"
    )
    found = frame.select("n", repeat_key(key).alias("key")).orderBy("n").collect()
    assert [row.key for row in found] == expected


@pytest.mark.proves("spark.jobs.resumed")
@pytest.mark.timeout(1_200)
def test_a_killed_dedupe_goes_on_with_every_key_once(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "cut", queues=2)
    send_rows(cluster, [message(topic, f"k{number % 300}", number) for number in range(900)])
    wish = settings(cluster, topic, tmp_path, rows_per_batch=600)
    arguments = ["dedupe", topic, wish.to_topic, "-n", cluster.namesrv, "--queues", "2", "--yes"]
    arguments += ["--batch", "60", "--checkpoint", wish.checkpoint]
    arguments += ["--conf", "spark.sql.shuffle.partitions=2"]
    kill_after_batches(arguments, Path(wish.checkpoint), batches=2)
    summary = dedupe(wish, spark=spark)
    assert 0 < int(str(summary.facts["read by this run"])) < 900
    found = keys_in(spark, cluster, wish.to_topic)
    assert sorted(key or "" for key in found) == sorted(f"k{number}" for number in range(300))


@pytest.mark.proves("spark.jobs.driver-memory")
@pytest.mark.torture
@pytest.mark.timeout(1_200)
def test_a_topic_larger_than_the_memory_of_the_driver_is_gone_through(tmp_path: Path) -> None:
    with LocalCluster(folder=tmp_path / "store") as large:
        topic = make_topic(large, "heavy", queues=2)
        send_large(large, topic, 600)
        arguments = ["dedupe", topic, "heavy-once", "-n", large.namesrv, "--queues", "4", "--yes"]
        arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--batch", "200"]
        summary = finish_job(arguments, tmp_path / "log")
    assert summary["facts"]["sent"] == 600

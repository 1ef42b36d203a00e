"""Moving a backlog: order, groups, proof, another cluster, the tail, and a kill in the middle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from contrail import Admin, Message, MessageQueue, Producer
from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.jobs.migrate import MigrateSettings, migrate
from contrail.pipeline.jobs.migrate_plan import differences_text, ends, ranges, starts
from contrail.pipeline.jobs.migrate_verify import Stretch, checked_queues
from contrail.testing import LocalCluster
from tests.spark.job_kills import finish_job, kill_after_batches, send_large
from tests.spark.traffic import make_topic, queues_of, send_rows

KEYS = 7
_COLUMNS = (
    "brokerName string, queueId int, queueOffset bigint, keys string, tags string, flag int, "
    "body binary, properties map<string,string>"
)


@pytest.fixture(scope="module")
def other() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def keyed(topic: str, count: int, *, first: int = 0) -> list[Message]:
    """Messages of a few keys; every seventh has none."""
    return [
        Message(
            topic,
            f"body {number}".encode(),
            tags=f"t{number % 3}",
            keys=[f"key-{number % KEYS}", "second"] if number % KEYS else [],
            properties={"number": str(number)},
            flag=number,
        )
        for number in range(first, first + count)
    ]


def send_by_key(cluster: LocalCluster, messages: list[Message]) -> None:
    """As a producer that cares about order would: a key always to the same queue."""
    by_queue = defaultdict(list)
    queues = queues_of(cluster, messages[0].topic)
    for message in messages:
        by_queue[queues[hash_of(message) % len(queues)]].append(message)
    with Producer("keyed", cluster.namesrv, send_timeout_ms=30_000) as producer:
        for queue, ones in by_queue.items():
            producer.send_batch(ones, queue=queue)


def hash_of(message: Message) -> int:
    return int(message.properties["number"]) % KEYS


def target_rows(spark: SparkSession, cluster: LocalCluster, topic: str) -> list[Any]:
    read: DataFrame = (
        spark.read.format("rocketmq")
        .schema(_COLUMNS)
        .option("namesrvAddr", cluster.namesrv)
        .option("subscribe", topic)
        .load()
    )
    return read.orderBy("brokerName", "queueId", "queueOffset").collect()


def settings(cluster: LocalCluster, name: str, folder: Path, **more: Any) -> MigrateSettings:
    given: dict[str, Any] = {
        "namesrv": cluster.namesrv,
        "topic": name,
        "to_topic": f"{name}-wide",
        "queues": 5,
        "checkpoint": str(folder / "checkpoint"),
        "rows_per_batch": 150,
    }
    return MigrateSettings(**{**given, **more})


def commit_group(cluster: LocalCluster, group: str, topic: str, places: dict[int, int]) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_group(group, retry_count_max=3)
        for queue_id, place in places.items():
            admin.commit_offset(group, MessageQueue(topic, "broker-a", queue_id), place)


@pytest.mark.proves("spark.jobs.migrate")
def test_copies_keep_everything_and_their_order_and_groups_go_on(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "orders", queues=2)
    send_by_key(cluster, keyed(topic, 400))
    commit_group(cluster, "billing", topic, {0: 70, 1: 30})
    commit_group(cluster, "idle", topic, {0: 0})
    summary = migrate(settings(cluster, topic, tmp_path), spark=spark)

    assert summary.outcome == "done"
    assert summary.facts["copied by this run"] == 400
    assert summary.facts["repeats"] == 0
    assert [row["equal"] for row in summary.table] == [True, True]
    rows = target_rows(spark, cluster, "orders-wide")
    check_copies(rows, 400)
    check_order(rows)
    check_groups(cluster, rows)


def check_copies(rows: list[Any], count: int) -> None:
    numbers = [int(row.properties["number"]) for row in rows]
    assert sorted(numbers) == list(range(count))
    for row, number in zip(rows, numbers, strict=True):
        assert bytes(row.body) == f"body {number}".encode()
        assert row.tags == f"t{number % 3}"
        assert row.flag == number
        assert row.keys == (f"key-{number % KEYS} second" if number % KEYS else None)
        assert int(row.properties["CONTRAIL_ORIGIN_BORN_MS"]) > 1_600_000_000_000
        assert row.properties["CONTRAIL_ORIGIN"].startswith("broker-a:")
    origins = {row.properties["CONTRAIL_ORIGIN"] for row in rows}
    assert len(origins) == count


def check_order(rows: list[Any]) -> None:
    """Each key, and each queue's keyless messages, are in one queue and in the order sent."""
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        number = int(row.properties["number"])
        origin_queue = row.properties["CONTRAIL_ORIGIN"].rpartition(":")[0]
        seen[row.keys or origin_queue].append((row.queueId, number))
    for places in seen.values():
        assert len({queue_id for queue_id, _ in places}) == 1
        numbers = [number for _, number in places]
        assert numbers == sorted(numbers)
    assert len({row.queueId for row in rows}) > 2


def check_groups(cluster: LocalCluster, rows: list[Any]) -> None:
    consumed = {"billing": {0: 70, 1: 30}, "idle": {0: 0, 1: 0}}
    for group, done in consumed.items():
        expected: dict[int, int] = {}
        sizes: dict[int, int] = defaultdict(int)
        for row in rows:
            _, queue_id, place = row.properties["CONTRAIL_ORIGIN"].split(":")
            sizes[row.queueId] += 1
            if int(place) >= done[int(queue_id)]:
                expected.setdefault(row.queueId, row.queueOffset)
        with Admin(cluster.namesrv) as admin:
            found = admin.committed_offsets(group, "orders-wide")
        for queue, place in found.items():
            assert place == expected.get(queue.queue_id, sizes[queue.queue_id]), (group, queue)


def test_a_second_run_copies_no_message_again_and_leaves_groups_where_they_went(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "again", queues=2)
    send_rows(cluster, keyed(topic, 50))
    commit_group(cluster, "reader", topic, {0: 5})
    wish = settings(cluster, topic, tmp_path)
    migrate(wish, spark=spark)
    with Admin(cluster.namesrv) as admin:
        admin.commit_offset("reader", MessageQueue("again-wide", "broker-a", 0), 3)
    send_rows(cluster, keyed(topic, 10, first=50))
    summary = migrate(wish, spark=spark)
    assert summary.facts["copied by this run"] == 10
    assert summary.facts["verified"] == 60
    assert summary.facts["groups"] == ["reader: set by a run before"]
    check_copies(target_rows(spark, cluster, "again-wide"), 60)
    with Admin(cluster.namesrv) as admin:
        assert admin.committed("reader", MessageQueue("again-wide", "broker-a", 0)) == 3
        admin.update_topic("again-wide", queues=8)
    with pytest.raises(OptionInvalid, match="other queues than when this migration began"):
        migrate(replace(wish, queues=None), spark=spark)


def test_a_group_skips_no_message_that_was_in_the_target_before(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "onto", queues=2)
    target = make_topic(cluster, "onto-wide", queues=2)
    send_rows(cluster, keyed(target, 6))
    send_rows(cluster, keyed(topic, 30))
    commit_group(cluster, "newcomer", topic, {0: 15, 1: 15})
    commit_group(cluster, "resident", topic, {0: 15, 1: 15})
    commit_group(cluster, "resident", target, {0: 2, 1: 3})
    migrate(settings(cluster, topic, tmp_path, queues=2), spark=spark)
    with Admin(cluster.namesrv) as admin:
        new = admin.committed_offsets("newcomer", target)
        known = admin.committed_offsets("resident", target)
    assert sorted(new.values(), key=str) == [0, 0]
    assert {queue.queue_id: place for queue, place in known.items()} == {0: 2, 1: 3}


def test_a_message_that_is_too_long_uncompressed_is_named_and_goes_with_the_way_out(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "long", queues=1)
    send_rows(cluster, [Message(topic, b"before")])
    with Producer("long", cluster.namesrv, send_timeout_ms=30_000) as producer:
        producer.send(Message(topic, bytes(4 << 20), flag=5))
    wish = settings(cluster, topic, tmp_path)
    with pytest.raises(StreamingQueryException, match=r"column body: .* with idempotence=none"):
        migrate(wish, spark=spark)
    summary = migrate(replace(wish, options={"idempotence": "none"}), spark=spark)
    assert summary.facts["verified"] == 2


def test_a_migration_waits_for_a_broker_of_its_own_that_is_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LocalCluster(brokers=2) as pair:
        topic = make_topic(pair, "pair", queues=2)
        make_topic(pair, "pair-wide", queues=5, broker="broker-a")
        send_rows(pair, keyed(topic, 40))
        wish = settings(pair, topic, tmp_path, groups=())
        pair.brokers[1].stop()
        summary = migrate(wish, spark=spark)
        assert summary.facts["from brokers"] == ["broker-a: 2 queues"]
        pair.brokers[1].start()
        summary = migrate(wish, spark=spark)
        assert summary.facts["from brokers"] == ["broker-a: 2 queues", "broker-b: 2 queues"]
        assert summary.facts["verified"] == 40
        pair.brokers[1].stop()
        away = "broker broker-b, which has queues 0, 1 of this migration, is away: start it"
        for is_dry in (True, False):
            with pytest.raises(JobFailed, match=away):
                migrate(replace(wish, dry_run=is_dry), spark=spark)
        pair.brokers[1].start()
        assert migrate(wish, spark=spark).facts["verified"] == 40


@pytest.mark.proves("spark.jobs.migrate")
def test_a_doubled_or_missing_copy_is_reported_by_queue_and_moves_no_group(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "forged", queues=2)
    send_rows(cluster, keyed(topic, 40))
    wish = settings(cluster, topic, tmp_path, groups=())
    migrate(wish, spark=spark)
    copy = target_rows(spark, cluster, "forged-wide")[0]
    origin_queue = copy.properties["CONTRAIL_ORIGIN"].rpartition(":")[0]
    migration = copy.properties["CONTRAIL_MIGRATION"]
    forged = {name: copy.properties[name] for name in ("CONTRAIL_ORIGIN", "CONTRAIL_MIGRATION")}
    with Admin(cluster.namesrv) as admin:
        sides = ranges(admin, topic), ranges(admin, "forged-wide")
    check_missing(spark, cluster, topic, sides, migration)
    commit_group(cluster, "late", topic, {0: 1})
    with Producer("forger", cluster.namesrv) as producer:
        producer.send(Message("forged-wide", b"something else", properties=forged))
    with pytest.raises(JobFailed, match=f"queue {origin_queue} has 20 .* 1 of them again"):
        migrate(replace(wish, groups=("late",)), spark=spark)
    with Admin(cluster.namesrv) as admin:
        assert admin.committed("late", MessageQueue("forged-wide", "broker-a", 0)) is None


def check_missing(
    spark: SparkSession, cluster: LocalCluster, topic: str, sides: Any, migration: str
) -> None:
    """Look at the target without the last copy of one queue."""
    source, target = sides
    cut = dict(ends(target))
    longest = max(cut, key=lambda name: cut[name])
    cut[longest] -= 1
    checks = checked_queues(
        spark,
        Stretch(cluster.namesrv, topic, starts(source), ends(source)),
        Stretch(cluster.namesrv, f"{topic}-wide", starts(target), cut),
        migration,
    )
    assert sum(check.messages - check.copies for check in checks) == 1
    assert differences_text(checks, allow_repeats=True) is not None


@pytest.mark.proves("spark.jobs.migrate")
def test_another_cluster_gets_the_topic_its_groups_and_new_messages_until_the_cut_over(
    spark: SparkSession, cluster: LocalCluster, other: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "moving", queues=2)
    send_by_key(cluster, keyed(topic, 100))
    commit_group(cluster, "abroad", topic, {0: 4, 1: 2})
    asked: list[int] = []

    def cut_over() -> bool:
        """Something arrives while it follows; then it is time."""
        asked.append(1)
        if len(asked) == 1:
            send_by_key(cluster, keyed(topic, 20, first=100))
        return len(asked) > 1

    wish = settings(cluster, topic, tmp_path, to_topic=topic, to_namesrv=other.namesrv, follow=True)
    summary = migrate(wish, spark=spark, cut_over=cut_over)
    assert summary.facts["verified"] == 120
    assert summary.facts["arrived at the source since"] == 0
    rows = target_rows(spark, other, topic)
    check_copies(rows, 120)
    check_order(rows)
    with Admin(other.namesrv) as admin:
        (config,) = admin.group_config("abroad").values()
        assert config.retry_count_max == 3
        places = admin.committed_offsets("abroad", topic)
    assert None not in places.values()
    assert sum(place or 0 for place in places.values()) <= 6


@pytest.mark.proves("spark.jobs.commands")
def test_a_plan_changes_nothing(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    topic = make_topic(cluster, "planned", queues=2)
    send_rows(cluster, keyed(topic, 9))
    commit_group(cluster, "planner", topic, {0: 1})
    summary = migrate(settings(cluster, topic, tmp_path, dry_run=True), spark=spark)
    assert summary.outcome == "planned"
    assert summary.facts["backlog"] == 9
    assert summary.facts["groups"] == ["planner"]
    assert [row["messages"] for row in summary.table] == [5, 4]
    with Admin(cluster.namesrv) as admin:
        assert "planned-wide" not in admin.topics()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.proves("spark.jobs.resumed")
@pytest.mark.timeout(1_200)
def test_a_killed_migration_goes_on_with_no_message_missing_or_doubled(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "killed", queues=2)
    send_by_key(cluster, keyed(topic, 1_500))
    wish = settings(cluster, topic, tmp_path, rows_per_batch=100)
    arguments = ["migrate", topic, wish.to_topic, "-n", cluster.namesrv, "--queues", "5", "--yes"]
    arguments += ["--batch", "100", "--checkpoint", wish.checkpoint]
    kill_after_batches(arguments, Path(wish.checkpoint), batches=2)
    summary = migrate(replace(wish, rows_per_batch=1_000), spark=spark)
    assert 0 < int(str(summary.facts["copied by this run"])) < 1_400
    assert summary.facts["verified"] == 1_500
    assert summary.facts["repeats"] == 0
    rows = target_rows(spark, cluster, wish.to_topic)
    check_copies(rows, 1_500)
    check_order(rows)


@pytest.mark.proves("spark.jobs.driver-memory")
@pytest.mark.torture
@pytest.mark.timeout(1_200)
def test_a_backlog_larger_than_the_memory_of_the_driver_is_moved(tmp_path: Path) -> None:
    with LocalCluster(folder=tmp_path / "store") as large:
        topic = make_topic(large, "heavy", queues=2)
        send_large(large, topic, 600)
        arguments = ["migrate", topic, "heavy-wide", "-n", large.namesrv, "--queues", "4", "--yes"]
        arguments += ["--checkpoint", str(tmp_path / "checkpoint")]
        summary = finish_job(arguments, tmp_path / "log")
    assert summary["facts"]["verified"] == 600
    assert summary["facts"]["repeats"] == 0

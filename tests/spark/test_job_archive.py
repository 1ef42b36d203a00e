"""Topics become Parquet files, each message once, also when the job is killed; and come back."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from contrail import Admin, MessageQueue
from contrail.clock import SharedClock
from contrail.errors import DataLost, JobFailed, OptionInvalid
from contrail.insight.copies import RESTORED_FROM, Copy, Original, restored
from contrail.model.topic import Perm
from contrail.pipeline.columns import ARCHIVED_COLUMNS, MESSAGE_COLUMNS
from contrail.pipeline.jobs import archive_folder
from contrail.pipeline.jobs.archive import ArchiveSettings, archive
from contrail.pipeline.jobs.archive_folder import ArchiveFolder
from contrail.pipeline.jobs.archive_layout import Range, Round, place_files
from contrail.pipeline.jobs.compact import CompactSettings, compact
from contrail.pipeline.jobs.merged_files import merge_files
from contrail.pipeline.jobs.progress import Silent
from contrail.pipeline.jobs.restore import RestoreSettings, restore
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.row_groups import same_rows
from contrail.testing import LocalCluster
from tests.spark import job_child
from tests.spark.traffic import make_topic, orders, send_rows

# A little before the hour; half of the messages is stored after it.
START = datetime(2025, 3, 16, 9, 59, tzinfo=UTC)
# Less than a NameServer's timeout of a silent broker.
TO_THE_HOUR_MS = 60_000
HALF = 150
SUBJECT = "orders"
Place = tuple[str, int, int, bytes]


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> SharedClock:
    return SharedClock(tmp_path_factory.mktemp("clock") / "shift")


@pytest.fixture(scope="module")
def cluster(clock: SharedClock) -> Iterator[LocalCluster]:
    clock.advance(ms=int(START.timestamp() * 1000) - clock.now_ms())
    with LocalCluster(clock=clock) as running:
        yield running


@pytest.fixture(scope="module")
def sent(cluster: LocalCluster, clock: SharedClock) -> list[tuple[MessageQueue, int, bytes]]:
    """Two hours of messages in two queues."""
    make_topic(cluster, SUBJECT, queues=2)
    # However long the cluster took to start.
    clock.advance(ms=int(START.timestamp() * 1000) - clock.now_ms())
    first = send_rows(cluster, orders(SUBJECT, HALF))
    clock.advance(ms=TO_THE_HOUR_MS)
    return first + send_rows(cluster, orders(SUBJECT, HALF, first=HALF))


def places(sent: list[tuple[MessageQueue, int, bytes]]) -> Counter[Place]:
    return Counter((queue.broker_name, queue.queue_id, place, body) for queue, place, body in sent)


def read_plainly(folder: Path) -> Counter[Place]:
    """The rows a reader without Spark finds: pyarrow here, as pandas and others use."""
    columns = ["brokerName", "queueId", "queueOffset", "body"]
    table = ds.dataset(folder, partitioning="hive").to_table(columns=columns)
    return Counter(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def settings_of(cluster: LocalCluster, folder: Path, **changes: object) -> dict[str, Any]:
    return {
        "archive": str(folder),
        "topics": (SUBJECT,),
        "namesrv": cluster.namesrv,
        "round_rows": 100,
        **changes,
    }


@pytest.fixture(scope="module")
def archived(
    spark: SparkSession,
    cluster: LocalCluster,
    sent: list[tuple[MessageQueue, int, bytes]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """An archive of all messages, in three rounds."""
    folder = tmp_path_factory.mktemp("archive")
    summary = archive(ArchiveSettings(**settings_of(cluster, folder)), spark=spark)
    assert summary.facts["messages"] == len(sent)
    assert summary.facts["rounds"] == 3
    return folder


@pytest.mark.proves("spark.jobs.archive")
def test_a_plain_reader_finds_every_message_once(
    archived: Path, sent: list[tuple[MessageQueue, int, bytes]]
) -> None:
    assert read_plainly(archived) == places(sent)


def test_hours_are_those_of_the_store_time(archived: Path) -> None:
    hours = ds.dataset(archived, partitioning="hive").to_table(columns=["topic", "date", "hour"])
    counts = Counter(
        zip(*(hours.column(name).to_pylist() for name in hours.schema.names), strict=True)
    )
    assert counts == {(SUBJECT, "2025-03-16", 9): HALF, (SUBJECT, "2025-03-16", 10): HALF}


def test_no_field_of_a_message_is_lost(
    archived: Path, spark: SparkSession, cluster: LocalCluster
) -> None:
    live = (
        spark.read.format("rocketmq")
        .schema(", ".join(f"{name} {MESSAGE_COLUMNS[name]}" for name in ARCHIVED_COLUMNS))
        .options(namesrvAddr=cluster.namesrv, subscribe=SUBJECT)
        .load()
    )
    columns = [
        f"to_json(map_entries({name}))" if "map" in kind else name
        for name, kind in MESSAGE_COLUMNS.items()
        if name in ARCHIVED_COLUMNS
    ]
    kept = spark.read.parquet(str(archived)).selectExpr(*columns)
    assert kept.exceptAll(live.selectExpr(*columns)).count() == 0
    assert live.selectExpr(*columns).exceptAll(kept).count() == 0


def test_a_second_run_adds_only_new_messages(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "growing", queues=2)
    settings = settings_of(cluster, tmp_path, topics=(topic,))
    landed = send_rows(cluster, orders(topic, 20))
    archive(ArchiveSettings(**settings), spark=spark)
    landed += send_rows(cluster, orders(topic, 10, first=20))
    assert archive(ArchiveSettings(**settings, dry_run=True)).facts["messages"] == 10
    assert archive(ArchiveSettings(**settings), spark=spark).facts["messages"] == 10
    assert archive(ArchiveSettings(**settings), spark=spark).facts["messages"] == 0
    assert read_plainly(tmp_path) == places(landed)


@pytest.mark.proves("spark.jobs.archive", "spark.jobs.resumed")
def test_a_killed_archive_goes_on_without_a_message_lost_or_twice(
    spark: SparkSession,
    cluster: LocalCluster,
    sent: list[tuple[MessageQueue, int, bytes]],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "archive"
    settings = settings_of(cluster, folder)
    command = job_child.job("archive", settings)
    job_child.crashed(command, tmp_path / "log", "archive.file_placed:3")
    seen = read_plainly(folder)
    assert 0 < seen.total() < len(sent)
    assert seen <= places(sent)
    archive(ArchiveSettings(**settings), spark=spark)
    assert read_plainly(folder) == places(sent)


def test_a_store_folder_is_archived_without_a_broker_and_goes_on_where_brokers_ended(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "offline", queues=2)
    landed = send_rows(cluster, orders(topic, 20))
    archive(ArchiveSettings(**settings_of(cluster, tmp_path, topics=(topic,))), spark=spark)
    landed += send_rows(cluster, orders(topic, 11, first=20))
    broker = cluster.brokers[0]
    settings = ArchiveSettings(
        archive=str(tmp_path),
        topics=(topic,),
        store_path=str(broker.folder / "store"),
        broker_name=broker.name,
    )
    assert archive(settings, spark=spark).facts["messages"] == 11
    assert archive(settings, spark=spark).facts["messages"] == 0
    assert read_plainly(tmp_path) == places(landed)


class Ranges:
    """Queues whose reach a test makes up."""

    reach = Range(0, 0)

    def __init__(self, options: object, broker_name: str) -> None:
        self.away: frozenset[str] = frozenset()

    def __enter__(self) -> Ranges:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def now(self) -> dict[QueueKey, Range]:
        return {QueueKey(SUBJECT, "broker-a", 0): self.reach}

    def at(self, time_ms: int | None) -> dict[QueueKey, int]:
        return {}


class Notes(Silent):
    """Remembers the warnings for a person."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_messages_deleted_by_retention_fail_the_job_and_a_close_call_is_warned_about(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ArchiveFolder(tmp_path)
    folder.create()
    queue = QueueKey(SUBJECT, "broker-a", 0)
    folder.commit(Round(0, {queue: 100}, {queue: Range(0, 100)}, ()))
    monkeypatch.setattr("contrail.pipeline.jobs.archive.QueueRanges", Ranges)
    settings = settings_of(cluster, tmp_path)

    def run(reach: Range) -> list[str]:
        monkeypatch.setattr(Ranges, "reach", reach)
        told = Notes()
        archive(ArchiveSettings(**settings), spark=spark, progress=told, stop=lambda: True)
        return told.texts

    assert run(Range(0, 1_000)) == []
    (close,) = run(Range(95, 1_000))
    assert "queue broker-a:0: retention is 5 messages behind" in close
    with pytest.raises(DataLost, match=r"50 messages of 1 queues .* queue offsets 100 to 149"):
        run(Range(150, 1_000))
    with pytest.raises(JobFailed, match="the topic was made anew, or this is another cluster"):
        run(Range(0, 99))


def test_a_broker_that_the_archive_knows_and_the_cluster_does_not_is_reported_as_away(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ArchiveFolder(tmp_path)
    folder.create()
    # One of a broker that is down, one of a topic that was deleted, one of another topic.
    known = [
        QueueKey(SUBJECT, "broker-z", 1),
        QueueKey(SUBJECT, "broker-a", 7),
        QueueKey("other", "broker-z", 0),
    ]
    folder.commit(Round(0, dict.fromkeys(known, 5), {}, ()))
    monkeypatch.setattr("contrail.pipeline.jobs.archive.QueueRanges", Ranges)
    settings = settings_of(cluster, tmp_path)
    told = Notes()
    summary = archive(ArchiveSettings(**settings), spark=spark, progress=told)
    assert summary.facts["away"] == [f"broker-z ({SUBJECT} 1)"]
    assert told.texts == [f"away, and left for a later run: broker-z ({SUBJECT} 1)"]
    planned = archive(ArchiveSettings(**settings, dry_run=True))
    assert planned.facts["away"] == summary.facts["away"]


def test_one_archive_job_at_a_time(cluster: LocalCluster, archived: Path) -> None:
    with (
        ArchiveFolder(archived).lock("archive"),
        pytest.raises(JobFailed, match="another job works on archive"),
    ):
        archive(ArchiveSettings(**settings_of(cluster, archived)))


def test_a_folder_with_other_things_is_not_made_an_archive(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(OptionInvalid, match="something else in it"):
        archive(ArchiveSettings(**settings_of(cluster, tmp_path)))
    with pytest.raises(OptionInvalid, match="is a file: name a folder"):
        archive(ArchiveSettings(**settings_of(cluster, tmp_path / "holiday.jpg")))
    with pytest.raises(OptionInvalid, match=r"cannot be made \(Not a directory\)"):
        archive(ArchiveSettings(**settings_of(cluster, tmp_path / "holiday.jpg" / "below")))
    with pytest.raises(OptionInvalid, match="is not an archive"):
        compact(CompactSettings(archive=str(tmp_path)))


# Rounds, without Spark.

CRASH_POINTS = ("archive.round_committed", "archive.file_placed", "archive.all_placed")


class Died(Exception):
    """Instead of a kill."""


def stage(folder: ArchiveFolder, number: int) -> Round:
    """Files of one round with two messages, as Spark would leave them."""
    queue = QueueKey("t", "a", 0)
    staged = []
    for shift in range(2):
        path = f"topic=t/date=2025-03-16/hour=0{shift}/part-{shift}.parquet"
        (folder.staging / path).parent.mkdir(parents=True)
        table = pa.table({"queueOffset": [2 * number + shift]})
        pq.write_table(table, folder.staging / path)
        staged.append((path, 1, 1))
    span = Range(2 * number, 2 * number + 2)
    return Round(number, {queue: span.queue_offset_end}, {queue: span}, place_files(number, staged))


def offsets_in(folder: Path) -> list[int]:
    table = ds.dataset(folder, partitioning="hive").to_table()
    return sorted(table.column("queueOffset").to_pylist()) if table.num_rows else []


@pytest.mark.proves("spark.jobs.archive")
@pytest.mark.parametrize("crash_at", CRASH_POINTS)
def test_a_round_counts_once_wherever_a_run_ends(
    crash_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ArchiveFolder(tmp_path)
    folder.create()
    folder.commit(stage(folder, 0))
    folder.finish()
    folder.clear_staging()

    def die(name: str) -> None:
        if name == crash_at:
            raise Died

    def one_round() -> None:
        folder.commit(stage(folder, 1))
        folder.finish()

    with monkeypatch.context() as patched:
        patched.setattr(archive_folder, "crashpoint", die)
        with pytest.raises(Died):
            one_round()
    assert set(offsets_in(tmp_path)) <= {0, 1, 2, 3}
    assert len(offsets_in(tmp_path)) == len(set(offsets_in(tmp_path)))

    reopened = ArchiveFolder(tmp_path)
    assert reopened.next_offsets() == {QueueKey("t", "a", 0): 4}
    reopened.finish()
    assert offsets_in(tmp_path) == [0, 1, 2, 3]
    reopened.finish()
    assert offsets_in(tmp_path) == [0, 1, 2, 3]


def test_a_round_that_was_not_committed_is_forgotten(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    folder.create()
    stage(folder, 0)
    assert folder.next_offsets() == {}
    folder.finish()
    folder.clear_staging()
    assert not list(tmp_path.glob("topic=*"))
    assert not folder.staging.exists()


def test_two_runs_cannot_commit_the_same_round(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    folder.create()
    done = stage(folder, 0)
    folder.commit(done)
    with pytest.raises(JobFailed, match=r"round 0 .* was made by another run"):
        ArchiveFolder(tmp_path).commit(done)


# Compaction.


@pytest.mark.proves("spark.jobs.restore", "spark.jobs.resumed")
def test_a_killed_compaction_shows_every_message_once_and_the_next_run_finishes(
    spark: SparkSession,
    archived: Path,
    sent: list[tuple[MessageQueue, int, bytes]],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "archive"
    shutil.copytree(archived, folder)
    before = len(list(folder.glob("topic=*/*/*/*.parquet")))
    command = job_child.cli("compact", str(folder), "--target-mb", "1")
    job_child.crashed(command, tmp_path / "log", "compact.swapped")
    between = len(list(folder.glob("topic=*/*/*/*.parquet")))
    assert 2 < between < before
    assert read_plainly(folder) == places(sent)

    compact(CompactSettings(archive=str(folder)), spark=spark)
    assert len(list(folder.glob("topic=*/*/*/*.parquet"))) == 2
    assert read_plainly(folder) == places(sent)
    assert not list((folder / "_contrail" / "merging").glob("**/*.parquet"))
    assert compact(CompactSettings(archive=str(folder)), spark=spark).facts["hours"] == 0


def test_an_hour_that_got_new_files_meanwhile_is_left_for_the_next_run(
    spark: SparkSession, archived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "archive"
    shutil.copytree(archived, folder)
    hour = next(iter(ArchiveFolder(folder).hours().values()))

    def arrive(name: str) -> None:
        if name == "compact.merged":
            shutil.copy(next(hour.glob("*.parquet")), hour / "99999999-0000.parquet")

    monkeypatch.setattr("contrail.pipeline.jobs.compact.crashpoint", arrive)
    before = sorted(file.name for file in hour.iterdir())
    summary = compact(CompactSettings(archive=str(folder)), spark=spark)
    assert (summary.facts["hours"], summary.facts["hours left"]) == (1, 1)
    assert sorted(file.name for file in hour.iterdir()) == [*before, "99999999-0000.parquet"]


def test_a_merged_file_that_differs_from_its_parts_is_noticed(tmp_path: Path) -> None:
    parts = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for number, part in enumerate(parts):
        table = pa.table(
            {
                "body": pa.array([b"x", None, b"yz"]),
                "properties": pa.array(
                    [[("a", str(number))], None, []], pa.map_(pa.string(), pa.string())
                ),
            }
        )
        pq.write_table(table, part)
    merged = merge_files(parts, tmp_path / "m.parquet", "zstd")
    assert merged.rows == 6

    def read(*paths: Path, cut: int = 2) -> Iterator[pa.RecordBatch]:
        for path in paths:
            yield from pq.ParquetFile(path).iter_batches(batch_size=cut)

    assert same_rows(read(*parts), read(tmp_path / "m.parquet", cut=5)) == 6
    assert same_rows(read(*reversed(parts)), read(tmp_path / "m.parquet")) is None
    assert same_rows(read(parts[0]), read(tmp_path / "m.parquet")) is None


@pytest.mark.parametrize("small_count", [0, 5_000])
def test_merged_files_have_row_groups_that_a_small_reader_can_hold(
    tmp_path: Path, small_count: int
) -> None:
    parts = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for number, part in enumerate(parts):
        bodies = Random(number)
        # Among many small ones, large ones are not seen in the mean.
        sizes = [100] * small_count + [1_000_000] * 40
        pq.write_table(pa.table({"body": [bodies.randbytes(size) for size in sizes]}), part)
    assert merge_files(parts, tmp_path / "m.parquet", "zstd").rows == 2 * (small_count + 40)
    with pq.ParquetFile(tmp_path / "m.parquet") as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    assert max(group.total_byte_size for group in groups) < 36_000_000
    columns = [group.column(0) for group in groups]
    assert all(column.has_dictionary_page for column in columns)
    # A dictionary stands before the pages of data.
    spans = [column.data_page_offset - column.dictionary_page_offset for column in columns]
    assert max(spans) < 9_000_000


# Restoring.


def target_rows(spark: SparkSession, cluster: LocalCluster, topic: str) -> list[Any]:
    return (
        spark.read.format("rocketmq")
        .schema(
            "brokerName string, queueId int, queueOffset bigint, keys string, tags string, "
            f"body binary, region string, UNIQ_KEY string, {RESTORED_FROM} string"
        )
        .options(namesrvAddr=cluster.namesrv, subscribe=topic)
        .load()
        .orderBy("brokerName", "queueId", "queueOffset")
        .collect()
    )


def stored_count(cluster: LocalCluster, topic: str) -> int:
    with Admin(cluster.namesrv) as admin:
        return sum(one.queue_offset_max for one in admin.topic_stats(topic).queues)


@pytest.mark.proves("spark.jobs.resumed")
def test_a_killed_restore_sends_every_message_once_in_its_queues_order(
    spark: SparkSession,
    cluster: LocalCluster,
    archived: Path,
    sent: list[tuple[MessageQueue, int, bytes]],
    tmp_path: Path,
) -> None:
    topic = make_topic(cluster, "restored", queues=2)
    settings: dict[str, Any] = {
        "archive": str(archived),
        "topics": (SUBJECT,),
        "namesrv": cluster.namesrv,
        "to_topic": topic,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    log = tmp_path / "log"
    # Slow enough that the kill comes before the end, however late this process is.
    pid = job_child.start(job_child.job("restore", {**settings, "rate": 12}), log)
    job_child.wait_until(pid, lambda: stored_count(cluster, topic) >= 30, log)
    job_child.kill(pid)
    assert 30 <= stored_count(cluster, topic) < len(sent)

    summary = restore(RestoreSettings(**settings), spark=spark)
    # The broker reports the rows it had from the killed run.
    had = int(str(summary.facts["already"]))
    assert had >= 30
    assert summary.facts["restored"] == len(sent) - had
    found = target_rows(spark, cluster, topic)
    wanted = sorted((q.broker_name, q.queue_id, place, body) for q, place, body in sent)
    assert [(row.brokerName, row.queueId, row.queueOffset, bytes(row.body)) for row in found] == (
        wanted
    )
    assert {row[RESTORED_FROM] for row in found} == {
        f"{SUBJECT}/{q.broker_name}/{q.queue_id}/{place}" for q, place, _ in sent
    }
    assert all(row.keys and row.tags and row.region and row.UNIQ_KEY for row in found)
    again = restore(RestoreSettings(**settings), spark=spark)
    assert (again.facts["restored"], again.facts["already"]) == (0, len(sent))
    assert stored_count(cluster, topic) == len(sent)


@pytest.mark.proves("spark.jobs.restore")
def test_a_range_of_an_archive_is_restored(
    spark: SparkSession, cluster: LocalCluster, archived: Path, tmp_path: Path
) -> None:
    topic = make_topic(cluster, "some", queues=1)
    settings: dict[str, Any] = {
        "archive": str(archived),
        "topics": (SUBJECT,),
        "namesrv": cluster.namesrv,
        "to_topic": topic,
        "since_ms": int(START.timestamp() * 1000) + TO_THE_HOUR_MS,
        "queue": f"{cluster.brokers[0].name}:1",
        "queue_offset_end": 100,
        "where": "properties['region'] = 'eu'",
        "tags": ("paid",),
    }
    planned = restore(RestoreSettings(**settings, dry_run=True), spark=spark)
    checkpoint = str(tmp_path / "checkpoint")
    done = restore(RestoreSettings(**settings, checkpoint=checkpoint), spark=spark)
    # Queue 1 has the odd orders; orders from 150 on were stored after ten, at offsets from 75 on.
    wanted = [
        f"order {number}".encode()
        for place in range(75, 100)
        if (number := HALF + 2 * (place - 75) + 1) % 3
    ]
    assert planned.facts["messages"] == done.facts["restored"] == len(wanted)
    assert [bytes(row.body) for row in target_rows(spark, cluster, topic)] == wanted
    with pytest.raises(OptionInvalid, match="tags was"):
        restore(RestoreSettings(**{**settings, "tags": ()}, checkpoint=checkpoint), spark=spark)


def test_a_topic_that_is_not_archived_or_not_there_is_named(
    spark: SparkSession, cluster: LocalCluster, archived: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "archive": str(archived),
        "namesrv": cluster.namesrv,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    with pytest.raises(OptionInvalid, match=r"topic 'other' is not in archive .* it has orders"):
        restore(RestoreSettings(topics=("other",), **settings), spark=spark)
    with pytest.raises(OptionInvalid, match="topic 'nowhere' does not exist on the target"):
        restore(RestoreSettings(topics=(SUBJECT,), to_topic="nowhere", **settings), spark=spark)
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("sealed", queues=1, perm=Perm.READ)
    with pytest.raises(OptionInvalid, match=r"topic 'sealed' may not be written .*perm=4"):
        restore(RestoreSettings(topics=(SUBJECT,), to_topic="sealed", **settings), spark=spark)


def test_a_restore_loses_no_message_when_a_clock_went_back_and_retries_refused_ones(
    spark: SparkSession,
    cluster: LocalCluster,
    clock: SharedClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(cluster, "stepped", queues=1)
    clock.advance(ms=int(START.timestamp() * 1000) - clock.now_ms())
    bodies = []
    for number, step_ms in enumerate((TO_THE_HOUR_MS, -TO_THE_HOUR_MS, 0)):
        landed = send_rows(cluster, orders(topic, 10, first=10 * number))
        bodies += [body for _, _, body in landed]
        clock.advance(ms=step_ms)
    folder = tmp_path / "archive"
    archive(ArchiveSettings(**settings_of(cluster, folder, topics=(topic,))), spark=spark)
    assert len(ArchiveFolder(folder).hours()) == 2
    target = make_topic(cluster, "stepped-again", queues=1)
    settings = RestoreSettings(
        archive=str(folder),
        topics=(topic,),
        namesrv=cluster.namesrv,
        to_topic=target,
        checkpoint=str(tmp_path / "checkpoint"),
    )

    def too_long_once(original: Original, to_topic: str | None, job_id: str) -> Copy:
        copy = restored(original, to_topic, job_id)
        if original.queue_offset == 12:
            copy.properties["note"] = "x" * 40_000
        return copy

    with monkeypatch.context() as patched:
        patched.setattr("contrail.pipeline.jobs.restore._STEP_BYTES", 1)
        patched.setattr("contrail.pipeline.jobs.restore.restored", too_long_once)
        with pytest.raises(JobFailed, match=r"1 messages were refused.* 29 others were restored"):
            restore(settings, spark=spark)
    refused = bodies.pop(12)
    assert [bytes(row.body) for row in target_rows(spark, cluster, target)] == bodies

    summary = restore(settings, spark=spark)
    assert (summary.facts["restored"], summary.facts["already"]) == (1, 29)
    assert [bytes(row.body) for row in target_rows(spark, cluster, target)] == [*bodies, refused]
    summary = restore(settings, spark=spark)
    assert (summary.facts["restored"], summary.facts["already"]) == (0, 30)
    assert stored_count(cluster, target) == 30

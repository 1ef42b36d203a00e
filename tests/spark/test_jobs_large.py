"""Jobs of the archive and of dead letters on more data than a driver of 512 MB has memory for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from contrail import Admin
from contrail.clock import SharedClock
from contrail.testing import LocalCluster
from tests.spark.job_kills import finish_job, send_large
from tests.spark.traffic import make_topic, queues_of

COUNT = 600
GROUP = "heavy-readers"

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1_800)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """600 MB in one topic, stored hours ago: only an hour that is over is compacted."""
    clock = SharedClock(tmp_path_factory.mktemp("clock") / "shift")
    clock.advance(ms=-3 * 3_600_000)
    with LocalCluster(folder=tmp_path_factory.mktemp("large"), clock=clock) as cluster:
        make_topic(cluster, "heavy", queues=2)
        send_large(cluster, "heavy", COUNT)
        yield cluster


@pytest.fixture(scope="module")
def archive(large: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    arguments = ["archive", str(folder), "heavy", "-n", large.namesrv, "--round", "200"]
    summary = finish_job(arguments, folder.with_suffix(".log"))
    assert (summary["facts"]["messages"], summary["facts"]["rounds"]) == (COUNT, 3)
    return folder


def row_count(archive: Path) -> int:
    return ds.dataset(archive, partitioning="hive").count_rows()


def stored_count(cluster: LocalCluster, topic: str) -> int:
    with Admin(cluster.namesrv) as admin:
        return admin.topic_stats(topic).count


@pytest.mark.proves("spark.jobs.driver-memory")
def test_a_topic_larger_than_the_memory_of_the_driver_is_archived(archive: Path) -> None:
    assert row_count(archive) == COUNT
    assert sum(file.stat().st_size for file in archive.rglob("*.parquet")) > 512 << 20


@pytest.mark.proves("spark.jobs.driver-memory")
def test_an_archive_larger_than_the_memory_of_the_driver_is_compacted(
    archive: Path, tmp_path: Path
) -> None:
    arguments = ["compact", str(archive), "--grace", "0s", "--target-mb", "2000"]
    summary = finish_job(arguments, tmp_path / "log")
    assert summary["outcome"] == "done"
    assert row_count(archive) == COUNT
    assert len(list(archive.glob("topic=*/date=*/hour=*/*.parquet"))) <= 2


@pytest.mark.proves("spark.jobs.driver-memory")
def test_an_archive_larger_than_the_memory_of_the_driver_is_restored(
    archive: Path, large: LocalCluster, tmp_path: Path
) -> None:
    make_topic(large, "heavy-again", queues=2)
    arguments = ["restore", str(archive), "heavy", "--to", "heavy-again", "-n", large.namesrv]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--yes"]
    summary = finish_job(arguments, tmp_path / "log")
    assert summary["outcome"] == "done"
    assert stored_count(large, "heavy-again") == COUNT


@pytest.mark.proves("spark.jobs.driver-memory")
def test_dead_letters_larger_than_the_memory_of_the_driver_are_replayed(
    large: LocalCluster, tmp_path: Path
) -> None:
    with Admin(large.namesrv) as admin:
        admin.create_group(GROUP)
        for queue in queues_of(large, "heavy"):
            for place in range(admin.queue_offset_max(queue)):
                admin.send_back(GROUP, admin.message_at(queue, place), delay_level=-1)
    make_topic(large, "heavy-replayed", queues=2)
    arguments = ["replay", GROUP, "--to", "heavy-replayed", "-n", large.namesrv]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--yes"]
    summary = finish_job(arguments, tmp_path / "log")
    assert summary["facts"]["replayed"] == COUNT
    assert stored_count(large, "heavy-replayed") == COUNT

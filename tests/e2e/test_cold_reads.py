"""A disk that stands still holds up who reads old messages, and nobody else."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.model.record import split_record_run
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, encode_request
from contrail.runtime.files import FilePart, FileSystem
from contrail.store.log import MessageStore
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.e2e.raw_client import PATIENCE_S, RawClient, pull_fields

TOPIC = "orders"
MESSAGE_COUNT = 400
QUEUE_COUNT = 2
BODY_BYTES = 50_000


class StuckDisk:
    """Nothing that was stored before is in memory, and the disk answers when it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = threading.Event()
        self.readers: set[str] = set()
        self.has_gone_on = False
        bring_in, absent_at = FileSystem.bring_in, FileSystem.absent_at

        def stuck_bring_in(files: FileSystem, part: FilePart) -> None:
            self.readers.add(threading.current_thread().name)
            assert self.go_on.wait(PATIENCE_S)
            bring_in(files, part)
            self.has_gone_on = True

        def told_absent(files: FileSystem, mapped: object, start: int, end: int) -> int:
            return absent_at(files, mapped, start, end) if self.has_gone_on else start  # type: ignore[arg-type]

        monkeypatch.setattr(FileSystem, "bring_in", stuck_bring_in)
        monkeypatch.setattr(FileSystem, "absent_at", told_absent)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A broker that was restarted over two segments of messages, which have left memory."""
    # Without the scrubber, which would bring this short log into memory at once.
    properties = {"contrailScrubBytesPerSecond": "0"}
    with LocalCluster(folder=tmp_path, properties=properties) as cluster:
        asker = Asker(cluster)
        asker.make_topic(TOPIC, read=QUEUE_COUNT, write=QUEUE_COUNT)
        for number in range(MESSAGE_COUNT):
            asker.stored(TOPIC, body_of(number), queue_id=number % QUEUE_COUNT)
        cluster.brokers[0].stop()
        forget(cluster.brokers[0].folder / "store")
        cluster.brokers[0].start()
        yield cluster


def body_of(number: int) -> bytes:
    return b"%08d" % number + b"." * BODY_BYTES


def ask_far(client: RawClient, opaque: int, queue_offset: int = 0, **changes: str) -> None:
    fields = pull_fields(TOPIC, queue_offset, sysFlag="4", **changes)
    client.send(encode_request(Request(RequestCode.PULL_MESSAGE, opaque, fields)))


def waiting(cluster: LocalCluster) -> int:
    app = cluster.brokers[0].app
    assert app is not None
    return len(app.pulls.cold_reads)


@pytest.mark.proves("kinds.backlogs.cold-pulls")
def test_a_stuck_disk_holds_up_no_pull_of_new_messages(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, asker = StuckDisk(monkeypatch), Asker(cluster)
    with RawClient(cluster.brokers[0].port) as client:
        ask_far(client, 100)
        ask_far(client, 101, queueId="1")
        eventually(lambda: disk.readers, "a thread is at the disk")
        # Others, and the same connection, go on.
        new = asker.stored(TOPIC, b"new")
        assert asker.pull(TOPIC, new).code == ResponseCode.SUCCESS
        answer = client.call(RequestCode.PULL_MESSAGE, pull_fields(TOPIC, new))
        assert [message.body for message in split_record_run(answer.body)] == [b"new"]
        assert waiting(cluster) == 2
        disk.go_on.set()
        for opaque, first in ((100, 0), (101, 1)):
            answer = client.answer_to(opaque)
            assert answer.code == ResponseCode.SUCCESS
            assert next(iter(split_record_run(answer.body))).body == body_of(first)
    assert all(name.startswith("cold-reads") for name in disk.readers)
    eventually(lambda: waiting(cluster) == 0, "nobody waits")


def test_pulls_of_one_connection_are_answered_in_their_order(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)
    with RawClient(cluster.brokers[0].port) as client:
        for opaque in range(10):
            ask_far(client, opaque, queue_offset=opaque * 3, queueId=str(opaque % QUEUE_COUNT))
        eventually(lambda: waiting(cluster) == 10, "all wait")
        disk.go_on.set()
        assert [client.next_frame().opaque for _ in range(10)] == list(range(10))


def test_a_connection_that_leaves_its_far_pulls_behind_is_forgotten(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)
    with RawClient(cluster.brokers[0].port) as client:
        for opaque in range(5):
            ask_far(client, opaque)
        eventually(lambda: disk.readers, "a thread is at the disk")
    disk.go_on.set()
    eventually(lambda: waiting(cluster) == 0, "nobody waits")
    assert Asker(cluster).pull(TOPIC, 0).code == ResponseCode.SUCCESS


def test_a_broker_stops_while_its_disk_stands_still(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)
    with RawClient(cluster.brokers[0].port) as client:
        ask_far(client, 7, queue_offset=3)
        eventually(lambda: disk.readers, "a thread is at the disk")
        cluster.brokers[0].stop()
        answer = client.answer_to(7)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.fields["nextBeginOffset"] == "3"
    disk.go_on.set()
    cluster.brokers[0].start()
    assert Asker(cluster).pull(TOPIC, 3).code == ResponseCode.SUCCESS


def test_a_filter_finds_its_messages_in_a_cold_backlog(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, asker = StuckDisk(monkeypatch), Asker(cluster)
    disk.go_on.set()
    answer = asker.pull(TOPIC, 0, subscription="nobody")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.fields["nextBeginOffset"] == str(MESSAGE_COUNT // QUEUE_COUNT)
    answer = asker.pull(TOPIC, 0, subscription="a IS NULL", expressionType="SQL92")
    found = [message.body for message in split_record_run(answer.body)]
    assert found == [body_of(number * QUEUE_COUNT) for number in range(len(found))] != []


@pytest.mark.proves("kinds.backlogs.cold-pulls")
def test_a_cold_backlog_is_drained_whole_and_the_loop_faults_on_none_of_it(
    cluster: LocalCluster,
) -> None:
    asker = Asker(cluster)
    app = cluster.brokers[0].app
    assert app is not None
    if not cluster.run(missing(app.store)):
        pytest.skip("this file system does not let go of pages: tmpfs, for one")
    before = cluster.run(major_faults())
    found = [asker.bodies(TOPIC, queue_id) for queue_id in range(QUEUE_COUNT)]
    assert cluster.run(major_faults()) == before, "the loop waited for the disk"
    for queue_id in range(QUEUE_COUNT):
        numbers = range(queue_id, MESSAGE_COUNT, QUEUE_COUNT)
        assert found[queue_id] == [body_of(number) for number in numbers]
    assert app.pulls.cold_reads.brought_in_count > 0


async def missing(store: MessageStore) -> list[FilePart]:
    """The parts of the first messages that are not in memory, rows aside."""
    for part in store.row_parts(TOPIC.encode(), 0, 0, MESSAGE_COUNT):
        store.bring_in(part)
    return store.on_disk(TOPIC.encode(), 0, 0).parts


async def major_faults() -> int:
    """How often the loop's thread touched a page that had to come from the disk."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


def forget(folder: Path) -> None:
    """Have the system drop the files of a store from memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

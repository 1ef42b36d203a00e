"""Folders of a master and its slave that an earlier commit wrote; today's code must open them.

``python -m tests.e2e.recorded_pairs COMMIT`` makes the archive of the code that it runs with. The
master was killed, its slave stopped.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from contrail.model.properties import encode_properties
from contrail.model.record import decode_record
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e.raw_client import RawClient, heartbeat, pull_fields, send_fields

ARCHIVES = Path(__file__).parent / "recorded"
TOPICS = ("orders", "payments")
MESSAGE_COUNT = 120
COMMITTED = "7"
DELAYED = "due long ago"
_PLACE = {"consumerGroup": "readers", "topic": TOPICS[0], "queueId": "0"}
PROPERTIES = {
    "brokerRole": "SYNC_MASTER",
    "flushDiskType": "SYNC_FLUSH",
    "slaveReadEnable": "true",
    # Several segments, and small files.
    "mappedFileSizeCommitLog": str(32 << 10),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    # These messages are older every day.
    "fileReservedTime": "1000000",
}


def bodies(topic: str) -> list[str]:
    """The messages of a topic, in their order in queue 0."""
    return [f"{topic} {number} {'.' * (number * 37 % 400)}" for number in range(MESSAGE_COUNT)]


def committed(broker: LocalBroker) -> str:
    """The group's progress as a broker knows it."""
    with RawClient(broker.port) as client:
        return client.call(RequestCode.QUERY_CONSUMER_OFFSET, _PLACE).fields.get("offset", "")


def pulled(broker: LocalBroker, topic: str) -> list[str]:
    """The bodies of a topic, as a broker serves them."""
    found: list[str] = []
    with RawClient(broker.port) as client:
        while True:
            answer = client.call(
                RequestCode.PULL_MESSAGE, pull_fields(topic, len(found), suspendTimeoutMillis="0")
            )
            if answer.code != ResponseCode.SUCCESS:
                return found
            at = 0
            while at < len(answer.body):
                found.append(decode_record(answer.body, at).body.decode())
                at += int.from_bytes(answer.body[at : at + 4], "big")


def send(client: RawClient, topic: str, body: str, **properties: str) -> None:
    encoded = encode_properties(properties).decode()
    fields = send_fields(topic, i=encoded)
    answer = client.call(RequestCode.SEND_MESSAGE_V2, fields, body.encode())
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def record(archive: Path) -> None:
    """Have the code of today fill both folders, and keep them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with LocalCluster(slaves=1, folder=folder, properties=PROPERTIES) as cluster:
            master = cluster.brokers[0]
            cluster.wait_for_slaves()
            with RawClient(master.port) as client:
                for topic in TOPICS:
                    for number, body in enumerate(bodies(topic)):
                        send(client, topic, body, KEYS=f"{topic}-{number}")
                send(client, TOPICS[0], DELAYED, DELAY="18")
                client.call(RequestCode.HEART_BEAT, {}, heartbeat("one@1"))
                done = client.call(
                    RequestCode.UPDATE_CONSUMER_OFFSET, _PLACE | {"commitOffset": COMMITTED}
                )
                assert done.code == ResponseCode.SUCCESS, done.remark
            eventually(lambda: committed(cluster.slaves[0]) == COMMITTED, "the slave has all")
            cluster.wait_for_slaves()
            cluster.slaves[0].stop()
            master.kill()
        archive.parent.mkdir(exist_ok=True)
        with tarfile.open(archive, "w:xz") as packed:
            for path in sorted(folder.rglob("*")):
                packed.add(path, str(path.relative_to(folder)), recursive=False, filter=_nobodys)


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def unpack(archive: Path, folder: Path) -> None:
    """The folders as if they had been written now."""
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as packed:
        packed.extractall(folder, filter="data")
    for path in folder.rglob("*"):
        os.utime(path)


if __name__ == "__main__":
    record(ARCHIVES / f"pair-{sys.argv[1]}.tar.xz")

"""A damaged message from its first skip to its replacement, as an operator meets it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail import Admin, Message, Producer
from contrail.client.message import SendReceipt
from contrail.errors import MessageDamaged
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import MessageQueue
from contrail.runtime.files import FileSystem
from contrail.testing import LocalCluster
from tests.cli.diagnosed import diagnosed
from tests.cli.running import check_json, contrail, done

COUNT = 20
LOST = 7
BODIES = [f"order {number:04}".encode() for number in range(COUNT)]


@pytest.fixture(autouse=True)
def half_empty_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "usage_ratio", lambda self, folder: 0.5)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A broker that also verifies records written a moment ago."""
    properties = {"contrailSoundFor": "0", "mappedFileSizeCommitLog": "1048576"}
    with LocalCluster(folder=tmp_path, properties=properties) as running:
        yield running


def fill(cluster: LocalCluster) -> SendReceipt:
    """Send every body to a topic of one queue; the receipt of the one to be damaged."""
    done("topic", "create", "orders", "--queues", "1", "-n", cluster.namesrv)
    with Producer("makers", cluster.namesrv) as producer:
        receipts = [
            producer.send(Message("orders", body, keys=[f"k-{number}"]))
            for number, body in enumerate(BODIES)
        ]
    return receipts[LOST]


def all_bodies(cluster: LocalCluster, queue: MessageQueue) -> list[bytes]:
    with Admin(cluster.namesrv) as admin:
        return [one.body for one in admin.browse(queue)]


def damage(root: Path, body: bytes, at_byte: int = 0) -> tuple[int, int]:
    """Flip a bit of the body, or of the bytes behind it; returns the record's position."""
    (path,) = sorted((root / "commitlog").glob("0*"))[:1]
    data = path.read_bytes()
    at = data.index(body)
    with path.open("r+b") as file:
        file.seek(at + at_byte)
        file.write(bytes([data[at + at_byte] ^ 1]))
    start = at - 88
    return start, start + int.from_bytes(data[start : start + 4], "big")


@pytest.mark.proves(
    "store.damage.told", "store.damage.query-key-answers", "store.damage.same-range"
)
def test_a_damaged_message_is_reported_everywhere_and_can_be_replaced(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broker = cluster.brokers[0]
    root, where = Path(broker.properties()["storePathRootDir"]), ("-n", cluster.namesrv)
    lost = fill(cluster)
    queue = lost.queue
    start, end = damage(root, BODIES[LOST])
    place = f"message {LOST} of queue 0 of orders, bytes {start} to {end} of the log"

    # The first skip is an error in the broker's log; each of the others is there.
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert all_bodies(cluster, queue) == [b for b in BODIES if b != BODIES[LOST]]
    (told,) = [one.getMessage() for one in caplog.records if "damaged" in one.getMessage()]
    assert place in told
    # Queries by place, by both ids and by key.
    offset = ("queryMsgByOffset", "-t", "orders", "-b", broker.name, "-i", "0", "-o", str(LOST))
    asked = (
        ("mqadmin", *offset, "-n", cluster.namesrv),
        ("mqadmin", "queryMsgById", "-t", "orders", "-i", lost.offset_message_id, *where),
        ("message", "get", lost.offset_message_id, *where),
        ("message", "get", lost.message_id, "--topic", "orders", *where),
        ("mqadmin", "queryMsgByKey", "-t", "orders", "-k", f"k-{LOST}", *where),
    )
    for command in asked:
        failed = contrail(*command)
        assert failed.code == 1 and "is damaged" in failed.err, (command, failed)
        assert "has no message" not in failed.err + failed.out
    # The doctor, with the command that mends it.
    found = diagnosed(cluster)["log-damaged"]
    assert found["fix"] == f"contrail store recover {root} --replace-damaged"
    assert any(place in one for one in found["evidence"])

    broker.stop()
    # `contrail store verify` names the same bytes.
    verified = contrail("store", "verify", str(root))
    assert verified.code == 1 and f"bytes {start} to {end}" in verified.out
    # The store was closed in order, so nothing was looked at: that is not "fine".
    recovered = done("store", "recover", str(root)).out
    assert "looked at no record" in recovered and f"contrail store verify {root}" in recovered
    mended = done(*found["fix"].split()[1:], "--json").json
    check_json("store-recover", mended)
    (one,) = mended["replaced"]["replaced"]
    assert (one["physical_start"], one["physical_end"], one["queue_offset"]) == (start, end, LOST)
    assert Path(mended["replaced"]["kept_files"][0]).parent == root / "contrail.lost"
    assert "The store is sound" in done("store", "verify", str(root)).out
    broker.start()

    assert all_bodies(cluster, queue) == [b for b in BODIES if b != BODIES[LOST]]
    assert "log-damaged" not in diagnosed(cluster)
    for command in asked:
        failed = contrail(*command)
        assert failed.code == 1, (command, failed)
        assert "was damaged, and was replaced" in failed.err, (command, failed)


@pytest.mark.proves("store.damage.query-key-answers")
def test_sound_messages_of_a_key_are_shown_and_damaged_ones_reported(cluster: LocalCluster) -> None:
    broker, where = cluster.brokers[0], ("-n", cluster.namesrv)
    root = Path(broker.properties()["storePathRootDir"])
    done("topic", "create", "orders", "--queues", "1", *where)
    with Producer("makers", cluster.namesrv) as producer:
        for body in BODIES[:6]:
            producer.send(Message("orders", body, keys=["same"]))
    ranges = [damage(root, BODIES[number]) for number in (1, 4)]
    advice = f"contrail store recover {root} --replace-damaged"
    sound = {body.decode() for number, body in enumerate(BODIES[:6]) if number not in (1, 4)}

    def told(*command: str) -> str:
        """The text of standard error; standard output has the four other messages."""
        failed = contrail(*command, *where)
        assert failed.code == 1, failed
        assert failed.err.count("\n") == 1, failed
        assert "2 messages with key 'same' of topic 'orders'" in failed.err, failed
        assert all(f"is damaged: message {n} of" in failed.err for n in (1, 4)), failed
        assert all(f"bytes {start} to {end}" in failed.err for start, end in ranges), failed
        assert advice in failed.err, failed
        return failed.out

    found = told("message", "find", "orders", "same", "--format", "%b\n")
    assert {line for line in found.splitlines() if line} == sound
    assert {one["body"] for one in json.loads(told("message", "find", "orders", "same", "--json"))}
    listed = told("mqadmin", "queryMsgByKey", "-t", "orders", "-k", "same")
    assert len(listed.splitlines()) == 1 + len(sound)
    assert told("message", "trace", "--key", "same", "--topic", "orders").count("stored") >= 4
    # Both kinds of a query for a key, as other clients ask.
    for unique in ("true", "false"):
        fields = {"topic": "orders", "key": "same", "maxNum": "64", "_UNIQUE_KEY_QUERY": unique}
        fields |= {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
        answer = cluster.caller.call(broker.address, RequestCode.QUERY_MESSAGE, fields, b"")
        assert answer.code == 0 and advice in str(answer.remark)
        assert all(body.encode() in answer.body for body in sound)
    with Admin(cluster.namesrv) as admin:
        with pytest.raises(MessageDamaged) as raised:
            admin.messages_by_key("orders", "same")
        assert {one.body.decode() for one in raised.value.partial} == sound
        partial = admin.messages_by_key("orders", "same", allow_partial=True)
        assert {one.body.decode() for one in partial} == sound


@pytest.mark.proves("store.damage.told", "store.damage.flipped-head")
def test_a_message_whose_topic_was_damaged_is_reported_and_replaced(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The checksum covers the body only; the queue row knows better."""
    broker = cluster.brokers[0]
    root, where = Path(broker.properties()["storePathRootDir"]), ("-n", cluster.namesrv)
    lost = fill(cluster)
    queue = lost.queue
    # The first letter of the topic stands behind the body and a byte for the topic's length.
    start, end = damage(root, BODIES[LOST], at_byte=len(BODIES[LOST]) + 1)
    place = f"message {LOST} of queue 0 of orders, bytes {start} to {end} of the log"
    others = [body for body in BODIES if body != BODIES[LOST]]
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert all_bodies(cluster, queue) == others
    (told,) = [one.getMessage() for one in caplog.records if "damaged" in one.getMessage()]
    assert place in told
    offset = ("queryMsgByOffset", "-t", "orders", "-b", broker.name, "-i", "0", "-o", str(LOST))
    asked = (
        ("mqadmin", *offset, "-n", cluster.namesrv),
        ("mqadmin", "queryMsgById", "-t", "orders", "-i", lost.offset_message_id, *where),
        ("message", "get", lost.message_id, "--topic", "orders", *where),
        ("mqadmin", "queryMsgByKey", "-t", "orders", "-k", f"k-{LOST}", *where),
    )
    for command in asked:
        failed = contrail(*command)
        assert failed.code == 1 and "is damaged" in failed.err, (command, failed)
    found = diagnosed(cluster)["log-damaged"]
    assert any(place in one for one in found["evidence"])
    broker.stop()
    verified = contrail("store", "verify", str(root), "--repair")
    assert verified.code == 1 and f"bytes {start} to {end}" in verified.out
    mended = done(*found["fix"].split()[1:], "--json").json
    (one,) = mended["replaced"]["replaced"]
    assert (one["physical_start"], one["physical_end"], one["queue_offset"]) == (start, end, LOST)
    assert "The store is sound" in done("store", "verify", str(root)).out
    broker.start()
    assert all_bodies(cluster, queue) == others
    with Admin(cluster.namesrv) as admin:
        assert "nrders" not in admin.topics()

"""Pop beside Apache: its record classes, its push consumer, and folders carried both ways."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from contrail import PopConsumer, PushConsumer
from contrail.client.blocking.push_consumer import ConsumedMessage
from contrail.client.popping import PoppedMessage
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.e2e.pop_asking import GROUP, TOPIC, Popped, popped, receipt_fields
from tests.e2e.raw_client import send_fields
from tests.interop.apache_cluster import ApacheCluster
from tests.interop.differential.raw import Answer, RawConnection
from tests.interop.peers import java_peer
from tests.unit.broker.test_pop_records import ACK, BATCH_ACK, CK

INVISIBLE_MS = 10_000
FIFO = "orders-in-order"
IN_ORDER = {"order": "true", "queueId": "0", "invisibleTime": "120000"}
CARRY_TIMEOUT_S = 90.0
SETTINGS = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "mappedFileSizeTimerLog": str(4 << 20),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
}


@pytest.mark.proves("kinds.pop.records")
def test_apaches_own_classes_write_and_read_the_same_records(tmp_path: Path) -> None:
    arguments = [CK.decode(), ACK.decode(), BATCH_ACK.decode()]
    line = java_peer("apache-5").command("PopRecords", arguments, home=tmp_path, ours=True)
    printed = subprocess.run(line, capture_output=True, check=True, text=True).stdout
    said = dict(one.split(" ", 1) for one in printed.splitlines())
    assert {name: json.loads(said[name]) for name in ("ck", "ack", "bAck")} == {
        "ck": json.loads(CK),
        "ack": json.loads(ACK),
        "bAck": json.loads(BATCH_ACK),
    }
    assert [said["ck"], said["ack"], said["bAck"]] == arguments
    assert said["read"] == ("g1 orders 2 100 1760000060000 [0, 1, 3] 3 broker-a 101 [100, 103]")


# Apache's push consumer.


class JavaMember:
    """One process with Apache's push consumer; ``handled`` are its lines."""

    def __init__(self, cluster: LocalCluster, name: str, home: Path) -> None:
        home.mkdir()
        arguments = [cluster.namesrv, GROUP, TOPIC, name]
        line = java_peer("java-client-5").command("PopMember", arguments, home=home, ours=True)
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.handled: list[tuple[str, int, str]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if text.startswith(b"handled "):
                _, key, tries, how = text.decode().split()
                self.handled.append((key, int(tries), how))

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()
        assert self._process.stdout is not None and self._process.stdin is not None
        self._process.stdout.close()
        self._process.stdin.close()


@pytest.mark.proves("kinds.pop.java-push", "kinds.pop.assignments")
def test_javas_push_consumer_pops_fails_and_is_switched_while_it_runs(tmp_path: Path) -> None:
    with LocalCluster(properties={"registerNameServerPeriod": "10000"}) as cluster:
        broker = Asker(cluster)
        broker.make_topic(TOPIC)
        broker.make_group(GROUP)
        set_mode(broker, "POP")
        members = [JavaMember(cluster, name, tmp_path / name) for name in ("one", "two")]
        try:
            first = send(broker, "popped", 12)
            wait_handled(members, first, "popped")
            send(broker, "fail", 1)
            eventually(
                lambda: {("fail-0", 0, "popped"), ("fail-0", 1, "popped")} <= lines(members),
                lambda: f"the failed message comes again: {lines(members)}",
            )
            set_mode(broker, "PULL")
            later: set[str] = set()

            def pulled() -> bool:
                later.update(send(broker, f"later-{len(later)}", 4))
                return any(how == "pulled" for _, _, how in lines(members))

            eventually(pulled, "the group pulls", pause_s=0.5)
            set_mode(broker, "POP")
            again: set[str] = set()

            def pops_again() -> bool:
                keys = send(broker, f"again-{len(again)}", 4)
                again.update(keys)
                return any(key in again and how == "popped" for key, _, how in lines(members))

            eventually(pops_again, "the group pops again", pause_s=0.5)
            eventually(
                lambda: later | again <= {key for key, _, _ in lines(members)},
                "nothing is lost while the mode changes",
            )
            counts = Counter(key for member in members for key, _, _ in member.handled)
            assert all(counts[key] == 1 for key in first), "acknowledged means never again"
        finally:
            for member in members:
                member.end()


def set_mode(broker: Asker, mode: str) -> None:
    wanted = {"topic": TOPIC, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": 0}
    broker.done(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(wanted).encode())


def send(broker: Asker, prefix: str, count: int) -> set[str]:
    keys = {f"{prefix}-{number}" for number in range(count)}
    for number, key in enumerate(sorted(keys)):
        broker.stored(TOPIC, key.encode(), queue_id=number % 4, properties={"KEYS": key})
    return keys


def lines(members: list[JavaMember]) -> set[tuple[str, int, str]]:
    return {line for member in members for line in list(member.handled)}


def wait_handled(members: list[JavaMember], keys: set[str], how: str) -> None:
    eventually(
        lambda: {(key, 0, how) for key in keys} <= lines(members),
        lambda: f"all are {how}: {lines(members)}",
    )


# Folders carried over.


class Carried:
    """One folder and one address for two brokers, which take turns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ours = LocalCluster(folder=folder, in_children=True, properties=SETTINGS)
        self._ours.nameservers[0].start()
        self.address = self._ours.brokers[0].address

    @contextmanager
    def opened(self, kind: str) -> Iterator[RawConnection]:
        broker = self._apache() if kind == "apache" else self._contrail()
        with broker, RawConnection(self.address) as connection:
            yield connection

    @contextmanager
    def _apache(self) -> Iterator[None]:
        port = self._ours.brokers[0].port
        own = {
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "namesrvAddr": self._ours.namesrv,
        }
        cluster = ApacheCluster(
            brokers=1, nameservers=0, folder=self._folder, properties=SETTINGS | own
        )
        cluster.brokers[0].address = self.address
        with cluster:
            yield
            cluster.brokers[0].stop()

    @contextmanager
    def _contrail(self) -> Iterator[None]:
        self._ours.brokers[0].start()
        yield
        self._ours.brokers[0].stop()

    def end(self) -> None:
        self._ours.stop()


@pytest.mark.proves("kinds.pop.takeover")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("apache", "contrail"),
        pytest.param("contrail", "apache", marks=pytest.mark.matrix),
    ],
)
def test_a_folder_with_pops_pending_is_taken_over(tmp_path: Path, first: str, second: str) -> None:
    carried = Carried(tmp_path / "carried")
    try:
        with carried.opened(first) as connection:
            make(connection)
            for number in range(6):
                store(connection, b"%d" % number)
            for number in range(4):
                store(connection, b"%d" % number, FIFO)
            batch = taken(connection, maxMsgNums="2")
            both = taken(connection, maxMsgNums="2")
            assert [one.body for one in batch + both] == [b"0", b"1", b"2", b"3"]
            asked(connection, RequestCode.ACK_MESSAGE, receipt_fields(batch[0]))
            fields = {**receipt_fields(both[1]), "invisibleTime": str(INVISIBLE_MS + 3000)}
            answer = asked(connection, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
            assert answer.fields["invisibleTime"] == str(INVISIBLE_MS + 3000)
            batch = taken(connection, topic=FIFO, **IN_ORDER, maxMsgNums="3")
            assert [one.body for one in batch] == [b"0", b"1", b"2"]
            ordered_ack(connection, batch[1])
            # Offsets and timers are written down now and then.
            time.sleep(2)
        with carried.opened(second) as connection:
            assert taken(connection, topic=FIFO, **IN_ORDER) == [], "the batch blocks its queue"
            ordered_ack(connection, batch[0])
            ordered_ack(connection, batch[2])
            (rest,) = taken(connection, topic=FIFO, **IN_ORDER)
            assert (rest.body, rest.message.reconsume_times) == (b"3", 0), "each acked once"
            found = Counter[tuple[bytes, int]]()

            def take() -> bool:
                for one in taken(connection):
                    found[one.body, one.message.reconsume_times] += 1
                    asked(connection, RequestCode.ACK_MESSAGE, receipt_fields(one))
                return len(found) >= 5

            eventually(take, lambda: f"all come: {found}", timeout_s=CARRY_TIMEOUT_S, pause_s=0.5)
            # A second delivery has time to come.
            quiet_s = time.monotonic() + 8
            while time.monotonic() < quiet_s:
                take()
                time.sleep(0.5)
            assert found == Counter(
                {(b"4", 0): 1, (b"5", 0): 1, (b"1", 1): 1, (b"2", 1): 1, (b"3", 1): 1}
            )
    finally:
        carried.end()


def asked(
    connection: RawConnection, code: int, fields: Mapping[str, str], body: bytes = b""
) -> ReceivedResponse:
    answer = connection.ask(code, fields, body)
    assert answer.code == ResponseCode.SUCCESS, (code, answer.code, answer.remark)
    return as_received(answer)


def as_received(answer: Answer) -> ReceivedResponse:
    return ReceivedResponse(answer.code, 0, answer.remark, answer.fields, answer.body, 0, "JAVA")


def make(connection: RawConnection) -> None:
    for name in (TOPIC, FIFO):
        make_topic(connection, name)
    group = json.dumps({"groupName": GROUP}).encode()
    asked(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)


def make_topic(connection: RawConnection, name: str) -> None:
    topic = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    asked(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)


def store(connection: RawConnection, body: bytes, topic: str = TOPIC) -> None:
    asked(connection, RequestCode.SEND_MESSAGE_V2, send_fields(topic), body)


def ordered_ack(connection: RawConnection, one: Popped) -> None:
    asked(connection, RequestCode.ACK_MESSAGE, receipt_fields(one, GROUP, FIFO))


def taken(connection: RawConnection, **changes: str) -> list[Popped]:
    fields = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": str(INVISIBLE_MS),
        "pollTime": "0",
        "bornTime": str(int(time.time() * 1000)),
        "initMode": "0",
        **changes,
    }
    return popped(as_received(connection.ask(RequestCode.POP_MESSAGE, fields)))


@pytest.mark.matrix
@pytest.mark.proves("kinds.pop.client")
def test_pythons_pop_consumer_pops_from_apaches_broker() -> None:
    with ApacheCluster(brokers=1, properties=SETTINGS) as cluster:
        with RawConnection(cluster.brokers[0].address) as connection:
            make(connection)
            for number in range(3):
                store(connection, b"%d" % number)
        with PopConsumer(GROUP, cluster.namesrv, consume_from_where="first") as consumer:
            consumer.subscribe(TOPIC)
            found: list[PoppedMessage] = []
            while len(found) < 3:
                found += consumer.receive(timeout_ms=20_000)
            assert sorted(one.body for one in found) == [b"0", b"1", b"2"]
            first, second, third = found
            consumer.extend(first, 30_000)
            consumer.release(second)
            consumer.ack(first, third)
            again: list[PoppedMessage] = []
            eventually(
                lambda: again.extend(consumer.receive(timeout_ms=1_000)) or again,
                "the released message comes again",
            )
            assert [one.body for one in again] == [second.body]
            assert again[0].attempt == 2
            consumer.ack(*again)


@pytest.mark.matrix
@pytest.mark.proves("kinds.pop.push-consumer")
def test_pythons_push_consumer_pops_from_apaches_broker() -> None:
    with ApacheCluster(brokers=1, properties=SETTINGS) as cluster:
        with RawConnection(cluster.brokers[0].address) as connection:
            make(connection)
            mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0}
            code = RequestCode.SET_MESSAGE_REQUEST_MODE
            asked(connection, code, {}, json.dumps(mode).encode())
            for number in range(4):
                store(connection, b"%d" % number)
        handled: list[tuple[bytes, int]] = []
        consumer = PushConsumer(GROUP, cluster.namesrv, pop=True, consume_from_where="first")
        consumer.subscribe(TOPIC)

        @consumer.on_message
        def handle(message: ConsumedMessage) -> None:
            handled.append((message.body, message.reconsume_times))
            if (message.body, message.reconsume_times) == (b"2", 0):
                message.later(1.0)

        with consumer:
            consumer.start()
            expected = {(b"%d" % number, 0) for number in range(4)} | {(b"2", 1)}
            eventually(
                lambda: set(handled) == expected,
                lambda: f"all are handled: {handled}",
                timeout_s=CARRY_TIMEOUT_S,
            )
        assert len(handled) == len(expected), "each once"

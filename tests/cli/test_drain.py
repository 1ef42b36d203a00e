"""``contrail broker drain`` and ``undrain``: a broker leaves and comes back, and no send fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from contrail import Admin, Message, Producer, PullConsumer, PushConsumer
from contrail.cli.waiting import Quiet
from contrail.errors import ContrailError
from contrail.protocol.json_style import MessageQueue
from contrail.testing import LocalCluster, eventually
from tests.cli.running import contrail, done, one_line, valid_json

_SEND_TIMEOUT_MS = 60_000


class Sending:
    """Sends without a pause, and notes which broker took each message."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.taken_by: list[str] = []
        self.failures: list[ContrailError] = []
        self._producer = producer
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            try:
                receipt = self._producer.send(Message(self._topic, b"on and on"))
                self.taken_by.append(receipt.queue.broker_name)
            except ContrailError as error:
                self.failures.append(error)

    def next(self, count: int) -> list[str]:
        """The brokers of the messages that are sent from now on."""
        first = len(self.taken_by)
        eventually(lambda: len(self.taken_by) >= first + count)
        return self.taken_by[first:]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def sending(cluster: LocalCluster, topic: str) -> Iterator[Sending]:
    with Producer(
        "drain-test",
        cluster.namesrv,
        instance_name="drain-test",
        poll_name_server_interval_ms=200,
        send_timeout_ms=_SEND_TIMEOUT_MS,
    ) as producer:
        running = Sending(producer, topic)
        try:
            yield running
        finally:
            running.stop()


def test_a_count_is_quiet_from_its_last_move_on_and_may_begin_anew() -> None:
    stillness = Quiet(10, now_s=0.0)
    assert stillness.see(10, now_s=3.0) == 3.0
    assert stillness.see(15, now_s=4.0) == 0.0
    # The server was restarted and took two messages since.
    assert stillness.see(2, now_s=5.0) == 0.0
    assert stillness.see(2, now_s=7.0) == 2.0
    assert stillness.moved == 7


@pytest.mark.proves("cli.commands.drain", "broker.permissions.write-bit")
def test_no_send_fails_while_a_broker_is_drained_restarted_and_taken_back(
    cluster: LocalCluster,
) -> None:
    at = ["-n", cluster.namesrv]
    leaving = cluster.brokers[0]
    done("topic", "create", "drained", "--queues", "2", *at)
    with sending(cluster, "drained") as sends:
        eventually(lambda: set(sends.taken_by) == {"broker-a", "broker-b"})
        told = valid_json(
            "broker-drain", "broker", "drain", leaving.name, "--quiet", "3s", "--yes", *at
        )
        assert told["drained"] and told["perm"] == "r"
        assert set(sends.next(30)) == {"broker-b"}
        leaving.stop()
        assert set(sends.next(30)) == {"broker-b"}
        leaving.start()
        # A restart does not bring producers back: only undrain does.
        assert set(sends.next(30)) == {"broker-b"}
        assert valid_json("broker-undrain", "broker", "undrain", leaving.name, *at)["perm"] == "rw"
        eventually(lambda: "broker-a" in sends.taken_by[-20:])
        assert sends.failures == []
    with Admin(cluster.namesrv) as admin:
        assert admin.topic_stats("drained").count == len(sends.taken_by)


def test_a_topic_keeps_its_own_permission_over_a_drain(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "read_only", "--perm", "r", *at)
    done("broker", "drain", "broker-b", "--quiet", "0s", "--yes", *at)
    done("broker", "undrain", "broker-b", *at)
    rows = valid_json("topic-route", "topic", "route", "read_only", *at)["brokers"]
    assert [row["perm"] for row in rows] == ["r", "r"]


def test_an_interrupted_drain_tells_how_the_broker_is_left(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    at = ["-n", cluster.namesrv]
    with monkeypatch.context() as patched:
        patched.setattr("contrail.cli.broker_drain._drained", interrupted)
        ended = contrail("broker", "drain", "broker-b", "--yes", *at)
    assert ended.code == 130
    assert "contrail broker undrain broker-b" in ended.err
    done("broker", "undrain", "broker-b", *at)


@pytest.mark.proves("cli.commands.drain")
def test_a_broker_that_is_still_written_to_is_not_called_drained(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "busy", "--broker", "broker-b", *at)
    with Producer(
        "late-test",
        cluster.namesrv,
        instance_name="late-test",
        poll_name_server_interval_ms=600_000,
        send_timeout_ms=_SEND_TIMEOUT_MS,
    ) as producer:
        running = Sending(producer, "busy")
        try:
            running.next(1)
            ended = contrail(
                "broker", "drain", "broker-b", "--quiet", "60s", "--timeout", "1s", "--yes", *at
            )
        finally:
            running.stop()
    assert ended.code == 1 and running.failures == []
    assert "no other broker takes messages of busy" in ended.err
    last = ended.err.splitlines()[-1]
    assert last.startswith("contrail: waited for 1 s") and "broker undrain broker-b" in last
    done("broker", "undrain", "broker-b", *at)
    rows = valid_json("broker-status", "broker", "status", "broker-b", *at)
    assert rows[0]["takes_messages"] is True


def test_drain_can_wait_until_all_is_consumed(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "eaten", "--queues", "1", *at)
    with Producer("eaten-test", cluster.namesrv) as producer:
        for _ in range(4):
            producer.send(Message("eaten", b"food"))
    done("group", "create", "eaters", *at)
    done("group", "seek", "eaters", "--to", "earliest", "--topic", "eaten", "--yes", *at)
    wait = ["broker", "drain", "broker-a", "--consumed", "--quiet", "0s", "--yes", *at]
    ended = contrail(*wait, "--timeout", "0s")
    assert ended.code == 1 and "group eaters has 2 messages to read" in ended.err
    with PushConsumer("eaters", cluster.namesrv) as consumer:
        consumer.on_message(lambda message: None)
        consumer.subscribe("eaten")
        assert "is drained" in done(*wait, "--timeout", "200s").out
    done("broker", "undrain", "broker-a", *at)


def send_delayed(producer: Producer, queue: MessageQueue) -> None:
    producer.send(Message(queue.topic, b"later", delay_level=18), queue=queue)


def send_timed(producer: Producer, queue: MessageQueue) -> None:
    producer.send(Message(queue.topic, b"timed", delay=timedelta(hours=2)), queue=queue)


def send_half(producer: Producer, queue: MessageQueue) -> None:
    with producer.transaction(Message(queue.topic, b"half")) as transaction:
        transaction.unknown()


@pytest.mark.parametrize(
    ("send", "left"),
    [
        (send_delayed, "delayed messages are not due yet"),
        (send_timed, "timed messages are not due yet"),
        (send_half, "transactions are open"),
    ],
)
def test_messages_that_wait_in_topics_of_the_broker_are_arrivals_and_are_named(
    own_broker: LocalCluster, send: Callable[[Producer, MessageQueue], None], left: str
) -> None:
    at = ["-n", own_broker.namesrv]
    done("topic", "create", "waiting", "--queues", "1", *at)
    queue = MessageQueue("waiting", "broker-a", 0)
    drain = ["broker", "drain", "broker-a", "--yes", *at]
    stop = threading.Event()
    with Producer("waiting-test", own_broker.namesrv, send_timeout_ms=_SEND_TIMEOUT_MS) as producer:
        send(producer, queue)

        def go_on() -> None:
            # A stale route, as a producer has it that has not noticed.
            while not stop.wait(0.01):
                send(producer, queue)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            # Long enough for a second line of progress, which comes after 5 s.
            busy = contrail(*drain, "--quiet", "60s", "--timeout", "6s")
        finally:
            stop.set()
            thread.join()
    assert busy.code == 1 and "messages arrived within 60 s" in busy.err
    *_, arrived = re.findall(r"^([\d,]+) messages came since", busy.err, re.MULTILINE)
    assert arrived != "0"
    assert left in busy.err.splitlines()[-1]
    unfinished = contrail(*drain, "--consumed", "--quiet", "0s", "--timeout", "0s")
    assert unfinished.code == 1 and left in unfinished.err.splitlines()[-1]
    finished = done(*drain, "--quiet", "0s")
    assert left in finished.err and "is drained" in finished.out


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalCluster]:
    """For tests that leave messages and settings behind."""
    with LocalCluster(brokers=1, folder=tmp_path) as running:
        yield running


def test_queues_that_may_only_be_read_are_not_consumed_either(own_broker: LocalCluster) -> None:
    at = ["-n", own_broker.namesrv]
    done("topic", "create", "narrow", "--queues", "2", *at)
    with (
        Producer("narrow-test", own_broker.namesrv) as producer,
        Admin(own_broker.namesrv) as admin,
    ):
        producer.send(Message("narrow", b"last"), queue=MessageQueue("narrow", "broker-a", 1))
        admin.create_group("narrow-readers")
        admin.commit_offset("narrow-readers", MessageQueue("narrow", "broker-a", 0), 0)
    done("topic", "shrink", "narrow", "--queues", "1", "--yes", *at)
    wait = ["broker", "drain", "broker-a", "--consumed", "--quiet", "0s", "--yes", *at]
    ended = contrail(*wait, "--timeout", "0s")
    assert ended.code == 1 and "group narrow-readers has 1 messages to read" in ended.err


def test_a_group_that_is_online_without_an_offset_has_not_consumed(
    own_broker: LocalCluster,
) -> None:
    at = ["-n", own_broker.namesrv]
    done("topic", "create", "unread", "--queues", "1", *at)
    with Producer("unread-test", own_broker.namesrv) as producer:
        producer.send(Message("unread", b"new"))
    wait = ["broker", "drain", "broker-a", "--consumed", "--quiet", "0s", "--yes", *at]
    with (
        PullConsumer("beginners", own_broker.namesrv, auto_commit=False) as consumer,
        Admin(own_broker.namesrv) as admin,
    ):
        consumer.subscribe("unread")
        eventually(lambda: "unread" in admin.group_connections("beginners").subscriptions)
        assert admin.committed("beginners", MessageQueue("unread", "broker-a", 0)) in (None, 0)
        ended = contrail(*wait, "--timeout", "0s")
    assert ended.code == 1 and "group beginners has 1 messages to read" in ended.err


def test_a_plan_is_shown_and_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    planned = done("broker", "drain", "broker-a", "--dry-run", *at)
    assert "producers are sent away from broker-a" in planned.err
    plan = valid_json("dry-run", "broker", "drain", "broker-a", "--dry-run", *at)["plan"]
    assert plan[0] == "producers are sent away from broker-a"
    asked = contrail("broker", "drain", "broker-a", *at)
    assert asked.code == 2 and "say --yes" in asked.err
    for command in ("drain", "undrain"):
        one_line(contrail("broker", command, "broker-x", *at), 5, "'broker-x'", "broker-a")
        one_line(contrail("broker", command, "broker-a", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("broker", "drain", "broker-a", "--quiet", "soon", *at), 2, "--quiet 'soon'")
    one_line(contrail("broker", "drain", "broker-a", "--timeout", "1", *at), 2, "--timeout '1'")

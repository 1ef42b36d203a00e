"""A broker's folder with all kinds of waiting messages is taken over by the other's broker.

Apache's broker and ours take turns at one address, over one folder, under one NameServer; the
clients, Apache's own, stay connected all the while. Waiting when the first is stopped: delay
levels, timers (one of them taken back), transactions without an end, and a message to be tried
again. The second completes all of it: no message is lost, comes twice or early, and consumers go on
where they were.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contrail.clock import SharedClock
from contrail.testing import LocalCluster
from tests.interop.apache_cluster import ApacheCluster
from tests.interop.clients.driver import Event
from tests.interop.clients.kinds import Kinds
from tests.interop.clients.session import JavaSession
from tests.interop.clients.stored import read_all
from tests.interop.clients.topics import create_topic
from tests.interop.differential.raw import RawConnection
from tests.interop.peers import PeerFailed

# Long enough for the first broker to be stopped before anything is due.
DELAY_S = 340
LATE_DELAY_S = DELAY_S + 5
DELAY_LEVEL = 3
# Slow enough for heartbeats: a client not heard of for 120 s is taken for dead.
STEP_MS = 3000
# How far the clock is put back while ours writes the messages that Apache's delivers in real time.
AHEAD_MS = 1000 * (DELAY_S - 40)
COMPLETE_TIMEOUT_S = 120.0

TOPIC, GROUP = "carried", "carried_group"
QUEUE_COUNT = 2
PLAIN = ["plain-1", "plain-2", "plain-3", "plain-4"]
DELAYED = ["delayed-1", "delayed-2", "delayed-3"]
TIMED = ["timed-1", "timed-2"]
# Messages the second broker delivers: committed by a check, or due.
COMPLETED = sorted(["open-committed", *DELAYED, *TIMED, "timed-late"])
AFTERWARDS = sorted(["new", "new-delayed", "new-timed", "new-committed"])

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

_QUERY_CONSUMER_OFFSET = 14
_TIMER_RECORD = struct.Struct(">iqiqiqiiq")

# Both brokers read these.
SETTINGS = {
    "mappedFileSizeCommitLog": str(32 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "mappedFileSizeTimerLog": str(4 << 20),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    # The level of a first retry is the third.
    "messageDelayLevel": f"1s 5s {DELAY_S}s {DELAY_S}s {DELAY_S}s",
    "recallMessageEnable": "true",
}
# The broker that writes checks no transaction; the other one does.
WRITES = {"transactionTimeOut": "600000", "transactionCheckInterval": "600000"}
COMPLETES = {"transactionTimeOut": "1000", "transactionCheckInterval": "2000"}
# By default it writes the ends of transactions only every 3 s.
APACHE = {"transactionOpBatchInterval": "100"}


class Carried:
    """One folder and one address for two brokers, and the messages sent to them."""

    def __init__(self, folder: Path, session: JavaSession, ours: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = SharedClock(folder / "clock")
        self._folder = folder
        self._session = session
        self._ours = LocalCluster(
            folder=folder, in_children=True, clock=self.clock, properties=SETTINGS | ours
        )
        self.kinds = Kinds(self._ours, self.clock)
        self.store = folder / "broker-a" / "store"
        self.begun_ms = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The NameServer, for the time of both brokers."""
        try:
            self._ours.nameservers[0].start()
            yield
        finally:
            self._ours.stop()

    @contextmanager
    def apache(self, settings: dict[str, str]) -> Iterator[None]:
        """Apache's broker, stopped in order at the end."""
        broker = self._ours.brokers[0]
        own = {
            "listenPort": str(broker.port),
            "haListenPort": str(broker.port + 1),
            "namesrvAddr": self._ours.namesrv,
        }
        cluster = ApacheCluster(
            brokers=1,
            nameservers=0,
            folder=self._folder,
            properties=SETTINGS | APACHE | settings | own,
        )
        cluster.brokers[0].address = broker.address
        with cluster:
            yield
            cluster.brokers[0].stop()

    @contextmanager
    def contrail(self) -> Iterator[None]:
        """Our broker, stopped in order at the end."""
        self._ours.brokers[0].start()
        yield
        self._ours.brokers[0].stop()

    # Messages for the first broker.

    def write(self) -> None:
        """Have something of every kind wait in the folder."""
        self.begun_ms = self.kinds.now_ms()
        create_topic(self.kinds, TOPIC, queue_count=QUEUE_COUNT)
        self._start("producer", "sender")
        self._start("producer", "commits", check=[COMMIT])
        self._start("producer", "rolls-back", check=[ROLLBACK])
        self._consume_and_fail()
        self._send(DELAYED, delay_level=DELAY_LEVEL)
        self._send(TIMED, DelayTimeMs=1000 * DELAY_S)
        self._send(["timed-late"], DelayTimeSec=LATE_DELAY_S)
        (recalled,) = self._send(["recalled"], DelayTimeMs=1000 * DELAY_S)
        handle = recalled["handle"]
        self._session.do("recall", producer=self._name("sender"), topic=TOPIC, handle=handle)
        for fate, key in ((COMMIT, "committed"), (ROLLBACK, "rolled-back")):
            self._transact("commits", key, fate)
        self._transact("commits", "open-committed", UNKNOWN)
        self._transact("rolls-back", "open-rolled-back", UNKNOWN)
        self._wait_until_written()

    def _consume_and_fail(self) -> None:
        self._send([*PLAIN, "retried"])
        self._start("consumer", "before", group=GROUP, topic=TOPIC, fail_times={"retried": 1})
        self._wait(lambda: sorted(self.received("before")) == sorted([*PLAIN, "retried"]), "all")
        self._wait(lambda: len(read_all(self.kinds, SCHEDULE_TOPIC)) == 1, "a message sent back")
        self._session.close(self._name("before"))

    def _wait_until_written(self) -> None:
        """Until the timers are in their files, and both ends of transactions in the log."""
        timers = [*TIMED, "timed-late", "recalled", "its deletion"]
        self._wait(lambda: len(timer_records(self.store)) == len(timers), "the timer log")
        self._wait(lambda: self._ended_count() == 2, "two transactions to end")

    def _ended_count(self) -> int:
        """How many half messages the op records name."""
        bodies = [one["body"] for one in read_all(self.kinds, OP_TOPIC)]
        return sum(body.count(",") for body in bodies)

    def check_waiting(self) -> None:
        """No message was due yet, and the timers lie in their files."""
        records = timer_records(self.store)
        assert len(records) == 5
        assert (self.store / "timerwheel").stat().st_size > 0
        assert (self.store / "config" / "timercheck").stat().st_size > 0

    def topic_keys(self) -> list[str]:
        return sorted(one["key"] for one in read_all(self.kinds, TOPIC))

    def consumer_offsets(self) -> dict[int, int]:
        """How far the group is on each queue of the topic, as the broker knows it."""
        with RawConnection(self.kinds.brokers[0].address) as connection:
            return {
                queue_id: int(
                    connection.ask(_QUERY_CONSUMER_OFFSET, _group_queue(queue_id)).fields["offset"]
                )
                for queue_id in range(QUEUE_COUNT)
            }

    # Deliveries of the second broker.

    def complete(self, *, step_ms: int) -> None:
        """Let the time come; everything is delivered, once."""
        self._start("consumer", "after", group=GROUP, topic=TOPIC)
        wanted = sorted(["committed", "retried", *COMPLETED])
        self._wait(lambda: sorted(self.received("after")) == wanted, f"{wanted}", step_ms)
        self._check_retried()
        self._check_times()
        self._wait(lambda: bool(self._checked("rolls-back")), "a check answered by rollback")
        self._send_afterwards()
        everything = sorted(wanted + AFTERWARDS)
        self._wait(lambda: sorted(self.received("after")) == everything, f"{everything}", step_ms)
        assert self.topic_keys() == sorted(
            [*PLAIN, "retried", "committed", *COMPLETED, *AFTERWARDS]
        )
        assert self._checked("commits") == {"open-committed"}
        assert self._checked("rolls-back") == {"open-rolled-back"}

    def _check_retried(self) -> None:
        events = self._session.of("received", self._name("after"))
        (again,) = [event for event in events if event["key"] == "retried"]
        assert again["reconsume_times"] == 1
        (copy,) = read_all(self.kinds, f"%RETRY%{GROUP}")
        assert copy["store_ms"] >= self.begun_ms + 1000 * DELAY_S

    def _check_times(self) -> None:
        stored = {one["key"]: one["store_ms"] for one in read_all(self.kinds, TOPIC)}
        for key in DELAYED + TIMED:
            assert stored[key] >= self.begun_ms + 1000 * DELAY_S, key
        assert stored["timed-late"] >= self.begun_ms + 1000 * LATE_DELAY_S

    def _send_afterwards(self) -> None:
        """Every kind once more: the folder is as good as new."""
        self._send(["new"])
        self._send(["new-delayed"], delay_level=1)
        self._send(["new-timed"], DelayTimeMs=2000)
        self._transact("commits", "new-committed", COMMIT)

    def _checked(self, producer: str) -> set[str]:
        return {event["key"] for event in self._session.of("checked", self._name(producer))}

    # Shared parts.

    def received(self, consumer: str) -> list[str]:
        return self._session.received(self._name(consumer))

    def _start(self, what: str, name: str, **told: object) -> None:
        given = {"group": f"{name}_{TOPIC}", "namesrv": self.kinds.namesrv} | told
        self._session.do(what, name=self._name(name), **given)

    def _send(self, keys: list[str], **told: object) -> list[Event]:
        return self._session.send(self._name("sender"), TOPIC, keys, **told)

    def _transact(self, producer: str, key: str, fate: str) -> None:
        self._session.transact(self._name(producer), TOPIC, key, fate)

    def _name(self, name: str) -> str:
        """The names of one process's clients are shared by the tests."""
        return f"{self._folder.name}-{name}"

    def _wait(self, condition: Callable[[], bool], what: str, step_ms: int = 0) -> None:
        try:
            self.kinds.wait_for(condition, what, step_ms=step_ms, patience_s=COMPLETE_TIMEOUT_S)
        except PeerFailed as late:
            seen = sorted(self.received("after"))
            raise PeerFailed(f"{late}\nreceived: {seen}\nstored: {self.topic_keys()}") from late


def _group_queue(queue_id: int) -> dict[str, str]:
    return {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}


def timer_records(store: Path) -> list[tuple[int, ...]]:
    """The records of the timer log up to its end, where there are only zeroes."""
    records = []
    for path in sorted((store / "timerlog").glob("*")):
        data = path.read_bytes()
        for at in range(0, len(data) - _TIMER_RECORD.size, _TIMER_RECORD.size):
            record = _TIMER_RECORD.unpack_from(data, at)
            if record[0] != _TIMER_RECORD.size:
                break
            records.append(record)
    return records


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaSession]:
    with JavaSession("java5", "", tmp_path_factory.mktemp("session")) as started:
        yield started


@pytest.mark.proves(
    "kinds.shown.folders-of-apache",
    "broker.system-names.paged-reads",
    "broker.system-names.own-cursors",
)
def test_ours_delivers_the_waiting_messages_of_a_folder_of_apache(
    session: JavaSession, tmp_path: Path
) -> None:
    carried = Carried(tmp_path / "apache-first", session, COMPLETES)
    with carried.opened():
        with carried.apache(WRITES):
            carried.write()
            offsets = carried.consumer_offsets()
            assert carried.topic_keys() == sorted([*PLAIN, "retried", "committed"])
        carried.check_waiting()
        with carried.contrail():
            assert carried.consumer_offsets() == offsets
            carried.complete(step_ms=STEP_MS)


@pytest.mark.proves("kinds.shown.folders-to-apache", "kinds.recall.one-message")
def test_apache_delivers_the_waiting_messages_of_a_folder_of_ours(
    session: JavaSession, tmp_path: Path
) -> None:
    """The clock of Apache's broker cannot be set, so ours writes in the past."""
    carried = Carried(tmp_path / "ours-first", session, WRITES)
    carried.clock.advance(ms=-AHEAD_MS)
    with carried.opened():
        with carried.contrail():
            carried.write()
            offsets = carried.consumer_offsets()
            assert carried.topic_keys() == sorted([*PLAIN, "retried", "committed"])
        carried.check_waiting()
        with carried.apache(COMPLETES):
            assert carried.consumer_offsets() == offsets
            carried.complete(step_ms=0)

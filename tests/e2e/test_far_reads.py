"""A disk that stands still holds up who asks about old messages, and nobody else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from contrail.broker.app import Broker
from contrail.clock import ManualClock
from contrail.model.host import pack_host
from contrail.model.message_id import decode_offset_message_id, encode_offset_message_id
from contrail.model.record import split_record_run
from contrail.protocol.bodies.topics import decode_topic_stats
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse, Request, encode_request
from contrail.runtime.files import FileSystem
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages
from tests.e2e.raw_client import RawClient, heartbeat, pull_fields
from tests.e2e.test_cold_reads import StuckDisk as StuckPulls
from tests.e2e.test_cold_reads import forget, major_faults
from tests.e2e.test_transactions import COMMIT, ROLLBACK, Producer, end_fields, listed

TOPIC, GROUP, MOVED_GROUP, NEWS = "payments", "auditors", "movers", "news"
# Half messages of the tests' producer are of this topic.
HALF_OF = "orders"
MESSAGE_COUNT = 300
QUEUE_COUNT = 2
BODY_BYTES = 20_000
FOREVER = str((1 << 63) - 1)
_opaques = itertools.count(1000)


class StuckDisk(StuckPulls):
    """Rows and index files have left memory, too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        pread_resident = FileSystem.pread_resident

        def stuck(files: FileSystem, fd: int, byte_count: int, position: int) -> bytes | None:
            return pread_resident(files, fd, byte_count, position) if self.has_gone_on else None

        monkeypatch.setattr(FileSystem, "pread_resident", stuck)


class OldStore:
    """A broker that was restarted over messages which have left memory."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.asker = Asker(cluster)
        self.asker.make_topic(TOPIC, read=QUEUE_COUNT, write=QUEUE_COUNT)
        for topic in (NEWS, HALF_OF):
            self.asker.make_topic(topic, read=1, write=1)
        for group in (GROUP, MOVED_GROUP):
            self.asker.make_group(group)
        for number in range(MESSAGE_COUNT):
            properties = {"KEYS": f"key-{number % 10}"}
            queue_id = number % QUEUE_COUNT
            self.asker.stored(TOPIC, body_of(number), queue_id=queue_id, properties=properties)
        for queue_id in range(QUEUE_COUNT):
            self._commit(queue_id, MESSAGE_COUNT // QUEUE_COUNT)
        (message,) = messages(self.asker.pull(TOPIC, 40, maxMsgNums="1"))
        self.message = message
        with Producer(cluster) as producer:
            self.halves = [producer.half(f"old-{number}") for number in range(10)]
        self.warm = {case.name: case.shown(self.ask(case)) for case in QUESTIONS}
        self.restart()

    def _commit(self, queue_id: int, consumer_offset: int) -> None:
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
        fields["commitOffset"] = str(consumer_offset)
        self.asker.done(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    def restart(self) -> None:
        broker = self.cluster.brokers[0]
        broker.stop()
        forget(broker.folder / "store")
        broker.start()

    @property
    def app(self) -> Broker:
        app = self.cluster.brokers[0].app
        assert app is not None
        return app

    def connect(self) -> RawClient:
        """A consumer of the group."""
        client = RawClient(self.cluster.brokers[0].port)
        client.call(RequestCode.HEART_BEAT, {}, heartbeat("c1", group=GROUP, topic=TOPIC))
        return client

    def ask(self, case: Question) -> ReceivedResponse:
        with self.connect() as client:
            return client.call(case.code, case.fields(self))

    def is_open(self, key: str) -> bool:
        return key in [row["transactionId"] for row in listed(self.asker)]


@dataclass(frozen=True)
class Question:
    """A request that changes nothing, and what of its answer stays the same."""

    code: RequestCode
    fields: Callable[[OldStore], dict[str, str]]
    shown: Callable[[ReceivedResponse], object] = lambda answer: (answer.code, answer.body)

    @property
    def name(self) -> str:
        return self.code.name


def body_of(number: int) -> bytes:
    return b"%08d" % number + b"." * BODY_BYTES


def queue(**changes: str) -> dict[str, str]:
    return {"topic": TOPIC, "queueId": "0", **changes}


def of_group() -> dict[str, str]:
    return {"topic": TOPIC, "group": GROUP, "consumerGroup": GROUP}


def number_shown(name: str) -> Callable[[ReceivedResponse], object]:
    return lambda answer: (answer.code, answer.fields[name])


def without_rate(answer: ReceivedResponse) -> object:
    """How much was put a moment ago is not the same after a restart."""
    return answer.code, decode_topic_stats(answer.body)[0]


def of_auditors(answer: ReceivedResponse) -> object:
    """The stats of one group among those of all groups."""
    return answer.code, answer.body.partition(b'{"auditors":')[2].partition(b"]}")[0]


def earliest_shown(answer: ReceivedResponse) -> object:
    return answer.code, json.loads(answer.body)["table"]["earliestMessageTimeStamp"]


VIEW = Question(
    RequestCode.VIEW_MESSAGE_BY_ID, lambda old: {"offset": str(old.message.physical_offset)}
)
QUESTIONS = [
    # First of all: rows that somebody has read are kept for the next.
    Question(
        RequestCode.QUERY_CONSUME_QUEUE, lambda old: queue(queueId="1", index="3", count="20")
    ),
    Question(
        RequestCode.QUERY_MESSAGE,
        lambda old: {
            "topic": TOPIC,
            "key": "key-7",
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": FOREVER,
        },
    ),
    VIEW,
    Question(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        lambda old: queue(timestamp=str(old.message.store_timestamp_ms)),
        number_shown("offset"),
    ),
    Question(
        RequestCode.GET_EARLIEST_MSG_STORETIME, lambda old: queue(), number_shown("timestamp")
    ),
    Question(RequestCode.GET_CONSUME_STATS, lambda old: of_group()),
    Question(RequestCode.GET_BROKER_CONSUME_STATS, lambda old: {"isOrder": "false"}, of_auditors),
    Question(RequestCode.QUERY_CONSUME_TIME_SPAN, lambda old: of_group()),
    Question(RequestCode.GET_TOPIC_STATS_INFO, lambda old: queue(), without_rate),
    Question(RequestCode.GET_BROKER_RUNTIME_INFO, lambda old: {}, earliest_shown),
    # A reset is pending until a pull takes it: the same again changes nothing.
    Question(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        lambda old: {
            "topic": TOPIC,
            "group": MOVED_GROUP,
            "timestamp": str(old.message.store_timestamp_ms),
        },
    ),
]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldStore]:
    # Without the scrubber, which would bring this short log into memory at once.
    properties = {"contrailScrubBytesPerSecond": "0"}
    folder = tmp_path_factory.mktemp("far-reads")
    with LocalCluster(folder=folder, properties=properties) as cluster:
        yield OldStore(cluster)


def send(client: RawClient, code: int, fields: dict[str, str], *, one_way: bool = False) -> int:
    opaque = next(_opaques)
    flag = FLAG_ONE_WAY if one_way else 0
    client.send(encode_request(Request(code, opaque, fields, flag=flag)))
    return opaque


def answered_late(
    old: OldStore, disk: StuckDisk, code: int, fields: dict[str, str]
) -> ReceivedResponse:
    """The answer to a request that waits for the disk, while everybody else is served."""
    with old.connect() as client:
        opaque = send(client, code, fields)
        eventually(lambda: disk.readers, "a thread is at the disk")
        eventually(lambda: len(old.app.far_reads) == 1, "the request waits")
        new = old.asker.stored(NEWS, b"new")
        assert old.asker.pull(NEWS, new).code == ResponseCode.SUCCESS
        # The same connection goes on as well.
        near = client.call(RequestCode.PULL_MESSAGE, pull_fields(NEWS, new))
        assert [message.body for message in split_record_run(near.body)] == [b"new"]
        assert len(old.app.far_reads) == 1
        disk.go_on.set()
        answer = client.answer_to(opaque)
    assert all(name.startswith("far-reads") for name in disk.readers)
    eventually(lambda: len(old.app.far_reads) == 0, "nobody waits")
    return answer


@pytest.mark.proves("kinds.backlogs.cold-queries")
@pytest.mark.parametrize("case", QUESTIONS, ids=lambda case: case.name)
def test_a_question_about_old_messages_holds_up_nobody_and_is_answered_as_if_warm(
    old: OldStore, monkeypatch: pytest.MonkeyPatch, case: Question
) -> None:
    answer = answered_late(old, StuckDisk(monkeypatch), case.code, case.fields(old))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert case.shown(answer) == old.warm[case.name]


@pytest.mark.proves("kinds.backlogs.cold-queries")
def test_an_old_message_is_sent_back_once(old: OldStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StuckDisk(monkeypatch)
    fields = {"offset": str(old.message.physical_offset), "group": GROUP, "delayLevel": "-1"}
    answer = answered_late(old, disk, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert old.asker.bodies(f"%DLQ%{GROUP}") == [old.message.body]


@pytest.mark.proves("kinds.backlogs.cold-queries")
def test_an_old_transaction_is_committed_once(
    old: OldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = old.halves[0]
    fields = end_fields(half, COMMIT)
    answer = answered_late(old, StuckDisk(monkeypatch), RequestCode.END_TRANSACTION, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert old.asker.bodies(HALF_OF).count(b"old-0") == 1
    assert not old.is_open("old-0")


def test_an_operator_decides_an_old_transaction(
    old: OldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"msgId": old.halves[1].fields["msgId"], "fate": "rollback"}
    answer = answered_late(old, StuckDisk(monkeypatch), RequestCode.DECIDE_TRANSACTION, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert not old.is_open("old-1")
    assert b"old-1" not in old.asker.bodies(HALF_OF)


def test_the_check_of_an_old_transaction_is_resumed(
    old: OldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = int(old.halves[2].fields["queueOffset"])
    fields = {"msgId": old.halves[2].fields["msgId"]}
    code = RequestCode.RESUME_CHECK_HALF_MESSAGE
    answer = answered_late(old, StuckDisk(monkeypatch), code, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    (row,) = [row for row in listed(old.asker) if row["transactionId"] == "old-2"]
    assert decode_offset_message_id(str(row["msgId"])).physical_offset > before


def test_a_client_is_handed_an_old_message(old: OldStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StuckDisk(monkeypatch)
    host = pack_host("127.0.0.1", old.cluster.brokers[0].port)
    message_id = encode_offset_message_id(host, old.message.physical_offset)
    fields = {"consumerGroup": GROUP, "clientId": "c1", "msgId": message_id}
    with old.connect() as client, RawClient(old.cluster.brokers[0].port) as operator:
        send(operator, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
        eventually(lambda: disk.readers, "a thread is at the disk")
        assert old.asker.stored(NEWS, b"new") >= 0
        disk.go_on.set()
        handed = client.next_frame()
    assert (handed.code, handed.body) == (
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        old.ask(VIEW).body,
    )


def test_the_last_word_of_a_producer_that_left_counts(
    old: OldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)
    with old.connect() as client:
        end = end_fields(old.halves[3], COMMIT)
        send(client, RequestCode.END_TRANSACTION, end, one_way=True)
        eventually(lambda: len(old.app.far_reads) == 1, "the end waits")
    disk.go_on.set()
    eventually(lambda: not old.is_open("old-3"), "the transaction is decided")
    assert old.asker.bodies(HALF_OF).count(b"old-3") == 1


def test_the_first_of_two_ends_decides(old: OldStore, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = StuckDisk(monkeypatch)
    with old.connect() as client:
        first = send(client, RequestCode.END_TRANSACTION, end_fields(old.halves[4], COMMIT))
        eventually(lambda: disk.readers, "a thread is at the disk")
        second = send(client, RequestCode.END_TRANSACTION, end_fields(old.halves[4], ROLLBACK))
        eventually(lambda: len(old.app.far_reads) == 2, "both wait")
        disk.go_on.set()
        codes = {frame.opaque: frame.code for frame in (client.next_frame(), client.next_frame())}
    assert codes == {first: ResponseCode.SUCCESS, second: ResponseCode.ILLEGAL_OPERATION}
    assert old.asker.bodies(HALF_OF).count(b"old-4") == 1


def test_a_question_whose_asker_left_is_forgotten(
    old: OldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)
    with old.connect() as client:
        for _ in range(5):
            send(client, RequestCode.VIEW_MESSAGE_BY_ID, VIEW.fields(old))
        eventually(lambda: len(old.app.far_reads) == 5, "all wait")
    disk.go_on.set()
    eventually(lambda: len(old.app.far_reads) == 0, "nobody waits")
    assert VIEW.shown(old.ask(VIEW)) == old.warm[VIEW.name]


@pytest.mark.proves("kinds.backlogs.cold-queries")
def test_no_question_makes_the_loop_fault(old: OldStore) -> None:
    old.restart()
    for case in QUESTIONS:
        forget(old.cluster.brokers[0].folder / "store")
        before = old.cluster.run(major_faults())
        assert case.shown(old.ask(case)) == old.warm[case.name]
        assert old.cluster.run(major_faults()) == before, f"{case.name} waited for the disk"
    if not old.app.far_reads.brought_in_count:
        pytest.skip("this file system does not let go of pages: tmpfs, for one")


def test_a_broker_stops_while_a_question_waits(
    old: OldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = StuckDisk(monkeypatch)
    with old.connect() as client:
        opaque = send(client, RequestCode.VIEW_MESSAGE_BY_ID, VIEW.fields(old))
        eventually(lambda: disk.readers, "a thread is at the disk")
        old.cluster.brokers[0].stop()
        assert client.answer_to(opaque).code == ResponseCode.SERVICE_NOT_AVAILABLE
    disk.go_on.set()
    old.cluster.brokers[0].start()
    assert VIEW.shown(old.ask(VIEW)) == old.warm[VIEW.name]


@pytest.mark.proves("kinds.backlogs.cold-queries")
def test_an_old_transaction_is_asked_about_once_it_is_in_memory_and_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"contrailScrubBytesPerSecond": "0"}
    with LocalCluster(folder=tmp_path, clock=ManualClock(), properties=properties) as cluster:
        asker = Asker(cluster)
        asker.make_topic(HALF_OF, read=1, write=1)
        with Producer(cluster) as producer:
            producer.half("old")
        cluster.brokers[0].stop()
        forget(cluster.brokers[0].folder / "store")
        cluster.brokers[0].start()
        disk = StuckDisk(monkeypatch)
        with Producer(cluster) as producer:
            producer.half("new")
            cluster.advance(ms=7000)
            eventually(lambda: disk.readers, "a thread is at the disk")
            assert asked_next(cluster, producer) == "new"
            assert asker.stored(HALF_OF, b"sent meanwhile") == 0
            disk.go_on.set()
            question = asked_next(cluster, producer)
            assert question == "old"
        assert all(name.startswith("far-reads") for name in disk.readers)


def asked_next(cluster: LocalCluster, producer: Producer) -> str:
    """The transaction of the next question; time passes until there is one."""

    def is_asked() -> bool:
        cluster.advance(ms=150)
        return producer.has_news()

    eventually(is_asked, "a question")
    return producer.question().fields["transactionId"]

"""Topics that store no message twice: a send that is repeated gets the first answer."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest

from contrail.clock import ManualClock, SharedClock
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.properties import encode_properties
from contrail.model.record import TRANSACTION_COMMIT
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Request, encode_request
from contrail.runtime.files import FileSystem
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages
from tests.e2e.raw_client import RawClient, send_fields

WINDOW = "+contrail.dedupe.window.ms=600000,+contrail.dedupe.window.count=10000"
PLACE = ("msgId", "queueId", "queueOffset", "transactionId")
_topics = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as running:
        yield running


@pytest.fixture
def broker(cluster: LocalCluster) -> Asker:
    return Asker(cluster)


@pytest.fixture
def topic(broker: Asker) -> str:
    name = f"once-{next(_topics)}"
    set_topic(broker, name, WINDOW)
    return name


def set_topic(broker: Asker, topic: str, attributes: str) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": attributes,
    }
    broker.done(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def send(broker: Asker, topic: str, key: str, body: bytes = b"x", **changes: str) -> dict[str, str]:
    """Send a message with this key, and where the answer says it is."""
    return placed(broker, send_fields(topic, **{"i": keyed(key), **changes}), body)


def placed(broker: Asker, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
    answer = broker.done(RequestCode.SEND_MESSAGE_V2, fields, body)
    return {name: answer.fields[name] for name in PLACE} | (
        {"recallHandle": answer.fields["recallHandle"]} if "recallHandle" in answer.fields else {}
    )


def as_repeated(first: Mapping[str, str]) -> dict[str, str]:
    """The first answer without its recall handle: another producer may have sent the key again."""
    return {name: value for name, value in first.items() if name != "recallHandle"}


def keyed(key: str, **properties: str) -> str:
    return encode_properties({"UNIQ_KEY": key, **properties}).decode()


def batch(*units: tuple[str, bytes]) -> bytes:
    """Messages by key and body; an empty key is none."""
    return encode_batch(
        BatchUnit(body, encode_properties({"UNIQ_KEY": key} if key else {"a": "b"}))
        for key, body in units
    )


def queue_end(broker: Asker, topic: str, queue_id: int = 0) -> int:
    fields = {"topic": topic, "queueId": str(queue_id)}
    return int(broker.done(RequestCode.GET_MAX_OFFSET, fields).fields["offset"])


# Single messages.


@pytest.mark.proves("kinds.order.dedupe")
def test_a_repeated_send_is_not_stored_and_gets_the_first_answer(broker: Asker, topic: str) -> None:
    first = send(broker, topic, "k1", b"first")
    other = send(broker, topic, "k2", b"other")
    assert other["queueOffset"] == "1"
    # A producer that tries again takes the next queue.
    for queue_id in "0123":
        assert send(broker, topic, "k1", b"again", e=queue_id) == first
    assert broker.bodies(topic) == [b"first", b"other"]
    assert [queue_end(broker, topic, queue_id) for queue_id in (1, 2, 3)] == [0, 0, 0]


def test_a_topic_without_the_attribute_stores_what_it_is_sent(broker: Asker, topic: str) -> None:
    send(broker, topic, "k")
    places = [send(broker, "at-least-once", "k")["queueOffset"] for _ in range(3)]
    assert places == ["0", "1", "2"]


def test_a_message_without_a_key_of_its_producer_is_never_a_repeat(
    broker: Asker, topic: str
) -> None:
    places = [send(broker, topic, "", i="a\x01b\x02")["queueOffset"] for _ in range(3)]
    assert places == ["0", "1", "2"]


def test_repeats_that_arrive_together_get_one_place(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    with RawClient(cluster.brokers[0].port) as client:
        frames = [
            Request(RequestCode.SEND_MESSAGE_V2, number, send_fields(topic, i=keyed(key)), b"x")
            for number, key in enumerate(["a", "b", "a", "a", "c", "b"])
        ]
        client.send(b"".join(encode_request(frame) for frame in frames))
        got = {}
        for _ in frames:
            answer = client.next_frame()
            assert answer.code == ResponseCode.SUCCESS
            got[answer.opaque] = answer.fields["queueOffset"]
    assert got[0] == got[2] == got[3] == "0"
    assert got[1] == got[5] == "1"
    assert got[4] == "2"
    assert queue_end(broker, topic) == 3


def test_a_first_send_that_was_refused_leaves_nothing_behind(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    too_long = send_fields(topic, i=keyed("k", p="v" * 32_740))
    assert broker.ask(RequestCode.SEND_MESSAGE_V2, too_long, b"x").code != ResponseCode.SUCCESS
    # Together, so that the repeat waits for what becomes of the first.
    with RawClient(cluster.brokers[0].port) as client:
        fields = (too_long, send_fields(topic, i=keyed("k")), send_fields(topic, i=keyed("k")))
        client.send(
            b"".join(
                encode_request(Request(RequestCode.SEND_MESSAGE_V2, number, each, b"good"))
                for number, each in enumerate(fields)
            )
        )
        got = [client.answer_to(number) for number in range(3)]
    assert got[0].code != ResponseCode.SUCCESS
    assert got[1].fields["msgId"] == got[2].fields["msgId"]
    assert broker.bodies(topic) == [b"good"]


def test_a_one_way_repeat_is_dropped(cluster: LocalCluster, broker: Asker, topic: str) -> None:
    with RawClient(cluster.brokers[0].port) as client:
        for _ in range(3):
            fields = send_fields(topic, i=keyed("k"))
            client.send(
                encode_request(Request(RequestCode.SEND_MESSAGE_V2, 1, fields, b"x", FLAG_ONE_WAY))
            )
        client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, i=keyed("last")), b"last")
    assert broker.bodies(topic) == [b"x", b"last"]


# The window.


@pytest.mark.proves("kinds.order.dedupe")
def test_a_key_is_forgotten_when_the_time_is_over(
    cluster: LocalCluster, broker: Asker, topic: str
) -> None:
    first = send(broker, topic, "k")
    cluster.advance(ms=600_000)
    assert send(broker, topic, "k") == first
    cluster.advance(ms=1)
    later = send(broker, topic, "k")
    assert later["queueOffset"] == "1"
    cluster.advance(ms=-3_600_000)
    assert send(broker, topic, "k") == later


@pytest.mark.proves("kinds.order.dedupe")
def test_a_key_is_forgotten_when_enough_others_have_come(broker: Asker, topic: str) -> None:
    set_topic(broker, topic, "+contrail.dedupe.window.count=3")
    first = send(broker, topic, "k")
    for key in ("a", "b"):
        send(broker, topic, key)
    assert send(broker, topic, "k") == first
    send(broker, topic, "c")
    assert send(broker, topic, "k")["queueOffset"] == "4"


def test_it_is_switched_on_and_off_while_the_broker_runs(broker: Asker) -> None:
    topic = "now-and-then"
    for _ in range(2):
        send(broker, topic, "k")
    set_topic(broker, topic, "+contrail.dedupe.window.ms=1000")
    # Messages from before the switch are not in the memory.
    third = send(broker, topic, "k")
    assert third["queueOffset"] == "2"
    assert send(broker, topic, "k") == third
    set_topic(broker, topic, "-contrail.dedupe.window.ms")
    assert send(broker, topic, "k")["queueOffset"] == "3"


def test_a_topic_that_is_made_anew_knows_nothing(broker: Asker, topic: str) -> None:
    first = send(broker, topic, "k")
    broker.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    set_topic(broker, topic, WINDOW)
    assert send(broker, topic, "k")["msgId"] != first["msgId"]


def test_retries_of_consumers_are_no_repeats(broker: Asker) -> None:
    broker.make_group("tired")
    set_topic(broker, "%RETRY%tired", WINDOW)
    places = [
        send(broker, "%RETRY%tired", "k", j=times)["queueOffset"] for times in ("1", "2", "3")
    ]
    assert len(set(places)) == 3


# Batches.


def send_batch(broker: Asker, topic: str, key: str, body: bytes) -> dict[str, str]:
    return placed(broker, send_fields(topic, i=keyed(key), m="true"), body)


def test_a_repeated_batch_gets_the_first_answer(broker: Asker, topic: str) -> None:
    send(broker, topic, "before")
    body = batch(("a", b"1"), ("b", b"2"), ("c", b"3"))
    first = send_batch(broker, topic, "whole", body)
    assert first["queueOffset"] == "1"
    assert send_batch(broker, topic, "whole", body) == first
    assert queue_end(broker, topic) == 4


def test_of_a_batch_that_is_known_in_part_the_rest_is_stored(broker: Asker, topic: str) -> None:
    known = send(broker, topic, "b", b"2", e="3")
    body = batch(("a", b"1"), ("b", b"2"), ("a", b"1"), ("c", b"3"))
    got = send_batch(broker, topic, "whole", body)
    ids = got["msgId"].split(",")
    assert ids[1] == known["msgId"]
    assert ids[0] == ids[2]
    assert (got["queueId"], got["queueOffset"]) == ("0", "0")
    assert broker.bodies(topic) == [b"1", b"3"]
    assert broker.bodies(topic, 3) == [b"2"]
    # A message of the batch that is sent by itself, and one of it in another batch.
    assert send(broker, topic, "c")["msgId"] == ids[3]
    again = send_batch(broker, topic, "other", batch(("b", b"2"), ("d", b"4")))
    assert (again["queueId"], again["queueOffset"]) == ("3", "0")


def test_messages_of_a_batch_without_keys_are_stored_each_time(broker: Asker, topic: str) -> None:
    for _ in range(2):
        send_batch(broker, topic, "whole", batch(("", b"1"), ("a", b"2")))
    assert broker.bodies(topic) == [b"1", b"2", b"1"]


def test_a_batch_that_is_kept_whole_is_known_by_its_own_key(broker: Asker) -> None:
    topic = "whole-batches"
    set_topic(broker, topic, f"+queue.type=BatchCQ,{WINDOW}")
    body = batch(("a", b"1"), ("b", b"2"))
    first = send_batch(broker, topic, "whole", body)
    assert send_batch(broker, topic, "whole", body) == first
    assert send_batch(broker, topic, "next", body)["queueOffset"] == "2"
    single = send(broker, topic, "single")
    assert send(broker, topic, "single") == single
    assert queue_end(broker, topic) == 5


# Messages that wait.

WAITING = {
    "delayed": {"DELAY": "3"},
    "timed": {"TIMER_DELAY_MS": "60000"},
    "half": {"TRAN_MSG": "true", "PGROUP": "producers"},
}


@pytest.mark.proves("kinds.recall.one-message")
@pytest.mark.parametrize("kind", WAITING)
def test_a_message_that_waits_is_known_where_it_waits(
    cluster: LocalCluster, broker: Asker, topic: str, kind: str
) -> None:
    properties = keyed(f"{topic}-{kind}", **WAITING[kind])
    first = send(broker, topic, "", i=properties, e="2")
    assert first["queueId"] == "2"
    assert ("recallHandle" in first) == (kind == "timed")
    # A later repeat asks for a later time, and is told of the first one.
    cluster.advance(ms=2_000)
    assert send(broker, topic, "", i=properties, e="1") == as_repeated(first)


# The disk.


def test_a_repeat_is_not_answered_before_the_first_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()
    may_sync.set()
    sync = FileSystem.fdatasync

    def held_sync(files: FileSystem, fd: int) -> None:
        assert may_sync.wait(60)
        sync(files, fd)

    monkeypatch.setattr(FileSystem, "fdatasync", held_sync)
    settings = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "60000"}
    with LocalCluster(folder=tmp_path, properties=settings) as cluster:
        broker = Asker(cluster)
        set_topic(broker, "once", WINDOW)
        app = cluster.brokers[0].app
        assert app is not None
        held = app.sends._acknowledgements
        with RawClient(cluster.brokers[0].port) as client:
            may_sync.clear()
            try:
                for number in (1, 2):
                    fields = send_fields("once", i=keyed("k"))
                    frame = Request(RequestCode.SEND_MESSAGE_V2, number, fields, b"x")
                    client.send(encode_request(frame))
                    eventually(lambda waiting=number: len(held) == waiting, "the answer waits")
            finally:
                may_sync.set()
            answers = [client.answer_to(number) for number in (1, 2)]
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
        assert answers[0].fields == answers[1].fields
        # Now that it is durable nothing waits.
        assert send(broker, "once", "k")["msgId"] == answers[0].fields["msgId"]


# Crashes.


@pytest.mark.proves("kinds.order.dedupe-after-crash")
def test_after_a_kill_a_repeat_gets_the_first_answer(tmp_path: Path) -> None:
    with LocalCluster(folder=tmp_path, in_children=True) as cluster:
        broker = Asker(cluster)
        set_topic(broker, "once", WINDOW)
        eventually(lambda: "once" in table_on_disk(cluster), "the topic is written")
        sends = [
            send_fields("once", i=keyed(f"{kind}-{number}", **extra), e=str(number % 4))
            for kind, extra in {"plain": {}, **WAITING}.items()
            for number in range(40)
        ]
        first = [as_repeated(placed(broker, fields, b"x")) for fields in sends]
        body = batch(("a", b"1"), ("b", b"2"), ("c", b"3"))
        first_batch = send_batch(broker, "once", "whole", body)
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        assert [placed(broker, fields, b"x") for fields in sends] == first
        assert send_batch(broker, "once", "whole", body) == first_batch


def test_a_message_delivered_before_a_kill_is_still_known_by_its_first_answer(
    tmp_path: Path,
) -> None:
    clock = SharedClock(tmp_path / "clock")
    with LocalCluster(folder=tmp_path, in_children=True, clock=clock) as cluster:
        broker = Asker(cluster)
        set_topic(broker, "once", WINDOW)
        eventually(lambda: "once" in table_on_disk(cluster), "the topic is written")
        sends = [
            send_fields("once", i=keyed(kind, **extra), e="1") for kind, extra in WAITING.items()
        ]
        first = [as_repeated(placed(broker, fields, b"x")) for fields in sends]
        commit(broker, first[2])
        cluster.advance(ms=61_000)
        eventually(lambda: total(broker) == 3, "all of them are delivered")
        for _ in range(2):
            assert [placed(broker, fields, b"x") for fields in sends] == first
            cluster.brokers[0].kill()
            cluster.brokers[0].start()
        assert total(broker) == 3


def commit(broker: Asker, half: Mapping[str, str]) -> None:
    fields = {
        "producerGroup": "producers",
        "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": str(int(half["msgId"][-16:], 16)),
        "commitOrRollback": str(TRANSACTION_COMMIT),
        "fromTransactionCheck": "false",
        "msgId": half["transactionId"],
        "transactionId": half["transactionId"],
    }
    broker.done(RequestCode.END_TRANSACTION, fields)


def table_on_disk(cluster: LocalCluster) -> str:
    path = cluster.brokers[0].folder / "store" / "config" / "topics.json"
    return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.mark.proves("kinds.order.dedupe-after-crash")
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_sends_whose_answers_a_kill_took_are_stored_once(tmp_path: Path, flush: str) -> None:
    """Send without reading answers, kill, start, send all of it again: each is there once."""
    chance = random.Random(20)
    rounds, each = 5, 160
    bodies: set[bytes] = set()
    repeated = 0
    settings = {"flushDiskType": flush}
    with LocalCluster(folder=tmp_path, in_children=True, properties=settings) as cluster:
        broker = Asker(cluster)
        set_topic(broker, "once", WINDOW)
        eventually(lambda: "once" in table_on_disk(cluster), "the topic is written")
        for turn in range(rounds):
            numbers = range(turn * each, (turn + 1) * each)
            bodies |= {b"%d" % number for number in numbers}
            before = total(broker)
            wanted = before + chance.randrange(each // 2)
            with RawClient(cluster.brokers[0].port) as silent:
                for at in range(0, each, 20):
                    silent.send(b"".join(frame_of(number) for number in numbers[at : at + 20]))
                    if total(broker) > wanted:
                        break
                cluster.brokers[0].kill()
            cluster.brokers[0].start()
            repeated += total(broker) - before
            for number in numbers:
                answer = send(broker, "once", f"key-{number}", b"%d" % number, e="3")
                check_place(broker, answer, b"%d" % number)
        found = [body for queue_id in range(4) for body in broker.bodies("once", queue_id)]
    assert sorted(found) == sorted(bodies)
    # Otherwise nothing was shown.
    assert repeated > rounds


def frame_of(number: int) -> bytes:
    fields = send_fields("once", i=keyed(f"key-{number}"), e=str(number % 3))
    return encode_request(Request(RequestCode.SEND_MESSAGE_V2, number, fields, b"%d" % number))


def total(broker: Asker) -> int:
    return sum(queue_end(broker, "once", queue_id) for queue_id in range(4))


def check_place(broker: Asker, answer: Mapping[str, str], body: bytes) -> None:
    """The answer leads to the message: its id, its queue and its place there."""
    found = messages(
        broker.pull("once", int(answer["queueOffset"]), queueId=answer["queueId"], maxMsgNums="1")
    )
    assert [message.body for message in found] == [body]
    physical_offset = int(answer["msgId"][-16:], 16)
    assert found[0].physical_offset == physical_offset

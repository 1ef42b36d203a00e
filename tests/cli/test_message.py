"""``contrail message`` against a live cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from contrail import Admin, Message, Producer, PushConsumer
from contrail.client.admin_asking import AdminAsking
from contrail.client.message import SendReceipt
from contrail.errors import BrokerRefused
from contrail.protocol.codes import ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.cli.messages import fresh, make_group, make_topic, put, stored
from tests.cli.running import check_json, contrail, done, one_line, valid_json

NOBODY = "127.0.0.1:9"
ID = "7F0000010000000000000000000000AA"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers with a trace topic, which retry after a second."""
    properties = {
        "traceTopicEnable": "true",
        "contrailBrokerTraceEnable": "true",
        "messageDelayLevel": " ".join(["1s"] * 18),
    }
    folder = tmp_path_factory.mktemp("cluster")
    with LocalCluster(brokers=2, folder=folder, properties=properties) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return make_topic(cluster)


def sent(cluster: LocalCluster, topic: str, body: bytes = b"paid 5") -> SendReceipt:
    (receipt,) = put(cluster, Message(topic, body, tags="paid", keys=["o-1", "o-2"]))
    return receipt


# get


@pytest.mark.proves("cli.commands.message")
def test_a_message_is_got_by_either_id(cluster: LocalCluster, topic: str) -> None:
    receipt = sent(cluster, topic)
    where = ("-n", cluster.namesrv)
    by_place = valid_json("message-get", "message", "get", receipt.offset_message_id, *where)
    named = ("message", "get", receipt.message_id, "--topic", topic)
    assert valid_json("message-get", *named, *where) == by_place
    assert (by_place["body"], by_place["keys"]) == ("paid 5", ["o-1", "o-2"])
    assert by_place["queue_offset"] == receipt.queue_offset
    text = done(*named, *where).out
    assert "o-1, o-2" in text and text.endswith("\npaid 5\n")
    assert done(*named, "-f", "%b|%s", *where).out == "paid 5|6"


def test_a_body_that_is_no_text_is_shown_in_hexadecimal(cluster: LocalCluster, topic: str) -> None:
    receipt = sent(cluster, topic, b"\xff\x00")
    shown = done("message", "get", receipt.offset_message_id, "-n", cluster.namesrv).out
    assert shown.endswith("\nff 00\n")


def test_a_message_that_is_not_there_is_told_in_one_line(cluster: LocalCluster, topic: str) -> None:
    where = ("-n", cluster.namesrv)
    gone = sent(cluster, topic).offset_message_id[:-8] + "7FFFFFFF"
    one_line(contrail("message", "get", gone, *where), 5, gone)
    one_line(contrail("message", "get", ID, "--topic", topic, *where), 5, ID, topic)
    fix = f"contrail message get {ID} --topic TOPIC"
    one_line(contrail("message", "get", ID, *where), 2, fix)
    one_line(contrail("message", "get", "nonsense", *where), 2, "'nonsense' is no message id")
    one_line(contrail("message", "get", ID, "--topic", "nowhere", *where), 5, "nowhere")
    one_line(contrail("message", "get", ID, "-n", NOBODY), 4, NOBODY)


def test_an_id_of_a_broker_elsewhere_is_refused_with_its_address(
    cluster: LocalCluster, topic: str
) -> None:
    where, place = ("-n", cluster.namesrv), "7F000001000051AF0000000000000000"
    words = ("the broker at 127.0.0.1:20911", "this cluster does not know")
    one_line(contrail("message", "get", place, *where), 5, *words, "--topic TOPIC")
    one_line(contrail("message", "get", place, "--topic", topic, *where), 5, topic, *words)
    one_line(contrail("message", "trace", place, *where), 5, *words)
    by_id = ("mqadmin", "queryMsgById", "-t", topic, "-i", place)
    one_line(contrail(*by_id, *where), 5, topic, *words)


# find


@pytest.mark.proves("cli.commands.message")
def test_messages_are_found_by_key_and_time(cluster: LocalCluster, topic: str) -> None:
    first, second = sent(cluster, topic, b"one"), sent(cluster, topic, b"two")
    find = ("message", "find", topic, "--key", "o-2", "-n", cluster.namesrv)
    found = valid_json("message-find", *find)
    assert [one["message_id"] for one in found] == [first.message_id, second.message_id]
    assert done(*find, "-f", "%b\\n").out == "one\ntwo\n"
    assert done(*find, "-c", "1", "-f", "%b\\n").out == "two\n"
    assert valid_json("message-find", *find, "--since", "2099-01-01") == []
    assert valid_json("message-find", *find, "--until", "2020-01-01") == []
    assert len(valid_json("message-find", *find, "--since", "2020-01-01")) == 2


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
def test_the_key_may_stand_behind_the_topic(cluster: LocalCluster, topic: str) -> None:
    sent(cluster, topic, b"one")
    at = ("-f", "%b\\n", "-n", cluster.namesrv)
    assert done("message", "find", topic, "o-2", *at).out == "one\n"
    assert done("message", "find", topic, "--key", "o-2", *at).out == "one\n"
    for key in ([], ["o-2", "--key", "o-2"]):
        one_line(contrail("message", "find", topic, *key, *at), 2, f"message find {topic} KEY")


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_finds_are_told_in_one_line(cluster: LocalCluster, topic: str) -> None:
    find = ("message", "find", "--key", "k")
    where = ("-n", cluster.namesrv)
    one_line(contrail(*find, "nowhere", *where), 5, "'nowhere'")
    one_line(contrail(*find, topic, "--since", "noon", *where), 2, "--since 'noon'")
    one_line(contrail(*find, topic, "-f", "%?", *where), 2, "%?")
    one_line(contrail(*find, topic, "--json", "-f", "%b", *where), 2, "--json and --format")
    one_line(contrail(*find, topic, "-n", NOBODY), 4, NOBODY)


# trace


def failing_consumer(cluster: LocalCluster, group: str, topic: str) -> PushConsumer:
    consumer = PushConsumer(
        group, cluster.namesrv, trace=True, max_reconsume_times=1, consume_from_where="first"
    )

    @consumer.on_message
    def refuse(message: object) -> None:
        raise ValueError("it always fails")

    consumer.subscribe(topic)
    return consumer


def dead_letter(cluster: LocalCluster, group: str, topic: str) -> SendReceipt:
    """A traced message that a traced consumer fails at until it is dead."""
    with Producer(fresh("shop"), cluster.namesrv, trace=True) as producer:
        receipt = producer.send(Message(topic, b"paid 5", tags="paid", keys=[f"k-{group}"]))
    consumer = failing_consumer(cluster, group, topic)
    running = threading.Thread(target=consumer.run)
    running.start()
    try:
        with Admin(cluster.namesrv) as admin:
            letters = f"%DLQ%{group}"
            eventually(lambda: letters in admin.topics(), "the dead letter topic")
            eventually(lambda: admin.topic_stats(letters).count == 1, "the dead letter")
    finally:
        # The last traces are sent before it is closed.
        consumer.close()
        running.join()
    return receipt


def kinds(story: dict[str, object]) -> list[object]:
    steps = story["steps"]
    assert isinstance(steps, list)
    return [step["kind"] for step in steps]


@pytest.mark.proves("cli.commands.message")
def test_the_way_of_a_message_to_the_dead_letters_is_drawn(
    cluster: LocalCluster, topic: str
) -> None:
    group = fresh("group")
    receipt = dead_letter(cluster, group, topic)
    where = ("-n", cluster.namesrv)
    trace = ("message", "trace", receipt.message_id, *where)
    # The index that finds copies and traces is written a little later than they are.
    eventually(lambda: len(kinds(done(*trace, "--json").json[0])) == 7, "all steps")
    (story,) = valid_json("message-trace", *trace)
    assert kinds(story) == [
        *("send", "store", "deliver", "wait", "retry", "deliver", "dead-letter"),
    ]
    times = [step["timestamp_ms"] for step in story["steps"][1:]]
    assert times == sorted(times)
    tries = [step for step in story["steps"] if step["kind"] == "deliver"]
    assert [(one["attempt"], one["success"], one["group"]) for one in tries] == [
        (1, False, group),
        (2, False, group),
    ]
    drawn = done(*trace).out.splitlines()
    assert drawn[0] == (
        f"message {receipt.message_id}, of topic {topic}, tags paid, keys k-{group}"
    )
    for line, word in zip(drawn[1:3], ("send", "store"), strict=True):
        assert f" {word} " in line and line.startswith("├── 20")
    assert drawn[3] == f"└── group {group}"
    for line, word in zip(
        drawn[4:], ("try 1: failed", "wait", "retry", "try 2: failed", "dead-letter"), strict=True
    ):
        assert word in line
    by_key = ("message", "trace", "--key", f"k-{group}")
    assert valid_json("message-trace", *by_key, *where) == [story]
    assert valid_json("message-trace", *by_key, "--topic", topic, *where) == [story]
    by_place = ("message", "trace", receipt.offset_message_id)
    assert valid_json("message-trace", *by_place, *where) == [story]


@pytest.mark.proves("cli.commands.message")
def test_without_client_traces_the_story_comes_from_the_broker_and_the_offsets(
    cluster: LocalCluster, topic: str
) -> None:
    receipt = sent(cluster, topic)
    done_group, late_group = make_group(cluster), make_group(cluster)
    with Admin(cluster.namesrv) as admin:
        (message,) = stored(cluster, topic)
        admin.commit_offset(done_group, message.queue, message.queue_offset + 1)
        admin.commit_offset(late_group, message.queue, message.queue_offset)
    trace = ("message", "trace", receipt.message_id, "--topic", topic, "-n", cluster.namesrv)
    eventually(lambda: "send" in kinds(done(*trace, "--json").json[0]), "the broker's trace")
    (story,) = done(*trace, "--json").json
    check_json("message-trace", [story])
    assert kinds(story)[:2] == ["send", "store"]
    assert {step["source"] for step in story["steps"]} == {
        *("broker trace", "stored copy", "group offset"),
    }
    progress = {s["group"]: s["success"] for s in story["steps"] if s["kind"] == "progress"}
    assert progress == {done_group: True, late_group: False}
    drawn = done(*trace).out
    assert "past it: the group is at 1" in drawn and "not there yet: the group is at 0" in drawn


def test_a_message_that_waits_shows_until_when(cluster: LocalCluster, topic: str) -> None:
    (receipt,) = put(cluster, Message(topic, b"later", delay=3600.0))
    shown = done("message", "trace", receipt.message_id, "-n", cluster.namesrv).out
    assert " wait " in shown and f"for {topic} until " in shown


def test_waiting_copies_are_left_out_of_a_story_asked_from_another_host(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (receipt,) = put(cluster, Message(topic, b"now"))

    async def refused(self: AdminAsking, broker: object, name: str, *_: object) -> None:
        if name in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
            remark = "taken from this host only"
            raise BrokerRefused(remark, code=ResponseCode.NO_PERMISSION, remark=remark)

    monkeypatch.setattr(AdminAsking, "_list_system", refused)
    told = done("message", "trace", receipt.message_id, "--topic", topic, "-n", cluster.namesrv)
    assert "store" in told.out
    assert "waiting messages of rmq_sys_wheel_timer are not listed here" in told.err


def test_wrong_traces_are_told_in_one_line(cluster: LocalCluster, topic: str) -> None:
    where = ("-n", cluster.namesrv)
    one_line(contrail("message", "trace", *where), 2, "ID", "--key")
    one_line(contrail("message", "trace", ID, "--key", "k", *where), 2, "ID", "--key")
    one_line(contrail("message", "trace", ID, *where), 5, ID, "--topic")
    one_line(contrail("message", "trace", ID, "--topic", topic, *where), 5, ID, topic)
    one_line(contrail("message", "trace", "--key", "nobody", *where), 5, "'nobody'", "--topic")
    one_line(contrail("message", "trace", ID, "-n", NOBODY), 4, NOBODY)

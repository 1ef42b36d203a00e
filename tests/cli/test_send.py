"""``contrail send`` against a live cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from contrail import Admin
from contrail.model.topic import Perm
from contrail.testing import LocalCluster, eventually
from tests.cli.messages import make_topic, stored
from tests.cli.running import check_json, contrail, done, one_line

NOBODY = "127.0.0.1:9"


@pytest.mark.proves("cli.commands.send")
def test_arguments_are_sent_and_each_is_answered_with_its_place(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    finished = done("send", topic, "one", "two", "-n", cluster.namesrv)
    lines = finished.out.splitlines()
    assert len(lines) == 2 and all(line.endswith(" SEND_OK") for line in lines)
    assert "sent 2, failed 0" in finished.err
    ids = {one.message_id: one.body for one in stored(cluster, topic)}
    assert [ids[line.split()[0]] for line in lines] == [b"one", b"two"]


@pytest.mark.proves("cli.commands.send")
def test_lines_of_standard_input_are_bodies(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    for arguments in ([topic], [topic, "-"]):
        finished = done("send", *arguments, "-n", cluster.namesrv, stdin="a\n\nb c\ngrün")
        assert finished.out == "" and finished.err.startswith("sent 3, failed 0")
    bodies = sorted(one.body for one in stored(cluster, topic))
    assert bodies == sorted([b"a", b"b c", "grün".encode()] * 2)


@pytest.mark.proves("cli.commands.send")
def test_files_are_sent_byte_for_byte(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = make_topic(cluster)
    raw, rows = tmp_path / "raw", tmp_path / "rows"
    raw.write_bytes(b"\xff\x00\r\n\x01\n")
    rows.write_bytes(b"\xfe\r\n\x00\x02\n")
    done("send", topic, "--file", str(raw), "--lines", str(rows), "-n", cluster.namesrv)
    bodies = {one.body for one in stored(cluster, topic)}
    assert bodies == {b"\xff\x00\r\n\x01\n", b"\xfe\r", b"\x00\x02"}


def test_a_line_is_sent_while_the_next_is_waited_for(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    done("send", topic, "first", "-n", cluster.namesrv)
    command = [sys.executable, "-m", "contrail.cli", "send", topic, "-n", cluster.namesrv]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stderr is not None
        child.stdin.write(b"second\nthi")
        child.stdin.flush()
        eventually(lambda: len(stored(cluster, topic)) == 2, "the line that is complete")
        child.stdin.write(b"rd")
        child.stdin.close()
        assert child.wait(60) == 0
        assert child.stderr.read().startswith(b"sent 2, failed 0")
    assert {one.body for one in stored(cluster, topic)} == {b"first", b"second", b"third"}


def test_tags_keys_and_properties_are_sent_and_printed_as_json(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    finished = done(
        *("send", topic, "x", "--tags", "paid", "--keys", "o-1 o-2", "--keys", "o-3"),
        *("--property", "region=eu", "--property", "sum=1=1", "--json", "-n", cluster.namesrv),
    )
    check_json("send", finished.json)
    (message,) = stored(cluster, topic)
    assert finished.json["message_id"] == message.message_id
    assert finished.json["queue_offset"] == message.queue_offset
    assert (message.tags, message.keys) == ("paid", ["o-1", "o-2", "o-3"])
    assert (message.properties["region"], message.properties["sum"]) == ("eu", "1=1")


def test_a_json_line_comes_for_each_message(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    finished = done("send", topic, "--repeat", "3", "x", "y", "--json", "-n", cluster.namesrv)
    receipts = [json.loads(line) for line in finished.out.splitlines()]
    for receipt in receipts:
        check_json("send", receipt)
    assert len({receipt["message_id"] for receipt in receipts}) == 6


def test_a_sharding_key_and_a_queue_keep_messages_together(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    bodies = [str(number) for number in range(6)]
    done("send", topic, *bodies, "--sharding-key", "user-7", "-n", cluster.namesrv)
    done("send", topic, "--sharding-key", "user-7", "-n", cluster.namesrv, stdin="6\n7\n")
    sent = stored(cluster, topic)
    assert len({one.queue for one in sent}) == 1
    assert [one.body for one in sent] == [b"%d" % number for number in range(8)]
    place = f"{sent[0].queue.broker_name}:{sent[0].queue.queue_id}"
    line = done("send", topic, "z", "--queue", place, "-n", cluster.namesrv).out
    assert f" {place}@" in line


def test_a_repeated_body_goes_in_batches(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    finished = done("send", topic, "x", "--count", "450", "-n", cluster.namesrv)
    assert finished.out == "" and finished.err.startswith("sent 450, failed 0, ")
    assert len(stored(cluster, topic)) == 450


@pytest.mark.proves("cli.commands.send")
def test_a_rate_is_kept(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    began_s = time.monotonic()
    done("send", topic, "x", "--repeat", "9", "--rate", "20", "-n", cluster.namesrv)
    assert time.monotonic() - began_s >= 0.4
    assert len(stored(cluster, topic)) == 9


@pytest.mark.parametrize(
    ("option", "value", "is_recallable"),
    [
        ("--delay", "2h", True),
        ("--deliver-at", "2020-01-01", False),
        ("--delay-level", "18", False),
    ],
)
def test_a_message_may_wait_for_its_time(
    cluster: LocalCluster, option: str, value: str, is_recallable: bool
) -> None:
    topic = make_topic(cluster)
    finished = done("send", topic, "x", option, value, "--json", "-n", cluster.namesrv)
    assert (finished.json["recall_handle"] is not None) == is_recallable
    # A time that is over is no reason to wait.
    assert len(stored(cluster, topic)) == (1 if value == "2020-01-01" else 0)


def test_messages_that_cannot_be_sent_are_counted_and_the_rest_is_sent(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = make_topic(cluster)
    rows = tmp_path / "rows"
    rows.write_bytes(b"small\n" + b"x" * (5 << 20) + b"\nlast\n")
    finished = contrail("send", topic, "--lines", str(rows), "-n", cluster.namesrv)
    assert finished.code == 1
    told, summary = finished.err.splitlines()
    assert told.startswith("contrail: message 2: ") and summary.startswith("sent 2, failed 1, ")
    assert sorted(one.body for one in stored(cluster, topic)) == [b"last", b"small"]


@pytest.mark.proves("cli.commands.every-command")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["x", "--queue", "broker-a:99"], 5, ["'broker-a:99'", "broker-a:0"]),
        (["x", "--property", "novalue"], 2, ["novalue", "name=value"]),
        (["x", "--property", "KEYS=a"], 2, ["KEYS", "give --keys"]),
        (["x", "--deliver-at", "noon"], 2, ["--deliver-at", "noon"]),
        (["x", "--delay", "10"], 2, ["--delay '10'", "90s"]),
        (["x", "--delay", "10s", "--delay-level", "3"], 2, ["of --delay-level, --delay"]),
        (["x", "--rate", "0"], 2, ["--rate 0"]),
        (["x", "--rate", "nan"], 2, ["--rate nan"]),
        (["x", "--rate", "inf"], 2, ["--rate inf"]),
        (["x", "--delay-level", "99"], 2, ["--delay-level", "99"]),
        ([""], 2, ["BODY 1 is empty"]),
        (["--file", "/nowhere/x"], 2, ["--file /nowhere/x", "No such file"]),
        (["--lines", "/nowhere/x"], 2, ["--lines /nowhere/x", "No such file"]),
    ],
)
def test_wrong_input_is_told_in_one_line(
    cluster: LocalCluster, arguments: list[str], code: int, words: list[str]
) -> None:
    topic = make_topic(cluster)
    one_line(contrail("send", topic, *arguments, "-n", cluster.namesrv), code, *words)


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--file", "nope"], ["--file nope", "No such file"]),
        (["x", "--lines", "nope"], ["--lines nope", "No such file"]),
        (["x", "--file", "FOLDER"], ["--file", "it is a folder"]),
        (["x", "--lines", "FOLDER"], ["--lines", "it is a folder"]),
        (["x", "--file", "FOLDER/small", "--file", "FOLDER/empty"], ["empty", "needs a body"]),
        (["x", "--file", "FOLDER/large"], ["large", "4,194,304 at most"]),
        (["x", ""], ["BODY 2 is empty"]),
        (["x", "--lines", "FOLDER/small", "--file", "nope"], ["--file nope"]),
    ],
)
def test_nothing_is_sent_when_one_body_is_invalid(
    cluster: LocalCluster, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    topic = make_topic(cluster)
    (tmp_path / "small").write_bytes(b"small")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(b"x" * ((4 << 20) + 1))
    words_typed = [one.replace("FOLDER", str(tmp_path)) for one in arguments]
    one_line(contrail("send", topic, *words_typed, "-n", cluster.namesrv), 2, *words)
    assert stored(cluster, topic) == []


def test_a_body_may_come_through_a_pipe_that_has_a_name(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    topic, pipe = make_topic(cluster), tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"through",))
    writer.start()
    done("send", topic, "--file", str(pipe), "-n", cluster.namesrv)
    writer.join()
    assert [one.body for one in stored(cluster, topic)] == [b"through"]


def test_a_bad_topic_and_an_unreachable_name_server_are_told_in_one_line(
    cluster: LocalCluster,
) -> None:
    one_line(contrail("send", "no topic", "x", "-n", cluster.namesrv), 2, "no topic")
    one_line(contrail("send", "orders", "x", "-n", NOBODY), 4, NOBODY)


def test_a_topic_of_the_system_is_refused_at_once(cluster: LocalCluster) -> None:
    for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_foo", "TBW102", "%DLQ%CID_RMQ_SYS_TRANS"):
        for more in ([], ["--repeat", "3"]):
            refused = contrail("send", topic, "x", *more, "-n", cluster.namesrv)
            one_line(refused, 2, topic, "the broker's own")


def test_a_topic_that_may_not_be_written_is_told_in_one_line(cluster: LocalCluster) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("sealed", perm=Perm.READ)
    finished = contrail("send", "sealed", "x", "-n", cluster.namesrv)
    assert finished.code != 0
    one_line(finished, finished.code, "sealed")


def test_an_unknown_topic_that_no_broker_creates_is_told_in_one_line(tmp_path: Path) -> None:
    closed = {"autoCreateTopicEnable": "false"}
    with LocalCluster(folder=tmp_path, properties=closed) as cluster:
        one_line(contrail("send", "nobody", "x", "-n", cluster.namesrv), 5, "nobody", "create")

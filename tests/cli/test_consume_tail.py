"""``contrail consume`` and ``contrail tail`` against a live cluster."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contrail import Admin, Message
from contrail.cli.consume import _Reading
from contrail.client.message import MessageQueue
from contrail.client.outgoing import Outgoing
from contrail.client.producer import Producer
from contrail.testing import LocalCluster, eventually
from tests.cli.messages import fresh, make_group, make_topic, put, stored
from tests.cli.running import Finished, check_json, contrail, done, one_line

NOBODY = "127.0.0.1:9"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers that filter by SQL92."""
    folder = tmp_path_factory.mktemp("cluster")
    properties = {"enablePropertyFilter": "true"}
    with LocalCluster(brokers=2, folder=folder, properties=properties) as running:
        yield running


def make_numbered(cluster: LocalCluster) -> str:
    """A topic with m0 to m7 on four queues of two brokers, tagged odd and even."""
    name = make_topic(cluster)
    for number in range(8):
        tag = "odd" if number % 2 else "even"
        put(cluster, Message(name, b"m%d" % number, tags=tag, properties={"n": str(number)}))
    return name


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> str:
    """Shared: no test adds messages to it."""
    return make_numbered(cluster)


@pytest.fixture
def own_topic(cluster: LocalCluster) -> str:
    return make_numbered(cluster)


def bodies(finished: Finished) -> list[str]:
    return finished.out.split()


def tail(cluster: LocalCluster, *arguments: str) -> list[str]:
    return bodies(done("tail", *arguments, "-e", "-f", "%b\\n", "-n", cluster.namesrv))


def consume(cluster: LocalCluster, topic: str, group: str, *arguments: str) -> list[str]:
    options = ("-g", group, "-f", "%b\\n", "-n", cluster.namesrv)
    return bodies(done("consume", topic, *options, *arguments))


@contextmanager
def command(cluster: LocalCluster, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, which is ended if the test does not."""
    line = [sys.executable, "-m", "contrail.cli", *arguments, "-n", cluster.namesrv]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def next_line(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.readline()


# tail


@pytest.mark.proves("cli.commands.consume")
def test_the_newest_messages_of_all_queues_are_shown_in_their_order(
    cluster: LocalCluster, topic: str
) -> None:
    everything = [f"m{number}" for number in range(8)]
    assert tail(cluster, topic) == everything
    assert tail(cluster, topic, "-o", "-3") == everything[-3:]
    assert tail(cluster, topic, "-o", "earliest") == everything
    assert tail(cluster, topic, "-o", "latest") == []
    assert tail(cluster, topic, "-o", "earliest", "-c", "2") == everything[:2]


@pytest.mark.proves("cli.commands.consume")
def test_reading_starts_at_a_time_or_at_an_offset(cluster: LocalCluster, topic: str) -> None:
    everything = stored(cluster, topic)
    first_ms = min(one.store_timestamp_ms for one in everything)
    last_ms = max(one.store_timestamp_ms for one in everything)
    assert len(tail(cluster, topic, "-o", f"@{first_ms}")) == 8
    assert tail(cluster, topic, "-o", f"@{last_ms + 60_000}") == []
    later = {one.body.decode() for one in everything if one.queue_offset >= 1}
    assert set(tail(cluster, topic, "-o", "1")) == later


def test_one_queue_and_two_topics_can_be_read(cluster: LocalCluster, topic: str) -> None:
    one = stored(cluster, topic)[0]
    place = f"{one.queue.broker_name}:{one.queue.queue_id}"
    wanted = {m.body.decode() for m in stored(cluster, topic) if m.queue == one.queue}
    assert set(tail(cluster, topic, "--queue", place)) == wanted
    other = make_topic(cluster)
    put(cluster, Message(other, b"elsewhere"))
    assert tail(cluster, topic, other, "-o", "-2") == ["m7", "elsewhere"]


@pytest.mark.proves("cli.commands.consume")
def test_brokers_filter_by_tags_and_by_sql(cluster: LocalCluster, topic: str) -> None:
    everything = ("-o", "earliest")
    assert tail(cluster, topic, *everything, "--tags", "odd") == ["m1", "m3", "m5", "m7"]
    assert len(tail(cluster, topic, *everything, "--tags", "odd||even")) == 8
    assert tail(cluster, topic, *everything, "--tags", "none") == []
    assert tail(cluster, topic, *everything, "--sql", "n > 5") == ["m6", "m7"]


def test_the_default_is_a_line_and_json_an_object_a_message(
    cluster: LocalCluster, own_topic: str
) -> None:
    line = done("tail", own_topic, "-o", "-1", "-e", "-n", cluster.namesrv).out
    assert line.endswith(" tags=odd keys= m7\n") and line.startswith("20")
    put(cluster, Message(own_topic, b"\xff\xfe"))
    shown = done("tail", own_topic, "-o", "-2", "-e", "--json", "-n", cluster.namesrv).out
    text, raw = [json.loads(line) for line in shown.splitlines()]
    for one in (text, raw):
        check_json("tail", one)
    assert text["body"] == "m7" and raw["body_base64"] == "//4="


def test_a_topic_is_followed_until_it_is_interrupted(cluster: LocalCluster, own_topic: str) -> None:
    with command(cluster, "tail", own_topic, "-o", "-1", "-f", "%b\\n") as child:
        assert next_line(child) == b"m7\n"
        for number in range(3):
            put(cluster, Message(own_topic, b"live %d" % number))
            assert next_line(child) == b"live %d\n" % number
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
        assert child.stderr is not None and child.stderr.read() == b""


def test_bodies_come_out_byte_for_byte(cluster: LocalCluster) -> None:
    topic, body = make_topic(cluster), bytes(range(256))
    put(cluster, Message(topic, body))
    with command(cluster, "tail", topic, "-e", "-f", "%b") as child:
        out, err = child.communicate(timeout=60)
    assert (out, err, child.returncode) == (body, b"", 0)


def test_a_closed_pipe_ends_the_command_quietly(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    done("send", topic, "x" * 1000, "--repeat", "2000", "-n", cluster.namesrv)
    with command(cluster, "tail", topic, "-o", "earliest", "-e") as child:
        assert next_line(child).endswith(b"x\n")
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.wait(60) == 0
        assert child.stderr.read() == b""


# consume


@pytest.mark.proves("cli.commands.consume")
def test_a_group_gets_each_message_once(cluster: LocalCluster, topic: str) -> None:
    group = fresh("group")
    first = consume(cluster, topic, group, "-c", "3")
    rest = consume(cluster, topic, group, "-e")
    assert len(first) == 3
    assert sorted(first + rest) == [f"m{number}" for number in range(8)]
    assert consume(cluster, topic, group, "-e") == []
    assert len(consume(cluster, topic, fresh("group"), "-e")) == 8


def test_a_new_group_starts_at_the_given_place(cluster: LocalCluster, own_topic: str) -> None:
    late, timed = fresh("group"), fresh("group")
    assert consume(cluster, own_topic, late, "-e", "-o", "latest") == []
    assert consume(cluster, own_topic, timed, "-e", "-o", "@2099-01-01") == []
    put(cluster, Message(own_topic, b"new"))
    assert consume(cluster, own_topic, late, "-e", "-o", "earliest") == ["new"]
    assert consume(cluster, own_topic, timed, "-e") == ["new"]


def test_filtered_messages_count_as_consumed(cluster: LocalCluster, topic: str) -> None:
    group = fresh("group")
    assert sorted(consume(cluster, topic, group, "-e", "--tags", "odd")) == ["m1", "m3", "m5", "m7"]
    assert consume(cluster, topic, group, "-e") == []
    by_sql = consume(cluster, topic, fresh("group"), "-e", "--sql", "n BETWEEN 2 AND 3")
    assert sorted(by_sql) == ["m2", "m3"]


def test_a_member_gets_messages_that_others_sent_back(cluster: LocalCluster, topic: str) -> None:
    group = make_group(cluster)
    consume(cluster, topic, group, "-e")
    with Admin(cluster.namesrv) as admin:
        message = stored(cluster, topic)[0]
        admin.send_back(group, message, delay_level=1)
    options = ("-g", group, "-c", "1", "--json", "-n", cluster.namesrv)
    again = json.loads(done("consume", topic, *options).out)
    check_json("consume", again)
    assert (again["body"], again["reconsume_times"]) == (message.body.decode(), 1)
    assert again["topic"] == topic


@pytest.mark.proves("cli.commands.consume")
def test_an_interrupted_member_has_committed_the_printed_messages(
    cluster: LocalCluster, topic: str
) -> None:
    group = fresh("group")
    with command(cluster, "consume", topic, "-g", group, "-f", "%b\\n") as child:
        seen = {next_line(child).strip().decode() for _ in range(8)}
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
        assert child.stderr is not None and child.stderr.read() == b""
    assert seen == {f"m{number}" for number in range(8)}
    with Admin(cluster.namesrv) as admin:
        eventually(lambda: admin.lag(group, topic).total == 0, "the group's progress")


def test_a_member_commits_printed_messages_only_of_queues_that_it_still_has() -> None:
    kept, lost = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
    consumer = SharingConsumer(kept, lost)
    consumer.polled = [[(kept, 5), (lost, 0), (kept, 6)], []]
    printer = KeepingPrinter()
    _Reading(cast(Any, consumer), "orders", cast(Any, printer), None).run(exit_at_end=False)
    assert printer.printed == [(kept, 5), (lost, 0), (kept, 6)]
    # Then everything that was passed over: by filters, or before a new group began.
    assert consumer.commits == [{kept: 7}, None]


class SharingConsumer:
    """A member with one queue, after it had two."""

    group = "sharing"

    def __init__(self, kept: MessageQueue, lost: MessageQueue) -> None:
        self._share = [kept, lost]
        self.polled: list[list[tuple[MessageQueue, int]]] = []
        self.commits: list[Mapping[MessageQueue, int] | None] = []

    def assignment(self) -> list[MessageQueue]:
        return self._share

    def poll(self, wait_ms: int, count_max: int) -> list[Any]:
        if not self.polled:
            raise KeyboardInterrupt
        self._share = self._share[:1]
        places = self.polled.pop(0)
        return [SimpleNamespace(queue=queue, queue_offset=place) for queue, place in places]

    def commit(self, consumer_offsets: Mapping[MessageQueue, int] | None = None) -> None:
        self.commits.append(consumer_offsets)


class KeepingPrinter:
    """Keeps the printed messages."""

    count = 0

    def __init__(self) -> None:
        self.printed: list[tuple[MessageQueue, int]] = []

    def print(self, message: Any) -> None:
        self.printed.append((message.queue, message.queue_offset))

    def flush(self) -> None:
        """There is nothing to flush."""


# Wrong input.


@pytest.mark.proves("cli.commands.every-command")
@pytest.mark.parametrize("name", ["tail", "consume"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-f", "%x"], ["'%x'", "%t %q %o"]),
        (["-o", "yesterday"], ["-o 'yesterday'", "earliest"]),
        (["-o", "@noon"], ["-o 'noon'", "2026-11-16"]),
        (["--tags", "a", "--sql", "n > 1"], ["--tags and --sql"]),
        (["--tags", " "], ["--tags is blank"]),
        (["--sql", "n >> 1"], ["--sql 'n >> 1'", "column 4"]),
        (["--json", "-f", "%b"], ["--json and --format"]),
    ],
)
def test_wrong_input_is_told_in_one_line(
    cluster: LocalCluster, topic: str, name: str, arguments: list[str], words: list[str]
) -> None:
    group = ["-g", "someone"] if name == "consume" else []
    one_line(contrail(name, topic, "-e", *group, *arguments, "-n", cluster.namesrv), 2, *words)


@pytest.mark.parametrize("arguments", [["tail", "-e"], ["consume", "-g", "someone", "-e"]])
def test_an_unknown_topic_and_nobody_there_are_told_in_one_line(
    cluster: LocalCluster, arguments: list[str]
) -> None:
    one_line(contrail(*arguments, "nowhere", "-n", cluster.namesrv), 5, "'nowhere'", "create")
    one_line(contrail(*arguments, "orders", "-n", NOBODY), 4, NOBODY)


def test_wrong_input_of_only_one_of_the_two_commands(cluster: LocalCluster, topic: str) -> None:
    one_line(
        contrail("tail", topic, "-e", "--queue", "broker-z:0", "-n", cluster.namesrv),
        *(5, "broker-z:0", "broker-a:0"),
    )
    one_line(
        contrail("consume", topic, "-g", "someone", "-o", "-10", "-n", cluster.namesrv),
        *(2, "-o '-10'", "contrail tail"),
    )
    one_line(contrail("consume", topic, "-g", "no group", "-n", cluster.namesrv), 2, "no group")


def test_a_topic_that_may_not_be_read_is_told_in_one_line(cluster: LocalCluster) -> None:
    topic = make_topic(cluster)
    with Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, perm=2)
        eventually(lambda: not admin.queues(topic), "the route without readers")
    for arguments in (["tail"], ["consume", "-g", "someone"]):
        one_line(contrail(*arguments, topic, "-e", "-n", cluster.namesrv), 2, topic, "read")


@pytest.mark.proves("client.undecodable.delivered")
def test_an_undecodable_message_is_shown_with_its_error_and_the_rest_too(
    cluster: LocalCluster,
) -> None:
    topic, group = make_topic(cluster), make_group(cluster)
    put(cluster, Message(topic, b"before"))
    put_flagged(cluster, topic, b"not-compressed")
    put(cluster, Message(topic, b"after"))
    told = "cannot be decoded: a compressed body of 14 bytes"

    shown = done("tail", topic, "-o", "earliest", "-e", "-f", "%b\\n", "-n", cluster.namesrv)
    assert bodies(shown) == ["before", "not-compressed", "after"]
    assert told in shown.err

    as_json = done("tail", topic, "-o", "earliest", "-e", "--json", "-n", cluster.namesrv)
    rows = [json.loads(line) for line in as_json.out.splitlines()]
    assert ["decode_error" in row for row in rows] == [False, True, False]
    assert told in rows[1]["decode_error"]

    options = ("-g", group, "-e", "-f", "%b\\n", "-n", cluster.namesrv)
    consumed = done("consume", topic, *options)
    assert sorted(bodies(consumed)) == ["after", "before", "not-compressed"]
    assert told in consumed.err
    assert consume(cluster, topic, group, "-e") == []


def put_flagged(cluster: LocalCluster, topic: str, body: bytes) -> None:
    """A body that says it is compressed."""

    async def send() -> None:
        async with Producer(fresh("senders"), cluster.namesrv) as producer:
            outgoing = Outgoing(topic, body, {}, sys_flag=0x301, unique_id="bad")
            await producer._opened().sender.send(outgoing)

    asyncio.run(send())

"""``contrail mqadmin``: every command against running brokers, and with wrong input."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from contrail import Admin, Message, Producer, PushConsumer, SendReceipt
from contrail.cli.mqadmin.app import COMMANDS
from contrail.cli.mqadmin.out_of_scope import OUT_OF_SCOPE
from contrail.model import fastjson
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from tests.cli.mqadmin_lines import RIGHT, WRONG
from tests.cli.running import Finished, contrail, done, one_line

CLUSTER_NAME = "DefaultCluster"
COUNT = 6


@dataclass(frozen=True, slots=True)
class Place:
    """A topic with messages, its producer and its consumer, both still connected."""

    namesrv: str
    broker: str
    receipts: list[SendReceipt]
    client_id: str

    def words(self, text: str) -> list[str]:
        """A command line of the tables below, with its placeholders replaced."""
        first = self.receipts[0]
        known = {
            "BROKER": self.broker,
            "CLIENT": self.client_id,
            "THE_ID": first.message_id,
            "PLACE": first.offset_message_id,
            "NAME": first.queue.broker_name,
            "QUEUE": str(first.queue.queue_id),
            "OFFSET": str(first.queue_offset),
        }
        return [known.get(word, word) for word in text.split()]


@pytest.fixture(scope="module")
def place(cluster: LocalCluster) -> Iterator[Place]:
    with Admin(cluster.namesrv) as admin:
        for topic in ("Orders", "Doomed", "Frozen", "Spare"):
            admin.create_topic(topic, queues=2)
        for group in ("Readers", "Leavers", "Skippers"):
            admin.create_group(group)
    with (
        Producer("Writers", cluster.namesrv, trace=True) as producer,
        PushConsumer("Readers", cluster.namesrv, consume_from_where="first", trace=True) as readers,
    ):
        taken: list[bytes] = []
        readers.subscribe("Orders")
        readers.on_message(lambda message: taken.append(message.body))
        receipts = [
            producer.send(Message("Orders", f"body-{n}".encode(), tags="TagA", keys=[f"key-{n}"]))
            for n in range(COUNT)
        ]
        eventually(lambda: len(set(taken)) == COUNT)
        eventually(lambda: progress_of(cluster.namesrv) == COUNT)
        # The traces of both sides are sent apart, each a moment after its event.
        eventually(lambda: {"Pub", "Sub"} <= first_words(cluster.namesrv, traces(receipts[0])))
        broker = cluster.brokers[0].address
        online = ["producer", "-b", broker]
        eventually(lambda: "(Writers)" in mqadmin(cluster.namesrv, online).out)
        yield Place(cluster.namesrv, broker, receipts, readers.client_id)


@pytest.fixture(autouse=True)
def files_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def progress_of(namesrv: str) -> int:
    with Admin(namesrv) as admin:
        lag = admin.lag("Readers", "Orders")
        return sum(one.consumer_offset for one in lag.queues if one.queue.topic == "Orders")


def traces(receipt: SendReceipt) -> list[str]:
    return ["queryMsgTraceById", "-i", receipt.message_id]


def mqadmin(namesrv: str, words: list[str]) -> Finished:
    return contrail("mqadmin", words[0], "-n", namesrv, *words[1:])


def first_words(namesrv: str, words: list[str]) -> set[str]:
    """Of the lines that a command prints."""
    lines = mqadmin(namesrv, words).out.splitlines()
    return {line.split()[0] for line in lines if line.strip()}


def write_lists(folder: Path) -> None:
    (folder / "topics.json").write_text('[{"topicName": "Listed", "readQueueNums": 2}]')
    (folder / "groups.json").write_text('[{"groupName": "Listed"}]')
    (folder / "topics.txt").write_text("no list")


@pytest.mark.proves("house.folded.mqadmin-facts", "cli.administration.mqadmin")
@pytest.mark.parametrize(("line", "patterns"), RIGHT, ids=[line for line, _ in RIGHT])
def test_a_command_prints_the_expected_lines(
    place: Place, tmp_path: Path, line: str, patterns: list[str]
) -> None:
    write_lists(tmp_path)
    finished = mqadmin(place.namesrv, place.words(line))
    assert (finished.code, finished.err) == (0, ""), finished
    first = place.receipts[0]
    known = {"BROKER": place.broker, "PLACE": first.offset_message_id, "THE_ID": first.message_id}
    for pattern in patterns:
        for word, value in known.items():
            pattern = re.sub(rf"\b{word}\b", value, pattern)
        assert re.search(pattern, finished.out, re.MULTILINE), (pattern, finished.out)


@pytest.mark.proves("cli.administration.mqadmin")
@pytest.mark.parametrize(("line", "code", "named"), WRONG, ids=[line for line, _, _ in WRONG])
def test_wrong_input_is_one_line(
    place: Place, tmp_path: Path, line: str, code: int, named: str
) -> None:
    write_lists(tmp_path)
    one_line(mqadmin(place.namesrv, place.words(line)), code, named)


@pytest.mark.proves("cli.administration.mqadmin")
def test_every_command_is_tried_rightly_and_wrongly() -> None:
    # One never ends; it has a test of its own.
    assert {line.split()[0] for line, _ in RIGHT} == set(COMMANDS) - {"clusterRT"}
    assert {line.split()[0] for line, _, _ in WRONG} == set(COMMANDS)


def test_changes_by_commands_take_effect(place: Place) -> None:
    words = ["updateTopic", "-b", place.broker, "-t", "Kinds", "-r", "5", "-w", "4", "-p", "4"]
    attributes = ["-a", "+message.type=FIFO", "-u", "true"]
    assert mqadmin(place.namesrv, [*words, *attributes]).code == 0
    with Admin(place.namesrv) as admin:
        config = admin.topic_configs(place.broker)["Kinds"]
        assert (config.read_queue_count, config.write_queue_count) == (5, 4)
        assert (config.perm, config.sys_flag) == (4, 1)
        assert config.attributes == {"message.type": "FIFO"}
        place_of = admin.committed("Skippers", place.receipts[0].queue)
        words = [
            "resetOffsetByTime",
            "-g",
            "Skippers",
            "-t",
            "Orders",
            "-s",
            "2020-01-01#00:00:00:000",
        ]
        assert mqadmin(place.namesrv, words).code == 0
        assert admin.committed("Skippers", place.receipts[0].queue) == 0
        assert place_of is not None
        words = ["updateSubGroup", "-b", place.broker, "-g", "Picky", "-r", "3", "-s", "false"]
        assert mqadmin(place.namesrv, words).code == 0
        group = admin.group_config("Picky")["broker-a"]
        assert (group.retry_count_max, group.consume_enable) == (3, False)
        assert not group.consume_broadcast_enable


def test_exported_files_hold_topics_groups_settings_and_figures(
    place: Place, tmp_path: Path
) -> None:
    for name in ("exportMetadata", "exportConfigs", "exportMetrics"):
        assert mqadmin(place.namesrv, [name, "-c", CLUSTER_NAME, "-f", str(tmp_path)]).code == 0
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    assert metadata["topicConfigTable"]["Orders"]["readQueueNums"] == 4
    assert "Readers" in metadata["subscriptionGroupTable"]
    assert not {"TBW102", "%RETRY%Readers"} & metadata["topicConfigTable"].keys()
    configs = json.loads((tmp_path / "configs.json").read_text())
    scale = {"namesrvSize": 1, "masterBrokerSize": 2, "slaveBrokerSize": 0}
    assert configs["clusterScale"] == scale
    assert configs["brokerConfigs"]["broker-a"]["brokerName"] == "broker-a"
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["evaluateReport"]["broker-a"]["runtimeQuota"]["topicSize"] > 0
    assert "totalNormalInTps" in metrics["totalData"]["totalTps"]


@pytest.mark.proves("house.folded.mqadmin-facts")
def test_a_message_is_sent_again_by_its_id(place: Place) -> None:
    words = ["queryMsgById", "-t", "Orders", "-i", place.receipts[1].message_id, "-s", "true"]
    finished = mqadmin(place.namesrv, words)
    assert finished.code == 0 and "sendStatus=SEND_OK" in finished.out, finished
    sent = re.search(r"offsetMsgId=(\w+)", finished.out)
    assert sent is not None
    with Admin(place.namesrv) as admin:
        again = admin.message_by_offset_id(sent[1])
    assert (again.body, again.tags, again.keys) == (b"body-1", "TagA", ["key-1"])


def test_the_body_of_a_message_is_in_the_file_that_is_named(place: Place) -> None:
    words = ["queryMsgById", "-t", "Orders", "-i", place.receipts[2].message_id]
    path = re.search(r"^Message Body Path: +(.*)$", mqadmin(place.namesrv, words).out, re.MULTILINE)
    assert path is not None and Path(path[1]).read_bytes() == b"body-2"


def test_cluster_rt_goes_on_until_it_is_interrupted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("contrail.cli.mqadmin.clusters.time.sleep", interrupted)
    finished = mqadmin(place.namesrv, ["clusterRT", "-a", "2", "-s", "8"])
    assert finished.code == 130
    assert re.search(r"^DefaultCluster +broker-a +\d+\.\d\d +2 +0", finished.out, re.MULTILINE)
    finished = mqadmin(place.namesrv, ["clusterRT", "-a", "2", "-p", "true", "-m", "attic"])
    assert re.search(r"\|attic\|DefaultCluster\|broker-b\|\d+$", finished.out, re.MULTILINE)
    assert mqadmin(place.namesrv, ["clusterList", "-i", "1"]).code == 130


def test_a_broker_that_does_not_answer_is_shown_and_named(tmp_path: Path) -> None:
    with LocalCluster(brokers=0, folder=tmp_path / "cluster") as cluster:
        fields = {
            "brokerName": "ghost",
            "brokerAddr": "127.0.0.1:1",
            "clusterName": CLUSTER_NAME,
            "haServerAddr": "127.0.0.1:2",
            "brokerId": "0",
        }
        cluster.caller.call(cluster.namesrv, RequestCode.REGISTER_BROKER, fields)
        finished = mqadmin(cluster.namesrv, ["clusterList"])
    one_line(finished, 1, "127.0.0.1:1")
    assert re.search(
        r"^DefaultCluster +ghost +0 +127.0.0.1:1 .* false$", finished.out, re.MULTILINE
    )


@pytest.mark.parametrize("name", sorted(OUT_OF_SCOPE))
def test_a_command_that_is_not_part_of_contrail_is_refused_with_the_reason(name: str) -> None:
    one_line(contrail("mqadmin", name, "-n", "127.0.0.1:9876"), 2, name, "not part of Contrail")


def test_options_are_understood_in_all_spellings_of_commons_cli(place: Place) -> None:
    lines = [
        ["-n", place.namesrv, "-t", "Orders"],
        [f"-n{place.namesrv}", "-tOrders"],
        [f"--namesrvAddr={place.namesrv}", "--topic=Orders"],
        ["-namesrvAddr", place.namesrv, "-topic", "Orders"],
        ["--name", place.namesrv, "--top", "Orders"],
        [f"-n={place.namesrv}", "-t", '"Orders"'],
    ]
    for line in lines:
        assert done("mqadmin", "topicClusterList", *line).out == "DefaultCluster\n", line
    assert done("mqadmin", "TOPICCLUSTERLIST", *lines[0]).out == "DefaultCluster\n"


def test_a_wrong_spelling_is_one_line() -> None:
    one_line(contrail("mqadmin", "topicRoute", "--t"), 2, "-t, --topic", "needs a value")
    one_line(contrail("mqadmin", "topicRoute", "-t", "-l"), 2, "-t, --topic", "needs a value")
    one_line(contrail("mqadmin", "topicRoute", "-t", "a", "--list=yes"), 2, "takes no value")
    one_line(contrail("mqadmin", "printMsgByQueue", "--print", "true"), 2, "--printBody")
    one_line(contrail("mqadmin", "topicRoute", "--wrong", "x"), 2, "--wrong", "help topicRoute")
    one_line(contrail("mqadmin", "topicRout"), 2, "'topicRout'", "did you mean topicRoute?")
    one_line(contrail("mqadmin", "help", "zzz"), 2, "'zzz'")
    one_line(contrail("mqadmin", "topicList", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("mqadmin", "topicList", "--ctx", "nowhere"), 5, "nowhere")


def test_the_list_and_the_help_name_every_command_and_option() -> None:
    listed = done("mqadmin").out
    assert listed == done("mqadmin", "--help").out == done("mqadmin", "help").out
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} ", listed, re.MULTILINE)
        text = done("mqadmin", "help", name).out
        assert text == done("mqadmin", name, "-h").out
        assert all(option.shown in text for option in command.all_options)


def test_a_context_names_the_cluster(place: Place) -> None:
    done("ctx", "add", "here", place.namesrv)
    assert "Orders" in done("mqadmin", "topicList").out
    assert "Orders" in done("mqadmin", "topicList", "--ctx", "here").out


def test_the_route_is_json(place: Place) -> None:
    finished = mqadmin(place.namesrv, ["topicRoute", "-t", "Orders"])
    route = fastjson.loads(finished.out.encode())
    assert isinstance(route, dict) and route.keys() >= {"brokerDatas", "queueDatas"}
    assert json.loads(finished.out) == route

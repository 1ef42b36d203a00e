"""``contrail mqadmin`` prints what Apache's prints: the same headers, the same cells."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from contrail.cli.app import run as run_command
from contrail.cli.mqadmin.app import COMMANDS
from contrail.cli.mqadmin.out_of_scope import OUT_OF_SCOPE
from contrail.model import fastjson
from contrail.testing import eventually
from tests.interop.mqadmin import MqAdmin, Traffic, send_traffic
from tests.interop.target import Cluster, open_cluster

# Rates, loads, counters and times go on while two tools ask one after the other, and a client has
# another port at each broker.
NUMBER = re.compile(r"\d+(\.\d+)?")
HELP_OPTION = re.compile(r"^ +(?:-(\w+),)?--(.+?)(?: <arg>)?(?: {2,}|$)", re.MULTILINE)
OUR_OPTION = re.compile(r"^  (?:-(\w), )?--(.+?)(?: <value>)? {2,}", re.MULTILINE)


class HelpfulMqAdmin(MqAdmin):
    """Apache's tool, which also lists the options of a command."""

    def help(self, name: str) -> str:
        return self._exchange(["help", name])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with open_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def apache(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelpfulMqAdmin]:
    with HelpfulMqAdmin(cluster.namesrv, tmp_path_factory.mktemp("mqadmin")) as admin:
        yield admin


@pytest.fixture(scope="module")
def traffic(cluster: Cluster, apache: HelpfulMqAdmin) -> Traffic:
    sent = send_traffic(apache)

    def all_committed() -> bool:
        apache.commit_offsets()
        return "Consume Diff Total: 0" in ours(cluster, "consumerProgress", "-g", "OrderReaders")

    eventually(all_committed)
    return sent


@pytest.fixture(autouse=True)
def files_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ours(cluster: Cluster, name: str, *words: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_command(["mqadmin", name, "-n", cluster.namesrv, *words])
    assert (code, err.getvalue()) == (0, ""), (name, words, err.getvalue())
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Line:
    """A command line; which of its lines are compared, and whether their numbers are."""

    text: str
    only: str = ""
    exact: bool = True

    def words(self, cluster: Cluster, traffic: Traffic) -> list[str]:
        first = traffic.sent[0]
        known = {
            "BROKER": cluster.brokers[0].address,
            "TOPIC": traffic.topic,
            "GROUP": traffic.consumer_group,
            "CLIENT": traffic.client_id,
            "THE_ID": first.unique_key,
            "PLACE": first.message_id,
            "NAME": first.broker_name,
            "QUEUE": str(first.queue_id),
            "OFFSET": str(first.queue_offset),
        }
        return [known.get(word, word) for word in self.text.split()]


LINES = [
    Line("clusterList", exact=False),
    Line("clusterList -m"),
    Line("topicList"),
    Line("topicList -c"),
    Line("topicRoute -t TOPIC -l"),
    Line("topicStatus -t TOPIC", only="^(#|broker)"),
    Line("topicClusterList -t TOPIC"),
    Line("consumerProgress -g GROUP", only="^(#|Orders|Consume Diff|Consume Inflight)"),
    Line("consumerProgress -g GROUP -t TOPIC -s true", only="^(#|Orders)"),
    Line("consumerProgress", only="^(#|OrderReaders)", exact=False),
    Line("consumerConnection -g GROUP", exact=False),
    Line("consumerConnection -g GROUP -b BROKER"),
    Line(
        "consumerStatus -g GROUP -i CLIENT", only="^(#[^U]|Orders +broker-. +[0-9] +[0-9]|001|PROP)"
    ),
    Line("producerConnection -g OrderWriters -t TOPIC", exact=False),
    Line("producer -b BROKER", only="OrderWriters", exact=False),
    Line("brokerStatus -b BROKER", exact=False),
    Line("brokerStatus -c DefaultCluster", exact=False),
    Line("getBrokerConfig -b BROKER"),
    Line("getBrokerConfig -c DefaultCluster"),
    Line("getConsumerConfig -g GROUP"),
    Line("brokerConsumeStats -b BROKER", only="^(#|Orders|Diff)"),
    Line("queryMsgById -t TOPIC -i PLACE -f UTF-8"),
    Line("queryMsgById -t TOPIC -i THE_ID", only="^([A-Z][A-Za-z ]+: |MessageTrack)"),
    Line("queryMsgByKey -t TOPIC -k order-5"),
    Line("queryMsgByUniqueKey -t TOPIC -i THE_ID"),
    Line("queryMsgByOffset -t TOPIC -b NAME -i QUEUE -o OFFSET"),
    Line("queryCq -t TOPIC -q QUEUE -i 0 -b BROKER"),
    Line("printMsg -t TOPIC"),
    Line("printMsgByQueue -t TOPIC -a NAME -i QUEUE -p true -d true -f true"),
    Line("consumeMessage -t TOPIC -b NAME -i QUEUE -o 0"),
    Line("statsAll -t TOPIC", exact=False),
    Line("getNamesrvConfig"),
    Line("updateOrderConf -t TBW102 -m delete"),
]


@pytest.mark.proves("cli.administration.mqadmin")
@pytest.mark.parametrize("line", LINES, ids=[line.text for line in LINES])
def test_both_print_the_same(
    cluster: Cluster, apache: HelpfulMqAdmin, traffic: Traffic, line: Line
) -> None:
    words = line.words(cluster, traffic)
    theirs = shown(apache.run(words[0], *words[1:]), line)
    assert theirs, "Apache's tool printed nothing to compare with"
    assert shown(ours(cluster, words[0], *words[1:]), line) == theirs


def shown(printed: str, line: Line) -> list[list[str]]:
    """The lines as cells, in order; headers with their blanks, so that columns stand alike."""
    kept = [one.rstrip() for one in printed.splitlines() if one.strip()]
    chosen = [one for one in kept if not line.only or re.search(line.only, one)]
    return sorted(cells(one if line.exact else masked(one)) for one in chosen)


def cells(text: str) -> list[str]:
    if text.startswith("#"):
        return [text]
    # Java's maps have no order.
    return re.sub(r"\{([^{}]*)\}", sorted_map, text).split()


def sorted_map(found: re.Match[str]) -> str:
    """A map's entries in order, without the properties that Apache's consumer adds."""
    entries = [one for one in found[1].split(", ") if not one.startswith(("MIN_OF", "MAX_OF"))]
    return "{" + ", ".join(sorted(entries)) + "}"


def masked(text: str) -> str:
    return text if text.startswith("#") else NUMBER.sub("N", text)


def test_both_print_the_same_route(
    cluster: Cluster, apache: HelpfulMqAdmin, traffic: Traffic
) -> None:
    theirs = fastjson.loads(apache.run("topicRoute", "-t", traffic.topic).encode())
    assert in_order(fastjson.loads(ours(cluster, "topicRoute", "-t", traffic.topic).encode())) == (
        in_order(theirs)
    )


def in_order(value: object) -> object:
    if isinstance(value, dict):
        return {name: in_order(one) for name, one in value.items()}
    if isinstance(value, list):
        return sorted((in_order(one) for one in value), key=str)
    return value


def test_both_write_the_same_files(
    cluster: Cluster, apache: HelpfulMqAdmin, traffic: Traffic, tmp_path: Path
) -> None:
    for name, file in (("exportMetadata", "metadata.json"), ("exportConfigs", "configs.json")):
        apache.run(name, "-c", "DefaultCluster", "-f", str(tmp_path / "theirs"))
        ours(cluster, name, "-c", "DefaultCluster", "-f", str(tmp_path / "ours"))
        theirs, mine = (
            fastjson.loads((tmp_path / who / file).read_bytes()) for who in ("theirs", "ours")
        )
        assert isinstance(theirs, dict) and isinstance(mine, dict)
        assert mine | {"exportTime": 0} == theirs | {"exportTime": 0}, name


@pytest.mark.proves("cli.administration.mqadmin")
def test_every_command_of_apache_is_ours_or_said_to_be_not(apache: HelpfulMqAdmin) -> None:
    # It is in Apache's sources, but its tool does not offer it any more.
    known = set(COMMANDS) - {"resetOffsetByTimeOld"} | set(OUT_OF_SCOPE)
    assert known == apache.names()


@pytest.mark.proves("cli.administration.mqadmin")
@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"resetOffsetByTimeOld"}))
def test_every_option_has_the_same_names(apache: HelpfulMqAdmin, name: str) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        run_command(["mqadmin", "help", name])
    _, _, options = apache.help(name).partition("\n -")
    theirs = {(letter, long.strip()) for letter, long in HELP_OPTION.findall(f" -{options}")}
    mine = set(OUR_OPTION.findall(out.getvalue())) - {("", "ctx"), ("", "cplus")}
    assert mine == theirs

"""One rule for names that do not exist: exit code 5, one line, no change.

Every command of the tree is in the table below: with lines that name something absent, or with the
reason why it cannot. A command that is new has to be given its row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from contrail import Admin
from contrail.cli.app import COMMANDS
from contrail.cli.mqadmin.app import COMMANDS as MQADMIN
from contrail.cli.root import LazyGroup, app
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from contrail.testing import LocalCluster
from tests.cli.running import Finished, contrail

TOPIC, GROUP = "there", "members"
# Of the form of an id, and of no message.
ID = "0A00000100002A9F00000000000F4240"
_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"

SERVER = "it runs a server"
LISTS = "it lists what there is"
MAKES = "it makes what it is told to"
MONITOR = "its exit codes are those of monitors: UNKNOWN, 3"
SPARK = "it starts Spark: tests/spark looks at its exit codes"
FILES = "it is told files and folders, which are input: 2"
ACCESS = "it asks a broker with access control: tests/cli/test_acl.py"
ACCOUNTS = "accounts of the console stand in a file of its own: tests/e2e/test_console.py"

LINES: dict[str, list[str] | str] = {
    "dev": SERVER,
    "namesrv": SERVER,
    "broker": SERVER,
    "broker status": ["absent"],
    "broker config": ["absent", "all absent", "all --set absent=1 --yes"],
    "broker drain": ["absent --yes"],
    "broker undrain": ["absent"],
    "replication status": LISTS,
    "replication secret": FILES,
    "replication detach": FILES,
    "replication init": FILES,
    "replication replace": FILES,
    "replication transfer": ["absent --to n1"],
    **{f"acl {name}": ACCESS for name in ("init", "user", "grant", "revoke", "show", "explain")},
    "acl export": ACCESS,
    "acl import": ACCESS,
    "audit": ACCESS,
    "console": SERVER,
    **{f"console user {name}": ACCOUNTS for name in ("add", "list", "remove", "token")},
    "send": ["there x --queue absent:0", "there x --queue broker-a:99"],
    "consume": ["absent -g members -e"],
    "tail": ["absent -e", "there absent -e", "there -e --queue broker-a:99"],
    "message get": [f"{ID} --topic there", f"{ID} --topic absent"],
    "message find": ["there absent", "absent k", "there --key absent"],
    "message trace": [ID, f"{ID} --topic there", f"{ID} --topic absent", "--key k --topic absent"],
    "dlq list": LISTS,
    "dlq show": ["absent", "members"],
    "dlq open": ["absent"],
    "dlq replay": ["absent --yes"],
    "dlq export": ["absent FOLDER/letters"],
    "timer list": ["--topic absent"],
    "timer recall": [f"{ID} --yes"],
    "tx list": ["--topic absent"],
    "tx commit": [f"{ID} --yes"],
    "tx rollback": [f"{ID} --yes"],
    "topic create": ["new --broker absent", "new --cluster absent"],
    "topic list": ["--cluster absent"],
    "topic describe": ["absent"],
    "topic route": ["absent"],
    "topic grow": ["absent --queues 9", "there --queues 9 --broker absent"],
    "topic shrink": ["absent --queues 1 --yes", "there --queues 1 --broker absent --yes"],
    "topic delete": ["absent --yes", "there --cluster absent --yes"],
    "group list": ["--cluster absent"],
    "group describe": ["absent"],
    "group lag": ["absent", "members --topic absent"],
    "group seek": ["absent --to earliest --yes", "members --topic absent --to earliest --yes"],
    "group clone": ["absent new --yes", "members new --topic absent --yes"],
    "group create": ["new --broker absent", "new --cluster absent"],
    "group delete": ["absent --yes", "members --cluster absent --yes"],
    "group inflight": ["absent"],
    "group return": ["absent handle --yes"],
    "group ack": ["absent handle --yes"],
    "client list": ["--group absent"],
    "client show": ["absent", "absent --group members"],
    "cluster status": ["--cluster absent"],
    "ctx add": MAKES,
    "ctx list": LISTS,
    "ctx use": ["absent"],
    "ctx show": ["absent"],
    "ctx remove": ["absent"],
    "mqadmin": "its commands have a table of their own, below",
    "top": LISTS,
    "doctor": ["--group absent", "--topic absent"],
    "check lag": MONITOR,
    "check dlq": MONITOR,
    "check disk": MONITOR,
    "bench send": ["absent --count 1"],
    "bench consume": ["absent -g members --count 1"],
    **{
        f"pipeline {name}": SPARK
        for name in (
            *("migrate", "archive", "restore", "compact", "replay", "dedupe", "sql", "report"),
        )
    },
    "store inspect": FILES,
    "store verify": FILES,
    "store recover": FILES,
    "store dump": [
        "FOLDER/store --topic absent",
        "FOLDER/store --topic there --queue 9",
        "FOLDER/store --topic there --key absent",
    ],
    "version": LISTS,
}

MQADMIN_LINES: dict[str, list[str] | str] = {
    "topicList": LISTS,
    "topicRoute": ["-t absent"],
    "topicStatus": ["-t absent"],
    "topicClusterList": ["-t absent"],
    "allocateMQ": ["-t absent -i 10.0.0.1"],
    "updateTopic": ["-t new -b absent", "-t new -c absent"],
    "updateTopicList": ["-b absent -f FOLDER/topics.json", "-c absent -f FOLDER/topics.json"],
    "deleteTopic": ["-t absent -c DefaultCluster", "-t there -c absent"],
    "updateTopicPerm": ["-t absent -p 6 -c DefaultCluster", "-t there -p 6 -b absent"],
    "updateOrderConf": "it reads and writes a table of the NameServer, where any name may stand",
    "consumerProgress": ["-g absent"],
    "consumerStatus": ["-g absent"],
    "consumerConnection": ["-g absent"],
    "producerConnection": ["-g absent -t there", "-g absent -t absent"],
    "producer": ["-b absent"],
    "updateSubGroup": ["-g new -b absent", "-g new -c absent"],
    "updateSubGroupList": ["-b absent -f FOLDER/groups.json", "-c absent -f FOLDER/groups.json"],
    "deleteSubGroup": ["-g absent -c DefaultCluster", "-g members -b absent"],
    "getConsumerConfig": ["-g absent"],
    "setConsumeMode": ["-t absent -g members -m PULL -c DefaultCluster"],
    "resetOffsetByTime": ["-g absent -t there -s -1", "-g members -t absent -s -1"],
    "resetOffsetByTimeOld": ["-g absent -t there -s -1", "-g members -t absent -s -1"],
    "skipAccumulatedMessage": ["-g absent -t there", "-g members -t absent"],
    "cloneGroupOffset": ["-s absent -d new -t there", "-s members -d new -t absent"],
    "queryMsgById": [f"-t there -i {ID}"],
    "queryMsgByKey": ["-t absent -k k"],
    "queryMsgByUniqueKey": [f"-t there -i {ID}", f"-t absent -i {ID}"],
    "queryMsgByOffset": ["-t absent -b broker-a -i 0 -o 0", "-t there -b broker-a -i 0 -o 99"],
    "queryMsgTraceById": [f"-i {ID}"],
    "printMsg": ["-t absent"],
    "printMsgByQueue": ["-t absent -a broker-a -i 0"],
    "consumeMessage": ["-t absent"],
    "queryCq": ["-t absent -q 0 -i 0", "-t there -q 0 -i 0 -b absent"],
    "sendMessage": ["-t there -p x -b absent -i 0"],
    "sendMsgStatus": ["-b absent -c 1"],
    "checkMsgSendRT": "it sends, and brokers make a topic that is not there",
    "clusterList": ["-c absent"],
    "clusterRT": ["-c absent -a 1 -p false"],
    "brokerStatus": ["-b absent", "-c absent"],
    "getBrokerConfig": ["-b absent", "-c absent"],
    "updateBrokerConfig": ["-b absent -k traceOn -v true", "-c absent -k traceOn -v true"],
    "brokerConsumeStats": ["-b absent"],
    "cleanExpiredCQ": ["-b absent", "-c absent"],
    "cleanUnusedTopic": ["-b absent", "-c absent"],
    "deleteExpiredCommitLog": ["-b absent", "-c absent"],
    "statsAll": ["-t absent"],
    "getNamesrvConfig": LISTS,
    "updateNamesrvConfig": MAKES,
    "updateKvConfig": MAKES,
    "deleteKvConfig": "the NameServer does not tell whether the entry was there",
    "wipeWritePerm": ["-b absent"],
    "addWritePerm": ["-b absent"],
    "exportMetadata": ["-b absent -f FOLDER", "-c absent -f FOLDER"],
    "exportConfigs": ["-c absent -f FOLDER"],
    "exportMetrics": ["-c absent -f FOLDER"],
}


def leaves() -> Iterator[str]:
    root = typer.main.get_command(app)
    assert isinstance(root, LazyGroup)
    for name in COMMANDS:
        yield from _walk(name, root.load_command(name))


def _walk(name: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if not inner or getattr(command, "invoke_without_command", False):
        yield name
    for word, one in inner.items():
        yield from _walk(f"{name} {word}", one)


def told(lines: dict[str, list[str] | str]) -> list[str]:
    """Each line that names something absent, behind the command's name."""
    return [
        f"{name} {line}" for name, some in lines.items() if isinstance(some, list) for line in some
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a store, and the files that some of Apache's commands read."""
    found = tmp_path_factory.mktemp("absent")
    config = StoreConfig(root=found / "store", segment_bytes=1 << 16, segments_prepared_ahead=False)
    with MessageStore.open(config) as store:
        store.append([_draft()])
    (found / "topics.json").write_text('[{"topicName": "new", "perm": 6}]')
    (found / "groups.json").write_text('[{"groupName": "new"}]')
    return found


def _draft() -> Any:
    from contrail.model.message import MessageDraft

    return MessageDraft(topic=TOPIC.encode(), queue_id=0, body=b"x")


@pytest.fixture(scope="module")
def at(cluster: LocalCluster) -> str:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
        admin.create_group(GROUP)
    return cluster.namesrv


def run(line: str, namesrv: str, folder: Path) -> Finished:
    words = line.replace("FOLDER", str(folder)).split()
    named = [] if words[0] in ("ctx", "store") else ["-n", namesrv]
    return contrail(*words, *named)


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
def test_every_command_has_its_row() -> None:
    assert set(LINES) == set(leaves())
    assert set(MQADMIN_LINES) == set(MQADMIN)


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
@pytest.mark.parametrize("line", told(LINES))
def test_a_missing_name_is_exit_code_5_and_one_line(line: str, at: str, folder: Path) -> None:
    _require_not_found(run(line, at, folder), line)


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
@pytest.mark.parametrize("line", told(MQADMIN_LINES))
def test_apaches_commands_follow_the_same_rule(line: str, at: str, folder: Path) -> None:
    _require_not_found(run(f"mqadmin {line}", at, folder), line)


def _require_not_found(finished: Finished, line: str) -> None:
    assert finished.code == 5, finished
    assert finished.out == "", finished
    lines = finished.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("contrail: "), finished.err
    assert re.search(rf"absent|{ID}|TRACE|99|\b9\b|members", lines[0]), (line, lines[0])


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
@pytest.mark.parametrize(
    "line",
    [
        "topic delete absent --yes",
        "topic shrink absent --queues 1 --yes",
        "group delete absent --yes",
        "group clone absent new --yes",
        "ctx remove absent",
        "mqadmin deleteTopic -t absent -c DefaultCluster",
        "mqadmin deleteSubGroup -g absent -c DefaultCluster",
    ],
)
def test_no_hint_suggests_creating_a_thing_that_shall_be_deleted(
    line: str, at: str, folder: Path
) -> None:
    finished = run(line, at, folder)
    assert finished.code == 5
    assert not re.search(r"create|makes it|add it", finished.err), finished.err


def test_the_rule_is_written_down() -> None:
    assert "## Not found" in _PAGE.read_text(encoding="utf-8")

"""Topics, groups and settings: a change is answered when its file is durable, or not made."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contrail.broker.services import persistence
from contrail.broker.tables import Tables
from contrail.nameserver import saver
from contrail.protocol.codes import RequestCode as Code
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state
from contrail.testing import LocalCluster
from contrail.wire.caller import Caller

TOPIC = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG"}


class Disk:
    """Stands before the writes of state files: counts them, holds them up, or fails."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.problem: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def write(
        self,
        files: FileSystem,
        path: Path,
        data: bytes,
        *,
        sealed: bool,
        mode: int | None = None,
    ) -> None:
        if path.name == "consumerOffset.json":
            # The broker writes it every few seconds, whatever is asked of it.
            write_state(files, path, data, sealed=sealed, mode=mode)
            return
        self.names.append(path.name)
        self.reached.set()
        assert self.gate.wait(60)
        if self.problem is not None:
            raise self.problem
        write_state(files, path, data, sealed=sealed, mode=mode)

    def close(self) -> None:
        self.reached.clear()
        self.gate.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(persistence, "write_state", disk.write)
    monkeypatch.setattr(saver, "write_state", disk.write)
    yield disk
    disk.problem = None
    disk.gate.set()


@pytest.fixture
def cluster(disk: Disk) -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        ask(cluster, Code.UPDATE_AND_CREATE_TOPIC, {"topic": "old", **TOPIC})
        ask(cluster, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body={"groupName": "old"})
        place = {"consumerGroup": "old", "topic": "old", "queueId": "1", "commitOffset": "7"}
        ask(cluster, Code.UPDATE_CONSUMER_OFFSET, place)
        yield cluster


def ask(
    cluster: LocalCluster,
    code: int,
    fields: dict[str, str] | None = None,
    body: object = b"",
    *,
    expected: int | None = 0,
) -> ReceivedResponse:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = cluster.caller.call(cluster.brokers[0].address, code, fields, data)
    assert expected is None or answer.code == expected, answer.remark
    return answer


class Change(NamedTuple):
    """A request, the file that must have its change, and whether a table has it."""

    code: int
    file: str
    is_made: Callable[[Tables], bool]
    fields: dict[str, str] = {}  # noqa: RUF012
    body: object = b""


CHANGES = {
    "create a topic": Change(
        Code.UPDATE_AND_CREATE_TOPIC,
        "topics.json",
        lambda tables: tables.topics.table.get("new") is not None,
        {"topic": "new", **TOPIC},
    ),
    "change a topic": Change(
        Code.UPDATE_AND_CREATE_TOPIC,
        "topics.json",
        lambda tables: tables.topics.table.topics["old"].perm == 4,
        {"topic": "old", **TOPIC, "perm": "4"},
    ),
    "create topics": Change(
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        "topics.json",
        lambda tables: tables.topics.table.get("b") is not None,
        body={"topicConfigList": [{"topicName": "a"}, {"topicName": "b"}]},
    ),
    "delete a topic": Change(
        Code.DELETE_TOPIC_IN_BROKER,
        "topics.json",
        lambda tables: tables.topics.table.get("old") is None,
        {"topic": "old"},
    ),
    "create a group": Change(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        "subscriptionGroup.json",
        lambda tables: tables.groups.table.get("new") is not None,
        body={"groupName": "new"},
    ),
    "create groups": Change(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        "subscriptionGroup.json",
        lambda tables: tables.groups.table.get("b") is not None,
        body={"groupConfigList": [{"groupName": "a"}, {"groupName": "b"}]},
    ),
    "delete a group": Change(
        Code.DELETE_SUBSCRIPTIONGROUP,
        "subscriptionGroup.json",
        lambda tables: tables.groups.table.get("old") is None,
        {"groupName": "old", "cleanOffset": "true"},
    ),
    "forbid a topic": Change(
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
        "subscriptionGroup.json",
        lambda tables: tables.groups.is_read_forbidden("old", "old"),
        {"group": "old", "topic": "old", "readable": "false"},
    ),
    "change a setting": Change(
        Code.UPDATE_BROKER_CONFIG,
        "broker.properties",
        lambda tables: tables.settings.config.permission == 4,
        body=b"brokerPermission=4\n",
    ),
}


def each_change() -> Any:
    return pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))


def tables_of(cluster: LocalCluster) -> Tables:
    app = cluster.brokers[0].app
    assert app is not None
    return app.tables


@pytest.mark.proves("broker.durable.answered-after")
@each_change()
def test_a_change_is_made_and_answered_after_its_file_is_durable(
    cluster: LocalCluster, disk: Disk, change: Change
) -> None:
    tables = tables_of(cluster)
    answers: list[int] = []
    disk.names.clear()
    disk.close()
    asking = threading.Thread(
        target=lambda: answers.append(
            ask(cluster, change.code, change.fields, change.body, expected=None).code
        )
    )
    asking.start()
    assert disk.reached.wait(30)
    assert disk.names[0] == change.file
    assert not change.is_made(tables)
    assert answers == []
    disk.gate.set()
    asking.join(30)
    assert answers == [0]
    # Killed right after the answer: nothing is written at the end.
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    assert change.is_made(tables_of(cluster))


@pytest.mark.proves("broker.durable.answered-after")
@each_change()
@pytest.mark.parametrize(
    "problem", [OSError(28, "No space left on device"), OSError(5, "Input/output error")], ids=repr
)
def test_a_change_that_cannot_be_saved_is_answered_as_an_error_and_not_made(
    cluster: LocalCluster, disk: Disk, change: Change, problem: OSError
) -> None:
    tables = tables_of(cluster)
    version, before = tables.topics.table.data_version, tables.topics.table.epoch
    disk.problem = problem
    answer = ask(cluster, change.code, change.fields, change.body, expected=None)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(problem) in (answer.remark or "")
    assert not change.is_made(tables)
    assert (tables.topics.table.data_version, tables.topics.table.epoch) == (version, before)
    route = cluster.caller.call(cluster.namesrv, Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "new"})
    assert route.code == ResponseCode.TOPIC_NOT_EXIST
    disk.problem = None
    ask(cluster, change.code, change.fields, change.body)
    assert change.is_made(tables)


@pytest.mark.proves("broker.durable.answered-after", "broker.durable.cost")
def test_changes_that_arrive_during_a_write_share_the_next(
    cluster: LocalCluster, disk: Disk
) -> None:
    count = 300
    disk.names.clear()
    disk.close()

    async def create_all() -> list[int]:
        caller = Caller()
        address = cluster.brokers[0].address
        calls = [
            asyncio.ensure_future(
                caller.call(
                    address,
                    Code.UPDATE_AND_CREATE_TOPIC,
                    {"topic": f"t{number}", **TOPIC},
                    timeout_ms=30_000,
                )
            )
            for number in range(count)
        ]
        try:
            await asyncio.to_thread(disk.reached.wait, 30)
            # All of them are there before the first write ends.
            version = {"topic": "old", "queueId": "0"}
            await caller.call(address, Code.GET_MAX_OFFSET, version, timeout_ms=30_000)
            disk.gate.set()
            return [answer.code for answer in await asyncio.gather(*calls)]
        finally:
            await caller.close()

    assert asyncio.run(create_all()) == [0] * count
    assert disk.names.count("topics.json") <= 2
    assert len([name for name in tables_of(cluster).topics.table.topics if name[0] == "t"]) >= count


def test_a_failed_change_is_not_in_the_file_that_is_written_next(
    cluster: LocalCluster, disk: Disk
) -> None:
    disk.problem = OSError(28, "No space left on device")
    ask(cluster, Code.UPDATE_AND_CREATE_TOPIC, {"topic": "refused", **TOPIC}, expected=1)
    disk.problem = None
    ask(cluster, Code.UPDATE_AND_CREATE_TOPIC, {"topic": "taken", **TOPIC})
    folder = cluster.brokers[0].folder / "store" / "config"
    topics = json.loads((folder / "topics.json").read_bytes())["topicConfigTable"]
    assert "taken" in topics and "refused" not in topics


def test_the_offsets_of_a_deleted_topic_are_gone_for_good(
    cluster: LocalCluster, disk: Disk
) -> None:
    ask(cluster, Code.DELETE_TOPIC_IN_BROKER, {"topic": "old"})
    cluster.brokers[0].kill()
    cluster.brokers[0].start()
    ask(cluster, Code.UPDATE_AND_CREATE_TOPIC, {"topic": "old", **TOPIC})
    assert tables_of(cluster).consumer_offsets.of_group("old", "old") == {}


def test_a_second_change_of_a_topic_knows_of_the_first_that_is_being_written(
    cluster: LocalCluster, disk: Disk
) -> None:
    """``-message.type`` can only be taken from a topic that has it."""
    disk.close()

    async def both() -> list[int]:
        caller = Caller()
        address, codes = cluster.brokers[0].address, []
        fields = {"topic": "typed", **TOPIC}
        calls = [
            asyncio.ensure_future(
                caller.call(
                    address,
                    Code.UPDATE_AND_CREATE_TOPIC,
                    {**fields, "attributes": attributes},
                    timeout_ms=30_000,
                )
            )
            for attributes in ("+message.type=NORMAL", "-message.type", "-message.type")
        ]
        try:
            await asyncio.to_thread(disk.reached.wait, 30)
            disk.gate.set()
            codes = [answer.code for answer in await asyncio.gather(*calls)]
        finally:
            await caller.close()
        return codes

    assert asyncio.run(both()) == [0, 0, 1]
    assert tables_of(cluster).topics.table.topics["typed"].attributes == {}


@pytest.mark.proves("broker.durable.answered-after")
def test_a_nameserver_makes_no_change_that_it_cannot_save(
    cluster: LocalCluster, disk: Disk
) -> None:
    entry = {"namespace": "n", "key": "k", "value": "1"}

    def put(value: str) -> ReceivedResponse:
        return cluster.caller.call(cluster.namesrv, Code.PUT_KV_CONFIG, {**entry, "value": value})

    assert put("1").code == 0
    disk.problem = OSError(28, "No space left on device")
    answer = put("2")
    assert answer.code == ResponseCode.SYSTEM_ERROR and "No space" in (answer.remark or "")
    found = cluster.caller.call(cluster.namesrv, Code.GET_KV_CONFIG, entry)
    assert found.fields["value"] == "1"
    deleted = cluster.caller.call(cluster.namesrv, Code.DELETE_KV_CONFIG, entry)
    assert deleted.code == ResponseCode.SYSTEM_ERROR
    disk.problem = None
    assert put("3").code == 0
    folder = cluster.nameservers[0].folder
    assert json.loads((folder / "kvConfig.json").read_bytes()) == {"configTable": {"n": {"k": "3"}}}

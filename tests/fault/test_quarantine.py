"""A bad entry of a state file is kept aside; the other entries are read, and the server starts."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.services import stored_tables
from contrail.broker.services.groups import Groups
from contrail.broker.state.filter_data import FilterTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.sql92 import compile_sql
from contrail.clock import ManualClock
from contrail.errors import StateFileDamaged
from contrail.model.fastjson import dumps
from contrail.model.group import BUILT_IN_GROUPS
from contrail.nameserver.app import NameServer
from contrail.nameserver.config import NameServerConfig
from contrail.protocol.codes import ResponseCode
from contrail.protocol.prometheus_text import MetricsExporter
from contrail.runtime.files import FileSystem
from contrail.store.config_files import CONSUMER_FILTERS
from contrail.testing import LocalCluster
from tests.e2e.asking import Asker

FILES = FileSystem()
BAD_OFFSETS = (
    b'{"dataVersion":{"counter":7},"offsetTable":{"orders@billing":{-1:5,0:42},"a@b":{1:2}}}'
)


def config(root: Path, name: str, content: bytes, backup: bytes | None = None) -> Path:
    folder = root / "config"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    if backup is not None:
        (folder / f"{name}.bak").write_bytes(backup)
    return folder


def kept_aside(path: Path) -> list[tuple[list[str], object]]:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert all(line["problem"] for line in lines)
    return [(line["place"], line["value"]) for line in lines]


@pytest.mark.proves("broker.tables.quarantine")
def test_a_recorded_folder_with_a_negative_queue_id_in_file_and_backup_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "broker-a" / "store"
    folder = config(root, "consumerOffset.json", BAD_OFFSETS, BAD_OFFSETS)
    with LocalCluster(folder=tmp_path) as cluster:
        app = cluster.brokers[0].app
        assert app is not None
        offsets = app.tables.consumer_offsets
        assert offsets.of_group("billing", "orders") == {0: 42}
        assert offsets.of_group("b", "a") == {1: 2}
    assert kept_aside(folder / "consumerOffset.json.quarantine") == [
        (["offsetTable", "orders@billing", "-1"], 5)
    ]
    said = [
        record for record in caplog.records if "offsetTable.orders@billing.-1" in record.message
    ]
    assert [record.levelno for record in said] == [logging.ERROR]


ENTRIES: list[tuple[str, dict[str, object], list[list[str]]]] = [
    (
        "topics.json",
        {
            "topicConfigTable": {
                "good": {"topicName": "good", "readQueueNums": 3},
                "other-name": {"topicName": "good"},
                "a/b": {},
                "\ud800": {},
                "": {},
                "few": {"readQueueNums": -1},
                "many": {"writeQueueNums": 1 << 31},
                "text": {"perm": "rw"},
                "odd": 7,
                "long": {"topicSysFlag": 1 << 31},
            },
            "dataVersion": 7,
        },
        [
            ["topicConfigTable", name]
            for name in ("", "a/b", "few", "long", "many", "odd", "other-name", "text", "\ud800")
        ]
        + [["dataVersion"]],
    ),
    (
        "subscriptionGroup.json",
        {
            "subscriptionGroupTable": {
                "good": {"groupName": "good", "retryMaxTimes": 3},
                "wrong": {"groupName": "good"},
                "a\nb": {},
                "list": [],
                "int": {"retryMaxTimes": 1 << 31},
                "many": {"groupRetryPolicy": {"customizedRetryPolicy": {"next": [1] * 1025}}},
            },
            "forbiddenTable": {"good": {"t": 4, "u": "x", "v": 1 << 40}, "odd": 1},
        },
        [
            ["subscriptionGroupTable", name] for name in ("a\nb", "int", "list", "many", "wrong")
        ]
        + [["forbiddenTable", "good", "u"], ["forbiddenTable", "good", "v"]]
        + [["forbiddenTable", "odd"]],
    ),
    (
        "consumerOffset.json",
        {
            "offsetTable": {
                "t@good": {"0": 1, "x": 2, "1": "y", "2147483648": 3, "2": 1 << 63},
                "odd": 7,
                "a\x00@b": {"0": 1},
            }
        },
        [["offsetTable", "a\x00@b"]]
        + [["offsetTable", "odd"]]
        + [["offsetTable", "t@good", queue] for queue in ("1", "2", "2147483648", "x")],
    ),
    (
        "consumerFilter.json",
        {
            "filterDataByTopic": {
                "t": {
                    "groupFilterData": {
                        "good": {"expression": "a > 1", "bornTime": 1},
                        "late": {"bornTime": "x"},
                        "list": [],
                        "\x01": {},
                    }
                },
                "odd": 1,
            }
        },
        [["filterDataByTopic", "odd"]]
        + [
            ["filterDataByTopic", "t", "groupFilterData", name]
            for name in ("\x01", "late", "list")
        ],
    ),
    (
        "delayOffset.json",
        {"offsetTable": {"1": 5, "-1": 5, "x": 1, "2": [], "3": 1 << 63}},
        [["offsetTable", level] for level in ("-1", "2", "3", "x")],
    ),
]  # fmt: skip


def loaded(name: str, root: Path) -> object:
    """The sound entry of one file, as a start reads it."""
    if name == "topics.json":
        topics = stored_tables.load_topics(FILES, root)
        return {topic: config.read_queue_count for topic, config in topics.topics.items()}
    if name == "subscriptionGroup.json":
        groups = stored_tables.load_groups(FILES, root)
        counts = {group: config.retry_count_max for group, config in groups.groups.items()}
        return counts, groups.forbidden_table()
    if name == "consumerOffset.json":
        return stored_tables.load_consumer_offsets(FILES, root).snapshot().offsets
    if name == "delayOffset.json":
        return dict(stored_tables.load_delay_cursors(FILES, root, (0, 1)).snapshot().queue_offsets)
    filters = CONSUMER_FILTERS.load(FILES, root).value
    assert filters is not None
    return {topic: list(groups) for topic, groups in filters.filters.items()}


SOUND: dict[str, object] = {
    "topics.json": {"good": 3},
    # Groups and prohibitions whose entries are kept aside are there again: see below.
    "subscriptionGroup.json": (
        {"good": 3, "int": 16, "list": 16, "many": 16, "odd": 16, "wrong": 16},
        {"good": {"t": 4, "u": 4, "v": 4}},
    ),
    "consumerOffset.json": {"t@good": {0: 1}},
    "consumerFilter.json": {"t": ["good"]},
    "delayOffset.json": {1: 5},
}


@pytest.mark.proves("broker.tables.quarantine")
@pytest.mark.parametrize(("name", "content", "bad"), ENTRIES, ids=[e[0] for e in ENTRIES])
def test_bad_entries_of_a_file_are_kept_aside_once_and_the_others_read(
    name: str, content: dict[str, object], bad: list[list[str]], tmp_path: Path
) -> None:
    folder = config(tmp_path, name, dumps(content))
    for _ in range(2):
        if name == "consumerFilter.json":
            stored_tables.load_filters(FILES, tmp_path, FilterTable(compile_sql), 0)
        assert loaded(name, tmp_path) == SOUND[name]
    places = [place for place, _ in kept_aside(folder / f"{name}.quarantine")]
    assert sorted(places) == sorted(bad)


def test_settings_that_are_refused_are_kept_aside(tmp_path: Path) -> None:
    folder = config(tmp_path, "broker.properties", b"shortPollingTimeMills=?\ntraceOn=false\nx\n")
    settings = stored_tables.load_settings(FILES, tmp_path, BrokerConfig(), now_ms=0)
    assert settings.changed == {"traceOn": "false"}
    assert kept_aside(folder / "broker.properties.quarantine") == [
        (["shortPollingTimeMills"], "?"),
        (["x"], ""),
    ]


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("brokerPermission", "0"),
        ("contrailDeadLetterPerm", "0"),
        ("autoCreateTopicEnable", "false"),
        ("autoCreateSubscriptionGroup", "false"),
        ("litePullMessageEnable", "false"),
        ("rejectTransactionMessage", "true"),
    ],
)
def test_a_damaged_setting_that_may_close_a_right_closes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, closed: str
) -> None:
    """The settings of the start may allow more than the operator had chosen since."""
    folder = config(tmp_path, "broker.properties", f"{name}=?\n".encode())
    settings = stored_tables.load_settings(FILES, tmp_path, BrokerConfig(), now_ms=0)
    assert settings.changed == {name: closed}
    assert kept_aside(folder / "broker.properties.quarantine") == [([name], "?")]
    assert f"{name}={closed}" in caplog.text
    assert f"mqadmin updateBrokerConfig -b BROKER -k {name} -v VALUE" in caplog.text


def test_an_entry_that_is_sound_in_the_backup_is_taken_from_there(tmp_path: Path) -> None:
    main = b'{"offsetTable":{"t@g":{"0":"?","1":8},"u@g":{"5":6}}}'
    backup = b'{"offsetTable":{"t@g":{"0":3,"1":7},"u@g":{"5":5}}}'
    config(tmp_path, "consumerOffset.json", main, backup)
    offsets = stored_tables.load_consumer_offsets(FILES, tmp_path)
    assert offsets.snapshot().offsets == {"t@g": {0: 3, 1: 8}, "u@g": {5: 6}}


def test_an_entry_whose_key_is_damaged_is_taken_from_the_backup(tmp_path: Path) -> None:
    main = b'{"topicConfigTable":{"orderz":{"topicName":"orders","perm":4},"new":{}}}'
    backup = b'{"topicConfigTable":{"orders":{"topicName":"orders","perm":4}}}'
    config(tmp_path, "topics.json", main, backup)
    topics = stored_tables.load_topics(FILES, tmp_path).topics
    assert sorted(topics) == ["new", "orders"]
    assert topics["orders"].perm == 4


def test_a_quarantined_entry_gives_its_topics_permission(tmp_path: Path) -> None:
    main = {
        "closed": {"perm": 4, "topicSysFlag": 1 << 40},
        "damaged": {"perm": "r", "topicName": "damaged"},
        "wide": {"perm": 99, "topicSysFlag": 1 << 40},
        "usual": {"topicSysFlag": 1 << 40},
        "orderz": {"topicName": "orders", "perm": 2},
        "odd": 7,
        "sound": {"perm": 4},
    }
    config(tmp_path, "topics.json", dumps({"topicConfigTable": main}))
    table = stored_tables.load_topics(FILES, tmp_path)
    assert set(table.topics) == {"sound"}
    assert table.quarantined == {
        "closed": 4,
        "damaged": None,
        "wide": None,
        "usual": 6,
        "orderz": 2,
        "orders": 2,
        "odd": None,
    }


@pytest.mark.proves("broker.tables.closed-topics")
def test_an_older_entry_of_the_backup_does_not_open_a_topic(tmp_path: Path) -> None:
    bad = {"topicSysFlag": 1 << 40}
    main = {
        "closed": {"perm": 4, **bad},
        "unread": {"perm": "x", **bad},
        "orderz": {"topicName": "orders", "perm": 2},
        "other": {"topicName": "sound", "perm": 0},
        "sound": {"perm": 6},
    }
    names = ("closed", "unread", "orders", "other", "sound")
    backup = {name: {"perm": 6, "readQueueNums": 3} for name in names}
    folder = config(
        tmp_path,
        "topics.json",
        dumps({"topicConfigTable": main}),
        dumps({"topicConfigTable": backup}),
    )
    table = stored_tables.load_topics(FILES, tmp_path)
    perms = {name: table.topics[name].perm for name in names}
    assert perms == {"closed": 4, "unread": 6, "orders": 2, "other": 0, "sound": 6}
    assert table.topics["closed"].read_queue_count == 3
    assert table.quarantined == {}
    assert len(kept_aside(folder / "topics.json.quarantine")) == 4


@pytest.mark.proves("broker.tables.closed-topics")
def test_a_closed_topic_stays_closed_when_its_entry_is_quarantined(tmp_path: Path) -> None:
    root = tmp_path / "broker-a" / "store"
    bad = {"topicConfigTable": {"closed": {"perm": 4, "topicSysFlag": 1 << 40}}}
    folder = config(root, "topics.json", dumps(bad), dumps(bad))
    for _ in range(2):
        with LocalCluster(folder=tmp_path) as cluster:
            app = cluster.brokers[0].app
            assert app is not None
            found = app.tables.topics.table.get("closed")
            assert found is not None
            assert found.perm == 4
    stored = json.loads((folder / "topics.json").read_bytes())
    assert stored["topicConfigTable"]["closed"]["perm"] == 4


BAD_COUNT = {"retryMaxTimes": 1 << 40}


@pytest.mark.proves("broker.tables.closed-groups")
def test_a_quarantined_group_has_no_more_rights_than_its_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    groups = {
        "closed": {"consumeEnable": False, **BAD_COUNT},
        "as-text": {"consumeEnable": "false", **BAD_COUNT},
        "unread": {"consumeEnable": "?"},
        "odd": 7,
        "usual": BAD_COUNT,
        "alone": {"consumeBroadcastEnable": False, **BAD_COUNT},
        "orderz": {"groupName": "orders", "consumeEnable": False},
        "other": {"groupName": "sound", "consumeEnable": False},
        "sound": {},
        "bad\nname": {"consumeEnable": False},
        "TOOLS_CONSUMER": {"consumeEnable": False, **BAD_COUNT},
    }
    config(tmp_path, "subscriptionGroup.json", dumps({"subscriptionGroupTable": groups}))
    table = stored_tables.load_groups(FILES, tmp_path)
    Groups(table, RuntimeSettings(BrokerConfig()))
    found = {
        name: (group.consume_enable, group.consume_broadcast_enable)
        for name, group in table.groups.items()
        if name not in BUILT_IN_GROUPS or name == "TOOLS_CONSUMER"
    }
    assert found == {
        "closed": (False, True),
        "as-text": (False, True),
        "unread": (False, True),
        "odd": (False, False),
        "usual": (True, True),
        "alone": (True, False),
        "orderz": (False, True),
        "orders": (False, True),
        "other": (False, True),
        "sound": (True, True),
        "TOOLS_CONSUMER": (False, True),
    }
    said = [record.message for record in caplog.records if "'unread' is made" in record.message]
    assert len(said) == 1
    assert "consumeEnable=false" in said[0] and "updateSubGroup" in said[0]


@pytest.mark.proves("broker.tables.closed-groups")
def test_an_older_entry_of_the_backup_does_not_open_a_group(tmp_path: Path) -> None:
    main = {
        "closed": {"consumeEnable": False, **BAD_COUNT},
        "unread": {"consumeEnable": "?"},
        "orderz": {"groupName": "orders", "consumeEnable": False},
        "sound": {},
    }
    backup = {name: {"retryMaxTimes": 3} for name in ("closed", "unread", "orders", "sound")}
    config(
        tmp_path,
        "subscriptionGroup.json",
        dumps({"subscriptionGroupTable": main}),
        dumps({"subscriptionGroupTable": backup}),
    )
    groups = stored_tables.load_groups(FILES, tmp_path).groups
    assert {name: group.consume_enable for name, group in groups.items()} == {
        "closed": False,
        "unread": True,
        "orders": False,
        "orderz": False,
        "sound": True,
    }
    assert groups["closed"].retry_count_max == 3


@pytest.mark.proves("broker.tables.closed-groups")
def test_a_quarantined_prohibition_stays_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forbidden: dict[str, object] = {
        "g": {"kept": 4, "text": "x", "wide": 1 << 40, "no": None},
        "unnamed": {"\x01": 4},
        "odd": 7,
    }
    groups: dict[str, object] = {"g": {}, "unnamed": {}, "odd": {}}
    content = {"subscriptionGroupTable": groups, "forbiddenTable": forbidden}
    folder = config(tmp_path, "subscriptionGroup.json", dumps(content))
    table = stored_tables.load_groups(FILES, tmp_path)
    assert table.forbidden_table() == {"g": {"kept": 4, "text": 4, "wide": 4}}
    # The forbidden topics are unknown, so the group reads none until an operator allows it.
    assert {name: group.consume_enable for name, group in table.groups.items()} == {
        "g": True,
        "unnamed": False,
        "odd": False,
    }
    assert sum("consumeEnable=false" in record.message for record in caplog.records) == 2
    backup = {**content, "forbiddenTable": {"odd": {"t": 4}, "g": {"text": 0}}}
    config(tmp_path, "subscriptionGroup.json", dumps(content), dumps(backup))
    mended = stored_tables.load_groups(FILES, tmp_path)
    assert mended.forbidden_table()["odd"] == {"t": 4}
    assert mended.groups["odd"].consume_enable
    assert len(kept_aside(folder / "subscriptionGroup.json.quarantine")) == 4


@pytest.mark.proves("broker.tables.closed-groups")
def test_a_closed_group_stays_closed_until_an_operator_opens_it(tmp_path: Path) -> None:
    root = tmp_path / "broker-a" / "store"
    bad = {"subscriptionGroupTable": {"closed": {"consumeEnable": False, **BAD_COUNT}}}
    config(root, "subscriptionGroup.json", dumps(bad), dumps(bad))
    for _ in range(2):
        with LocalCluster(folder=tmp_path) as cluster:
            broker = Asker(cluster)
            broker.stored("orders")
            answer = broker.pull("orders", 0, consumerGroup="closed")
            assert answer.code == ResponseCode.NO_PERMISSION
    with LocalCluster(folder=tmp_path) as cluster:
        Asker(cluster).make_group("closed")
    with LocalCluster(folder=tmp_path) as cluster:
        answer = Asker(cluster).pull("orders", 0, consumerGroup="closed")
        assert answer.code == ResponseCode.SUCCESS


def test_a_file_that_does_not_parse_at_all_is_still_refused(tmp_path: Path) -> None:
    config(tmp_path, "topics.json", b'{"topicConfigTable":{', b"[]")
    with pytest.raises(StateFileDamaged):
        stored_tables.load_topics(FILES, tmp_path)


def test_a_start_that_cannot_keep_an_entry_aside_leaves_the_file_alone(tmp_path: Path) -> None:
    folder = config(tmp_path, "consumerOffset.json", BAD_OFFSETS)

    class Full(FileSystem):
        def fsync(self, fd: int) -> None:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        stored_tables.load_consumer_offsets(Full(), tmp_path)
    assert (folder / "consumerOffset.json").read_bytes() == BAD_OFFSETS


@pytest.mark.proves("broker.tables.quarantine")
def test_a_nameserver_starts_with_a_bad_entry_in_its_kv_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b'{"configTable":{"n":{"k":"v","x":[]},"m":7}}')
    settings = NameServerConfig(
        listen_port=0,
        kv_config_path=path,
        config_store_path=tmp_path / "namesrv.properties",
        metrics_exporter=MetricsExporter.DISABLE,
    )

    async def scenario() -> dict[str, str]:
        server = NameServer(settings, clock=ManualClock())
        await server.start()
        try:
            return dict(server._kv.namespace("n") or {})
        finally:
            await server.stop()

    assert asyncio.run(scenario()) == {"k": "v"}
    assert kept_aside(tmp_path / "kvConfig.json.quarantine") == [
        (["configTable", "n", "x"], []),
        (["configTable", "m"], 7),
    ]
    assert "configTable.n.x" in caplog.text

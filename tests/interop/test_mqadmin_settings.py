"""Apache's ``mqadmin`` sets, shows, exports and cleans: lists, settings, KV entries, files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contrail.model import fastjson
from contrail.testing import eventually
from tests.interop.mqadmin import CLUSTER_NAME, MqAdmin, new_topic, route_rows
from tests.interop.target import TARGET, Broker, Cluster, open_cluster

SEGMENT_BYTES = 256 << 10
LONG_AGO_S = 400 * 3600
# Commands of parts that are not built.
NOT_BUILT = (
    ("listAcl", "-b", "ADDRESS"),
    ("checkRocksdbCqWriteProgress", "-c", CLUSTER_NAME),
)


@pytest.fixture(scope="module")
def store_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(store_folders: Path) -> Iterator[Cluster]:
    small = {"mappedFileSizeCommitLog": str(SEGMENT_BYTES)}
    with open_cluster(store_folders, properties=small) as running:
        yield running


@pytest.fixture(scope="module")
def mqadmin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with MqAdmin(cluster.namesrv, tmp_path_factory.mktemp("mqadmin")) as admin:
        yield admin


@pytest.fixture
def broker(cluster: Cluster) -> Broker:
    return cluster.brokers[0]


def _exported(printed: str, folder: Path, name: str) -> Any:
    assert f"export {folder}/{name} success" in printed
    return fastjson.loads((folder / name).read_text())


def _settings(printed: str) -> dict[str, str]:
    """The ``name =  value`` lines of the commands that show settings."""
    return dict(re.findall(r"^(\w+) *= +(.*?) *$", printed, re.MULTILINE))


def test_update_topic_list_creates_every_topic_of_a_file(
    cluster: Cluster, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    file = tmp_path / "topics.json"
    topics = [
        {"topicName": name, "readQueueNums": 3, "writeQueueNums": 2, "perm": 6}
        for name in ("ListedA", "ListedB")
    ]
    file.write_bytes(fastjson.dumps(topics))
    printed = mqadmin.run("updateTopicList", "-c", CLUSTER_NAME, "-f", str(file))
    for broker in cluster.brokers:
        assert f"submit batch of topic config to {broker.address} success" in printed
    expected = [["3", "2", "6"]] * len(cluster.brokers)
    for name in ("ListedA", "ListedB"):
        eventually(lambda name=name: [r[3:] for r in route_rows(mqadmin, name)] == expected)


def test_update_sub_group_list_creates_every_group_of_a_file(
    cluster: Cluster, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    file = tmp_path / "groups.json"
    groups = [{"groupName": f"Listed{letter}", "retryMaxTimes": 7} for letter in "AB"]
    file.write_bytes(fastjson.dumps(groups))
    printed = mqadmin.run("updateSubGroupList", "-c", CLUSTER_NAME, "-f", str(file))
    assert printed.count("submit batch of subscription group config to") == len(cluster.brokers)
    for letter in "AB":
        config = mqadmin.run("getConsumerConfig", "-g", f"Listed{letter}")
        assert len(re.findall(r"retryMaxTimes += +7\b", config)) == len(cluster.brokers)


@pytest.mark.parametrize("mode", ["PULL", "POP"])
def test_set_consume_mode_says_how_a_group_consumes(
    cluster: Cluster, mqadmin: MqAdmin, mode: str
) -> None:
    topic = new_topic(mqadmin, "Moded")
    mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", "Movers")
    words = ("-t", topic, "-g", "Movers", "-m", mode, "-q", "2")
    printed = mqadmin.run("setConsumeMode", "-c", CLUSTER_NAME, *words)
    for broker in cluster.brokers:
        assert f"set consume mode to {broker.address} success." in printed
    assert f"topic[{topic}] group[Movers] consume mode[{mode}] popShareQueueNum[2]" in printed


def test_set_consume_mode_of_an_unknown_topic_says_so(broker: Broker, mqadmin: MqAdmin) -> None:
    words = ("-b", broker.address, "-t", "NobodyKnowsIt", "-g", "Pullers", "-m", "PULL")
    assert "CODE: 17" in mqadmin.run("setConsumeMode", *words)


@pytest.mark.proves("cli.administration.broker-side")
def test_update_broker_config_changes_a_setting(broker: Broker, mqadmin: MqAdmin) -> None:
    words = ("-b", broker.address, "-k", "defaultTopicQueueNums", "-v", "5")
    printed = mqadmin.run("updateBrokerConfig", *words)
    assert f"update broker config success, {broker.address}" in printed
    shown = _settings(mqadmin.run("getBrokerConfig", "-b", broker.address))
    assert shown["defaultTopicQueueNums"] == "5"


@pytest.mark.proves("cli.administration.broker-side")
@pytest.mark.skipif(TARGET == "apache", reason="Apache ignores names that it does not know")
@pytest.mark.parametrize(("name", "code"), [("nonsense", 1), ("storePathRootDir", 16)])
def test_update_broker_config_refuses_settings_that_are_not_in_its_list(
    broker: Broker, mqadmin: MqAdmin, name: str, code: int
) -> None:
    printed = mqadmin.run("updateBrokerConfig", "-b", broker.address, "-k", name, "-v", "/x")
    assert f"CODE: {code} " in printed
    assert name in printed


def test_topic_cluster_list_names_the_cluster(mqadmin: MqAdmin) -> None:
    topic = new_topic(mqadmin, "Somewhere")
    assert mqadmin.run("topicClusterList", "-t", topic).split() == [CLUSTER_NAME]


@pytest.mark.proves("cli.administration.broker-side")
def test_kv_entries_are_set_and_deleted(mqadmin: MqAdmin) -> None:
    place = ("-s", "ORDER_TOPIC_CONFIG", "-k", "Keyed")
    printed = mqadmin.run("updateKvConfig", *place, "-v", "broker-a:3")
    assert "create or update kv config to namespace success." in printed
    shown = mqadmin.run("updateOrderConf", "-t", "Keyed", "-m", "get")
    assert "orderConf=[broker-a:3]" in shown
    printed = mqadmin.run("deleteKvConfig", *place)
    assert "delete kv config from namespace success." in printed
    assert "CODE: 22" in mqadmin.run("updateOrderConf", "-t", "Keyed", "-m", "get")


@pytest.mark.proves("cli.administration.broker-side")
def test_order_settings_are_put_shown_in_routes_and_deleted(mqadmin: MqAdmin) -> None:
    topic = new_topic(mqadmin, "Ordered")
    mqadmin.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    words = ("-t", topic, "-m")
    printed = mqadmin.run("updateOrderConf", *words, "put", "-v", "broker-a:2;broker-b:1")
    assert f"update orderConf success. topic=[{topic}]" in printed
    route: Any = fastjson.loads(mqadmin.run("topicRoute", "-t", topic))
    assert route["orderTopicConf"] == "broker-a:2;broker-b:1"
    assert f"delete orderConf success. topic=[{topic}]" in mqadmin.run(
        "updateOrderConf", *words, "delete"
    )
    assert "CODE: 22" in mqadmin.run("updateOrderConf", *words, "get")


def test_name_server_settings_are_changed_and_shown(cluster: Cluster, mqadmin: MqAdmin) -> None:
    words = ("-k", "returnOrderTopicConfigToBroker", "-v", "false")
    printed = mqadmin.run("updateNamesrvConfig", *words)
    assert f"update name server config success![{cluster.namesrv}]" in printed
    shown = mqadmin.run("getNamesrvConfig")
    assert f"============{cluster.namesrv}============" in shown
    assert _settings(shown)["returnOrderTopicConfigToBroker"] == "false"
    mqadmin.run("updateNamesrvConfig", "-k", "returnOrderTopicConfigToBroker", "-v", "true")


@pytest.mark.proves("cli.administration.broker-side")
def test_export_metadata_writes_the_topics_and_groups_of_the_cluster(
    mqadmin: MqAdmin, tmp_path: Path
) -> None:
    topic = new_topic(mqadmin, "Exported")
    mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", "Exporters", "-r", "9")
    printed = mqadmin.run("exportMetadata", "-c", CLUSTER_NAME, "-f", str(tmp_path))
    whole = _exported(printed, tmp_path, "metadata.json")
    # The command adds up the queues of all brokers.
    assert whole["topicConfigTable"][topic]["readQueueNums"] == 8
    assert "TBW102" not in whole["topicConfigTable"]
    assert whole["subscriptionGroupTable"]["Exporters"]["retryMaxTimes"] == 9
    assert "TOOLS_CONSUMER" not in whole["subscriptionGroupTable"]


def test_export_metadata_of_one_broker_writes_topics_or_groups(
    broker: Broker, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    topic = new_topic(mqadmin, "ExportedHere")
    words = ("-b", broker.address, "-f", str(tmp_path))
    topics = _exported(mqadmin.run("exportMetadata", *words, "-t"), tmp_path, "topic.json")
    assert topics["topicConfigTable"][topic]["readQueueNums"] == 4
    printed = mqadmin.run("exportMetadata", *words, "-g")
    assert "subscriptionGroupTable" in _exported(printed, tmp_path, "subscriptionGroup.json")


def test_export_configs_writes_the_settings_of_every_broker(
    cluster: Cluster, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    printed = mqadmin.run("exportConfigs", "-c", CLUSTER_NAME, "-f", str(tmp_path))
    whole = _exported(printed, tmp_path, "configs.json")
    scale = {"namesrvSize": 1, "masterBrokerSize": 2, "slaveBrokerSize": 0}
    assert whole["clusterScale"] == scale
    names = {broker.name for broker in cluster.brokers}
    assert {one["brokerName"] for one in whole["brokerConfigs"].values()} == names
    assert {one["maxMessageSize"] for one in whole["brokerConfigs"].values()} == {"4194304"}


def test_export_metrics_writes_the_counts_of_every_broker(
    cluster: Cluster, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    printed = mqadmin.run("exportMetrics", "-c", CLUSTER_NAME, "-f", str(tmp_path))
    whole = _exported(printed, tmp_path, "metrics.json")
    assert set(whole["evaluateReport"]) == {broker.name for broker in cluster.brokers}
    for report in whole["evaluateReport"].values():
        quota = report["runtimeQuota"]
        assert 0 < float(quota["diskRatio"]["commitLogDiskRatio"]) < 1
        assert quota["topicSize"] >= 0
        assert float(quota["messageAverageSize"]) >= 0
    assert whole["totalData"]["totalTps"]["totalNormalInTps"] >= 0


@pytest.mark.proves("cli.administration.broker-side")
@pytest.mark.skipif(TARGET == "apache", reason="Apache removes files in its next round")
def test_expired_segments_and_their_derived_files_are_removed_on_request(
    broker: Broker, mqadmin: MqAdmin, store_folders: Path
) -> None:
    # The producer compresses bodies larger than 4 KiB.
    mqadmin.run("sendMsgStatus", "-b", broker.name, "-s", "4000", "-c", "250")
    segments = sorted((store_folders / broker.name / "store" / "commitlog").iterdir())
    assert len(segments) > 3
    then = time.time() - LONG_AGO_S
    for segment in segments[:2]:
        os.utime(segment, (then, then))
    assert mqadmin.run("deleteExpiredCommitLog", "-b", broker.address).strip() == "success"
    eventually(lambda: not segments[1].exists())
    assert segments[2].exists()
    assert mqadmin.run("cleanExpiredCQ", "-b", broker.address).strip() == "success"
    (row,) = [row for row in mqadmin.rows("topicStatus", "-t", broker.name) if len(row) == 6]
    assert 0 < int(row[2]) < int(row[3]) == 251
    status = mqadmin.run("brokerStatus", "-b", broker.address)
    (low,) = re.findall(r"commitLogMinOffset *: (\d+)", status)
    assert int(low) == 2 * SEGMENT_BYTES


def test_cleaning_the_whole_cluster_leaves_used_files(mqadmin: MqAdmin) -> None:
    topic = new_topic(mqadmin, "StillUsed")
    mqadmin.rows("sendMessage", "-t", topic, "-p", "keep me", "-b", "broker-b", "-i", "1")
    for command in ("cleanExpiredCQ", "deleteExpiredCommitLog", "cleanUnusedTopic"):
        assert mqadmin.run(command, "-c", CLUSTER_NAME).strip() == "success"
    printed = mqadmin.run("queryMsgByOffset", "-t", topic, "-b", "broker-b", "-i", "1", "-o", "0")
    assert re.search(rf"Topic: +{topic}\b", printed)


@pytest.mark.skipif(TARGET == "apache", reason="Apache serves these")
@pytest.mark.parametrize("words", NOT_BUILT, ids=lambda words: words[0])
def test_commands_of_missing_parts_are_refused_by_name(
    broker: Broker, mqadmin: MqAdmin, words: tuple[str, ...]
) -> None:
    addressed = [broker.address if word == "ADDRESS" else word for word in words]
    printed = mqadmin.run(*addressed)
    assert re.search(r"CODE: 3  DESC: request code \d+ \([A-Z_]+\) is not served here", printed)

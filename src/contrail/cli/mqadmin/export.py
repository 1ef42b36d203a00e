"""Settings and figures of a cluster as JSON files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from contrail.cli.mqadmin.choosing import masters_of
from contrail.cli.mqadmin.options import Call, Command, may, need, switch
from contrail.cli.mqadmin.stats import day_count, stat_item
from contrail.client.admin_values import BrokerRuntime
from contrail.client.blocking.admin import Admin
from contrail.clock import SystemClock
from contrail.errors import ConfigError
from contrail.model import fastjson
from contrail.model.group import PREDEFINED_GROUPS, SubscriptionGroupConfig, is_system_group
from contrail.model.topic import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TopicConfig,
    is_system_topic,
)
from contrail.protocol.bodies.groups import decode_group_table
from contrail.protocol.bodies.tables import TopicList
from contrail.protocol.client_versions import client_version_name
from contrail.protocol.codes import RequestCode

_EXPORTED_SETTINGS = (
    *("brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime"),
    *("filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel"),
    *("msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS"),
    *("autoCreateTopicEnable", "autoCreateSubscriptionGroup"),
)
_CLUSTER = need("c", "clusterName", "the cluster")
_PERM_MAX = 7


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / "rocketmq" / "export"


def _file_option(name: str) -> str:
    return f"folder for {name} (rocketmq/export in the folder for temporary files)"


def _write(call: Call, name: str, document: Mapping[str, object]) -> None:
    path = (Path(call.text("f")) if call.has("f") else _folder()) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fastjson.dumps(document))
    except OSError as error:
        raise ConfigError(f"-f: {path} cannot be written: {error}") from error
    print(f"export {path} success")


def export_metadata(call: Call, admin: Admin) -> None:
    if call.has("b"):
        addresses = [call.text("b")]
    else:
        addresses = [one.address for one in masters_of(admin, call.text("c"))]
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    for address in addresses:
        for name, topic in _topics(admin, address, with_special=call.has("s")).items():
            topics[name] = _joined(topics.get(name), topic)
        for name, group in _groups(admin, address).items():
            known = groups[name].retry_queue_count if name in groups else 0
            groups[name] = replace(group, retry_queue_count=known + group.retry_queue_count)
    topic_table: dict[str, object] = {
        "topicConfigTable": {name: one.to_fields() for name, one in topics.items()}
    }
    group_table: dict[str, object] = {
        "subscriptionGroupTable": {name: one.to_fields() for name, one in groups.items()}
    }
    exported: dict[str, object] = {"exportTime": SystemClock().now_ms()}
    if call.has("t"):
        _write(call, "topic.json", topic_table | exported)
    elif call.has("g"):
        _write(call, "subscriptionGroup.json", group_table | exported)
    else:
        _write(call, "metadata.json", topic_table | group_table | exported)


def _joined(known: TopicConfig | None, topic: TopicConfig) -> TopicConfig:
    """A topic on several brokers has the sum of their queues."""
    if known is None:
        return topic
    return replace(
        topic,
        read_queue_count=known.read_queue_count + topic.read_queue_count,
        write_queue_count=known.write_queue_count + topic.write_queue_count,
    )


def _topics(admin: Admin, address: str, *, with_special: bool) -> dict[str, TopicConfig]:
    """A broker's topics without the system's; retries and dead letters if asked for."""
    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    hidden = set(TopicList.decode(admin.ask_broker(address, code).body).topics)
    special = () if with_special else (RETRY_PREFIX, DLQ_PREFIX)
    return {
        name: config
        for name, config in admin.topic_configs(address).items()
        if name not in hidden and not is_system_topic(name) and not name.startswith(special)
        if 0 <= config.perm <= _PERM_MAX
    }


def _groups(admin: Admin, address: str) -> dict[str, SubscriptionGroupConfig]:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    found = decode_group_table(admin.ask_broker(address, code).body)
    return {
        name: config
        for name, config in found.items()
        if name not in PREDEFINED_GROUPS and not is_system_group(name)
    }


def export_configs(call: Call, admin: Admin) -> None:
    brokers = admin.brokers(cluster=call.text("c"))
    masters = [one for one in brokers if one.is_master]
    configs = {}
    for one in masters:
        settings = admin.broker_config(one.address)
        configs[one.broker_name] = {
            name: settings[name] for name in _EXPORTED_SETTINGS if name in settings
        }
    scale = {
        "namesrvSize": len(admin.name_servers),
        "masterBrokerSize": len(masters),
        "slaveBrokerSize": len(brokers) - len(masters),
    }
    _write(call, "configs.json", {"brokerConfigs": configs, "clusterScale": scale})


def export_metrics(call: Call, admin: Admin) -> None:
    report: dict[str, object] = {}
    all_rates: dict[str, float] = {}
    all_counts: dict[str, int] = {}
    for one in masters_of(admin, call.text("c")):
        runtime, groups = admin.broker_runtime(one.address), _groups(admin, one.address)
        rates, counts = _rates(admin, runtime)
        for name, rate in rates.items():
            total = f"total{name[0].upper()}{name[1:]}"
            all_rates[total] = all_rates.get(total, 0.0) + rate
        for name, count in counts.items():
            all_counts[name] = all_counts.get(name, 0) + count
        topics = _topics(admin, one.address, with_special=False)
        report[one.broker_name] = {
            "runtimeEnv": _environment(runtime, admin.broker_config(one.address)),
            "runtimeQuota": {
                "diskRatio": _values(runtime, "commitLogDiskRatio", "consumeQueueDiskRatio"),
                "tps": rates,
                "oneDayNum": counts,
                "messageAverageSize": runtime.values.get("putMessageAverageSize"),
                "topicSize": len(topics),
                "groupSize": len(groups),
            },
            "runtimeVersion": {
                "rocketmqVersion": runtime.version,
                "clientInfo": _clients(admin, groups),
            },
        }
    totals = {"totalTps": all_rates, "totalOneDayNum": all_counts}
    _write(call, "metrics.json", {"evaluateReport": report, "totalData": totals})


def _environment(runtime: BrokerRuntime, settings: Mapping[str, str]) -> dict[str, str | None]:
    return {
        "cpuNum": settings.get("clientCallbackExecutorThreads"),
        "totalMemKBytes": runtime.values.get("totalMemKBytes"),
    }


def _values(runtime: BrokerRuntime, *names: str) -> dict[str, str | None]:
    return {name: runtime.values.get(name) for name in names}


def _rates(admin: Admin, runtime: BrokerRuntime) -> tuple[dict[str, float], dict[str, int]]:
    """A broker's messages in and out: per second, and in the last whole day."""
    name = runtime.broker.address
    half = stat_item(admin, name, "TOPIC_PUT_NUMS", HALF_TOPIC)
    delayed = stat_item(admin, name, "TOPIC_PUT_NUMS", SCHEDULE_TOPIC)
    rates = {
        "normalInTps": runtime.put_per_second,
        "normalOutTps": runtime.get_per_second,
        "transInTps": half.minute.per_second if half else 0.0,
        "scheduleInTps": delayed.minute.per_second if delayed else 0.0,
    }
    counts = {
        "normalOneDayInNum": runtime.put_count_yesterday,
        "normalOneDayOutNum": runtime.get_count_yesterday,
        "transOneDayInNum": day_count(half) if half else 0,
        "scheduleOneDayInNum": day_count(delayed) if delayed else 0,
    }
    return rates, counts


def _clients(admin: Admin, groups: Mapping[str, SubscriptionGroupConfig]) -> list[str]:
    members = [
        one
        for group in groups
        for one in admin.group_connections(group, allow_partial=True).connections
    ]
    return sorted({f"{one.language}%{client_version_name(one.version)}" for one in members})


COMMANDS = (
    Command(
        "exportMetadata",
        "Topics and groups of a cluster, or of a broker, as JSON.",
        export_metadata,
        (
            may("c", "clusterName", "all masters of this cluster"),
            may("b", "brokerAddr", "this broker only"),
            may("f", "filePath", _file_option("metadata.json")),
            switch("t", "topic", "topics only, in topic.json"),
            switch("g", "subscriptionGroup", "groups only, in subscriptionGroup.json"),
            switch("s", "specialTopic", "retry and dead-letter topics too"),
        ),
        (106, 21, 305, 201),
        any_of=("b", "c"),
    ),
    Command(
        "exportConfigs",
        "The main settings of a cluster's brokers, as JSON.",
        export_configs,
        (_CLUSTER, may("f", "filePath", _file_option("configs.json"))),
        (106, 26),
    ),
    Command(
        "exportMetrics",
        "Rates, sizes and client versions of a cluster, as JSON.",
        export_metrics,
        (_CLUSTER, may("f", "filePath", _file_option("metrics.json"))),
        (106, 28, 26, 201, 21, 305, 315, 203),
    ),
)

"""Config files are carried between Contrail and Apache RocketMQ, and nothing is lost or changed.

We write the five files; the classes of Apache's broker that own them load them and write them
anew; we load those. Every field that Apache holds in between is compared as well.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from contrail.model.data_version import DataVersion
from contrail.model.fastjson import JsonValue
from contrail.model.group import (
    BUILT_IN_GROUPS,
    CUSTOMIZED,
    EXPONENTIAL,
    TRANSACTION_GROUP,
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from contrail.model.topic import TopicConfig
from contrail.runtime.files import FileSystem
from contrail.store.config_files import (
    CONFIG_FOLDER,
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    GROUPS,
    TOPICS,
    ConfigFile,
    ConsumerFilter,
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupTable,
    TopicTable,
)
from tests.interop.peers import JavaPeer, java_peer

SEED = int(os.environ.get("CONTRAIL_INTEROP_SEED", "20240229"))
PEERS = ("apache-5-broker", "apache-5-fastjson-1-broker", "apache-4-broker")
# Their `load` and `save` are the `load_topics`, `save_topics` and so on that the broker calls.
FILES: dict[str, ConfigFile[Any]] = {
    file.name: file for file in (TOPICS, GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS, CONSUMER_FILTERS)
}
RUN_TIMEOUT_S = 240

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
# Apache forgets all filters unless their bits fit the bloom filter it has when it runs alone.
BLOOM_BITS, BLOOM_HASHES = 216, 3
LONG_AGO_MS, FAR_AHEAD_MS = 1_500_000_000_000, 4_102_444_800_000
NEVER_DIED, DIED_LONG_AGO = "never-died", "died-long-ago"

TEXTS = (
    "plain",
    "",
    "  spaces  ",
    'say "no"',
    "back\\slash /",
    "it's",
    "a\tb\nc\r\x00\x1f\x7f",
    "größe é",
    "東京",
    "🚀 \U0010ffff",
    "\u2028\u2029\u200b\ufeff",
    "{0:1,'a':[2]}",
    "$ref",
    "123",
    "true",
    "null",
)
# Fields that 4.9 lacks.
UNKNOWN_TO_4 = {
    "attributes",
    "consumeMessageOrderly",
    "consumeTimeoutMinute",
    "forbiddenTable",
    "groupRetryPolicy",
    "groupSysFlag",
    "stateVersion",
    "subscriptionDataSet",
}
# 4.9 has no version of the offsets, and does not restore that of the groups: it has no setter.
UNVERSIONED_BY_4 = {CONSUMER_OFFSETS.name, DELAY_OFFSETS.name, GROUPS.name}

Tables = Mapping[str, Any]
Row = tuple[str, ...]


class TableMaker:
    """Tables from a seed, with the extremes of every field among them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def tables(self) -> Tables:
        return {
            "topics.json": self._topics(),
            "subscriptionGroup.json": self._groups(),
            "consumerOffset.json": self._consumer_offsets(),
            "delayOffset.json": self._delay_offsets(),
            "consumerFilter.json": self._filters(),
        }

    def _topics(self) -> TopicTable:
        names = [f"topic-{number}" for number in range(60)] + ["%RETRY%g|_-", "TBW102"]
        return TopicTable({name: self._topic(name) for name in names}, self._version())

    def _topic(self, name: str) -> TopicConfig:
        return TopicConfig(
            name,
            read_queue_count=self._count(),
            write_queue_count=self._count(),
            perm=self._random.randrange(16),
            filter_type=self._random.choice(["SINGLE_TAG", "MULTI_TAG"]),
            sys_flag=self._count(),
            order=self._flag(),
            attributes=self._attributes(),
        )

    def _groups(self) -> GroupTable:
        names = [f"group-{number}" for number in range(60)] + ["TOOLS_CONSUMER"]
        forbidden = {name: {f"topic-{n}": self._count() for n in range(3)} for name in names[:9]}
        return GroupTable({name: self._group(name) for name in names}, forbidden, self._version())

    def _group(self, name: str) -> SubscriptionGroupConfig:
        return SubscriptionGroupConfig(
            name,
            consume_enable=self._flag(),
            consume_from_min_enable=self._flag(),
            consume_broadcast_enable=self._flag(),
            consume_message_orderly=self._flag(),
            retry_queue_count=self._count(),
            retry_count_max=self._random.choice([-1, 0, 16, INT_MAX]),
            retry_policy=self._retry_policy(),
            broker_id=self._long(),
            broker_id_when_slow=self._long(),
            notify_consumer_ids_changed_enable=self._flag(),
            sys_flag=self._count(),
            consume_timeout_minutes=self._count(),
            subscriptions=self._subscriptions(),
            attributes=self._attributes(),
        )

    def _retry_policy(self) -> GroupRetryPolicy:
        delays = tuple(self._long() for _ in range(self._random.randint(1, 20)))
        exponential = ExponentialRetry(self._long(), self._long(), self._long())
        return GroupRetryPolicy(
            self._random.choice([CUSTOMIZED, EXPONENTIAL]),
            exponential if self._flag() else None,
            CustomizedRetry(delays) if self._flag() else None,
        )

    def _subscriptions(self) -> tuple[JsonValue, ...] | None:
        subscriptions: list[JsonValue] = [
            {
                "topic": f"topic-{number}",
                "expressionType": self._random.choice(["TAG", "SQL92"]),
                "expression": self._text(),
                "version": self._long(),
            }
            for number in range(self._random.choice([0, 0, 1, 5]))
        ]
        return tuple(subscriptions) or None

    def _consumer_offsets(self) -> ConsumerOffsetTable:
        keys = [f"topic-{n % 60}@group-{n // 60}" for n in range(200)] + ["%RETRY%g@g"]
        offsets = {key: self._numbers(range(self._random.choice([1, 4, 16]))) for key in keys}
        offsets["wide@group-0"] = self._numbers(range(5_000))
        offsets["sparse@group-0"] = self._numbers([0, 7, 1_000_000, INT_MAX])
        offsets["empty@group-0"] = {}
        return ConsumerOffsetTable(offsets, self._version())

    def _delay_offsets(self) -> DelayOffsetTable:
        return DelayOffsetTable(self._numbers([*range(1, 19), INT_MAX]), self._version())

    def _filters(self) -> ConsumerFilterTable:
        filters = {
            f"topic-{number}": {
                group: self._filter(f"topic-{number}", group)
                for group in ("living", "dead", "%RETRY%g|_-")
            }
            for number in range(20)
        }
        never_died, died_long_ago = filters["topic-0"]["living"], filters["topic-0"]["dead"]
        filters["special"] = {
            NEVER_DIED: replace(never_died, topic="special", group=NEVER_DIED, dead_time_ms=0),
            DIED_LONG_AGO: replace(
                died_long_ago,
                topic="special",
                group=DIED_LONG_AGO,
                born_time_ms=LONG_AGO_MS,
                dead_time_ms=LONG_AGO_MS,
            ),
        }
        return ConsumerFilterTable(filters)

    def _filter(self, topic: str, group: str) -> ConsumerFilter:
        literal = self._text().replace("'", "''")
        born_time_ms = FAR_AHEAD_MS + self._random.randrange(2**50)
        dead_time_ms = self._random.choice([1, LONG_AGO_MS, FAR_AHEAD_MS, born_time_ms + 1])
        return ConsumerFilter(
            topic=topic,
            group=group,
            expression=f"colour = '{literal}' AND size BETWEEN 1 AND {self._count()}",
            born_time_ms=born_time_ms,
            dead_time_ms=dead_time_ms,
            client_version=self._long(),
            bloom_bit_count=BLOOM_BITS,
            bloom_bit_positions=tuple(self._random.sample(range(BLOOM_BITS), BLOOM_HASHES)),
        )

    def _numbers(self, keys: range | list[int]) -> dict[int, int]:
        return {key: self._long() for key in keys}

    def _attributes(self) -> dict[str, str]:
        known = {"queue.type": "BatchCQ", "message.type": "FIFO"} if self._flag() else {}
        # An object whose only key is `$ref` is a reference to fastjson, and to us.
        keys = self._random.sample([text for text in TEXTS if text != "$ref"], 3)
        return known | ({key: self._text() for key in keys} if self._flag() else {})

    def _version(self) -> DataVersion:
        return DataVersion(self._long(), self._long(), self._long())

    def _text(self) -> str:
        return "".join(self._random.choices(TEXTS, k=self._random.randint(1, 3)))

    def _count(self) -> int:
        return self._random.choice([0, 1, 8, 1024, INT_MAX])

    def _long(self) -> int:
        return self._random.choice([0, 1, -1, 2**31, 2**53 + 1, LONG_MAX, -LONG_MAX - 1])

    def _flag(self) -> bool:
        return self._random.random() < 0.5


@dataclass(frozen=True, slots=True)
class Carried:
    """Our files, the fields Apache had of them in memory, and the folder Apache wrote."""

    peer: JavaPeer
    written: Tables
    rows: Mapping[str, list[Row]]
    root: Path


@pytest.fixture(scope="module", params=PEERS)
def carried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Carried:
    peer = java_peer(request.param)
    folder = tmp_path_factory.mktemp(peer.name)
    ours, apaches = folder / "ours", folder / "apaches"
    written = TableMaker(SEED).tables()
    for name, table in written.items():
        FILES[name].save(FileSystem(), ours, table)
    (apaches / CONFIG_FOLDER).mkdir(parents=True)
    arguments = [str(ours / CONFIG_FOLDER), str(apaches / CONFIG_FOLDER)]
    peer.run("ConfigCarrier", arguments, home=folder / "home", timeout_s=RUN_TIMEOUT_S)
    return Carried(peer, written, _read_rows(apaches / CONFIG_FOLDER / "fields.tsv"), apaches)


@pytest.mark.proves("store.carried.config-files")
@pytest.mark.parametrize("name", FILES)
def test_apache_loads_every_field_of_our_files(carried: Carried, name: str) -> None:
    loaded = _as_loaded(carried.written[name], carried.peer)
    found, expected = carried.rows[name], list(_flatten(_apaches_fields(loaded)))
    if carried.peer.major == 4:
        found = [row for row in found if not _is_unversioned_by_4(name, row)]
        expected = [row for row in expected if not _is_unknown_to_4(name, row)]
    assert sorted(found) == sorted(expected), f"seed {SEED}"


@pytest.mark.proves("store.carried.config-files")
@pytest.mark.parametrize("name", FILES)
def test_we_load_the_files_that_apache_wrote_of_them(carried: Carried, name: str) -> None:
    expected = _without_forgotten(_as_loaded(carried.written[name], carried.peer))
    read = FILES[name].load(FileSystem(), carried.root, set_aside=False)
    assert read.source == "main"
    found = _in_order(read.value)
    if carried.peer.major == 4:
        expected = _without_what_is_unknown_to_4(expected)
        if name in UNVERSIONED_BY_4:
            found = replace(found, data_version=DataVersion())
    assert found == expected, f"seed {SEED}"


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayOffset.json"])
def test_apache_writes_keys_that_are_numbers_without_quotes(carried: Carried, name: str) -> None:
    data = (carried.root / CONFIG_FOLDER / name).read_bytes()
    keys = [row[-2] for row in carried.rows[name] if row[0] == "offsetTable"]
    numbers = sorted(key for key in keys if key.isdigit())
    assert sorted(re.findall(r"[{,]\s*([0-9]+):", data.decode())) == numbers != []
    assert not re.search(rb'"[0-9]+"\s*:', data)
    with pytest.raises(json.JSONDecodeError):
        json.loads(data)


def _read_rows(path: Path) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {name: [] for name in FILES}
    for line in path.read_bytes().decode().split("\n")[:-1]:
        name, *row = line.split("\t")
        # Tables that live in memory only; releases differ in having them.
        if row not in (["resetOffsetTable", "{}"], ["pullOffsetTable", "{}"]):
            rows[name].append(tuple(row))
    return rows


def _as_loaded(table: Any, peer: JavaPeer) -> Any:
    """The table as Apache has it after loading: it adds groups, and takes consumers for dead."""
    if isinstance(table, GroupTable):
        names = set(BUILT_IN_GROUPS) - ({TRANSACTION_GROUP} if peer.major == 4 else set())
        built_in = {name: SubscriptionGroupConfig(name) for name in names}
        return replace(table, groups=built_in | dict(table.groups))
    if isinstance(table, ConsumerFilterTable):
        never_died = table.filters["special"][NEVER_DIED]
        dead = replace(never_died, dead_time_ms=never_died.born_time_ms)
        special = dict(table.filters["special"]) | {NEVER_DIED: dead}
        return replace(table, filters=dict(table.filters) | {"special": special})
    return table


def _without_forgotten(table: Any) -> Any:
    """Apache does not write the filters of consumers that have been dead for a day."""
    if not isinstance(table, ConsumerFilterTable):
        return table
    special = {NEVER_DIED: table.filters["special"][NEVER_DIED]}
    return replace(table, filters=dict(table.filters) | {"special": special})


def _without_what_is_unknown_to_4(table: Any) -> Any:
    if isinstance(table, TopicTable):
        topics = {name: replace(topic, attributes={}) for name, topic in table.topics.items()}
        version = replace(table.data_version, state_version=0)
        return replace(table, topics=topics, data_version=version)
    if isinstance(table, GroupTable):
        groups = {name: _group_of_4(group) for name, group in table.groups.items()}
        return replace(table, groups=groups, forbidden={}, data_version=DataVersion())
    if isinstance(table, (ConsumerOffsetTable, DelayOffsetTable)):
        return replace(table, data_version=DataVersion())
    return table


def _group_of_4(group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    return replace(
        group,
        consume_message_orderly=False,
        retry_policy=GroupRetryPolicy(),
        sys_flag=0,
        consume_timeout_minutes=15,
        subscriptions=None,
        attributes={},
    )


def _is_unknown_to_4(name: str, row: Row) -> bool:
    return bool(UNKNOWN_TO_4.intersection(row)) or _is_unversioned_by_4(name, row)


def _is_unversioned_by_4(name: str, row: Row) -> bool:
    return name in UNVERSIONED_BY_4 and row[0] == "dataVersion"


def _in_order(table: Any) -> Any:
    """Subscriptions are a set to Apache and come back in any order; ours are by topic."""
    if not isinstance(table, GroupTable):
        return table
    groups = {
        name: replace(group, subscriptions=_by_topic(group.subscriptions))
        for name, group in table.groups.items()
    }
    return replace(table, groups=groups)


def _by_topic(subscriptions: Any) -> Any:
    return subscriptions and tuple(sorted(subscriptions, key=lambda entry: str(entry["topic"])))


# Apache's field names, written down once more: compared names must not come from our encoder.


def _apaches_fields(table: Any) -> dict[str, Any]:
    if isinstance(table, ConsumerFilterTable):
        return {
            "filterDataByTopic": {
                topic: {
                    "topic": topic,
                    "groupFilterData": {name: _filter(entry) for name, entry in groups.items()},
                }
                for topic, groups in table.filters.items()
            }
        }
    version = table.data_version
    fields: dict[str, Any] = {
        "dataVersion": {
            "stateVersion": version.state_version,
            "counter": version.counter,
            "timestamp": version.timestamp_ms,
        }
    }
    if isinstance(table, TopicTable):
        fields["topicConfigTable"] = {name: _topic(entry) for name, entry in table.topics.items()}
    elif isinstance(table, GroupTable):
        groups = {name: _group(entry) for name, entry in table.groups.items()}
        fields |= {"subscriptionGroupTable": groups, "forbiddenTable": table.forbidden}
    elif isinstance(table, ConsumerOffsetTable):
        fields["offsetTable"] = table.offsets
    else:
        fields["offsetTable"] = table.queue_offsets
    return fields


def _topic(topic: TopicConfig) -> dict[str, Any]:
    return {
        "topicName": topic.topic,
        "readQueueNums": topic.read_queue_count,
        "writeQueueNums": topic.write_queue_count,
        "perm": int(topic.perm),
        "topicFilterType": topic.filter_type,
        "topicSysFlag": topic.sys_flag,
        "order": topic.order,
        "attributes": topic.attributes,
    }


def _group(group: SubscriptionGroupConfig) -> dict[str, Any]:
    return {
        "groupName": group.group,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min_enable,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
        "consumeMessageOrderly": group.consume_message_orderly,
        "retryQueueNums": group.retry_queue_count,
        "retryMaxTimes": group.retry_count_max,
        "groupRetryPolicy": _retry_policy(group.retry_policy),
        "brokerId": group.broker_id,
        "whichBrokerWhenConsumeSlowly": group.broker_id_when_slow,
        "notifyConsumerIdsChangedEnable": group.notify_consumer_ids_changed_enable,
        "groupSysFlag": group.sys_flag,
        "consumeTimeoutMinute": group.consume_timeout_minutes,
        "subscriptionDataSet": group.subscriptions,
        "attributes": group.attributes,
    }


def _retry_policy(policy: GroupRetryPolicy) -> dict[str, Any]:
    exponential, customized = policy.exponential, policy.customized
    return {
        "type": policy.kind,
        "exponentialRetryPolicy": exponential
        and {
            "initial": exponential.initial_ms,
            "max": exponential.max_ms,
            "multiplier": exponential.multiplier,
        },
        "customizedRetryPolicy": customized and {"next": customized.delays_ms},
    }


def _filter(entry: ConsumerFilter) -> dict[str, Any]:
    return {
        "topic": entry.topic,
        "consumerGroup": entry.group,
        "expression": entry.expression,
        "expressionType": entry.expression_type,
        "bornTime": entry.born_time_ms,
        "deadTime": entry.dead_time_ms,
        "clientVersion": entry.client_version,
        "bloomFilterData": {"bitNum": entry.bloom_bit_count, "bitPos": entry.bloom_bit_positions},
    }


def _flatten(value: Any, path: Row = ()) -> Iterator[Row]:
    """One row for each value within, as ``ConfigCarrier`` writes them."""
    if isinstance(value, tuple):
        value = dict(enumerate(value)) or "[]"
    if isinstance(value, Mapping) and value:
        for key, child in value.items():
            yield from _flatten(child, (*path, _escape(str(key))))
    else:
        yield (*path, _escape(_java_text(value)))


def _java_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(text: str) -> str:
    for character, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(character, escaped)
    return text

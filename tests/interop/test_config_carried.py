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
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from contrail.model.topic import TopicConfig
from contrail.runtime.files import FileSystem
from contrail.store.config_files import (
    CONFIG_FOLDER,
    ConsumerFilter,
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupTable,
    TopicTable,
    load_consumer_filters,
    load_consumer_offsets,
    load_delay_offsets,
    load_groups,
    load_topics,
    save_consumer_filters,
    save_consumer_offsets,
    save_delay_offsets,
    save_groups,
    save_topics,
)
from tests.interop.peers import JavaPeer, java_peer

SEED = int(os.environ.get("CONTRAIL_INTEROP_SEED", "20240229"))
PEERS = ("apache-5-broker", "apache-5-fastjson-1-broker", "apache-4-broker")
LOADS: dict[str, Any] = {
    "topics.json": load_topics,
    "subscriptionGroup.json": load_groups,
    "consumerOffset.json": load_consumer_offsets,
    "delayOffset.json": load_delay_offsets,
    "consumerFilter.json": load_consumer_filters,
}
SAVES: dict[str, Any] = {
    "topics.json": save_topics,
    "subscriptionGroup.json": save_groups,
    "consumerOffset.json": save_consumer_offsets,
    "delayOffset.json": save_delay_offsets,
    "consumerFilter.json": save_consumer_filters,
}
RUN_TIMEOUT_S = 60

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
# Apache forgets all filters unless their bits fit the bloom filter it has when it runs alone.
BLOOM_BITS, BLOOM_HASHES = 216, 3
LONG_AGO_MS, FAR_AHEAD_MS = 1_500_000_000_000, 4_102_444_800_000

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
# What 4.9 has no field for.
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
UNVERSIONED_BY_4 = {"consumerOffset.json", "delayOffset.json"}

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
                group: self._filter(f"topic-{number}", group) for group in ("living", "dead", "g|%")
            }
            for number in range(20)
        }
        return ConsumerFilterTable(filters)

    def _filter(self, topic: str, group: str) -> ConsumerFilter:
        literal = self._text().replace("'", "''")
        born_time_ms = FAR_AHEAD_MS + self._random.randrange(2**50)
        dead_time_ms = self._random.choice([1, LONG_AGO_MS, FAR_AHEAD_MS, born_time_ms + 1])
        return ConsumerFilter(
            topic=topic,
            group=group,
            expression=f"colour = '{literal}' AND size BETWEEN 1 AND {self._random.getrandbits(31)}",
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
    """What we wrote, the fields Apache had of it in memory, and the folder it wrote."""

    peer: JavaPeer
    written: Tables
    rows: list[Row]
    root: Path


@pytest.fixture(scope="module", params=PEERS)
def carried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Carried:
    peer = java_peer(request.param)
    folder = tmp_path_factory.mktemp(peer.name)
    ours, apaches = folder / "ours", folder / "apaches"
    written = TableMaker(SEED).tables()
    for root in (ours, apaches):
        (root / CONFIG_FOLDER).mkdir(parents=True)
    for name, table in written.items():
        SAVES[name](FileSystem(), ours, table)
    arguments = [str(ours / CONFIG_FOLDER), str(apaches / CONFIG_FOLDER)]
    peer.run("ConfigCarrier", arguments, home=folder / "home", timeout_s=RUN_TIMEOUT_S)
    lines = (apaches / CONFIG_FOLDER / "fields.tsv").read_bytes().decode().split("\n")
    rows = [tuple(line.split("\t")) for line in lines if line]
    return Carried(peer, written, rows, apaches)


@pytest.mark.parametrize("name", LOADS)
def test_apache_loads_every_field_of_what_we_wrote(carried: Carried, name: str) -> None:
    table = _with_built_in(carried.written[name])
    expected = [(name, *row) for row in _flatten(_apaches_fields(table))]
    if carried.peer.major == 4:
        expected = [row for row in expected if _known_to_4(row)]
    found = [row for row in carried.rows if row[0] == name and not _is_unfilled_table(row)]
    assert sorted(found) == sorted(expected), f"seed {SEED}"


@pytest.mark.parametrize("name", LOADS)
def test_we_load_what_apache_wrote_of_it(carried: Carried, name: str) -> None:
    expected = _with_built_in(carried.written[name])
    if carried.peer.major == 4:
        expected = _as_kept_by_4(expected)
    found = LOADS[name](FileSystem(), carried.root, set_aside=False).value
    assert _in_order(found) == expected, f"seed {SEED}"


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayOffset.json"])
def test_apache_writes_keys_that_are_numbers_without_quotes(carried: Carried, name: str) -> None:
    data = (carried.root / CONFIG_FOLDER / name).read_bytes()
    count = sum(row[1] == "offsetTable" and row[-2].isdigit() for row in carried.rows_of(name))
    assert len(re.findall(rb"[{,]\s*[0-9]+:", data)) == count > 0
    assert not re.search(rb'"[0-9]+":', data)
    with pytest.raises(json.JSONDecodeError):
        json.loads(data)

"""The JSON files of the config folder: RocketMQ's shapes, kept whole through damage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import StateFileDamaged
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import loads
from contrail.model.group import (
    EXPONENTIAL,
    CustomizedRetry,
    ExponentialRetry,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from contrail.model.topic import QueueType, TopicConfig
from contrail.runtime.files import FileSystem
from contrail.store.config_files import (
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    GROUPS,
    TOPICS,
    ConfigFile,
    ConsumerFilter,
    ConsumerOffsetTable,
    DelayOffsetTable,
    load_consumer_filters,
    load_consumer_offsets,
    load_delay_offsets,
    load_groups,
    load_topics,
    offset_key,
    save_consumer_offsets,
)

GOLDEN = Path(__file__).parents[1] / "interop" / "golden" / "config"
ALL: list[ConfigFile[Any]] = [TOPICS, GROUPS, CONSUMER_OFFSETS, DELAY_OFFSETS, CONSUMER_FILTERS]
FILES = FileSystem()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store folder whose config files were written by RocketMQ."""
    (tmp_path / "config").mkdir()
    for golden in GOLDEN.iterdir():
        (tmp_path / "config" / golden.name).write_bytes(golden.read_bytes())
    return tmp_path


def each_file() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", ALL, ids=[file.name for file in ALL])


def test_topics_are_read_with_all_their_fields(root: Path) -> None:
    found = load_topics(FILES, root)
    assert (found.source, found.problem) == ("main", None)
    assert found.value is not None
    assert found.value.data_version == DataVersion(0, 3, 1_760_000_000_000)
    topics = found.value.topics
    assert topics["orders"] == TopicConfig("orders", 8, 8, attributes={"message.type": "FIFO"})
    assert topics["batches"] == TopicConfig(
        topic="batches",
        read_queue_count=1,
        write_queue_count=2,
        perm=4,
        filter_type="MULTI_TAG",
        sys_flag=1,
        order=True,
        attributes={"queue.type": "BatchCQ"},
    )
    assert topics["batches"].queue_type is QueueType.BATCH
    assert topics["orders-copy"].attributes == {"message.type": "FIFO"}
    assert topics["orders-copy"].unknown == {"futureSetting": {"depth": [1, 2]}}


def test_groups_are_read_with_all_their_fields(root: Path) -> None:
    table = load_groups(FILES, root).value
    assert table is not None
    assert table.data_version == DataVersion(2, 7, 1_760_000_000_001)
    assert table.forbidden == {"billing": {"orders": 2}}
    assert table.groups["billing"] == SubscriptionGroupConfig("billing")
    assert table.groups["audit"] == SubscriptionGroupConfig(
        group="audit",
        consume_enable=False,
        consume_from_min_enable=False,
        consume_broadcast_enable=False,
        consume_message_orderly=True,
        retry_queue_count=2,
        retry_count_max=3,
        retry_policy=GroupRetryPolicy(
            EXPONENTIAL, ExponentialRetry(100, 9000, 3), CustomizedRetry((1000, 2000))
        ),
        broker_id=1,
        broker_id_when_slow=2,
        notify_consumer_ids_changed_enable=False,
        sys_flag=4,
        consume_timeout_minutes=5,
        subscriptions=(
            {"expression": "*", "expressionType": "TAG", "topic": "orders", "version": 9},
        ),
        attributes={"owner": "ops"},
        unknown={"newerField": "kept"},
    )


def test_consumer_offsets_are_read_by_topic_group_and_queue(root: Path) -> None:
    table = load_consumer_offsets(FILES, root).value
    assert table is not None
    assert table.data_version == DataVersion(0, 12, 1_760_000_000_000)
    assert table.offsets == {
        offset_key("orders", "billing"): {0: 1042, 1: 998, 2: 2**63 - 1},
        "%RETRY%billing@billing": {0: 17},
    }


def test_delay_offsets_are_read_by_level(root: Path) -> None:
    table = load_delay_offsets(FILES, root).value
    assert table == DelayOffsetTable({3: 120, 4: 77}, DataVersion(0, 4, 1_760_000_000_000))


def test_consumer_filters_are_read_by_topic_and_group(root: Path) -> None:
    table = load_consumer_filters(FILES, root).value
    assert table is not None
    found = table.filters["orders"]["billing"]
    assert found == ConsumerFilter(
        topic="orders",
        group="billing",
        expression="region = 'eu' AND note <> 'say \"hi\"'",
        born_time_ms=1_760_000_000_000,
        client_version=1_760_000_000_001,
        bloom_bit_count=112,
        bloom_bit_positions=(3, 57, 91),
    )
    assert not found.dead


@each_file()
def test_a_rewritten_file_holds_every_field_that_was_there(
    file: ConfigFile[Any], root: Path
) -> None:
    before = loads((GOLDEN / file.name).read_bytes())
    file.save(FILES, root, file.load(FILES, root).value)
    path = root / "config" / file.name
    assert loads(path.read_bytes()) == before
    assert path.with_name(file.name + ".bak").read_bytes() == (GOLDEN / file.name).read_bytes()
    assert re.search(rb"[{,]\s*[0-9]+\s*:", path.read_bytes()) is None, "every key is quoted"


@pytest.mark.proves("store.files.config-files")
@each_file()
def test_quoted_and_bare_number_keys_read_the_same(file: ConfigFile[Any]) -> None:
    table = file.parse((GOLDEN / file.name).read_bytes())
    quoted = file.render(table)
    bare = re.sub(rb'"([0-9]+)":', rb"\1:", quoted)
    assert file.parse(quoted) == file.parse(bare) == table


@each_file()
def test_an_empty_table_comes_back_empty(file: ConfigFile[Any], tmp_path: Path) -> None:
    assert file.load(FILES, tmp_path).source == "none"
    empty = file.parse(b"{}")
    file.save(FILES, tmp_path, empty)
    assert file.load(FILES, tmp_path).value == empty


@pytest.mark.proves("store.files.config-files")
@each_file()
def test_a_file_torn_at_any_byte_falls_back_to_its_backup_and_says_so(
    file: ConfigFile[Any], root: Path
) -> None:
    table = file.load(FILES, root).value
    file.save(FILES, root, table)
    path = root / "config" / file.name
    full = path.read_bytes()
    for length in range(len(full)):
        path.write_bytes(full[:length])
        found = file.load(FILES, root)
        assert (found.value, found.source) == (table, "backup")
        assert file.name in (found.problem or "")


@each_file()
@pytest.mark.parametrize("content", [b"\x00" * 512, b"[]", b"null", b"{dataVersion:1}x"], ids=repr)
def test_a_file_that_was_overwritten_is_refused_when_there_is_no_backup(
    file: ConfigFile[Any], root: Path, content: bytes
) -> None:
    (root / "config" / file.name).write_bytes(content)
    with pytest.raises(StateFileDamaged, match=re.escape(file.name)):
        file.load(FILES, root)


@pytest.mark.parametrize(
    "content",
    [
        b'{"offsetTable":[]}',
        b'{"offsetTable":7}',
        b'["offsetTable"]',
        b'{"offsetTable":{"a@b":{0:7}}',
    ],
    ids=repr,
)
def test_offsets_of_another_shape_are_damage_not_zero(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_bytes(content)
    with pytest.raises(StateFileDamaged):
        load_consumer_offsets(FILES, tmp_path)


def test_the_groups_topics_are_written_beside_the_offsets(tmp_path: Path) -> None:
    offsets = {"b@g": {0: 1}, "a@g": {0: 2}, "odd": {0: 3}}
    save_consumer_offsets(FILES, tmp_path, ConsumerOffsetTable(offsets))
    written = loads((tmp_path / "config" / "consumerOffset.json").read_bytes())
    assert isinstance(written, dict)
    assert written["groupTopicMap"] == {"g": ["a", "b"]}
    found = load_consumer_offsets(FILES, tmp_path).value
    assert found is not None
    assert found.offsets == offsets

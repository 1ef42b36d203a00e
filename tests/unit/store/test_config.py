"""Settings under RocketMQ's names, and bad ones refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrail.errors import ConfigError
from contrail.store.config import FlushDiskType, StoreConfig, apache_name

ROOT = {"storePathRootDir": "data/store"}


def test_rocketmq_property_names_are_understood() -> None:
    config = StoreConfig.from_properties(
        {
            **ROOT,
            "mappedFileSizeCommitLog": "65536",
            "flushDiskType": "ASYNC_FLUSH",
            "enableConsumeQueueExt": "true",
            "storePathCommitLog": "disk1/log,disk2/log",
            "brokerName": "not the store's business",
        }
    )
    assert config.segment_bytes == 65536
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.queue_ext_enabled
    assert config.log_folders == (Path("disk1/log"), Path("disk2/log"))


def test_the_defaults_are_rocketmqs_but_for_the_flush() -> None:
    config = StoreConfig.from_properties(ROOT)
    assert config.segment_bytes == 1 << 30
    assert config.queue_file_bytes == 6_000_000
    assert (config.index_slot_count, config.index_entry_count) == (5_000_000, 20_000_000)
    assert config.body_bytes_max == 4 << 20
    assert config.log_folders == (Path("data/store/commitlog"),)
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert len(config.delay_table) == 19


def test_a_queue_file_size_is_rounded_up_to_whole_rows() -> None:
    config = StoreConfig.from_properties({**ROOT, "mappedFileSizeConsumeQueue": "1001"})
    assert config.queue_file_bytes == 1020


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mappedFileSizeCommitLog", "1GiB"),
        ("mappedFileSizeCommitLog", "100"),
        ("flushDiskType", "SOMETIMES"),
        ("enableConsumeQueueExt", "yes"),
        ("maxIndexNum", "1"),
        ("messageDelayLevel", "1s 5x"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name if name != "messageDelayLevel" else "5x"):
        StoreConfig.from_properties({**ROOT, name: value})


def test_a_store_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="storePathRootDir"):
        StoreConfig.from_properties({})


def test_every_setting_knows_its_rocketmq_name() -> None:
    assert apache_name("segment_bytes") == "mappedFileSizeCommitLog"


@pytest.mark.parametrize("text", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_flush_type_given_as_text_is_the_flush_type(text: str) -> None:
    config = StoreConfig(root=Path("data"), flush_disk_type=text)  # type: ignore[arg-type]
    assert config.flush_disk_type is FlushDiskType(text)
    assert config.syncs_before_ack is (text == "SYNC_FLUSH")


@pytest.mark.parametrize("value", ["sync", "", None, 1])
def test_an_unknown_flush_type_is_refused_naming_the_two_known_types(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"flushDiskType.*SYNC_FLUSH or ASYNC_FLUSH"):
        StoreConfig(root=Path("data"), flush_disk_type=value)


def test_folders_given_as_text_are_paths() -> None:
    settings: dict[str, Any] = {
        "root": "data",
        "commit_log_paths": ["a/log", Path("b/log")],
        "read_only_commit_log_paths": "c/log,d/log",
    }
    config = StoreConfig(**settings)
    assert config.root == Path("data")
    assert config.log_folders == (Path("a/log"), Path("b/log"))
    assert config.read_only_commit_log_paths == (Path("c/log"), Path("d/log"))
    assert StoreConfig(**{**settings, "commit_log_paths": Path("e")}).log_folders == (Path("e"),)


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("root", 7, "storePathRootDir"),
        ("commit_log_paths", 7, "storePathCommitLog"),
        ("segment_bytes", "65536", "mappedFileSizeCommitLog"),
        ("segment_bytes", True, "mappedFileSizeCommitLog"),
        ("clean_forcibly", "false", "cleanFileForciblyEnable"),
        ("delete_when", 4, "deleteWhen"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(field: str, value: Any, name: str) -> None:
    settings: dict[str, Any] = {"root": Path("data"), field: value}
    with pytest.raises(ConfigError, match=name):
        StoreConfig(**settings)


LOWEST = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueueExt": 24,
    "maxHashSlotNum": 1,
    "maxIndexNum": 2,
    "maxMsgsNumBatch": 1,
    "syncFlushTimeout": 1,
    "flushIntervalCommitLog": 1,
    "flushCommitLogLeastPages": 0,
    "flushCommitLogThoroughInterval": 1,
    "transientStorePoolSize": 1,
    "commitIntervalCommitLog": 1,
    "commitCommitLogLeastPages": 0,
    "commitCommitLogThoroughInterval": 1,
    "flushIntervalConsumeQueue": 1,
    "flushConsumeQueueThoroughInterval": 1,
    "maxMessageSize": 1,
    "fileReservedTime": 0,
    "deleteFileBatchMax": 1,
    "deleteCommitLogFilesInterval": 0,
    "cleanResourceInterval": 1,
    "diskMaxUsedSpaceRatio": 0,
    "diskSpaceCleanForciblyRatio": 0,
    "diskSpaceWarningLevelRatio": 0,
    "contrailScrubBytesPerSecond": 0,
    "contrailOpenFilesMax": 8,
}


@pytest.mark.parametrize(("name", "lowest"), LOWEST.items())
def test_a_number_below_its_lowest_value_is_refused_by_name(name: str, lowest: int) -> None:
    StoreConfig.from_properties({**ROOT, name: str(lowest)})
    with pytest.raises(ConfigError, match=f"{name}={lowest - 1} .*{lowest}"):
        StoreConfig.from_properties({**ROOT, name: str(lowest - 1)})


@pytest.mark.parametrize(
    ("name", "highest"),
    [
        ("mappedFileSizeCommitLog", (1 << 31) - 1),
        ("maxMessageSize", (1 << 31) - 1),
        ("maxIndexNum", (1 << 31) - 1),
        ("diskMaxUsedSpaceRatio", 100),
        ("diskSpaceCleanForciblyRatio", 100),
        ("diskSpaceWarningLevelRatio", 100),
    ],
)
def test_a_number_above_its_highest_value_is_refused_by_name(name: str, highest: int) -> None:
    StoreConfig.from_properties({**ROOT, name: str(highest)})
    with pytest.raises(ConfigError, match=f"{name}={highest + 1} .*{highest}"):
        StoreConfig.from_properties({**ROOT, name: str(highest + 1)})


@pytest.mark.parametrize("text", ["24", "four", "04,05", "-1"])
def test_an_illegal_hour_of_deletion_is_refused_when_the_settings_are_made(text: str) -> None:
    with pytest.raises(ConfigError, match="deleteWhen"):
        StoreConfig.from_properties({**ROOT, "deleteWhen": text})


def test_hours_of_deletion_are_separated_by_semicolons() -> None:
    assert StoreConfig(root=Path("data"), delete_when=" 0 ; 23 ;").delete_hours == {0, 23}

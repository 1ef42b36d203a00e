"""Settings under RocketMQ's names, and bad ones refused by name."""

from __future__ import annotations

from pathlib import Path

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

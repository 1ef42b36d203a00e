"""The store's settings: one frozen value, under RocketMQ's own property names too.

Sizes may be set freely, but a folder can be opened only with the sizes it was written with:
a segment's name is its start and its length is the configured one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from contrail.errors import ConfigError
from contrail.kernels.record_layout import BATCH_ROW_BYTES, QUEUE_ROW_BYTES
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, TIMER_DELAY_S_MAX, parse_delay_levels
from contrail.model.settings import names_of, parse_settings, require_sound, setting


class FlushDiskType(StrEnum):
    """When an append counts as stored."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


_I32_MAX = (1 << 31) - 1
# RocketMQ's wheel covers seven days of seconds and keeps a minute's slots free.
_ROLL_WINDOW_SLOTS_MAX = 7 * 86_400 - 60


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Every setting of the store room. Each field names its RocketMQ property."""

    root: Path = setting("storePathRootDir")
    commit_log_paths: tuple[Path, ...] = setting("storePathCommitLog", ())
    read_only_commit_log_paths: tuple[Path, ...] = setting("readOnlyCommitLogStorePaths", ())
    segment_bytes: int = setting("mappedFileSizeCommitLog", 1 << 30, lowest=4096, highest=_I32_MAX)
    queue_file_bytes: int = setting("mappedFileSizeConsumeQueue", 300_000 * QUEUE_ROW_BYTES)
    batch_queue_file_bytes: int = setting("mapperFileSizeBatchConsumeQueue", 300_000 * 46)
    queue_ext_enabled: bool = setting("enableConsumeQueueExt", False)
    # At least one unit and the mark that ends a file.
    queue_ext_file_bytes: int = setting("mappedFileSizeConsumeQueueExt", 48 << 20, lowest=24)
    index_enabled: bool = setting("messageIndexEnable", True)
    index_slot_count: int = setting("maxHashSlotNum", 5_000_000, lowest=1, highest=_I32_MAX)
    index_entry_count: int = setting("maxIndexNum", 20_000_000, lowest=2, highest=_I32_MAX)
    query_results_max: int = setting("maxMsgsNumBatch", 64, lowest=1)

    flush_disk_type: FlushDiskType = setting("flushDiskType", FlushDiskType.SYNC_FLUSH)
    sync_flush_timeout_ms: int = setting("syncFlushTimeout", 5000, lowest=1)
    flush_interval_ms: int = setting("flushIntervalCommitLog", 500, lowest=1)
    flush_pages_min: int = setting("flushCommitLogLeastPages", 4, lowest=0)
    flush_thorough_interval_ms: int = setting("flushCommitLogThoroughInterval", 10_000, lowest=1)
    transient_pool_enabled: bool = setting("transientStorePoolEnable", False)
    transient_pool_size: int = setting("transientStorePoolSize", 5, lowest=1)
    commit_interval_ms: int = setting("commitIntervalCommitLog", 200, lowest=1)
    commit_pages_min: int = setting("commitCommitLogLeastPages", 4, lowest=0)
    commit_thorough_interval_ms: int = setting("commitCommitLogThoroughInterval", 200, lowest=1)
    queue_flush_interval_ms: int = setting("flushIntervalConsumeQueue", 1000, lowest=1)
    queue_flush_thorough_interval_ms: int = setting(
        "flushConsumeQueueThoroughInterval", 60_000, lowest=1
    )
    segments_prepared_ahead: bool = setting("contrailPrepareSegments", True)

    body_bytes_max: int = setting("maxMessageSize", 4 << 20, lowest=1, highest=_I32_MAX)
    record_crc_enabled: bool = setting("enabledAppendPropCRC", False)
    record_crc_required: bool = setting("forceVerifyPropCRC", False)
    crc_checked_on_recover: bool = setting("checkCRCOnRecover", True)
    delay_levels: str = setting("messageDelayLevel", DEFAULT_DELAY_LEVELS)

    delay_offset_flush_ms: int = setting("flushDelayOffsetInterval", 10_000, lowest=100)
    timer_enabled: bool = setting("timerWheelEnable", True)
    timer_precision_ms: int = setting("timerPrecisionMs", 1000, lowest=1)
    timer_delay_s_max: int = setting("timerMaxDelaySec", TIMER_DELAY_S_MAX, lowest=1)
    timer_roll_window_slots: int = setting(
        "timerRollWindowSlot", 172_800, lowest=3, within=(3, _ROLL_WINDOW_SLOTS_MAX)
    )
    timer_log_file_bytes: int = setting("mappedFileSizeTimerLog", 100 << 20, lowest=4096)
    timer_flush_interval_ms: int = setting("timerFlushIntervalMs", 1000, lowest=10)

    file_reserved_hours: int = setting("fileReservedTime", 72, lowest=0)
    delete_when: str = setting("deleteWhen", "04")
    delete_files_max: int = setting("deleteFileBatchMax", 10, lowest=1)
    delete_interval_ms: int = setting("deleteCommitLogFilesInterval", 100, lowest=0)
    clean_interval_ms: int = setting("cleanResourceInterval", 10_000, lowest=1)
    clean_forcibly: bool = setting("cleanFileForciblyEnable", True)
    disk_used_ratio_max: int = setting(
        "diskMaxUsedSpaceRatio", 75, lowest=0, highest=100, within=(10, 95)
    )
    disk_clean_forcibly_ratio: int = setting(
        "diskSpaceCleanForciblyRatio", 85, lowest=0, highest=100, within=(30, 85)
    )
    disk_warning_ratio: int = setting(
        "diskSpaceWarningLevelRatio", 90, lowest=0, highest=100, within=(35, 90)
    )

    sound_ms: int = setting("contrailSoundFor", 60_000, lowest=0)
    scrub_bytes_per_second: int = setting("contrailScrubBytesPerSecond", 8 << 20, lowest=0)
    open_files_max: int = setting("contrailOpenFilesMax", 800, lowest=8)

    def __post_init__(self) -> None:
        require_sound(self)
        _require_whole(self.queue_file_bytes, QUEUE_ROW_BYTES, "mappedFileSizeConsumeQueue")
        _require_whole(
            self.batch_queue_file_bytes, BATCH_ROW_BYTES, "mapperFileSizeBatchConsumeQueue"
        )
        parse_delay_levels(self.delay_levels)
        parse_delete_hours(self.delete_when)
        _require(
            not (self.transient_pool_enabled and self.syncs_before_ack),
            "transientStorePoolEnable",
            "false with SYNC_FLUSH: records that wait in memory are not on the disk",
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Read RocketMQ's property names; properties that are not the store's are ignored."""
        values = parse_settings(cls, properties)
        if "queue_file_bytes" in values:
            # RocketMQ rounds mappedFileSizeConsumeQueue up to whole rows.
            values["queue_file_bytes"] = -(-values["queue_file_bytes"] // 20) * 20
        return cls(**values)

    @property
    def log_folders(self) -> tuple[Path, ...]:
        """The folders new segments may go to."""
        return self.commit_log_paths or (self.root / "commitlog",)

    @property
    def delay_table(self) -> list[int]:
        """Milliseconds per delay level; index 0 is unused."""
        return parse_delay_levels(self.delay_levels)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the day in which retention removes old segments."""
        return parse_delete_hours(self.delete_when)

    @property
    def record_crc_check(self) -> int:
        """How strictly record CRCs are checked: 0 not at all, 1 where present, 2 everywhere."""
        if self.record_crc_required:
            return 2
        return 1 if self.record_crc_enabled else 0

    @property
    def syncs_before_ack(self) -> bool:
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH


def apache_name(field_name: str) -> str:
    """The RocketMQ property behind a field of ``StoreConfig``."""
    fields = {field.name: field for field in dataclasses.fields(StoreConfig)}
    return str(fields[field_name].metadata["apache"])


def apache_names() -> frozenset[str]:
    """The RocketMQ properties that the store reads."""
    return names_of(StoreConfig)


def parse_delete_hours(text: str) -> frozenset[int]:
    """The hours of ``deleteWhen``: one or several, separated by semicolons.

    Raises:
        ConfigError: a piece is not an hour of the day.
    """
    pieces = [piece.strip() for piece in text.split(";") if piece.strip()]
    for piece in pieces:
        if not (piece.isdecimal() and int(piece) < 24):
            raise ConfigError(f"deleteWhen={text!r}: {piece!r} is not an hour from 00 to 23")
    return frozenset(int(piece) for piece in pieces)


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is out of range: it must be {rule}")


def _require_whole(value: int, row_bytes: int, name: str) -> None:
    _require(value >= row_bytes and value % row_bytes == 0, name, f"a multiple of {row_bytes}")

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
from typing import Any, Self

from contrail.errors import ConfigError
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels

_QUEUE_ROW_BYTES = 20
_BATCH_ROW_BYTES = 46


class FlushDiskType(StrEnum):
    """When an append counts as stored."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


_I32_MAX = (1 << 31) - 1
# The lowest and highest value of each number that has them.
_RANGES: dict[str, tuple[int, int | None]] = {
    "segment_bytes": (4096, _I32_MAX),
    # One unit and the mark that ends a file.
    "queue_ext_file_bytes": (24, None),
    "index_slot_count": (1, _I32_MAX),
    "index_entry_count": (2, _I32_MAX),
    "query_results_max": (1, None),
    "sync_flush_timeout_ms": (1, None),
    "flush_interval_ms": (1, None),
    "flush_pages_min": (0, None),
    "flush_thorough_interval_ms": (1, None),
    "transient_pool_size": (1, None),
    "commit_interval_ms": (1, None),
    "commit_pages_min": (0, None),
    "commit_thorough_interval_ms": (1, None),
    "queue_flush_interval_ms": (1, None),
    "queue_flush_thorough_interval_ms": (1, None),
    "body_bytes_max": (1, _I32_MAX),
    "file_reserved_hours": (0, None),
    "delete_files_max": (1, None),
    "delete_interval_ms": (0, None),
    "clean_interval_ms": (1, None),
    "disk_used_ratio_max": (0, 100),
    "disk_clean_forcibly_ratio": (0, 100),
    "disk_warning_ratio": (0, 100),
    "scrub_bytes_per_second": (0, None),
    "open_files_max": (8, None),
}


def _setting(apache_name: str, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"apache": apache_name})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Everything the store room can be told. Each field names its RocketMQ property."""

    root: Path = dataclasses.field(metadata={"apache": "storePathRootDir"})
    commit_log_paths: tuple[Path, ...] = _setting("storePathCommitLog", ())
    read_only_commit_log_paths: tuple[Path, ...] = _setting("readOnlyCommitLogStorePaths", ())
    segment_bytes: int = _setting("mappedFileSizeCommitLog", 1 << 30)
    queue_file_bytes: int = _setting("mappedFileSizeConsumeQueue", 300_000 * _QUEUE_ROW_BYTES)
    batch_queue_file_bytes: int = _setting("mapperFileSizeBatchConsumeQueue", 300_000 * 46)
    queue_ext_enabled: bool = _setting("enableConsumeQueueExt", False)
    queue_ext_file_bytes: int = _setting("mappedFileSizeConsumeQueueExt", 48 << 20)
    index_enabled: bool = _setting("messageIndexEnable", True)
    index_slot_count: int = _setting("maxHashSlotNum", 5_000_000)
    index_entry_count: int = _setting("maxIndexNum", 20_000_000)
    query_results_max: int = _setting("maxMsgsNumBatch", 64)

    flush_disk_type: FlushDiskType = _setting("flushDiskType", FlushDiskType.SYNC_FLUSH)
    sync_flush_timeout_ms: int = _setting("syncFlushTimeout", 5000)
    flush_interval_ms: int = _setting("flushIntervalCommitLog", 500)
    flush_pages_min: int = _setting("flushCommitLogLeastPages", 4)
    flush_thorough_interval_ms: int = _setting("flushCommitLogThoroughInterval", 10_000)
    transient_pool_enabled: bool = _setting("transientStorePoolEnable", False)
    transient_pool_size: int = _setting("transientStorePoolSize", 5)
    commit_interval_ms: int = _setting("commitIntervalCommitLog", 200)
    commit_pages_min: int = _setting("commitCommitLogLeastPages", 4)
    commit_thorough_interval_ms: int = _setting("commitCommitLogThoroughInterval", 200)
    queue_flush_interval_ms: int = _setting("flushIntervalConsumeQueue", 1000)
    queue_flush_thorough_interval_ms: int = _setting("flushConsumeQueueThoroughInterval", 60_000)
    segments_prepared_ahead: bool = _setting("contrailPrepareSegments", True)

    body_bytes_max: int = _setting("maxMessageSize", 4 << 20)
    record_crc_enabled: bool = _setting("enabledAppendPropCRC", False)
    record_crc_required: bool = _setting("forceVerifyPropCRC", False)
    crc_checked_on_recover: bool = _setting("checkCRCOnRecover", True)
    delay_levels: str = _setting("messageDelayLevel", DEFAULT_DELAY_LEVELS)

    file_reserved_hours: int = _setting("fileReservedTime", 72)
    delete_when: str = _setting("deleteWhen", "04")
    delete_files_max: int = _setting("deleteFileBatchMax", 10)
    delete_interval_ms: int = _setting("deleteCommitLogFilesInterval", 100)
    clean_interval_ms: int = _setting("cleanResourceInterval", 10_000)
    clean_forcibly: bool = _setting("cleanFileForciblyEnable", True)
    disk_used_ratio_max: int = _setting("diskMaxUsedSpaceRatio", 75)
    disk_clean_forcibly_ratio: int = _setting("diskSpaceCleanForciblyRatio", 85)
    disk_warning_ratio: int = _setting("diskSpaceWarningLevelRatio", 90)

    scrub_bytes_per_second: int = _setting("contrailScrubBytesPerSecond", 8 << 20)
    open_files_max: int = _setting("contrailOpenFilesMax", 800)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _coerced(field, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            _require_range(field, value)
        _require_whole(self.queue_file_bytes, _QUEUE_ROW_BYTES, "mappedFileSizeConsumeQueue")
        _require_whole(
            self.batch_queue_file_bytes, _BATCH_ROW_BYTES, "mapperFileSizeBatchConsumeQueue"
        )
        parse_delay_levels(self.delay_levels)
        parse_delete_hours(self.delete_when)
        _require(
            not (self.transient_pool_enabled and self.syncs_before_ack),
            "transientStorePoolEnable",
            "false with SYNC_FLUSH: what waits in memory cannot be on the disk",
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Read RocketMQ's property names; names that are not the store's are left alone."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = properties.get(field.metadata["apache"])
            if text is not None:
                values[field.name] = _parsed(field, text)
        if "root" not in values:
            raise ConfigError("storePathRootDir is missing: name the folder of the store")
        if "queue_file_bytes" in values:
            # RocketMQ rounds this one up to whole rows.
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
        """The hours of the day in which old segments go."""
        return parse_delete_hours(self.delete_when)

    @property
    def record_crc_check(self) -> int:
        """How strictly record CRCs are looked at: 0 not at all, 1 where they are, 2 everywhere."""
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
    """The RocketMQ properties that are the store's."""
    return frozenset(str(field.metadata["apache"]) for field in dataclasses.fields(StoreConfig))


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


def _parsed(field: dataclasses.Field[Any], text: str) -> Any:
    name = field.metadata["apache"]
    kind = str(field.type)
    try:
        if kind == "bool":
            return _parsed_bool(text)
        if kind == "int":
            return int(text)
        # The rest is read by the settings themselves.
        return text
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} is not a value of that setting: {error}") from error


def _parsed_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _coerced(field: dataclasses.Field[Any], value: Any) -> Any:
    """The value as the field's own type, where text can only mean one thing; else refused."""
    kind = str(field.type)
    if kind == "FlushDiskType":
        return _coerced_flush(field, value)
    if kind == "Path":
        _require_kind(field, value, isinstance(value, str | Path), "a path")
        return Path(value)
    if kind.startswith("tuple"):
        return _coerced_paths(field, value)
    if kind == "bool":
        _require_kind(field, value, isinstance(value, bool), "True or False")
    elif kind == "int":
        is_number = isinstance(value, int) and not isinstance(value, bool)
        _require_kind(field, value, is_number, "a whole number")
    else:
        _require_kind(field, value, isinstance(value, str), "text")
    return value


def _coerced_flush(field: dataclasses.Field[Any], value: Any) -> FlushDiskType:
    # A text that merely looks like the flush type would silently not be it.
    _require_kind(field, value, value in list(FlushDiskType), " or ".join(FlushDiskType))
    return FlushDiskType(value)


def _coerced_paths(field: dataclasses.Field[Any], value: Any) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = [piece for piece in value.split(",") if piece]
    elif isinstance(value, Path):
        value = [value]
    sound = isinstance(value, list | tuple) and all(isinstance(p, str | Path) for p in value)
    _require_kind(field, value, sound, "paths")
    return tuple(Path(piece) for piece in value)


def _require_kind(field: dataclasses.Field[Any], value: Any, holds: bool, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{field.metadata['apache']}={value!r} is refused: it must be {rule}")


def _require_range(field: dataclasses.Field[Any], value: Any) -> None:
    if field.name not in _RANGES:
        return
    lowest, highest = _RANGES[field.name]
    if value < lowest or (highest is not None and value > highest):
        rule = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        name = field.metadata["apache"]
        raise ConfigError(f"{name}={value} is out of range: it must be {rule}")


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is out of range: it must be {rule}")


def _require_whole(value: int, row_bytes: int, name: str) -> None:
    _require(value >= row_bytes and value % row_bytes == 0, name, f"a multiple of {row_bytes}")

"""The broker's own figures at run time, under RocketMQ's keys."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.errors import RecordDamaged
from contrail.kernels import interpreted_kernels
from contrail.model.message import StoredMessage
from contrail.model.topic import SCHEDULE_TOPIC
from contrail.protocol.bodies.runtime_info import (
    WORK_KINDS,
    bytes_text,
    capacity_text,
    runtime_text,
    work_values,
)
from contrail.runtime.build import contrail_version
from contrail.runtime.files import FileSystem
from contrail.store import StoreConfig

VERSION_TEXT = "V5_3_3"
IN_FLIGHT_MAX = 1024
_INT_MAX = (1 << 31) - 1
_DAMAGE_NAMED_MAX = 5
# A message timer is not part of this broker yet: nothing is behind.
_TIMER_VALUES = {
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}


class LogPlaces(Protocol):
    """The part of the store that is reported on."""

    @property
    def physical_min(self) -> int: ...
    @property
    def physical_end(self) -> int: ...
    @property
    def flushed_end(self) -> int: ...
    @property
    def dispatched_end(self) -> int: ...

    def record(self, physical_offset: int) -> StoredMessage: ...
    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...


class RuntimeReport:
    """Collects the figures when it is asked."""

    def __init__(
        self,
        settings: RuntimeSettings,
        stats: BrokerStats,
        store: LogPlaces,
        store_config: StoreConfig,
        *,
        files: FileSystem,
        delay_queue_offsets: Callable[[], Mapping[int, int]] = dict,
        work_sizes: Callable[[], Mapping[str, int]] = dict,
        is_active: Callable[[], bool] = lambda: True,
        damaged: Callable[[], Sequence[object]] = tuple,
        ways: Ways | None = None,
    ) -> None:
        """``work_sizes`` says how many requests wait, by ``send``, ``pull`` and so on.

        ``damaged`` lists the records of the log that are known to be damaged.
        """
        self._damaged = damaged
        self._ways = ways or Ways()
        self._settings = settings
        self._stats = stats
        self._store = store
        self._store_config = store_config
        self._files = files
        self._delay_queue_offsets = delay_queue_offsets
        self._work_sizes = work_sizes
        self._is_active = is_active

    def values(self, now_ms: int) -> dict[str, str]:
        """Every figure as text, by its key."""
        return {
            **self._broker_values(now_ms),
            **self._rate_values(),
            **self._put_values(),
            **self._log_values(),
            **self._disk_values(),
            **self._delay_values(),
            **self._damage_values(),
            **self._way_values(),
            **_TIMER_VALUES,
            **work_values(
                self._work_sizes(),
                dict.fromkeys((*WORK_KINDS, "endTransaction"), IN_FLIGHT_MAX),
            ),
        }

    def _broker_values(self, now_ms: int) -> dict[str, str]:
        accept_ms = self._settings.config.accept_sends_after_ms
        return {
            "brokerActive": str(self._is_active()).lower(),
            "brokerVersionDesc": VERSION_TEXT,
            "contrailVersion": contrail_version(),
            "contrailKernels": "interpreted" if interpreted_kernels() else "compiled",
            "bootTimestamp": str(self._stats.started_ms),
            "runtime": runtime_text(now_ms - self._stats.started_ms),
            "startAcceptSendRequestTimeStamp": str(accept_ms),
            **self._totals("msgPutTotal", "put"),
            **self._totals("msgGetTotal", "get"),
        }

    def _totals(self, prefix: str, kind: str) -> dict[str, str]:
        yesterday, today = self._stats.morning_totals(kind)
        return {
            f"{prefix}YesterdayMorning": str(yesterday),
            f"{prefix}TodayMorning": str(today),
            f"{prefix}TodayNow": str(self._stats.user_total(kind)),
        }

    def _rate_values(self) -> dict[str, str]:
        return {
            "putTps": self._stats.rates("put"),
            "getFoundTps": self._stats.rates("found"),
            "getMissTps": self._stats.rates("miss"),
            "getTotalTps": self._stats.get_rates(),
            "getTransferredTps": self._stats.rates("transferred"),
        }

    def _put_values(self) -> dict[str, str]:
        stats = self._stats
        return {
            "putMessageTimesTotal": str(stats.put_count),
            "putMessageFailedTimes": str(stats.put_failed_count),
            "putMessageSizeTotal": str(stats.put_byte_count),
            "putMessageAverageSize": str(stats.put_byte_count / max(1, stats.put_count)),
            "putMessageEntireTimeMax": str(stats.put_time_max_ms),
            "putMessageDistributeTime": stats.put_time_ranges(),
            "putLatency99": f"{stats.put_time_below_ms(0.99):.2f}",
            "putLatency999": f"{stats.put_time_below_ms(0.999):.2f}",
            "getMessageEntireTimeMax": str(stats.get_time_max_ms),
        }

    def _log_values(self) -> dict[str, str]:
        store, pooled = self._store, self._store_config.transient_pool_enabled
        buffers = self._store_config.transient_pool_size if pooled else _INT_MAX
        return {
            "commitLogMinOffset": str(store.physical_min),
            "commitLogMaxOffset": str(store.physical_end),
            "dispatchBehindBytes": str(store.physical_end - store.dispatched_end),
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
            "remainHowManyDataToFlush": bytes_text(store.physical_end - store.flushed_end),
            "remainTransientStoreBufferNumbs": str(buffers),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
        }

    def _earliest_ms(self) -> int:
        try:
            return self._store.record(self._store.physical_min).store_timestamp_ms
        except RecordDamaged:
            return -1

    def _disk_values(self) -> dict[str, str]:
        ratios = {folder: self._ratio(folder) for folder in self._store_config.log_folders}
        usage = shutil.disk_usage(self._store_config.root)
        return {
            **{f"commitLogDiskRatio_{folder}": str(ratio) for folder, ratio in ratios.items()},
            "commitLogDiskRatio": str(min(ratios.values())),
            "consumeQueueDiskRatio": str(self._ratio(self._store_config.root / "consumequeue")),
            "commitLogDirCapacity": capacity_text(usage.total, usage.free),
        }

    def _damage_values(self) -> dict[str, str]:
        """Keys of our own, and only while there is damage."""
        damaged = self._damaged()
        if not damaged:
            return {}
        return {
            "contrailDamagedRecords": str(len(damaged)),
            "contrailDamaged": "; ".join(map(str, damaged[:_DAMAGE_NAMED_MAX])),
            "contrailStoreFolder": str(self._store_config.root),
        }

    def _way_values(self) -> dict[str, str]:
        """Keys of our own: which ways requests have taken between socket and log."""
        taken = {kind: "" for kind, _, _ in self._ways.rows()}
        for kind, way, count in self._ways.rows():
            taken[kind] += f" {way}={count}" if count else ""
        return {
            "contrailFastPath": str(self._settings.config.fast_path),
            **{f"contrailWays_{kind}": text.strip() for kind, text in taken.items()},
        }

    def _ratio(self, folder: Path) -> float:
        """How full a folder's partition is; -1 for a folder that is not there yet."""
        return self._files.usage_ratio(folder) if self._files.exists(folder) else -1.0

    def _delay_values(self) -> dict[str, str]:
        topic = SCHEDULE_TOPIC.encode()
        return {
            f"scheduleMessageOffset_{level}": (
                f"{queue_offset},{self._store.queue_offset_max(topic, level - 1)}"
            )
            for level, queue_offset in self._delay_queue_offsets().items()
        }

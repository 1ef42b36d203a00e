"""The intervals and bounds of an HA link, by RocketMQ's names where it has one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HaLimits:
    """The same for master and slave; times in milliseconds of a steady clock."""

    heartbeat_interval_ms: int = 5_000
    """``haSendHeartbeatInterval``: a side that sent nothing for this time sends a heartbeat."""
    housekeeping_interval_ms: int = 20_000
    """``haHousekeepingInterval``: a side that received nothing for this time ends the link."""
    transfer_batch_bytes: int = 32 << 10
    """``haTransferBatchSize``: how much of the log goes into one frame for an Apache slave."""
    first_report_ms: int = 10_000
    """How long a master waits for the first report of a slave that connected."""
    reconnect_ms: int = 5_000
    """How long a slave waits before it connects again."""
    slave_count_max: int = 64
    """How many links a master keeps."""
    mismatch_count_max: int = 3
    """After this many frames in a row at a wrong physical offset a slave counts as diverged."""

"""The status of links, as masters and slaves show it to operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contrail.replication.state.refusals import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveStatus:
    """One slave as its master sees it; ``broker_id`` is None for an Apache slave."""

    address: str
    broker_id: int | None
    is_plain: bool
    is_receiving: bool
    acknowledged_end: int
    next_offset: int
    lag_bytes: int
    last_report_ms: int
    """How long ago the slave reported."""
    is_in_sync: bool
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HaMasterStatus:
    """A master's links; ``refusals`` counts ended links by their reason."""

    port: int
    physical_end: int
    replicated_end: int | None
    """None: no answer waits for a slave."""
    in_sync_count: int
    needed_count: int
    slaves: tuple[SlaveStatus, ...]
    refusals: Mapping[str, int]
    last_refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HaSlaveStatus:
    """A slave's own view; ``problem`` is empty while all is well."""

    phase: str
    master_address: str
    is_connected: bool
    physical_end: int
    reported_end: int
    master_end: int | None
    """The end of the master's log as far as it told: None on a plain link."""
    held_bytes: int
    received_bytes: int
    last_received_ms: int
    last_sent_ms: int
    problem: str
    problem_reason: str
    """The same in one word, as masters count it."""
    events: Mapping[str, int]

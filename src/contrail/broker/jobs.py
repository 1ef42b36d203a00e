"""The periodic jobs of a broker, but for those of its message kinds."""

from __future__ import annotations

from collections.abc import Callable

from contrail.broker.handlers.held_pulls import HeldPulls
from contrail.broker.services.acknowledgements import EXPIRE_INTERVAL_MS, Acknowledgements
from contrail.broker.services.group_changes import GroupChanges
from contrail.broker.services.registration import Registration
from contrail.broker.state.stats import BrokerStats
from contrail.broker.tables import Tables
from contrail.clock import Clock
from contrail.runtime.schedule import Schedule
from contrail.store import MessageStore


def register_jobs(
    schedule: Schedule,
    *,
    tables: Tables,
    store: MessageStore,
    stats: BrokerStats,
    acknowledgements: Acknowledgements,
    changes: GroupChanges,
    registration: Registration,
    held: HeldPulls,
    sweep_pulls: Callable[[int], None],
    clock: Clock,
) -> None:
    """Settings that say how often are read each time: some may change while the broker runs."""
    settings = tables.settings
    schedule.every(lambda: store.tick_interval_ms, store.tick, name="store upkeep")
    schedule.every(
        EXPIRE_INTERVAL_MS, lambda now_ms: acknowledgements.expire(), name="late flushes"
    )
    schedule.every(1000, stats.sample, name="statistics")
    schedule.every(1000, tables.persistence.flush_due, name="write tables")
    schedule.every(
        lambda: 5000 if settings.config.long_polling else settings.config.short_polling_ms,
        sweep_pulls,
        name="held pulls",
    )
    schedule.when_over(
        held.end_in_ms,
        lambda now_ms: held.expire(clock.elapsed_ms()),
        name="held pulls that end",
    )
    schedule.every(10_000, changes.expire, name="silent clients")
    # A step of the wall clock ends no lock: another client would handle messages at the same time.
    schedule.every(
        10_000, lambda now_ms: tables.locks.expire(clock.elapsed_ms()), name="queue locks"
    )
    schedule.every(
        1_000,
        lambda now_ms: changes.end_locks_of_gone(clock.elapsed_ms()),
        name="locks of gone clients",
    )
    schedule.every(
        lambda: settings.config.register_interval_ms,
        lambda now_ms: registration.register_soon(is_change=False),
        name="register",
    )
